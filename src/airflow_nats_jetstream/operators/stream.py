# SPDX-License-Identifier: Apache-2.0
"""Operators on streams: create or update, delete and purge."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import BaseOperator

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.links import JetStreamLink
from airflow_nats_jetstream.operators.configuration import ConfigurationOperator
from airflow_nats_jetstream.operators.fields import STREAM
from airflow_nats_jetstream.template import check_rendered, condition, templated, yes_or_no
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
    """Create a stream, or change those fields of an existing stream that differ from ``config``. Fields that ``config``
    does not name stay unchanged.

    config:        the configuration with the server's own field names, for example
                   ``{"name": "ORDERS", "subjects": ["orders.>"]}``: a mapping, a dataclass, or the path of a YAML or
                   JSON file next to the DAG's file. Durations are ``timedelta`` values, strings such as ``24h`` or
                   ``PT5M``, or nanoseconds. Times are ``datetime`` values with a time zone, or ISO 8601 strings with
                   one. (templated, and so is the content of the file)
    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. (templated)

    A second run changes nothing. The log shows each changed field with its old and its new value.

    Returns ``{"stream": name, "created": bool, "changed": [field, …]}``. ``dry_run`` prints the difference.

    Raises:
        InvalidValue: a field that JetStream does not have, or a value that it forbids. Raised when the DAG is parsed,
            unless the value is templated. The error names the file, its line, the field and the remedy.
        UpdateRefused: the server refuses to change a field. The error names the field, its current and its requested
            value, and the remedy.
        ApiError: the server refuses to create the stream.
    """

    template_fields: Sequence[str] = ("config", "nats_conn_id")
    _fields = STREAM
    _identity = ("stream",)

    @property
    def stream(self) -> str | None:
        """The name of the stream; None until the task knows it."""
        return self._name

    def _checked(self, config: dict[str, Any]) -> dict[str, Any]:
        return check_stream_config(config)

    def _handle(self, js: JetStream, name: str) -> Stream:
        return js.stream(name)

    def _create(self, js: JetStream, wanted: dict[str, Any]) -> Awaitable[Any]:
        return js.create_stream(wanted)


class StreamOperator(BaseOperator):
    """Base of the operators on one stream.

    stream:        the name of the stream. (templated)
    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. (templated)
    """

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
        """Check the rendered names. Raises InvalidValue."""
        check_stream_name(self.stream)

    def _run(self, function: Callable[[JetStream], Awaitable[Result]]) -> Result:
        """Check the rendered names, then return the result of :meth:`JetStreamHook.run`."""
        self._check_names()
        return JetStreamHook(self.nats_conn_id).run(function)


class JetStreamDeleteStreamOperator(StreamOperator):
    """Delete a stream, with its messages and consumers.

    stream:               the name of the stream. Deleting a stream that does not exist succeeds. (templated)
    despite_open_claims:  whether to delete the stream while claims of its messages are open. These claims are
                          superseded first, so the attempts that work on them stop and cannot settle them. Default
                          False: the deletion is refused, and the error names the claims.
    nats_conn_id:         the id of the Airflow connection. Default ``nats_default``. (templated)

    Returns ``{"stream", "deleted": bool, "messages": number of messages it had, "superseded": [claim id, …]}``.
    ``dry_run`` prints what would be deleted.

    Raises:
        InvalidValue: a name that JetStream forbids. Raised when the DAG is parsed, unless the name is templated.
        DeletionRefused: claims are open. The error names the claims and the remedy.
        LedgerUnavailable: the ledger cannot be read, so it is unknown whether claims are open.
    """

    template_fields: Sequence[str] = ("stream", "nats_conn_id")

    def __init__(self, *, despite_open_claims: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.despite_open_claims = yes_or_no("despite_open_claims", despite_open_claims)

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        from jetstream_handoff.repair.deletion import delete

        gone = self._run(lambda js: delete(js, self.stream, despite_open_claims=self.despite_open_claims))
        if gone is None:
            self.log.warning("stream %s does not exist, so nothing was deleted", self.stream)
            return {"stream": self.stream, "deleted": False, "messages": 0, "superseded": []}
        self.log.info("stream %s and its %d messages were deleted", self.stream, gone.messages)
        superseded = list(gone.superseded)
        return {"stream": self.stream, "deleted": True, "messages": gone.messages, "superseded": superseded}

    def dry_run(self) -> None:
        """Print what :meth:`execute` would delete."""
        from jetstream_handoff.repair.deletion import plan

        found = self._run(lambda js: plan(js, self.stream))
        self.log.info("%s", found.describe() if found else f"stream {self.stream} does not exist")


class JetStreamPurgeOperator(StreamOperator):
    """Remove messages from a stream, and return how many were removed.

    stream:        the name of the stream. (templated)
    subject:       remove only messages whose subject matches this filter. Default None: any subject. (templated)
    sequence:      remove only messages below this stream sequence. Default None: up to the end. (templated)
    keep:          how many of the last messages to keep; not together with ``sequence``. Default None. (templated)
    everything:    must be True to purge the whole stream, without ``subject``, ``sequence`` and ``keep``. Default
                   False.
    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. (templated)

    ``dry_run`` prints how many messages would be removed.

    Raises:
        InvalidValue: ``sequence`` and ``keep`` are both given, one of them is 0, or nothing is selected. Raised when
            the DAG is parsed, unless one of the values is templated. Also if a template has no value, without which
            more messages would be selected.
        StreamNotFound: the stream does not exist.
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
        self._conditions = {"subject": subject, "sequence": sequence, "keep": keep}
        self.everything = yes_or_no("everything", everything)
        if not templated([subject, sequence, keep]):
            self._check()

    def _check(self) -> dict[str, Any]:
        given, why = self._conditions, "; 0 would select every message"
        numbers = {name: condition(name, getattr(self, name), given[name], 1, why) for name in ("sequence", "keep")}
        if given["subject"] is not None:
            check_rendered("subject", self.subject)
        subject = self.subject or None
        if subject is not None:
            check_filter(subject, "subject")
        if numbers["sequence"] is not None and numbers["keep"] is not None:
            raise InvalidValue("keep", numbers["keep"], "give either 'sequence' or 'keep', not both")
        if self.everything and (subject is not None or set(numbers.values()) != {None}):
            raise InvalidValue("everything", True, "leave out either 'everything', or 'subject', 'sequence' and 'keep'")
        if not self.everything and subject is None and set(numbers.values()) == {None}:
            remedy = "give 'subject', 'sequence' or 'keep'; to purge the whole stream, give everything=True"
            raise InvalidValue("everything", False, remedy)
        return {"subject": subject, **numbers}

    def execute(self, context: Context) -> int:  # noqa: ARG002
        which = self._check()
        purged = self._run(lambda js: js.stream(self.stream).purge(**which))
        self.log.info("stream %s: %d messages were purged", self.stream, purged)
        return purged

    def dry_run(self) -> None:
        """Print how many messages :meth:`execute` would remove now."""
        which = self._check()

        async def count(js: JetStream) -> str:
            return purged(await js.stream(self.stream).info(deleted=True, subjects_filter=which["subject"]), **which)

        self.log.info("stream %s: %s would be purged", self.stream, self._run(count))


def purged(info: StreamInfo, *, subject: str | None, sequence: int | None, keep: int | None) -> str:
    """Return how many messages a purge would remove, in words.

    info:      the stream's INFO, with the sequences of deleted messages and the number of messages of each subject.
    subject:   the subject filter, or None.
    sequence:  the sequence below which messages are removed, or None.
    keep:      how many messages are kept, or None.
    """
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
