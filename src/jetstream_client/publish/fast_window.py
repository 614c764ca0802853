"""The accounting of a fast-ingest batch: many messages, one answer for hundreds (ADR-50, nats-server 2.14). No I/O."""

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
"""Seconds of silence after which the server is asked what it has: it gives a batch up after 10."""
SILENT_FOR = 10.0
"""Seconds of silence, in spite of that, after which the batch is taken for lost."""
_START, _APPEND, _COMMIT, _PING = 0, 1, 2, 4
_OUTSTANDING = 2  # answers: the server works on one lot while the next is on its way (ADR-50)
_MOST_FLOW = 500  # messages for one answer: streams do not go beyond it
_FLOW_BYTES = 4 << 20  # of messages for one answer, by the size of the first


class _Refused(NamedTuple):
    number: int
    cause: JetStreamError


class FastWindow:
    """The accounting of one batch. Messages are numbered from 1 in the order of :meth:`add`.

    The driver listens on :attr:`answers` and sends each message with :meth:`reply`, the last one with ``last``.
    """

    def __init__(self, inbox: str, domain: str | None = None) -> None:
        self.id = secrets.token_hex(12)
        self._prefix = f"{inbox}.{self.id}"
        self._domain = domain
        self._flow = 0  # messages for one answer that the first one asks for
        self._now = 0  # and that the server grants now; 0: it has not answered yet
        self._subjects: dict[int, str] = {}  # of what is not confirmed
        self.added = self.sent = self.confirmed = 0
        self.subject = ""
        """Of the first message: where a ping goes."""
        self._gap: tuple[int, int] | None = None
        self._refused: _Refused | None = None
        self._not_stored: set[int] = set()
        self._unsent: PublishFailed | None = None
        self._ack: PubAck | None = None
        self.ended = False
        """The server has said its last word."""

    @property
    def answers(self) -> str:
        return f"{self._prefix}.>"

    @property
    def full(self) -> bool:
        """Nothing more may be added, beside the one that is held back, before something is confirmed."""
        return self.added > self._room

    @property
    def busy(self) -> bool:
        """Nothing more may be sent before something is confirmed. The first message waits for its answer alone."""
        return self.sent >= self._room

    @property
    def _room(self) -> int:
        return self.confirmed + (self._now * _OUTSTANDING or 1)

    @property
    def failed(self) -> bool:
        """Send no more. What is sent has to be asked for by a ping, unless it has ended."""
        return self.ended or bool(self._gap or self._refused or self._unsent)

    @property
    def broken(self) -> bool:
        """What was sent cannot be committed by a last message."""
        return bool(self._gap or self._refused)

    def add(self, message: OutgoingMessage, now: float = 0.0) -> int:  # noqa: ARG002 # as PublishWindow
        if not self.added:
            self.subject = message.subject
            self._flow = max(1, min(_MOST_FLOW, _FLOW_BYTES // max(1, message.size)))
        self.added += 1
        self._subjects[self.added] = message.subject
        return message.size

    def fail(self, position: int, subject: str, cause: Exception) -> None:
        """A message of the input that cannot be sent."""
        self._unsent = self._unsent or PublishFailed(position, subject, 0, cause)

    def reply(self, *, last: bool = False) -> str:
        """Where the next message is answered."""
        self.sent += 1
        return self._reply(self.sent, _COMMIT if last else _APPEND if self.sent > 1 else _START)

    def ping(self) -> str:
        """Ask for what the server has. Of a broken batch its end: one message more than there are is a gap to it."""
        return self._reply(self.sent + self.broken, _PING)

    def _reply(self, number: int, operation: int) -> str:
        return f"{self._prefix}.{self._flow}.fail.{number}.{operation}.$FI"

    def on_answer(self, subject: str, status: int, data: bytes) -> None:
        """What came on one of the reply subjects. Raises ProtocolError for what no server says."""
        if self.ended:
            return
        words = subject.split(".")
        number = int(words[-3]) if len(words) > 3 and words[-3].isdigit() else 0
        if status == NO_RESPONDERS:
            self._refuse(number, NoStreamResponse(self._subjects.get(number, self.subject)))
            self.ended = number == 1 or words[-2] == str(_PING)  # it did not begin, or the stream is gone
            return
        answer = decode_object(data, "the answer to a fast-ingest batch")
        kind = answer.get("type")
        if kind == "ack":
            self._confirm(_natural(answer, "seq"))
            self._now = min(max(1, _natural(answer, "msgs")), _MOST_FLOW)
        elif kind == "gap" and not self.broken:
            self._gap = _natural(answer, "last_seq"), _natural(answer, "seq")
        elif kind == "gap":
            pass  # it follows from what broke it
        elif kind == "err":
            self._refuse(_natural(answer, "seq"), ApiError.from_response(answer.get("error")))
        elif "error" in answer:
            self._on_error(number, ApiError.from_response(answer["error"]))
        else:
            self._on_ack(number, PubAck.parse(data, nothing_new=True))

    def _on_error(self, number: int, error: ApiError) -> None:
        if isinstance(error, BatchUnknown) and self._refused:
            self.ended = True  # a ping for what the server has given up
            return
        self._refuse(number, error)
        # A first message that is refused opens no batch, and what the server does not know it cannot end.
        self.ended = self.ended or number == 1 or isinstance(error, BatchUnknown)

    def _on_ack(self, number: int, ack: PubAck) -> None:
        if self._domain and ack.domain != self._domain:
            self._refuse(number, WrongDomain(self.subject, ack.domain, self._domain))
        self.ended = True
        if ack.batch_id == self.id:
            self._ack = ack
            self._confirm(ack.batch_size)
        else:
            self._refuse(number, ProtocolError("the answer is not the batch's: it was stored outside of it"))

    def _confirm(self, number: int) -> None:
        for each in range(self.confirmed + 1, min(number, self.sent) + 1):
            del self._subjects[each]
        self.confirmed = max(self.confirmed, min(number, self.sent))

    def _refuse(self, number: int, cause: JetStreamError) -> None:
        self._not_stored.add(number)
        if self._refused is None or number < self._refused.number:
            self._refused = _Refused(number, cause)

    def give_up(self, cause: JetStreamError) -> None:
        """No answer will come any more."""
        if not self.ended:
            self._refuse(self.confirmed + 1, cause)
            self.ended = True

    def result(self) -> PubAck:
        """When it has ended. ``batch_size`` is the number of messages, ``seq`` the last one's sequence.

        Raises:
            BatchGap: messages got lost.
            PublishFailed: the first message that was refused or could not be sent. ``stored`` is what the server has
                confirmed; without its last word (``cause`` is a lost connection) more may be stored.
        """
        # nats-server 2.15.1 counts a message whose Nats-Expected-Last-Msg-Id was wrong, and goes on.
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
        assert self._ack is not None  # noqa: S101 # the driver asks when it has ended
        return self._ack


def _natural(answer: dict[str, object], name: str) -> int:
    value = answer.get(name)
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ProtocolError(f"the answer to a fast-ingest batch has a {name} that is none")
    return value
