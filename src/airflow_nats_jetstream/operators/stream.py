"""Streams: create or update, purge, delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseOperator

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.links import JetStreamLink
from airflow_nats_jetstream.operators.configuration import ConfigurationOperator
from airflow_nats_jetstream.operators.fields import STREAM
from airflow_nats_jetstream.template import optional_number, templated
from jetstream_client.config import check_stream_config
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_filter, check_stream_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from jetstream_client.context import JetStream
    from jetstream_client.info import StreamInfo
    from jetstream_client.stream import Stream

Result = TypeVar("Result")


class JetStreamCreateStreamOperator(ConfigurationOperator):
    """Create a stream, or change the fields that differ and leave every other field as it is.

    config:  the server's own fields, e.g. ``{"name": "ORDERS", "subjects": ["orders.>"]}``: a mapping, a dataclass, or
             the path of a YAML or JSON file next to the DAG's file. Durations are ``timedelta``, strings such as
             ``24h`` or ``PT5M``, or nanoseconds; times are any ``datetime`` with a time zone, or ISO 8601 strings with
             one. (templated, what is in the file, too)

    Run twice, it changes nothing the second time. The log shows each field that was changed, what it was and is.

    Returns ``{"stream": name, "created": bool, "changed": [field, …]}``. ``dry_run`` prints the difference.

    Raises:
        InvalidValue: a field that JetStream does not have, or a value that it forbids; when the DAG is parsed, unless
            it is templated. Names the file, its line, the field and what to do.
        UpdateRefused: the server does not change it: names the field, its value, the wanted value, and what to do.
        ApiError: the server refuses to create it.
    """

    template_fields: Sequence[str] = ("config", "nats_conn_id")
    _fields = STREAM
    _identity = ("stream",)

    @property
    def stream(self) -> str | None:
        """Its name, once the task knows it."""
        return self._name

    def _checked(self, config: dict[str, Any]) -> dict[str, Any]:
        return check_stream_config(config)

    def _handle(self, js: JetStream, name: str) -> Stream:
        return js.stream(name)

    def _create(self, js: JetStream, wanted: dict[str, Any]) -> Awaitable[Any]:
        return js.create_stream(wanted)


class StreamOperator(BaseOperator):
    """An operator on one stream: its name, the connection, and the link to its page."""

    ui_color = "#27aae1"
    ui_fgcolor = "#ffffff"
    operator_extra_links = (JetStreamLink(),)

    def __init__(self, *, stream: str, nats_conn_id: str = JetStreamHook.default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stream = stream
        self.nats_conn_id = nats_conn_id
        if not templated(stream):
            check_stream_name(stream)

    def _check_names(self) -> None:
        """Raises InvalidValue."""
        check_stream_name(self.stream)

    def _run(self, function: Callable[[JetStream], Awaitable[Result]]) -> Result:
        """:meth:`JetStreamHook.run`, once the rendered names are checked."""
        self._check_names()
        return JetStreamHook(self.nats_conn_id).run(function)


class JetStreamDeleteStreamOperator(StreamOperator):
    """Delete a stream, with its messages and consumers.

    stream:               the stream. Deleting one that does not exist succeeds. (templated)
    despite_open_claims:  also while claims of its messages are open: they are superseded first, so the attempts that
                          work on them stop and cannot settle. Default False: refused, and the claims are named.

    Returns ``{"stream", "deleted": bool, "messages": how many it held, "superseded": [claim id, …]}``. ``dry_run``
    prints what would be deleted.

    Raises:
        InvalidValue: a name that JetStream forbids; when the DAG is parsed, unless it is templated.
        DeletionRefused: claims are open; which ones, and what to do.
        LedgerUnavailable: it cannot be told whether claims are open.
    """

    template_fields: Sequence[str] = ("stream", "nats_conn_id")

    def __init__(self, *, despite_open_claims: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.despite_open_claims = despite_open_claims

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        from jetstream_handoff.deletion import delete

        gone = self._run(lambda js: delete(js, self.stream, despite_open_claims=self.despite_open_claims))
        if gone is None:
            self.log.warning("stream %s does not exist: nothing is deleted", self.stream)
            return {"stream": self.stream, "deleted": False, "messages": 0, "superseded": []}
        self.log.info("stream %s is deleted, and with it %d messages", self.stream, gone.messages)
        superseded = list(gone.superseded)
        return {"stream": self.stream, "deleted": True, "messages": gone.messages, "superseded": superseded}

    def dry_run(self) -> None:
        """Print what :meth:`execute` would delete."""
        from jetstream_handoff.deletion import plan

        found = self._run(lambda js: plan(js, self.stream))
        self.log.info("%s", found.describe() if found else f"stream {self.stream} does not exist")


class JetStreamPurgeOperator(StreamOperator):
    """Remove messages from a stream; returns how many.

    subject:     only those that match this filter. (templated)
    sequence:    only those below it, not including it. (templated)
    keep:        all but the last so many. (templated)
    everything:  must be True to purge without any of the three.

    Raises:
        InvalidValue: when the DAG is parsed: both sequence and keep, 0 for either, or nothing and not ``everything``.
        StreamNotFound: there is no such stream.
    """

    template_fields: Sequence[str] = ("stream", "subject", "sequence", "keep", "nats_conn_id")

    def __init__(
        self,
        *,
        subject: str | None = None,
        sequence: int | None = None,
        keep: int | None = None,
        everything: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.subject = subject
        self.sequence = sequence
        self.keep = keep
        self.everything = everything
        if not templated([subject, sequence, keep]):
            self._check()

    def _check(self) -> dict[str, Any]:
        numbers = {
            name: optional_number(name, value, 1, "; the server takes 0 for everything")
            for name, value in (("sequence", self.sequence), ("keep", self.keep))
        }
        subject = self.subject or None
        if subject is not None:
            check_filter(subject, "subject")
        if numbers["sequence"] is not None and numbers["keep"] is not None:
            raise InvalidValue("keep", numbers["keep"], "give sequence or keep, not both")
        if self.everything and (subject is not None or set(numbers.values()) != {None}):
            raise InvalidValue("everything", True, "not together with subject, sequence or keep")
        if not self.everything and subject is None and set(numbers.values()) == {None}:
            raise InvalidValue("everything", False, "a purge of the whole stream needs everything=True")
        return {"subject": subject, **numbers}

    def execute(self, context: Context) -> int:  # noqa: ARG002
        which = self._check()
        purged = self._run(lambda js: js.stream(self.stream).purge(**which))
        self.log.info("stream %s: %d messages purged", self.stream, purged)
        return purged

    def dry_run(self) -> None:
        """Print how many messages :meth:`execute` would remove now."""
        which = self._check()

        async def count(js: JetStream) -> str:
            return purged(await js.stream(self.stream).info(deleted=True, subjects_filter=which["subject"]), **which)

        self.log.info("stream %s: %s would be purged", self.stream, self._run(count))


def purged(info: StreamInfo, *, subject: str | None, sequence: int | None, keep: int | None) -> str:
    """How many messages a purge would remove, in words."""
    state = info.state
    matching = state["messages"] if subject is None else sum((state.get("subjects") or {}).values())
    if keep is not None:
        matching = max(0, matching - keep)
    if sequence is not None:
        gone = sum(each < sequence for each in state.get("deleted") or ())
        below = max(0, min(sequence, state["last_seq"] + 1) - state["first_seq"] - gone)
        if subject is not None:
            return f"at most {min(below, matching)} messages"
        matching = below
    return f"{matching} messages"
