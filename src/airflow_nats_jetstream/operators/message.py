"""Stored messages: get one, delete one."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_nats_jetstream.operators.stream import StreamOperator
from airflow_nats_jetstream.template import instant, optional_number, templated, whole_number
from jetstream_client.errors import JetStreamError, MessageDeleteFailed, MessageNotFound, SequenceNotFound
from jetstream_client.names import check_filter

if TYPE_CHECKING:
    from airflow.sdk import Context

    from jetstream_client.context import JetStream
    from jetstream_client.read.message import StoredMessage

LARGEST_DATA = 256 << 10
"""Bytes of a message that may become an XCom: Airflow's database keeps each of them, for every run."""


class JetStreamGetMessageOperator(StreamOperator):
    """Get one stored message, from the stream's leader. Nothing is acknowledged or removed.

    stream:           which. (templated)
    sequence:         the one with this sequence; with ``next_by_subject`` the first from there on. (templated)
    next_by_subject:  the first whose subject matches this filter. (templated)
    last_by_subject:  the last whose subject matches this filter. (templated)
    start_time:       the first that was stored then or later: a ``datetime`` with a time zone (pendulum's, too), or an
                      ISO 8601 string with one, such as ``{{ data_interval_start }}``; needs nats-server 2.11.
                      (templated)

    Returns ``{"stream", "subject", "sequence", "time", "headers": {name: [value, …]}, "data", "encoding"}``: ``data``
    is the payload as a text, with the encoding ``utf-8``, or ``base64`` where it is no text. ``dry_run`` prints which
    message that is now.

    Raises:
        InvalidValue: a choice that contradicts itself; when the DAG is parsed, unless it is templated.
        MessageNotFound: no message matches.
        JetStreamError: its data is larger than 256 KiB, which is no XCom.
        StreamNotFound: there is no such stream.
    """

    template_fields: Sequence[str] = (
        "stream",
        "sequence",
        "next_by_subject",
        "last_by_subject",
        "start_time",
        "nats_conn_id",
    )

    def __init__(
        self,
        *,
        sequence: int | str | None = None,
        next_by_subject: str | None = None,
        last_by_subject: str | None = None,
        start_time: datetime | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sequence = sequence
        self.next_by_subject = next_by_subject
        self.last_by_subject = last_by_subject
        self.start_time = start_time
        if not templated([sequence, next_by_subject, last_by_subject, start_time]):
            self._selection()

    def _selection(self) -> dict[str, Any]:
        from jetstream_client.read.stored import selection

        which: dict[str, Any] = {
            "sequence": optional_number("sequence", self.sequence),
            "next_by_subject": self.next_by_subject or None,
            "last_by_subject": self.last_by_subject or None,
            "start_time": instant("start_time", self.start_time) if self.start_time else None,
        }
        for name in ("next_by_subject", "last_by_subject"):
            if which[name] is not None:
                check_filter(which[name], name)
        selection(*which.values())
        return which

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        message = self._get()
        if len(message.data) > LARGEST_DATA:
            raise JetStreamError(
                f"message {message.sequence} of stream {self.stream!r} has {len(message.data)} bytes, more than the "
                f"{LARGEST_DATA} that may become an XCom: claim it, or read it in a task with JetStreamHook"
            )
        try:
            data, encoding = message.data.decode(), "utf-8"
        except UnicodeDecodeError:
            data, encoding = base64.b64encode(message.data).decode(), "base64"
        self.log.info("message %d of stream %s: %s", message.sequence, self.stream, message.subject)
        return {
            "stream": self.stream,
            "subject": message.subject,
            "sequence": message.sequence,
            "time": message.time,
            "headers": message.headers,
            "data": data,
            "encoding": encoding,
        }

    def dry_run(self) -> None:
        """Print which message :meth:`execute` would get now."""
        message = self._get()
        what = f"{message.subject}, stored {message.time}, {len(message.data)} bytes"
        self.log.info("would get message %d of stream %s: %s", message.sequence, self.stream, what)

    def _get(self) -> StoredMessage:
        which = self._selection()
        return self._run(lambda js: js.stream(self.stream).get_message(**which))


class JetStreamDeleteMessageOperator(StreamOperator):
    """Delete one stored message. A claim that has it cannot be read any more, and says so.

    stream, sequence:  the message. Deleting one that does not exist any more succeeds. (templated)
    secure:            overwrite its bytes on the disk, too, which is slow. Default False.

    Returns ``{"stream", "sequence", "deleted": bool}``. ``dry_run`` prints which message that is.

    Raises:
        InvalidValue: names or sequence; when the DAG is parsed, unless they are templated.
        MessageDeleteFailed: the stream has not come to that sequence yet, or has ``deny_delete``.
        StreamNotFound: there is no such stream.
    """

    template_fields: Sequence[str] = ("stream", "sequence", "nats_conn_id")

    def __init__(self, *, sequence: int | str, secure: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sequence = sequence
        self.secure = secure
        if not templated(sequence):
            whole_number("sequence", sequence)

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        sequence = whole_number("sequence", self.sequence)

        async def run(js: JetStream) -> bool:
            stream = js.stream(self.stream)
            try:
                await (stream.secure_delete_message if self.secure else stream.delete_message)(sequence)
            except SequenceNotFound:
                return False
            except MessageDeleteFailed:
                if sequence < (await stream.info()).state["first_seq"]:
                    return False
                raise
            return True

        deleted = self._run(run)
        already = "" if deleted else " already"
        self.log.info("message %d of stream %s is deleted%s", sequence, self.stream, already)
        return {"stream": self.stream, "sequence": sequence, "deleted": deleted}

    def dry_run(self) -> None:
        """Print which message :meth:`execute` would delete."""
        sequence = whole_number("sequence", self.sequence)

        async def run(js: JetStream) -> str:
            try:
                message = await js.stream(self.stream).get_message(sequence)
            except MessageNotFound:
                return "does not exist"
            return f"would be deleted: {message.subject}, stored {message.time}, {len(message.data)} bytes"

        self.log.info("message %d of stream %s %s", sequence, self.stream, self._run(run))
