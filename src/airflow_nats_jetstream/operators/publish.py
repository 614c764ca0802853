# SPDX-License-Identifier: Apache-2.0
"""The operator that publishes messages to a stream."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from airflow_nats_jetstream.compat import NEVER_EXPIRE, forgotten, task_state
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.stream import StreamOperator
from airflow_nats_jetstream.payload import encoded
from airflow_nats_jetstream.signals import instruments, lineage
from airflow_nats_jetstream.template import absent, condition, duration, templated, yes_or_no
from jetstream_client.errors import (
    ConnectionLost,
    DuplicatesPossible,
    InvalidValue,
    JetStreamError,
    PermissionDenied,
    RequestTimeout,
)
from jetstream_client.filters import Filters
from jetstream_client.names import check_stream_name
from jetstream_client.publish.message import headers_of_all, merged_headers
from jetstream_client.publish.schedule import Schedule, Ttl, ttl_text
from jetstream_client.stores.key_value import check_bucket
from jetstream_client.wire.protocol import encode_headers
from jetstream_handoff import times

if TYPE_CHECKING:
    from airflow.sdk import Context

    from jetstream_client.publish.message import Headers
    from jetstream_client.publish.options import PublishOptions
    from jetstream_client.publish.position import Position
    from jetstream_client.wire.settings import ConnectionSettings

Messages = Iterable[Any] | str | Callable[[], Iterable[Any]]

PROGRESS_EVERY = 2.0  # seconds between two lines of progress


class JetStreamPublishOperator(StreamOperator):
    """Publish messages and wait for the stream's answer to each. The task fails unless all messages are stored.

    stream:                  the name of the stream that must store the messages. A message whose subject belongs to
                             another stream is refused. (templated)
    messages:                the messages to publish: a list, the output of another task, the path of a file of JSON
                             lines, or a callable without parameters that returns an iterable and is called when the
                             task runs. A callable suits large numbers of messages best. (templated)
    ttl:                     how long the stream keeps each message that has no ``ttl`` option: a ``timedelta``, an ISO
                             8601 string such as ``PT5M``, or ``"never"``. The stream needs ``allow_msg_ttl``. Default
                             None: as long as the stream's limits allow. (templated)
    headers:                 headers for each message that does not have them, such as ``{"run": "{{ run_id }}"}``. The
                             value of each is a string or a list of strings. No name may begin with ``Nats-``. They are
                             not part of what makes two messages the same in a retry. Default None. (templated)
    atomic:                  whether to store either all messages or none, as one batch of 1 to 1,000 messages. A larger
                             batch is refused before anything is sent; a list that is too long is refused when the DAG
                             is parsed. The stream needs ``allow_atomic`` (nats-server 2.12). Default False.
    expected_last_sequence:  with ``atomic``: the stream's last sequence before the batch. If the stream ends at another
                             sequence, nothing is stored. Default None: not checked. (templated)
    objects:                 the name of the object store for payloads larger than the server's ``max_payload``. In the
                             place of such a message, the stream gets one that refers to the object, with its digest and
                             size in its headers. The object store must keep objects at least as long as the stream
                             keeps messages. Default None: such messages are refused. (templated)
    accept_duplicates:       whether to publish even if it is unknown which messages an earlier attempt stored.
                             Default False.
    trace_context:           whether to add the header ``traceparent`` to each message that has none, when Airflow
                             records traces (docs/monitoring.md). Default True.
    nats_conn_id:            the id of the Airflow connection. Default ``nats_default``. (templated)

    A message is ``(subject, data)``, ``(subject, data, headers)``, or a mapping with these names and with options for
    this message: ``msg_id``, ``expected_last_subject_sequence``, ``expected_last_subject``, ``rollup``, ``ttl`` (a
    ``timedelta``, an ISO 8601 string such as ``PT5M``, seconds, or ``"never"``), ``schedule`` (a
    :class:`~jetstream_client.publish.schedule.Schedule`, or a mapping of its fields, in which ``when`` may be an ISO
    8601 string) and ``increment``. See :class:`~jetstream_client.publish.options.PublishOptions`. ``data`` is bytes, a
    string (sent as UTF-8) or any other JSON value (sent as JSON; None is ``null``, and an empty string an empty
    payload). A value that JSON cannot represent, such as a Decimal, a date, a UUID or NaN, is refused: convert it.

    A task that is retried or cleared does not store messages again that the same run has already stored. Each message
    gets a ``Nats-Msg-Id`` made from run, task, content and occurrence. Before the first message is sent, the end of the
    stream is recorded in the task's state (key ``jetstream_position_<stream>``). A later try finds the messages that
    the stream has stored since then, and sends the others. If it cannot find all of them, it fails with
    DuplicatesPossible, unless ``accept_duplicates`` is set. docs/publishing.md describes the limits of this.

    Returns ``{"stream", "stored", "duplicates", "first", "last", "in_order"}``: how many messages this try stored and
    how many were stored before, the lowest and the highest stream sequence of both, and whether the stream has them in
    the given order. ``dry_run`` prints how many messages would be published.

    Raises:
        InvalidValue: an invalid parameter, or an invalid message of a list without templates, raised when the DAG is
            parsed; or the same in a value that is known only when the task runs.
        DuplicatesPossible: it is unknown which messages an earlier attempt stored, or the stream contains only some
            messages of an atomic batch. Nothing was sent.
        BucketNotFound, BucketUnsuitable: the object store does not exist, or could lose an object before its message.
            Nothing was sent.
        PublishFailed: a message is invalid, or it, or its object, was not stored. The error names the first such
            message, the reason, and how many messages were stored.
        BatchRefused, WrongLastSequence: with ``atomic``, the batch was refused. Nothing was stored.
        StreamNotFound: the stream does not exist.
    """

    template_fields: Sequence[str] = (
        *("stream", "messages", "ttl", "headers", "expected_last_sequence", "objects", "nats_conn_id"),
    )
    get_openlineage_facets_on_complete = lineage.written

    def __init__(
        self,
        *,
        messages: Messages,
        ttl: Ttl | str | None = None,
        headers: Headers | None = None,
        atomic: bool = False,
        expected_last_sequence: int | str | None = None,
        objects: str | None = None,
        accept_duplicates: bool = False,
        trace_context: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # Airflow would call a callable in a template field, with its own arguments.
        self.producer = messages if callable(messages) else None
        self.messages = None if callable(messages) else messages
        self.ttl: Any = ttl  # it may be a template until the task runs
        self.headers = {} if headers is None else headers
        self.atomic = yes_or_no("atomic", atomic)
        self.expected_last_sequence = expected_last_sequence
        self._condition = expected_last_sequence
        self.objects = objects
        self.accept_duplicates = yes_or_no("accept_duplicates", accept_duplicates)
        self.trace_context = yes_or_no("trace_context", trace_context)
        self.published: int | None = None
        self._stop = threading.Event()
        if not (self.producer or isinstance(messages, str | list | tuple) or templated(messages)):
            remedy = (
                "a value of this type has no messages; give a callable, a list, the path of a file, or another "
                "task's output"
            )
            raise InvalidValue("messages", type(messages), remedy)
        if not templated(ttl):
            self._ttl()
        headers_of_all(_known(self.headers))
        if not (absent(objects) or templated(objects)):
            check_bucket(objects, "objects")
        if expected_last_sequence is not None and not self.atomic:
            remedy = "it applies only to an atomic batch; set atomic=True, or leave it out"
            raise InvalidValue("expected_last_sequence", expected_last_sequence, remedy)
        if not templated(expected_last_sequence):
            self._expected()
        if isinstance(messages, list | tuple):
            if self.atomic:
                _check_size(len(messages))
            for _ in _valid(messages, None, rendered=False):
                pass

    def execute(self, context: Context) -> dict[str, Any]:
        check_stream_name(self.stream)
        headers = headers_of_all(self.headers)
        start = time.monotonic()
        with instruments.publishing(self.stream) as carried:
            result = self._publish(context, {**(carried if self.trace_context else {}), **headers})
            instruments.published(self.stream, result["stored"], result["duplicates"], time.monotonic() - start)
        self.published = result["stored"] + result["duplicates"]
        return result

    def _publish(self, context: Context, headers: Headers) -> dict[str, Any]:
        from jetstream_client.publish.bulk import publish_all
        from jetstream_client.publish.position import Position

        ti, start = context["ti"], time.monotonic()
        settings, ttl = JetStreamHook(self.nats_conn_id).settings, self._ttl()
        messages = self._messages()
        state, key = task_state(context), f"jetstream_position_{self.stream}"
        kept = state.get(key)
        if kept is None and not self.accept_duplicates and (why := forgotten(state, context)):
            raise DuplicatesPossible(self.stream, why)
        since = self._begin(settings, state, key) if kept is None else Position.from_json(kept)
        scope = "/".join((ti.dag_id, ti.run_id, ti.task_id, str(ti.map_index)))
        if self.atomic:
            return self._publish_batch(settings, messages, scope, since, headers, first=kept is None)
        published = publish_all(
            settings,
            self._referring(settings, (_message(each, ttl) for each in messages), scope),
            stream=self.stream,
            scope=scope,
            since=since,
            first=kept is None,
            accept_duplicates=self.accept_duplicates,
            headers=headers,
            progress=_Progress(self.log, start),
            stop=self._stop.is_set,
        )
        seconds = time.monotonic() - start
        self.log.info(
            "stream %s has stored all %s messages, %s of them for an earlier attempt, in %.1f s (%s per second)",
            self.stream,
            f"{published.count:,}",
            f"{published.duplicates:,}",
            seconds,
            f"{published.count / max(seconds, 0.001):,.0f}",
        )
        return asdict(published)

    def dry_run(self) -> None:
        """Print how many messages :meth:`execute` would publish. A callable is not called."""
        check_stream_name(self.stream)
        ttl = self._ttl()
        config = JetStreamHook(self.nats_conn_id).run(lambda js: js.stream(self.stream).info()).config
        if self.producer is not None:
            name = getattr(self.producer, "__name__", "a callable")
            self.log.info("would publish to stream %s the messages that %s returns", self.stream, name)
            return
        subjects = [subject for subject, *_ in _valid(self._messages(), ttl)]
        if self.atomic:
            _check_size(len(subjects))
        listens = Filters(config.get("subjects") or ())
        foreign = [each for each in subjects if listens.selecting(each) is None]
        self.log.info("would publish %s messages to stream %s", f"{len(subjects):,}", self.stream)
        if foreign:
            said = "stream %s does not listen on the subjects of %d of these messages; the first such subject is %s"
            self.log.warning(said, self.stream, len(foreign), foreign[0])

    def on_kill(self) -> None:
        """Stop sending, so that the task ends as failed."""
        self._stop.set()

    def _begin(self, settings: ConnectionSettings, state: Any, key: str) -> Position | None:
        """Return the current end of the stream, and keep it in the task's state, because a retry clears XCom."""
        from jetstream_client.publish.position import Position

        try:
            position = Position.current(settings, self.stream)
        except (PermissionDenied, RequestTimeout) as silence:
            if not self.accept_duplicates:
                raise
            self.log.warning(
                "a retry will not know which messages this try stored, because the stream cannot be read: %s", silence
            )
            return None
        state.set(key, position.to_json(), retention=NEVER_EXPIRE)
        return position

    def _referring(self, settings: ConnectionSettings, messages: Iterable[Any], scope: str) -> Iterable[Any]:
        """Return the messages, of which large ones refer to objects if there is an object store for them."""
        if absent(self.objects):
            return messages
        from jetstream_client.stores.objects import referring

        return referring(settings, messages, str(self.objects), stream=self.stream, scope=scope)

    def _publish_batch(
        self,
        settings: ConnectionSettings,
        messages: Iterable[Any],
        scope: str,
        since: Position | None,
        added: Headers,
        *,
        first: bool,
    ) -> dict[str, Any]:
        """Publish all messages or none. A later try first looks for the messages that the stream has stored since the
        position, and so does any try whose answer was lost."""
        from jetstream_client.publish.ids import MessageIds
        from jetstream_client.publish.position import find_batch

        ids = MessageIds(scope)
        batch: list[tuple[str, bytes, dict[str, Any]]] = []
        for subject, data, *given in self._referring(settings, _valid(messages, self._ttl()), scope):
            _check_size(len(batch) + 1)
            headers = dict(given[0]) if given else {}
            identity = ids.next(subject, data, encode_headers(headers) if headers else b"")
            batch.append((subject, data, {"Nats-Msg-Id": identity, **added, **headers}))
        _check_size(len(batch))
        identities = [str(headers["Nats-Msg-Id"]).encode() for *_, headers in batch]
        look = partial(find_batch, settings, since, ids, identities, accept_duplicates=self.accept_duplicates)
        result: dict[str, Any] = {"stream": self.stream, "stored": 0, "duplicates": 0, "in_order": True}
        if not first and (found := look()):
            self.log.info(
                "stream %s had already stored the batch for an earlier attempt, so nothing was sent", self.stream
            )
            return {**result, "duplicates": len(batch), "first": found[0], "last": found[1]}
        expected = self._expected()
        try:
            ack = JetStreamHook(self.nats_conn_id).run(
                lambda js: js.publish_batch(batch, expected_stream=self.stream, expected_last_sequence=expected)
            )
            stored = ack.seq - len(batch) + 1, ack.seq
        except (ConnectionLost, RequestTimeout) as lost:  # the batch may be stored
            found = None
            with contextlib.suppress(JetStreamError):  # otherwise a retry looks
                found = look()
            if found is None:
                raise
            self.log.warning("stream %s has stored the batch, although its answer was lost: %s", self.stream, lost)
            stored = found
        self.log.info("stream %s has stored all %s messages as one batch", self.stream, f"{len(batch):,}")
        return {**result, "stored": len(batch), "first": stored[0], "last": stored[1]}

    def _ttl(self) -> Ttl | None:
        if absent(self.ttl):
            return None
        ttl = self.ttl if self.ttl == "never" else duration("ttl", self.ttl)
        ttl_text(ttl)
        return ttl

    def _expected(self) -> int | None:
        return condition("expected_last_sequence", self.expected_last_sequence, self._condition, 0)

    def _messages(self) -> Iterable[Any]:
        if self.producer is not None:
            return self.producer()
        if isinstance(self.messages, str):
            path = Path(self.messages)
            for _ in _lines(path):
                pass  # so that a broken line is found before the first message is sent
            return _lines(path)
        return self.messages or ()


@dataclass
class _Progress:
    """Says how many messages are stored so far, every two seconds."""

    log: Any
    start: float
    said: float = 0.0

    def __call__(self, answered: int) -> None:
        now = time.monotonic()
        if now - max(self.start, self.said) >= PROGRESS_EVERY:
            self.said = now
            rate = f"{answered / (now - self.start):,.0f}"
            self.log.info("%s messages stored so far, %s per second", f"{answered:,}", rate)


def _message(value: Any, ttl: Ttl | None) -> Any:
    """Return a message as the client accepts it. An invalid message is returned unchanged, because the client refuses
    it with an error that names its position.

    ttl:  the TTL of a message that has none.
    """
    options: dict[str, Any] = {}
    if isinstance(value, Mapping) and {"subject", "data"} <= value.keys():
        names = ("subject", "data", "headers")
        options = _options({name: option for name, option in value.items() if name not in names})
        value = (value["subject"], value["data"], value.get("headers") or {})
    if not isinstance(value, list | tuple) or len(value) not in (2, 3):
        return value
    subject, data, *headers = value
    data = b"" if data is None and "increment" in options else encoded("data", data)
    if ttl is not None:
        options.setdefault("ttl", ttl)
    if not options:
        return (subject, data, *headers)
    given = headers[0] if headers else {}
    return subject, data, merged_headers(subject, data, given, cast("PublishOptions", options))


def _valid(messages: Iterable[Any], ttl: Ttl | None, *, rendered: bool = True) -> Iterator[tuple[Any, ...]]:
    """Yield the result of :func:`_message` for each message.

    rendered:  whether the messages are rendered. Otherwise, those with a template are left out.

    Raises:
        InvalidValue: a message is invalid. The error names its position.
    """
    for number, value in enumerate(messages):
        if not rendered and templated(value):
            continue
        try:
            message = _message(value, ttl)
            if isinstance(message, tuple) and len(message) in (2, 3) and isinstance(message[0], str):
                subject, data, *given = message
                encode_headers(merged_headers(subject, data, given[0] if given else None, {}))
                yield message
                continue
        except InvalidValue as wrong:
            raise InvalidValue(f"messages[{number}].{wrong.field}", wrong.value, wrong.remedy) from None
        remedy = (
            "a value of this type is not a message; give (subject, data), (subject, data, headers), or a mapping with "
            "the keys 'subject' and 'data'"
        )
        raise InvalidValue(f"messages[{number}]", type(value), remedy)


def _known(headers: object) -> object:
    """Return the headers as far as they are known before Airflow renders them: templates are left out."""
    if isinstance(headers, Mapping):
        return {name: "" if templated(value) else value for name, value in headers.items()}
    return {} if templated(headers) else headers


def _lines(path: Path) -> Iterator[Any]:
    try:
        file = path.open(encoding="utf-8")
    except OSError as error:
        remedy = f"the file cannot be read ({error.strerror}); give the path of a file of JSON lines"
        raise InvalidValue("messages", str(path), remedy) from None
    with file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError:
                raise InvalidValue("messages", f"{path}:{number}", "this line is not JSON") from None


def _check_size(count: int) -> None:
    from jetstream_client.publish.batch import MAX_MESSAGES

    if not 1 <= count <= MAX_MESSAGES:
        instead = "use several tasks" if count else "give at least one message"
        remedy = f"an atomic batch has 1 to {MAX_MESSAGES} messages; {instead}, or set atomic=False"
        raise InvalidValue("messages", f"{count} or more" if count > MAX_MESSAGES else count, remedy)


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a message, with a TTL and a schedule converted from the forms that JSON can contain: a TTL
    as seconds or ISO 8601, a schedule as a mapping of its fields."""
    options = dict(given)
    if options.get("ttl") is not None:
        options["ttl"] = _ttl("ttl", options["ttl"])
    if isinstance(schedule := options.get("schedule"), Mapping):
        fields = dict(schedule)
        if fields.get("ttl") is not None:
            fields["ttl"] = _ttl("schedule.ttl", fields["ttl"])
        if "when" in fields:
            fields["when"] = _when(fields["when"])
        try:
            options["schedule"] = Schedule(**fields)
        except TypeError as error:
            raise InvalidValue("schedule", dict(schedule), f"give the fields of a Schedule ({error})") from None
    return options


def _ttl(name: str, value: Any) -> Ttl:
    """Return a TTL, which may also be a number of seconds, as in JSON. Raises InvalidValue."""
    if value == "never":
        return "never"
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return timedelta(seconds=value)
        except (ValueError, OverflowError) as error:
            raise InvalidValue(name, value, f"give seconds within the range of a timedelta ({error})") from None
    return duration(name, value)


def _when(value: Any) -> Any:
    """Return an ISO 8601 time or duration as :class:`Schedule` accepts it, and any other value unchanged."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return times.duration(value)
        with contextlib.suppress(ValueError):
            return f"@at {times.instant(value)}"
    return value
