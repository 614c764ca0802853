# SPDX-License-Identifier: Apache-2.0
"""Cutting a server's bytes into frames. Messages of the same kind are cut many at a time, without a Python loop. No
I/O.

Source: docs.nats.io, "Client Protocol".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import gt
from typing import NamedTuple

from jetstream_client.errors import ProtocolError

LONGEST_LINE = 1 << 20  # the INFO of a large cluster is the longest line; a MSG line has max_control_line, 4 KiB
_MESSAGES = (b"MSG ", b"HMSG")  # beginnings of a message's line
_WORDS = {b"MSG": 4, b"HMSG": 5}  # number of words in such a line if it has no reply subject
# The end of a delivery's reply subject. A subject of twelve tokens ends otherwise and is read line by line.
_PLACE = rb"[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+"
_DELIVERY = re.compile(rb"MSG [^ \r\n]+ ([0-9]{1,9}) ([^ \r\n]+\.)%b ([0-9]{1,9})\r\n" % _PLACE)
_SMALL = 384  # searching for the lines of all messages pays off if the second one begins within this many bytes
_LARGE = 1 << 20  # bytes; more are not cut together, because the pieces of many small messages would fill the memory


class Frame(NamedTuple):
    """A delivered message, undecoded. ``header`` is the raw header block with its status line, or empty."""

    subject: bytes
    sid: int
    reply: bytes
    header: bytes
    data: bytes


class ServerLine(NamedTuple):
    """A line that is not a message. ``verb`` is INFO, PING, PONG, +OK or -ERR, and ``rest`` is the text after it."""

    verb: str
    rest: bytes


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

    def frames(self) -> list[Frame]:
        """The messages one by one. Raises ProtocolError."""
        if columns := self.columns():
            return columns.frames()
        frames = []
        for line, body in zip(self.lines, self.bodies, strict=True):
            subject, sid, reply, header_size = _read_line(line, len(body))
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


def _read_line(line: bytes, size: int) -> tuple[bytes, int, bytes, int]:
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


_DeliveryColumns = tuple[list[bytes], list[bytes], list[bytes]]  # subjects, places, data


@functools.lru_cache(maxsize=16)
def _line(sid: bytes, stem: bytes) -> re.Pattern[bytes]:
    """Matches the line between the data of two deliveries: subject, place and size."""
    fields = (re.escape(sid), re.escape(stem), _PLACE)
    return re.compile(rb"\r\nMSG ([^ \r\n]+) %b %b(%b) ([0-9]{1,9})\r\n" % fields)


@functools.lru_cache(maxsize=16)
def _message(sid: bytes, stem: bytes, size: bytes) -> re.Pattern[bytes]:
    """Matches a delivery: its subject, place and data."""
    fields = (re.escape(sid), re.escape(stem), _PLACE, size, int(size))
    return re.compile(rb"MSG ([^ \r\n]+) %b %b(%b) %b\r\n(.{%d})\r\n" % fields, re.DOTALL)


def _split_small(buffer: bytes, line: re.Pattern[bytes], max_payload: int) -> tuple[_DeliveryColumns | None, int]:
    """Cut small deliveries by searching for their lines, which takes 1 ns for a byte of data."""
    arrived = b"\r\n" + buffer
    _, *parts = line.split(arrived)
    subjects, places, sizes, data = parts[::4], parts[1::4], list(map(int, parts[2::4])), parts[3::4]
    last, size = data[-1], sizes[-1]
    if len(last) < size + 2:
        end = arrived.rindex(b"\r\nMSG ", 0, len(arrived) - len(last))
        for column in (subjects, places, sizes, data):
            column.pop()
    else:
        end = len(buffer) - len(last) + size + 2
        if last[size : size + 2] == b"\r\n":
            data[-1] = last[:size]
    if sizes != list(map(len, data)) or max(sizes, default=0) > max_payload:
        return None, 0
    return (subjects, places, data), end


def _split_equal(buffer: bytes, message: re.Pattern[bytes]) -> tuple[_DeliveryColumns | None, int]:
    parts = message.split(buffer)
    rest = parts.pop()
    if any(parts[::4]):  # something else lies between two deliveries
        return None, 0
    return (parts[1::4], parts[2::4], parts[3::4]), len(buffer) - len(rest)


def _server_line(line: bytes) -> ServerLine:
    name, _, rest = line.partition(b" ")
    verb = name.decode("latin-1").upper()
    if verb not in ("INFO", "PING", "PONG", "+OK", "-ERR"):
        raise ProtocolError(f"invalid protocol line: {line[:60]!r}")
    return ServerLine(verb, rest.strip())


class Parser:
    """Cuts a byte stream into frames. One parser belongs to one connection."""

    def __init__(self, max_payload: int = 64 << 20) -> None:
        self._rest = b""  # the beginning of a frame
        self._more = bytearray()  # the bytes that arrived after it
        self._enough = 0  # bytes that the frame needs, once its line is known
        self._max_payload = max_payload

    def feed(self, data: bytes) -> list[Frame | ServerLine]:
        """The frames that this data completes.

        Raises:
            ProtocolError: the data is not the NATS protocol, has a line over 1 MiB, or has a message over
            ``max_payload``.
        """
        frames: list[Frame | ServerLine] = []
        for piece in self.cut(data):
            if isinstance(piece, Run):
                frames += piece.frames()
            else:
                frames.append(piece)
        return frames

    def cut(self, data: bytes) -> list[Run | ServerLine]:
        """Like :meth:`feed`, but the lines of messages are not parsed yet, except for their sizes."""
        buffer = self._joined(data)
        if not buffer:
            return []
        pieces, position = self._at_once(buffer)
        lines: list[bytes] = []
        bodies: list[bytes] = []
        verb = b""  # verb of the current run
        last_word, size = b"\r\n", 0  # last word and size of the previous line; the next line often has the same
        find = buffer.find
        enough = 0
        end = len(buffer)
        while True:
            line_end = find(b"\r\n", position)
            if line_end < 0:
                if end - position > LONGEST_LINE:
                    raise ProtocolError(f"a protocol line is longer than {LONGEST_LINE} bytes")
                break
            line = buffer[position:line_end]
            start = line[:4]
            if start in _MESSAGES:
                if not line.endswith(last_word):
                    size, last_word = self._size(line)
                begin = line_end + 2
                stop = begin + size
                if stop + 2 > end:
                    enough = stop + 2 - position
                    _read_line(line, size)
                    break
                if buffer[stop : stop + 2] != b"\r\n":
                    raise ProtocolError(f"a message does not have the {size} bytes that its line announces")
                if start != verb:
                    lines, bodies, verb = [], [], start
                    pieces.append(Run(lines, bodies))
                lines.append(line)
                bodies.append(buffer[begin:stop])
                position = stop + 2
            else:
                pieces.append(_server_line(line))
                verb = b""
                position = line_end + 2
        self._rest = buffer[position:]
        self._enough = enough
        return pieces

    def _size(self, line: bytes) -> tuple[int, bytes]:
        """The size of a message, from the last word of its line, and this word with the space before it."""
        last_word = line[line.rfind(b" ") :]
        try:
            size = int(last_word)
        except ValueError:
            raise ProtocolError(f"invalid message line: {line[:60]!r}") from None
        if not 0 <= size <= self._max_payload:
            raise ProtocolError(f"a message line announces {size} bytes; at most {self._max_payload} are possible")
        return size, last_word

    def _at_once(self, buffer: bytes) -> tuple[list[Run | ServerLine], int]:
        """The deliveries at the beginning of a buffer, and where they end. This needs no Python loop, but works only if
        nothing else lies between the deliveries, and they are small or have the same size."""
        first = _DELIVERY.match(buffer)
        if first is None or len(buffer) > _LARGE:
            return [], 0
        sid, stem, size = first.groups()
        second = _DELIVERY.match(buffer, first.end() + int(size) + 2)
        if second is None or second.groups()[:2] != (sid, stem):
            return [], 0
        columns, end = None, 0
        if second[3] == size and int(size) <= self._max_payload:
            columns, end = _split_equal(buffer, _message(sid, stem, size))
        if columns is None and second.start() <= _SMALL:
            columns, end = _split_small(buffer, _line(sid, stem), self._max_payload)
        return ([DeliveryRun(int(sid), stem, *columns)], end) if columns else ([], 0)

    def _joined(self, data: bytes) -> bytes:
        """All unparsed bytes, once they can contain a whole frame; before that nothing, so that no byte is copied
        twice."""
        if not self._rest:
            return data
        size = len(self._rest) + len(self._more) + len(data)
        line_goes_on = not self._enough and b"\n" not in data
        if line_goes_on and size > LONGEST_LINE:
            raise ProtocolError(f"a protocol line is longer than {LONGEST_LINE} bytes")
        if line_goes_on or size < self._enough:
            self._more += data
            return b""
        buffer = b"".join((self._rest, self._more, data))
        self._more.clear()
        return buffer
