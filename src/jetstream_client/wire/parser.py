# SPDX-License-Identifier: Apache-2.0
"""Cutting a server's bytes into frames. Messages of the same kind are cut many at a time, without a Python loop. No
I/O.

Source: docs.nats.io, "Client Protocol".
"""

from __future__ import annotations

import functools
import re
from operator import add
from typing import NamedTuple

from jetstream_client.errors import ProtocolError
from jetstream_client.wire.run import STORED, AnswerRun, Answers, DeliveryRun, Frame, Run, read_line

LONGEST_LINE = 1 << 20  # the INFO of a large cluster is the longest line; a MSG line has max_control_line, 4 KiB
_MESSAGES = (b"MSG ", b"HMSG")  # beginnings of a message's line
# The end of a delivery's reply subject. A subject of twelve tokens ends otherwise and is read line by line.
_PLACE = rb"[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+"
_DELIVERY = re.compile(rb"MSG [^ \r\n]+ ([0-9]{1,9}) ([^ \r\n]+\.)%b ([0-9]{1,9})\r\n" % _PLACE)
_ANSWER = re.compile(rb"HMSG [^ \r\n]+ ([0-9]{1,9}) ([0-9]{1,9}) ([0-9]{1,9})\r\n%b" % STORED)
_SMALL_ANSWER = 2_048  # bytes of data up to which answers are cut together
_SMALL = 384  # searching for the lines of all messages pays off if the second one begins within this many bytes
_LARGE = 1 << 20  # bytes; more are not cut together, because the pieces of many small messages would fill the memory


class ServerLine(NamedTuple):
    """A line that is not a message. ``verb`` is INFO, PING, PONG, +OK or -ERR, and ``rest`` is the text after it."""

    verb: str
    rest: bytes


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


@functools.lru_cache(maxsize=16)
def _answer(sid: bytes) -> re.Pattern[bytes]:
    """Matches the line and the headers of an answer."""
    return re.compile(rb"\r\nHMSG ([^ \r\n]+) %b ([0-9]{1,9}) ([0-9]{1,9})\r\n%b" % (sid, STORED))


def _split_answers(buffer: bytes, sid: bytes, max_payload: int) -> tuple[AnswerRun | None, int]:
    """Cut answers by searching for their lines and headers, which takes 1 ns for a byte of data."""
    arrived = b"\r\n" + buffer
    _, *parts = _answer(sid).split(arrived)
    end = len(buffer) - len(parts[-1]) + int(parts[-7]) - int(parts[-8]) + 2
    if end > len(buffer):  # the last one is incomplete
        end = arrived.rindex(b"\r\nHMSG ", 0, len(arrived) - len(parts[-1]) - len(parts[-6]))
        del parts[-9:]
    elif buffer[end - 2 : end] == b"\r\n":
        parts[-1] = parts[-1][: int(parts[-7]) - int(parts[-8])]
    inboxes, header_sizes, sizes, headers, own, subjects, sequences, times, data = (parts[at::9] for at in range(9))
    all_sizes = list(map(int, sizes))
    if (
        list(map(int, header_sizes)) != list(map(len, headers))
        or all_sizes != list(map(add, map(len, headers), map(len, data)))
        or max(all_sizes, default=max_payload + 1) > max_payload
    ):
        return None, 0
    return AnswerRun(int(sid), headers, Answers(inboxes, subjects, sequences, times, own, data)), end


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
                    read_line(line, size)
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
        if len(buffer) > _LARGE:
            return [], 0
        if (answer := _ANSWER.match(buffer)) and int(answer[3]) - int(answer[2]) <= _SMALL_ANSWER:
            run, end = _split_answers(buffer, answer[1], self._max_payload)
            return ([run], end) if run else ([], 0)
        first = _DELIVERY.match(buffer)
        if first is None:
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
