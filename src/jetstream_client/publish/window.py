"""A bounded window of unanswered messages. No I/O: ``publish.bulk`` drives it."""

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

_NOTHING = b"\n"  # what no answer begins with


@dataclass(frozen=True, slots=True)
class Published:
    """The outcome of a bulk publish. ``first``/``last`` are the lowest and highest stream sequence, 0 for none.

    ``duplicates`` were there before: the stream recognised them, or they were found and not sent. ``in_order``: the
    stream holds all of them in the order of the input; False when this is not so, or not known to be so.
    """

    stream: str
    stored: int
    duplicates: int
    first: int
    last: int
    in_order: bool

    @property
    def count(self) -> int:
        return self.stored + self.duplicates


class _Mark(NamedTuple):
    """When a message was sent first, and those after it until the next mark."""

    position: int
    last: int  # the highest sequence that was known then: they can only be stored behind it
    sent: float


class PublishWindow:
    """The accounting of one bulk publish. The driver asks for answers on ``<inbox>.<position>``.

    ``unanswered`` is what a new connection must send again; the ids make that safe within the duplicate window.
    Messages reach the stream in the order of the input, on one connection, unless the stream drops some for having too
    much to do: these come after what was sent in the meantime (:meth:`again`).
    With a ``domain`` only its streams' word counts that a message is stored: a subject goes to all that listen on it.
    """

    def __init__(
        self,
        stream: str | None = None,
        messages: int = WINDOW_MESSAGES,
        max_bytes: int = WINDOW_BYTES,
        domain: str | None = None,
    ) -> None:
        self._limit = messages
        self._max_bytes = max_bytes
        self._unanswered: dict[int, OutgoingMessage] = {}
        self._mark = _Mark(0, 0, -1.0)
        self._marks: deque[_Mark] = deque()  # of all unanswered messages, the oldest's first
        self._refused: list[OutgoingMessage] = []
        self._bytes = 0
        self._stored = self._duplicates = self._first = self._last = 0
        self._position = -1
        self._in_order = True
        self._stream = stream or ""
        self._alike = _NOTHING  # an answer up to its number: all that name the same stream begin so
        self._domain = domain
        self._elsewhere: dict[int, str] = {}  # which other domain has stored a position that ours has not
        self._failure: PublishFailed | None = None
        self.leaderless: JetStreamError | None = None
        """The answer that said so: no stream listens, or its leader is none any more. None again with the next that is
        stored. The window is full until then: nothing overtakes what waits."""

    @property
    def unanswered(self) -> list[OutgoingMessage]:
        """Oldest first."""
        return list(self._unanswered.values())

    @property
    def oldest(self) -> tuple[int, float] | None:
        """Of the oldest unanswered message: the sequence behind which it is if it is stored, and when it was sent."""
        if not self._unanswered:
            return None
        mark = self._oldest_mark()
        return mark.last, mark.sent

    def _oldest_mark(self) -> _Mark:
        """The oldest unanswered message's; those before it are forgotten."""
        position = next(iter(self._unanswered))
        while len(self._marks) > 1 and self._marks[1].position <= position:
            self._marks.popleft()
        return self._marks[0]

    def again(self) -> list[OutgoingMessage]:
        """What the stream dropped because too much came at once, or what found no leader of a stream: unanswered still,
        to be sent once more."""
        refused, self._refused = self._refused, []
        return refused

    @property
    def empty(self) -> bool:
        return not self._unanswered

    @property
    def full(self) -> bool:
        """Nothing more can be sent before there are answers."""
        return (
            len(self._unanswered) >= self._limit
            or self._bytes >= self._max_bytes
            or (self.leaderless is not None and bool(self._unanswered))
        )

    @property
    def answered(self) -> int:
        """Messages that the stream holds: stored now, or before as a duplicate."""
        return self._stored + self._duplicates

    @property
    def failed(self) -> bool:
        """A message was refused: send no more, wait for the answers that are due, then ask :meth:`result`."""
        return self._failure is not None

    def add(self, message: OutgoingMessage, now: float = 0.0) -> int:
        """It is being sent. Returns its size."""
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
        """The stream holds the message of a position, as a look into it has shown: nothing needs to be sent."""
        if message := self._unanswered.pop(position, None):
            self._bytes -= message.size
            self._stored += 1
        else:
            self._duplicates += 1
        self._note(position, sequence)

    def on_reply(self, position: int, status: int, data: bytes) -> None:
        """The answer for a position; a second one is ignored."""
        message = self._unanswered.get(position)
        if message is None:
            return
        # Nearly always all but the number is as in the answer before.
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
        """Any other answer."""
        try:
            ack = acknowledged(data, message.subject, self._domain, status)
        except WrongDomain as elsewhere:
            self._elsewhere[message.position] = elsewhere.stored  # the answer that counts is another
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
        """The stream has answered that it does."""
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
        if position > self._position and sequence > self._last:  # nearly always
            self._position, self._last = position, sequence
            self._first = self._first or sequence
            return
        if position < self._position or sequence < self._last:
            self._in_order = False
        self._position = max(self._position, position)
        self._first = min(self._first or sequence, sequence)
        self._last = max(self._last, sequence)

    def _leaderless(self, message: OutgoingMessage, cause: JetStreamError) -> None:
        """Nothing has stored it: it can be sent again, as long as nothing else is wrong."""
        if self.failed:
            self.refuse(message, cause)
            return
        self.leaderless = cause
        self._refused.append(message)

    def on_denied(self, denied: PermissionDenied) -> None:
        """The server will not answer what was published on this subject."""
        for message in [each for each in self.unanswered if each.subject == denied.subject]:
            self.refuse(message, denied)

    def refuse(self, message: OutgoingMessage, cause: Exception) -> None:
        """It is answered: it is not stored, and will not be."""
        if self._unanswered.pop(message.position, None):
            self._bytes -= message.size
        self.fail(message.position, message.subject, cause)

    def fail(self, position: int, subject: str, cause: Exception) -> None:
        """A message that cannot be stored. The first one of the input is what :meth:`result` names."""
        if self._failure is None or position < self._failure.position:
            self._failure = PublishFailed(position, subject, 0, cause)

    def give_up(self, cause: Exception) -> None:
        """The unanswered messages will not be answered any more."""
        for message in self.unanswered:
            there = self._elsewhere.get(message.position)
            wrong = WrongDomain(message.subject, there, self._domain or "") if there is not None else cause
            self.fail(message.position, message.subject, wrong)
        self._unanswered.clear()

    def result(self) -> Published:
        """When everything is answered.

        Raises:
            PublishFailed: the first message that was refused or unanswered, and how many were stored.
        """
        if self._failure is not None:
            failure = self._failure
            raise PublishFailed(failure.position, failure.subject, self.answered, failure.cause) from failure.cause
        return Published(self._stream, self._stored, self._duplicates, self._first, self._last, self._in_order)
