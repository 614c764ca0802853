# SPDX-License-Identifier: Apache-2.0
"""Operators on stored messages: get one, delete one."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_nats_jetstream.operators.stream import StreamOperator
from airflow_nats_jetstream.template import instant, optional_number, templated, whole_number, yes_or_no
from jetstream_client.errors import JetStreamError, MessageDeleteFailed, MessageNotFound, SequenceNotFound
from jetstream_client.names import check_filter

if TYPE_CHECKING:
    from airflow.sdk import Context

    from jetstream_client.context import JetStream
    from jetstream_client.read.message import StoredMessage

LARGEST_DATA = 256 << 10
"""The largest message that is returned as an XCom, in bytes. Airflow's database keeps an XCom for every run."""


class JetStreamGetMessageOperator(StreamOperator):
    """Get one stored message from the stream's leader. Nothing is acknowledged or removed.

    stream:           the name of the stream. (templated)
    sequence:         select the message with this stream sequence; with ``next_by_subject``, the first match from this
                      sequence on. Default None. (templated)
    next_by_subject:  select the first message whose subject matches this filter. Default None. (templated)
    last_by_subject:  select the last message whose subject matches this filter. Default None. (templated)
    start_time:       select the first message that was stored at this time or later: a ``datetime`` with a time zone,
                      such as pendulum's, or an ISO 8601 string with one, such as ``{{ data_interval_start }}``. Needs
                      nats-server 2.11 or later. Default None. (templated)
    nats_conn_id:     the id of the Airflow connection. Default ``nats_default``. (templated)

    Returns ``{"stream", "subject", "sequence", "time", "headers": {name: [value, …]}, "data", "encoding"}``: ``data``
    is the payload as a string, and ``encoding`` is ``utf-8``, or ``base64`` if the payload is not UTF-8. ``dry_run``
    prints which message would be returned.

    Raises:
        InvalidValue: parameters that contradict each other. Raised when the DAG is parsed, unless one is templated.
        MessageNotFound: no message matches.
        JetStreamError: the payload is larger than 256 KiB, which is too large for an XCom.
        StreamNotFound: the stream does not exist.
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
                f"message {message.sequence} of stream {self.stream!r} has {len(message.data)} bytes, but an XCom can "
                f"have at most {LARGEST_DATA}; process the message in a claim, or read it inside a task with "
                "JetStreamHook"
            )
        try:
            data, encoding = message.data.decode(), "utf-8"
        except UnicodeDecodeError:
            data, encoding = base64.b64encode(message.data).decode(), "base64"
        self.log.info("got message %d of stream %s, subject %s", message.sequence, self.stream, message.subject)
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
    """Delete one stored message. A claim that contains the message can no longer be read completely: reading it fails
    with MessagesMissing.

    stream:        the name of the stream. (templated)
    sequence:      the stream sequence of the message. Deleting a message that no longer exists succeeds. (templated)
    secure:        whether to also overwrite the message on the server's disk, which is slow. Default False.
    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. (templated)

    Returns ``{"stream", "sequence", "deleted": bool}``. ``dry_run`` prints which message would be deleted.

    Raises:
        InvalidValue: an invalid name or sequence. Raised when the DAG is parsed, unless the value is templated.
        MessageDeleteFailed: the stream has not reached that sequence yet, or has ``deny_delete``.
        StreamNotFound: the stream does not exist.
    """

    template_fields: Sequence[str] = ("stream", "sequence", "nats_conn_id")

    def __init__(self, *, sequence: int | str, secure: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sequence = sequence
        self.secure = yes_or_no("secure", secure)
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
        said = "message %d of stream %s was deleted" if deleted else "message %d of stream %s no longer exists"
        self.log.info(said, sequence, self.stream)
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
