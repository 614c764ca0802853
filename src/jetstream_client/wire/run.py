# SPDX-License-Identifier: Apache-2.0
"""Messages as they arrive: one by one, and in columns, many at a time without a Python loop. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import gt
from typing import NamedTuple

from jetstream_client.errors import ProtocolError

_WORDS = {b"MSG": 4, b"HMSG": 5}  # number of words in such a line if it has no reply subject
STORED = (  # a class of one character matches in half the time of one of two
    rb"(NATS/1\.0\r\n((?:[^\r]+\r\n)*?)Nats-Stream: [^\r]*\r\nNats-Subject: ([^\r]*)\r\n"
    rb"Nats-Sequence: ([0-9]{1,20})\r\nNats-Time-Stamp: ([^\r]*)\r\n\r\n)"
)
_STORED_HEADER = re.compile(STORED)


class Frame(NamedTuple):
    """A delivered message, undecoded. ``header`` is the raw header block with its status line, or empty."""

    subject: bytes
    sid: int
    reply: bytes
    header: bytes
    data: bytes


class Columns(NamedTuple):
    """Messages as columns of the same length, one for each field of :class:`Frame`."""

    subjects: Sequence[bytes]
    sids: Sequence[int]
    replies: Sequence[bytes]
    headers: Sequence[bytes]
    data: Sequence[bytes]

    def by_sid(self) -> Iterator[Columns]:
        """Split the messages into groups of consecutive messages of one subscription."""
        if self.sids.count(self.sids[0]) == len(self.sids):
            yield self
            return
        end = 0
        for _, alike in groupby(self.sids):
            start, end = end, end + sum(1 for _ in alike)
            here = slice(start, end)
            yield Columns(self.subjects[here], self.sids[here], self.replies[here], self.headers[here], self.data[here])

    def frames(self) -> list[Frame]:
        """The messages one by one."""
        new = tuple.__new__  # skips the named tuple's constructor, which would double the time
        return [new(Frame, fields) for fields in zip(*self, strict=True)]


class Deliveries(NamedTuple):
    """Messages that a consumer delivered, as columns. ``places`` has four entries for each message: stream sequence,
    consumer sequence, nanoseconds since 1970, and number of pending messages."""

    subjects: Sequence[bytes]
    places: Sequence[bytes]
    headers: Sequence[bytes]
    data: Sequence[bytes]


class Answers(NamedTuple):
    """Stored messages that answer direct gets of one message each (ADR-31), as columns: the subject on which each
    arrived; its own subject, sequence and time; the publisher's header lines; and its data."""

    inboxes: Sequence[bytes]
    subjects: Sequence[bytes]
    sequences: Sequence[bytes]
    times: Sequence[bytes]
    headers: Sequence[bytes]
    data: Sequence[bytes]


class Run:
    """Consecutive messages that are all MSG or all HMSG: their lines, and the bytes that followed each line."""

    __slots__ = ("bodies", "lines")

    def __init__(self, lines: list[bytes], bodies: list[bytes]) -> None:
        self.lines = lines
        self.bodies = bodies

    def __len__(self) -> int:
        return len(self.bodies)

    def pop(self, position: int) -> None:
        """Remove one message."""
        del self.lines[position], self.bodies[position]

    def columns(self) -> Columns | None:
        """Split all lines without a Python loop. None if they do not have the same number of words, which is rare."""
        count = len(self.lines)
        words = b" \r\n ".join(self.lines).split(b" ")  # no line contains the word \r\n
        words.append(b"\r\n")
        width, more = divmod(len(words), count)
        verb = words[0]
        replied = width - 1 - _WORDS.get(verb, width)
        if (
            more
            or replied not in (0, 1)
            or words[width - 1 :: width].count(b"\r\n") != count
            or words[::width].count(verb) != count
        ):
            return None
        subjects, replies = words[1::width], words[3::width] if replied else [b""] * count
        numbers, sizes = words[2::width], words[width - 3 :: width]
        try:
            one = int(numbers[0])
            sids = [one] * count if numbers.count(numbers[0]) == count else list(map(int, numbers))
            header_sizes = list(map(int, sizes)) if verb == b"HMSG" else []
        except ValueError:
            return None
        if min(sids) < 0:
            return None
        if not header_sizes:
            return Columns(subjects, sids, replies, [b""] * count, self.bodies)
        if min(header_sizes) < 0 or any(map(gt, header_sizes, map(len, self.bodies))):
            return None
        pairs = list(zip(self.bodies, header_sizes, strict=True))
        headers, data = [body[:size] for body, size in pairs], [body[size:] for body, size in pairs]
        return Columns(subjects, sids, replies, headers, data)

    def deliveries(self) -> Deliveries | None:
        """Like :meth:`columns`, with the places from the reply subjects. None unless every reply subject begins like
        the first one and ends with a place of four tokens."""
        columns = self.columns()
        if columns is None:
            return None
        count = len(columns.replies)
        # The common beginning is removed first, so that its tokens are not created once for each message.
        stem = columns.replies[0].rsplit(b".", 4)[0] + b"."
        tokens = b".\r\n.".join(columns.replies).replace(stem, b"").split(b".")  # no reply contains the token \r\n
        tokens.append(b"\r\n")
        if len(tokens) != 5 * count or tokens[4::5].count(b"\r\n") != count:
            return None
        del tokens[4::5]
        return Deliveries(columns.subjects, tokens, columns.headers, columns.data)

    def answers(self) -> Answers | None:
        """The messages as answers to direct gets. None if one of them is something else, or has unusual headers."""
        if (columns := self.columns()) is None:
            return None
        parts = _STORED_HEADER.split(b"".join(columns.headers))
        if parts[1::6] != columns.headers or any(parts[::6]):
            return None
        return Answers(columns.subjects, parts[3::6], parts[4::6], parts[5::6], parts[2::6], columns.data)

    def frames(self) -> list[Frame]:
        """The messages one by one. Raises ProtocolError."""
        if columns := self.columns():
            return columns.frames()
        frames = []
        for line, body in zip(self.lines, self.bodies, strict=True):
            subject, sid, reply, header_size = read_line(line, len(body))
            frames.append(Frame(subject, sid, reply, body[:header_size], body[header_size:]))
        return frames


class DeliveryRun(Run):
    """Messages without headers that one consumer delivered. Their lines have been parsed already."""

    __slots__ = ("_places", "_sid", "_stem", "_subjects")

    def __init__(self, sid: int, stem: bytes, subjects: list[bytes], places: list[bytes], data: list[bytes]) -> None:
        self._sid = sid
        self._stem = stem
        self._subjects = subjects
        self._places = places
        self.bodies = data

    def pop(self, position: int) -> None:
        for column in (self._subjects, self._places, self.bodies):
            del column[position]

    def columns(self) -> Columns:
        count = len(self.bodies)
        replies = [self._stem + place for place in self._places]
        return Columns(self._subjects, [self._sid] * count, replies, [b""] * count, self.bodies)

    def deliveries(self) -> Deliveries:
        places = b".".join(self._places).split(b".")
        return Deliveries(self._subjects, places, [b""] * len(self.bodies), self.bodies)


class AnswerRun(Run):
    """Answers to direct gets. Their lines and headers have been parsed already."""

    __slots__ = ("_answers", "_headers", "_sid")

    def __init__(self, sid: int, headers: list[bytes], answers: Answers) -> None:
        self._sid = sid
        self._headers = headers
        self._answers = answers
        self.bodies = list(answers.data)

    def pop(self, position: int) -> None:
        del self._headers[position], self.bodies[position]
        self._answers = Answers._make([*column[:position], *column[position + 1 :]] for column in self._answers)

    def columns(self) -> Columns:
        count = len(self.bodies)
        return Columns(self._answers.inboxes, [self._sid] * count, [b""] * count, self._headers, self.bodies)

    def answers(self) -> Answers:
        return self._answers


def read_line(line: bytes, size: int) -> tuple[bytes, int, bytes, int]:
    """Parse the line of a message of ``size`` bytes: subject, sid, reply and header size. Raises ProtocolError."""
    words = line.split(b" ")
    try:
        sid = int(words[2])
        header_size = int(words[-2]) if words[0] == b"HMSG" else 0
        replied = len(words) - _WORDS[words[0]]
        if replied not in (0, 1) or sid < 0:
            raise ValueError  # noqa: TRY301
    except (ValueError, IndexError, KeyError):
        raise ProtocolError(f"invalid message line: {line[:60]!r}") from None
    if not 0 <= header_size <= size:
        raise ProtocolError(f"invalid message line: {header_size} bytes of headers in a message of {size} bytes")
    return words[1], sid, words[3] if replied else b"", header_size
