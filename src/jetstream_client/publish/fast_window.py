# SPDX-License-Identifier: Apache-2.0
"""Keeps track of a fast-ingest batch, in which one answer confirms hundreds of messages (ADR-50, nats-server 2.14). No
I/O."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from jetstream_client.errors import (
    ApiError,
    BatchGap,
    BatchUnknown,
    JetStreamError,
    NoStreamResponse,
    ProtocolError,
    PublishFailed,
    WrongDomain,
)
from jetstream_client.publish.ack import PubAck
from jetstream_client.publish.message import OutgoingMessage
from jetstream_client.wire.protocol import NO_RESPONDERS, decode_object

PING_AFTER = 2.0
"""Seconds without an answer after which the server is asked for the state of the batch. The server drops a batch for
which nothing arrives for 10 s."""
SILENT_FOR = 10.0
"""Seconds without any answer after which the batch counts as lost."""
_START, _APPEND, _COMMIT, _PING = 0, 1, 2, 4
_OUTSTANDING = 2  # answers: the server processes one group of messages while the next one is on its way (ADR-50)
_MOST_FLOW = 500  # messages for one answer, at most
_FLOW_BYTES = 4 << 20  # bytes for one answer, estimated by the size of the first message


class _Refused(NamedTuple):
    number: int
    cause: JetStreamError


class FastWindow:
    """Keeps track of one batch. Messages are numbered from 1 in the order of :meth:`add`.

    The driver listens on :attr:`answers` and sends each message with the reply subject :meth:`reply`, with ``last`` for
    the last message.
    """

    def __init__(self, inbox: str, domain: str | None = None) -> None:
        self.id = secrets.token_hex(12)
        self._prefix = f"{inbox}.{self.id}"
        self._domain = domain
        self._flow = 0  # messages for one answer, as the first message requests
        self._now = 0  # messages for one answer, as the server's last answer granted; 0 before it
        self._subjects: dict[int, str] = {}  # subjects of the unconfirmed messages
        self.added = self.sent = self.confirmed = 0
        self.subject = ""
        """Subject of the first message. A ping is published on the same subject."""
        self._gap: tuple[int, int] | None = None
        self._refused: _Refused | None = None
        self._not_stored: set[int] = set()
        self._unsent: PublishFailed | None = None
        self._ack: PubAck | None = None
        self.ended = False
        """Whether the server has answered for the last time."""

    @property
    def answers(self) -> str:
        return f"{self._prefix}.>"

    @property
    def full(self) -> bool:
        """Whether a confirmation is needed before another message is added. One more message can be added than sent,
        because the last message is held back."""
        return self.added > self._room

    @property
    def busy(self) -> bool:
        """Whether a confirmation is needed before another message is sent. The second message waits for the
        answer to the first."""
        return self.sent >= self._room

    @property
    def _room(self) -> int:
        return self.confirmed + (self._now * _OUTSTANDING or 1)

    @property
    def failed(self) -> bool:
        """Whether no other message may be added. Unless the batch has ended, the driver must then commit the messages
        that it has added, or send a ping if the batch is :attr:`broken`."""
        return self.ended or bool(self._gap or self._refused or self._unsent)

    @property
    def broken(self) -> bool:
        """Whether a last message can no longer commit the batch."""
        return bool(self._gap or self._refused)

    def add(self, message: OutgoingMessage, now: float = 0.0) -> int:  # noqa: ARG002 # as PublishWindow
        if not self.added:
            self.subject = message.subject
            self._flow = max(1, min(_MOST_FLOW, _FLOW_BYTES // max(1, message.size)))
        self.added += 1
        self._subjects[self.added] = message.subject
        return message.size

    def fail(self, position: int, subject: str, cause: Exception) -> None:
        """Record a message of the input that cannot be sent."""
        self._unsent = self._unsent or PublishFailed(position, subject, 0, cause)

    def reply(self, *, last: bool = False) -> str:
        """Reply subject of the next message."""
        self.sent += 1
        return self._reply(self.sent, _COMMIT if last else _APPEND if self.sent > 1 else _START)

    def ping(self) -> str:
        """Reply subject of a ping, which asks for the state of the batch. A ping ends a broken batch: it announces one
        message more than was sent, and the server ends the batch because this message is missing."""
        return self._reply(self.sent + self.broken, _PING)

    def _reply(self, number: int, operation: int) -> str:
        return f"{self._prefix}.{self._flow}.fail.{number}.{operation}.$FI"

    def on_answer(self, subject: str, status: int, data: bytes) -> None:
        """Record an answer that arrived on one of the reply subjects. Raises ProtocolError if the answer is invalid."""
        if self.ended:
            return
        words = subject.split(".")
        number = int(words[-3]) if len(words) > 3 and words[-3].isdigit() else 0
        if status == NO_RESPONDERS:
            self._refuse(number, NoStreamResponse(self._subjects.get(number, self.subject)))
            self.ended = number == 1 or words[-2] == str(_PING)  # the batch did not begin, or the stream is deleted
            return
        answer = decode_object(data, "the answer to a fast-ingest batch")
        kind = answer.get("type")
        if kind == "ack":
            self._confirm(_natural(answer, "seq"))
            self._now = min(max(1, _natural(answer, "msgs")), _MOST_FLOW)
        elif kind == "gap" and not self.broken:
            self._gap = _natural(answer, "last_seq"), _natural(answer, "seq")
        elif kind == "gap":
            pass  # this failure follows from the first one
        elif kind == "err":
            self._refuse(_natural(answer, "seq"), ApiError.from_response(answer.get("error")))
        elif "error" in answer:
            self._on_error(number, ApiError.from_response(answer["error"]))
        else:
            self._on_ack(number, PubAck.parse(data, nothing_new=True))

    def _on_error(self, number: int, error: ApiError) -> None:
        if isinstance(error, BatchUnknown) and self._refused:
            self.ended = True  # the answer to a ping for a batch that the server has dropped
            return
        self._refuse(number, error)
        # A refused first message does not open a batch, and the server cannot end a batch that it does not know.
        self.ended = self.ended or number == 1 or isinstance(error, BatchUnknown)

    def _on_ack(self, number: int, ack: PubAck) -> None:
        if self._domain and ack.domain != self._domain:
            self._refuse(number, WrongDomain(self.subject, ack.domain, self._domain))
        self.ended = True
        if ack.batch_id == self.id:
            self._ack = ack
            self._confirm(ack.batch_size)
        else:
            problem = (
                "the server does not support fast-ingest batches, and stored the message without a batch; upgrade "
                "the server"
            )
            self._refuse(number, ProtocolError(problem))

    def _confirm(self, number: int) -> None:
        for each in range(self.confirmed + 1, min(number, self.sent) + 1):
            del self._subjects[each]
        self.confirmed = max(self.confirmed, min(number, self.sent))

    def _refuse(self, number: int, cause: JetStreamError) -> None:
        self._not_stored.add(number)
        if self._refused is None or number < self._refused.number:
            self._refused = _Refused(number, cause)

    def give_up(self, cause: JetStreamError) -> None:
        """Record that no more answers will arrive."""
        if not self.ended:
            self._refuse(self.confirmed + 1, cause)
            self.ended = True

    def result(self) -> PubAck:
        """The result of an ended batch. ``batch_size`` is the number of messages, ``seq`` the last sequence.

        Raises:
            BatchGap: messages were lost.
            PublishFailed: names the first message that was refused or could not be sent. ``stored`` is the number of
                messages that the server confirmed. If ``cause`` is a lost connection, more messages may be stored.
        """
        # nats-server 2.15.1 counts a message whose Nats-Expected-Last-Msg-Id was wrong, and continues the batch.
        stored = self.confirmed - sum(number <= self.confirmed for number in self._not_stored)
        if self._refused is not None:
            number, cause = self._refused
            raise PublishFailed(number - 1, self._subjects.get(number, self.subject), stored, cause) from cause
        if self._gap is not None:
            raise BatchGap(self._gap[0] - 1, self._gap[1] - 1, stored)
        if self._ack is not None and self._ack.batch_size != self.sent:
            raise BatchGap(self._ack.batch_size, -1, stored)
        if self._unsent is not None:
            failure = self._unsent
            raise PublishFailed(failure.position, failure.subject, stored, failure.cause) from failure.cause
        assert self._ack is not None  # noqa: S101 # the driver calls this when the batch has ended
        return self._ack


def _natural(answer: dict[str, object], name: str) -> int:
    value = answer.get(name)
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ProtocolError(f"the field {name!r} of the answer to a fast-ingest batch is missing or invalid")
    return value
