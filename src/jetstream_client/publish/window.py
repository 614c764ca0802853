# SPDX-License-Identifier: Apache-2.0
"""A bounded window of unanswered messages, which ``publish.bulk`` drives. No I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from jetstream_client.errors import (
    ApiError,
    JetStreamError,
    NoStreamResponse,
    PermissionDenied,
    PublishFailed,
    TooManyRequests,
    WrongDomain,
)
from jetstream_client.publish.ack import DIGITS, NOT_PROPOSED, acknowledged, plain_ack
from jetstream_client.publish.message import OutgoingMessage

WINDOW_MESSAGES = 4_096
WINDOW_BYTES = 8 << 20
FIRST_MESSAGES, FEWEST_MESSAGES = 128, 16
"""How many messages may be unanswered at first, and at least. A server sends the answers when it has stored all that
has arrived until then (``internalLoop`` in nats-server's ``server/stream.go``). With ``sync_interval: always`` that
may be 100 messages a second, so that a full window from the start would mean a silence in which the connection counts
as lost."""
QUICK, SLOW = 1.0, 3.0
"""If as many messages as may be unanswered are answered within this many seconds, twice as many may be; if that takes
longer than the second number, half as many."""

_NOTHING = b"\n"  # no answer begins with these bytes


@dataclass(frozen=True, slots=True)
class Published:
    """The result of a bulk publish.

    stream:       name of the stream.
    stored:       number of messages that this call stored.
    duplicates:   number of messages that were stored before. Either the stream recognised them, or they were found in
                  it and not sent.
    first, last:  the lowest and the highest stream sequence of the messages; 0 if there are no messages.
    in_order:     True if all messages are known to be in the stream in the order of the input.
    """

    stream: str
    stored: int
    duplicates: int
    first: int
    last: int
    in_order: bool

    @property
    def count(self) -> int:
        """Number of messages that are stored, by this call or before."""
        return self.stored + self.duplicates


class _Mark(NamedTuple):
    """The beginning of a group of messages that were first sent at the same time. The next mark begins the next
    group."""

    position: int  # the first message of the group
    last: int  # the highest known sequence at that time: the sequences of the group are higher
    sent: float  # the time when the group was first sent


class PublishWindow:
    """Keeps track of one bulk publish. The driver sends messages with the reply subject ``<inbox>.<position>``.

    ``unanswered`` messages must be sent again on a new connection. If they have ids, this stores no message twice
    within the duplicate window. On one connection, messages reach the stream in the order of the input, except those
    that an overloaded stream drops: such messages are sent again after later messages (:meth:`again`). With a
    ``domain``, only an answer from this domain confirms a message. A stream of another domain that listens on the same
    subject stores the message too, and also answers.
    """

    def __init__(
        self,
        stream: str | None = None,
        messages: int = WINDOW_MESSAGES,
        max_bytes: int = WINDOW_BYTES,
        domain: str | None = None,
    ) -> None:
        self._most = messages
        self._limit = min(FIRST_MESSAGES, messages)
        self._round = (0, 0.0)  # how many messages were answered, and when, since the window has been full
        self._max_bytes = max_bytes
        self._unanswered: dict[int, OutgoingMessage] = {}
        self._mark = _Mark(0, 0, -1.0)
        self._marks: deque[_Mark] = deque()  # the marks of all unanswered messages, oldest first
        self._refused: list[OutgoingMessage] = []
        self._bytes = 0
        self._stored = self._duplicates = self._first = self._last = 0
        self._position = -1
        self._in_order = True
        self._stream = stream or ""
        self._alike = _NOTHING  # beginning of an answer up to the sequence, the same in all answers of a stream
        self._domain = domain
        self._elsewhere: dict[int, str] = {}  # position → the other domain that has stored it
        self._failure: PublishFailed | None = None
        self.leaderless: JetStreamError | None = None
        """The error in an answer which says that no stream listens, or that the stream's leader has resigned. It is
        kept until the next message is stored. Until then the window is full, so that no message overtakes those that
        wait."""

    @property
    def unanswered(self) -> list[OutgoingMessage]:
        """Unanswered messages, oldest first."""
        return list(self._unanswered.values())

    @property
    def oldest(self) -> tuple[int, float] | None:
        """A sequence, and the time when the oldest unanswered message was first sent. If this message is stored, its
        sequence is higher. None if all messages are answered."""
        if not self._unanswered:
            return None
        mark = self._oldest_mark()
        return mark.last, mark.sent

    def _oldest_mark(self) -> _Mark:
        """The mark of the oldest unanswered message. Earlier marks are dropped."""
        position = next(iter(self._unanswered))
        while len(self._marks) > 1 and self._marks[1].position <= position:
            self._marks.popleft()
        return self._marks[0]

    def again(self) -> list[OutgoingMessage]:
        """Messages to send again, because the stream was overloaded or had no leader. They are still unanswered."""
        refused, self._refused = self._refused, []
        return refused

    @property
    def empty(self) -> bool:
        return not self._unanswered

    @property
    def full(self) -> bool:
        """Whether answers are needed before another message is sent."""
        return (
            len(self._unanswered) >= self._limit
            or self._bytes >= self._max_bytes
            or (self.leaderless is not None and bool(self._unanswered))
        )

    def begin(self) -> None:
        """Record that a connection begins: it may lead to another server, and the last one may have been too slow."""
        self._limit = min(FIRST_MESSAGES, self._most)

    def pace(self, now: float, *, waited: bool) -> None:
        """Record the time after answers may have arrived. ``waited``: the window was full before, so that the server
        alone determined how long this took."""
        answered, since = self._round
        if waited and self.answered - answered < self._limit:
            return
        if waited and now - since < QUICK:
            self._limit = min(2 * self._limit, self._most)
        elif waited and now - since > SLOW:
            self._limit = max(self._limit // 2, min(FEWEST_MESSAGES, self._most))
        self._round = (self.answered, now)

    @property
    def answered(self) -> int:
        """Number of messages that the stream holds, including duplicates."""
        return self._stored + self._duplicates

    @property
    def failed(self) -> bool:
        """Whether a message was refused. If so, send no others, wait for the other answers and call :meth:`result`."""
        return self._failure is not None

    def add(self, message: OutgoingMessage, now: float = 0.0) -> int:
        """Record a message that is being sent. Returns its size."""
        if now != self._mark.sent or self._last != self._mark.last:
            if self._unanswered:
                self._oldest_mark()
            else:
                self._marks.clear()
            self._mark = _Mark(message.position, self._last, now)
            self._marks.append(self._mark)
        self._unanswered[message.position] = message
        size = len(message.header) + len(message.data)
        self._bytes += size
        return size

    def found(self, position: int, sequence: int) -> None:
        """Record that a message was found when the stream was read."""
        if message := self._unanswered.pop(position, None):
            self._bytes -= message.size
            self._stored += 1
        else:
            self._duplicates += 1
        self._note(position, sequence)

    def on_reply(self, position: int, status: int, data: bytes) -> None:
        """Record the answer to the message at a position. A second answer is ignored."""
        message = self._unanswered.get(position)
        if message is None:
            return
        # Nearly always, an answer differs from the previous one only in the sequence.
        number = data[len(self._alike) : -1]
        if (
            not (status or self._domain)
            and data.startswith(self._alike)
            and number.isdigit()
            and data.endswith(b"}")
            and len(number) < DIGITS
            and not number.startswith(b"0")
        ):
            self._holds(message, int(number), duplicate=False)
        else:
            self._on_answer(message, status, data)

    def _on_answer(self, message: OutgoingMessage, status: int, data: bytes) -> None:
        """Record an answer that differs from the previous one in more than the sequence."""
        try:
            ack = acknowledged(data, message.subject, self._domain, status)
        except WrongDomain as elsewhere:
            self._elsewhere[message.position] = elsewhere.stored  # wait for the answer of the right domain
        except TooManyRequests:
            self._refused.append(message)
        except JetStreamError as error:
            not_proposed = isinstance(error, ApiError) and (error.code, error.err_code) == NOT_PROPOSED
            if not_proposed or isinstance(error, NoStreamResponse):
                self._leaderless(message, error)
            else:
                self.refuse(message, error)
        else:
            self._stream = ack.stream
            plain = plain_ack(data)
            self._alike = data[: plain.start(2)] if plain else _NOTHING
            self._holds(message, ack.seq, duplicate=ack.duplicate)

    def _holds(self, message: OutgoingMessage, sequence: int, *, duplicate: bool) -> None:
        """Record that the stream holds a message, according to its answer."""
        _, data, header, position = message
        del self._unanswered[position]
        self._bytes -= len(header) + len(data)
        self.leaderless = None
        if duplicate:
            self._duplicates += 1
        else:
            self._stored += 1
        self._note(position, sequence)

    def _note(self, position: int, sequence: int) -> None:
        if position > self._position and sequence > self._last:  # true nearly always
            self._position, self._last = position, sequence
            self._first = self._first or sequence
            return
        if position < self._position or sequence < self._last:
            self._in_order = False
        self._position = max(self._position, position)
        self._first = min(self._first or sequence, sequence)
        self._last = max(self._last, sequence)

    def _leaderless(self, message: OutgoingMessage, cause: JetStreamError) -> None:
        """Record that no stream has stored a message. It can be sent again, unless publishing has failed."""
        if self.failed:
            self.refuse(message, cause)
            return
        self.leaderless = cause
        self._refused.append(message)

    def on_denied(self, denied: PermissionDenied) -> None:
        """Record that the server refused every message on this subject."""
        for message in [each for each in self.unanswered if each.subject == denied.subject]:
            self.refuse(message, denied)

    def refuse(self, message: OutgoingMessage, cause: Exception) -> None:
        """Record a message that is not stored and will not be sent again."""
        if self._unanswered.pop(message.position, None):
            self._bytes -= message.size
        self.fail(message.position, message.subject, cause)

    def fail(self, position: int, subject: str, cause: Exception) -> None:
        """Record a message that cannot be stored. :meth:`result` names the first such message of the input."""
        if self._failure is None or position < self._failure.position:
            self._failure = PublishFailed(position, subject, 0, cause)

    def give_up(self, cause: Exception) -> None:
        """Record that unanswered messages will not be answered."""
        for message in self.unanswered:
            there = self._elsewhere.get(message.position)
            wrong = WrongDomain(message.subject, there, self._domain or "") if there is not None else cause
            self.fail(message.position, message.subject, wrong)
        self._unanswered.clear()

    def result(self) -> Published:
        """The result, when every message is answered.

        Raises:
            PublishFailed: names the first message that was refused or unanswered, and how many were stored.
        """
        if self._failure is not None:
            failure = self._failure
            raise PublishFailed(failure.position, failure.subject, self.answered, failure.cause) from failure.cause
        return Published(self._stream, self._stored, self._duplicates, self._first, self._last, self._in_order)
