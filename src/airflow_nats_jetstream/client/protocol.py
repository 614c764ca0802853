"""The NATS client protocol as values: bytes in, frames out, and the reverse. No I/O.

Source: docs.nats.io, "Client Protocol"; header lines as ADR-4; acknowledgement subjects as ADR-15.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import gt
from typing import Any, NamedTuple

from airflow_nats_jetstream.client.errors import InvalidValue, JetStreamError

LONGEST_LINE = 1 << 20  # INFO of a large cluster is the longest; a MSG line has at most max_control_line, 4 KiB
HEADER_LINE = b"NATS/1.0"
STATUS_LINE = HEADER_LINE + b" "
FIRST_FIELD = len(HEADER_LINE) + 2
"""Where the fields of a header block begin that has no status."""
NO_RESPONDERS = 503
PUBLISH, SUBSCRIBE = "publish on", "subscribe to"
_MESSAGES = (b"MSG ", b"HMSG")  # how the line of a message begins
_WORDS = {b"MSG": 4, b"HMSG": 5}  # of such a line without a reply subject
_VIOLATION = re.compile(r'permissions violation for (publish|subscription) to "(.+?)"', re.IGNORECASE)
_INFO: dict[str, Any] = {
    "max_payload": int,
    "nonce": str,
    "version": str,
    "tls_required": bool,
    "tls_available": bool,
    "auth_required": bool,
    "connect_urls": list | None,
}
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")  # as the server writes its signed integers
_NINE_TOKENS = re.compile(r"\$JS\.ACK\.([^.]+)\.([^.]+)" + rf"\.({_NUMBER.pattern})" * 5)
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})")
_HEADER_NAME = re.compile(r"[!-9;-~]+")


# The end of a delivery's reply subject. Of twelve tokens the last one is another: those are read line by line.
_PLACE = rb"[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+"
_DELIVERY = re.compile(rb"MSG [^ \r\n]+ ([0-9]{1,9}) ([^ \r\n]+\.)%b ([0-9]{1,9})\r\n" % _PLACE)
_SMALL = 384  # bytes within which a second message begins, if looking for the lines of all pays
_LARGE = 1 << 20  # bytes that nobody reads at once: the pieces of many small messages would fill the memory


class ProtocolError(JetStreamError):
    """What came is not the NATS protocol, or not the JetStream API. A connection cannot be used any more then."""


class NotJetStreamMessage(ProtocolError):
    """A message that no JetStream consumer delivered: it has no place in a stream and cannot be acknowledged."""


class Frame(NamedTuple):
    """A delivered message, undecoded. ``header`` is the raw header block with its status line, or empty."""

    subject: bytes
    sid: int
    reply: bytes
    header: bytes
    data: bytes


class Reply(NamedTuple):
    """What came to an inbox. ``status`` is 0 for a message; 503 means that nobody listens on the subject."""

    subject: str
    reply: str
    status: int
    description: str
    headers: dict[str, list[str]]
    data: bytes
    size: int = 0
    """Bytes of subject, reply, headers and data: what the server counts as the message's size in a pull."""


class ServerLine(NamedTuple):
    """Everything but messages: ``verb`` is ``INFO``, ``PING``, ``PONG``, ``+OK`` or ``-ERR``, ``rest`` what follows."""

    verb: str
    rest: bytes


class Columns(NamedTuple):
    """Messages as the columns of their :class:`Frame`, each of the same length."""

    subjects: Sequence[bytes]
    sids: Sequence[int]
    replies: Sequence[bytes]
    headers: Sequence[bytes]
    data: Sequence[bytes]


class Deliveries(NamedTuple):
    """Messages that a consumer delivered, as columns. ``places`` has four for each of the others: stream sequence,
    consumer sequence, nanoseconds since 1970, and how many are pending."""

    subjects: Sequence[bytes]
    places: Sequence[bytes]
    headers: Sequence[bytes]
    data: Sequence[bytes]


class Run:
    """Messages that came one after the other, all MSG or all HMSG: their lines, and the bytes that followed each."""

    __slots__ = ("bodies", "lines")

    def __init__(self, lines: list[bytes], bodies: list[bytes]) -> None:
        self.lines = lines
        self.bodies = bodies

    def __len__(self) -> int:
        return len(self.bodies)

    def pop(self, position: int) -> None:
        """Leave out one message."""
        del self.lines[position], self.bodies[position]

    def columns(self) -> Columns | None:
        """Without a loop in Python, if each line has as many words as the first, which is nearly always so."""
        count = len(self.lines)
        words = b" \r\n ".join(self.lines).split(b" ")  # no line has such a word
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
        """The same, if each reply subject begins as the first one does, and ends with a place of four tokens."""
        columns = self.columns()
        if columns is None:
            return None
        count = len(columns.replies)
        # What all have in common goes first: each would be made as often as there are messages.
        stem = columns.replies[0].rsplit(b".", 4)[0] + b"."
        tokens = b".\r\n.".join(columns.replies).replace(stem, b"").split(b".")  # in no reply is such a token
        tokens.append(b"\r\n")
        if len(tokens) != 5 * count or tokens[4::5].count(b"\r\n") != count:
            return None
        del tokens[4::5]
        return Deliveries(columns.subjects, tokens, columns.headers, columns.data)

    def frames(self) -> list[Frame]:
        """Raises ProtocolError."""
        new = tuple.__new__  # past the constructor of the named tuple, which takes as long as all else
        if columns := self.columns():
            return [new(Frame, fields) for fields in zip(*columns, strict=True)]
        frames = []
        for line, body in zip(self.lines, self.bodies, strict=True):
            subject, sid, reply, header_size = _read_line(line, len(body))
            frames.append(Frame(subject, sid, reply, body[:header_size], body[header_size:]))
        return frames


class DeliveryRun(Run):
    """Deliveries of one consumer without headers: what their lines say is read already."""

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
    """Subject, sid, reply and size of the header of a message of ``size`` bytes. Raises ProtocolError."""
    words = line.split(b" ")
    try:
        sid = int(words[2])
        header_size = int(words[-2]) if words[0] == b"HMSG" else 0
        replied = len(words) - _WORDS[words[0]]
        if replied not in (0, 1):
            raise ValueError  # noqa: TRY301
    except (ValueError, IndexError, KeyError):
        raise ProtocolError(f"not a message line: {line[:60]!r}") from None
    if not 0 <= header_size <= size or sid < 0:
        raise ProtocolError(f"a message of {size} bytes with {header_size} bytes of headers")
    return words[1], sid, words[3] if replied else b"", header_size


_DeliveryColumns = tuple[list[bytes], list[bytes], list[bytes]]  # subjects, places, data


@functools.lru_cache(maxsize=16)
def _line(sid: bytes, stem: bytes) -> re.Pattern[bytes]:
    """What is between the data of two deliveries: subject, place and size."""
    fields = (re.escape(sid), re.escape(stem), _PLACE)
    return re.compile(rb"\r\nMSG ([^ \r\n]+) %b %b(%b) ([0-9]{1,9})\r\n" % fields)


@functools.lru_cache(maxsize=16)
def _message(sid: bytes, stem: bytes, size: bytes) -> re.Pattern[bytes]:
    """A delivery: its subject, place and data."""
    fields = (re.escape(sid), re.escape(stem), _PLACE, size, int(size))
    return re.compile(rb"MSG ([^ \r\n]+) %b %b(%b) %b\r\n(.{%d})\r\n" % fields, re.DOTALL)


def _split_small(buffer: bytes, line: re.Pattern[bytes], max_payload: int) -> tuple[_DeliveryColumns | None, int]:
    """Where the next line begins is looked for, which takes 1 ns for a byte of data."""
    _, *parts = line.split(b"\r\n" + buffer)
    subjects, places, sizes, data = parts[::4], parts[1::4], list(map(int, parts[2::4])), parts[3::4]
    last, size = data[-1], sizes[-1]
    if len(last) < size + 2:
        end = buffer.rindex(b"MSG ", 0, len(buffer) - len(last))
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
    if any(parts[::4]):  # between two of them
        return None, 0
    return (parts[1::4], parts[2::4], parts[3::4]), len(buffer) - len(rest)


class Parser:
    """Cuts a byte stream into frames. One parser belongs to one connection."""

    def __init__(self, max_payload: int = 64 << 20) -> None:
        self._rest = b""  # a frame that has begun,
        self._more = bytearray()  # what came to it since,
        self._enough = 0  # and the bytes that it needs, once its line has told them
        self._max_payload = max_payload

    def feed(self, data: bytes) -> list[Frame | ServerLine]:
        """The frames that are complete with this data.

        Raises:
            ProtocolError: not the protocol, a line over 1 MiB, or a message over ``max_payload``.
        """
        frames: list[Frame | ServerLine] = []
        for piece in self.cut(data):
            if isinstance(piece, Run):
                frames += piece.frames()
            else:
                frames.append(piece)
        return frames

    def cut(self, data: bytes) -> list[Run | ServerLine]:
        """As :meth:`feed`, but what the lines of messages say is not read yet, except for their sizes."""
        buffer = self._joined(data)
        if not buffer:
            return []
        pieces, position = self._at_once(buffer)
        lines: list[bytes] = []
        bodies: list[bytes] = []
        verb = b""  # of the run that goes on
        last_word, size = b"\r\n", 0  # of the line before, which is often that of the next
        find = buffer.find
        enough = 0
        end = len(buffer)
        while True:
            line_end = find(b"\r\n", position)
            if line_end < 0:
                if end - position > LONGEST_LINE:
                    raise ProtocolError("a protocol line does not end")
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
                    raise ProtocolError(f"a message is not {size} bytes long, as its line says")
                if start != verb:
                    lines, bodies, verb = [], [], start
                    pieces.append(Run(lines, bodies))
                lines.append(line)
                bodies.append(buffer[begin:stop])
                position = stop + 2
            else:
                name, _, rest = line.partition(b" ")
                line_verb = name.decode("latin-1").upper()
                if line_verb not in ("INFO", "PING", "PONG", "+OK", "-ERR"):
                    raise ProtocolError(f"not a protocol line: {line[:60]!r}")
                pieces.append(ServerLine(line_verb, rest.strip()))
                verb = b""
                position = line_end + 2
        self._rest = buffer[position:]
        self._enough = enough
        return pieces

    def _size(self, line: bytes) -> tuple[int, bytes]:
        """Of a message, by the last word of its line; and that word with the space before it."""
        last_word = line[line.rfind(b" ") :]
        try:
            size = int(last_word)
        except ValueError:
            raise ProtocolError(f"not a message line: {line[:60]!r}") from None
        if not 0 <= size <= self._max_payload:
            raise ProtocolError(f"a message of {size} bytes")
        return size, last_word

    def _at_once(self, buffer: bytes) -> tuple[list[Run | ServerLine], int]:
        """The deliveries that a buffer begins with, and where they end: without a loop in Python, if nothing else comes
        between them and they are small, or of one size."""
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
        """All there is, once it can hold a whole frame; until then nothing, so that no byte is copied twice."""
        if not self._rest:
            return data
        size = len(self._rest) + len(self._more) + len(data)
        line_goes_on = not self._enough and b"\n" not in data
        if line_goes_on and size > LONGEST_LINE:
            raise ProtocolError("a protocol line does not end")
        if line_goes_on or size < self._enough:
            self._more += data
            return b""
        buffer = b"".join((self._rest, self._more, data))
        self._more.clear()
        return buffer


def parse_violation(text: str) -> tuple[str, str] | None:
    """The subject of a permissions violation and what was not allowed with it, or None for another ``-ERR``."""
    found = _VIOLATION.search(text)
    if found is None:
        return None
    return found[2], PUBLISH if found[1].lower() == "publish" else SUBSCRIBE


def is_authentication_error(text: str) -> bool:
    """Whether an ``-ERR`` says that these credentials will not do. A time-out of the handshake does not."""
    words = text.lower()
    return ("authorization" in words or "authentication" in words) and "timeout" not in words


def encode_connect(fields: Mapping[str, Any]) -> bytes:
    return b"CONNECT " + json.dumps(fields).encode() + b"\r\n"


def encode_subscribe(subject: str, sid: int) -> bytes:
    return f"SUB {subject} {sid}\r\n".encode()


def encode_unsubscribe(sid: int) -> bytes:
    return f"UNSUB {sid}\r\n".encode()


def encode_publish(subject: str, reply: str, data: bytes, header: bytes = b"") -> bytes:
    """PUB, or HPUB with a header block from :func:`encode_headers`. Subjects are the caller's to check."""
    address = f"{subject} {reply}" if reply else subject
    if header:
        return b"HPUB %b %d %d\r\n%b%b\r\n" % (address.encode(), len(header), len(header) + len(data), header, data)
    return b"PUB %b %d\r\n%b\r\n" % (address.encode(), len(data), data)


def encode_headers(headers: Mapping[str, str | Sequence[str]]) -> bytes:
    """A header block. Names keep their case; a name with several values is sent as several lines (ADR-4).

    Raises:
        InvalidValue: a name that is empty or has a colon, white space or control character; a value with a line break.
    """
    lines = [HEADER_LINE]
    for name, values in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidValue("headers", name, "a header name has visible ASCII characters and no colon")
        for value in (values,) if isinstance(values, str) else values:
            if "\r" in value or "\n" in value:
                raise InvalidValue(f"headers[{name!r}]", "…", "a header value has no line break")
            try:
                lines.append(f"{name}: {value}".encode())
            except UnicodeEncodeError:
                raise InvalidValue(f"headers[{name!r}]", "…", "a header value is text without surrogates") from None
    return b"\r\n".join([*lines, b"", b""])


def decode_headers(block: bytes) -> dict[str, list[str]]:
    """All values of each name, in order. Empty for an empty block. Bytes that are not UTF-8 are replaced."""
    headers: dict[str, list[str]] = {}
    if not block:
        return headers
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            headers.setdefault(name.decode("utf-8", "replace"), []).append(value.strip().decode("utf-8", "replace"))
    return headers


def decode_status(block: bytes) -> tuple[int, str]:
    """Status and description of a header block's first line; ``(0, "")`` for a message without one."""
    if not block.startswith(HEADER_LINE):
        return 0, ""
    words = block[len(HEADER_LINE) :].partition(b"\r\n")[0].strip().split(b" ", 1)
    if not (words[0].isdigit() and len(words[0]) == 3):
        return 0, ""
    return int(words[0]), words[1].strip().decode("utf-8", "replace") if len(words) > 1 else ""


class AckSubject(NamedTuple):
    """The reply subject of a delivered message, which carries its metadata.

    Nine tokens ``$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>``, or eleven and
    more with domain (``_`` means none) and account hash after ``ACK`` (ADR-15, server flag ``js_ack_fc_v2``).
    """

    stream: str
    consumer: str
    delivered: int
    sequence: int
    consumer_sequence: int
    timestamp: int
    """Nanoseconds since 1970 at which the stream stored the message."""
    pending: int
    domain: str = ""
    account: str = ""
    """The hash of the account's name; empty in nine tokens."""
    tokens: int = 9

    @classmethod
    def parse(cls, reply: str) -> AckSubject:
        """Raises NotJetStreamMessage for any other subject, or none."""
        if nine := _NINE_TOKENS.fullmatch(reply):
            stream, consumer, delivered, sequence, counter, time, left = nine.groups()
            fields = (stream, consumer, int(delivered), int(sequence), int(counter), int(time), int(left), "", "", 9)
            return tuple.__new__(cls, fields)  # its constructor takes as long as this
        words = reply.split(".")
        at = 2 if len(words) == 9 else 4
        texts = words[at + 2 : at + 7]
        if (
            len(words) not in (9, 11, 12)
            or words[:2] != ["$JS", "ACK"]
            or "" in words[: at + 7]
            or not all(_NUMBER.fullmatch(number) for number in texts)
        ):
            raise NotJetStreamMessage(f"not the reply subject of a JetStream message: {reply[:80]!r}")
        domain, account = ("", "") if at == 2 else ("" if words[2] == "_" else words[2], words[3])
        delivered, sequence, consumer_sequence, timestamp, pending = map(int, texts)
        of = (delivered, sequence, consumer_sequence, timestamp, pending)
        return cls(words[at], words[at + 1], *of, domain, account, len(words))


def decode_object(data: bytes | str, what: str) -> dict[str, Any]:
    """The JSON object that a server or somebody else sent. ``what`` names it in the error.

    Raises:
        ProtocolError: no JSON, JSON deeper than the stack, or no object.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ProtocolError(f"{what} is not JSON") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"{what} is {type(value).__name__}, not a JSON object")
    return value


def decode_info(text: bytes) -> dict[str, Any]:
    """The fields of a server's INFO line. Raises ProtocolError where one that we use is not what it should be."""
    info = decode_object(text, "the server's INFO")
    for name, kind in _INFO.items():
        if name in info and (not isinstance(info[name], kind) or (kind is int and not 0 < info[name] < 1 << 31)):
            raise ProtocolError(f"the server's INFO has a {name} that is none")
    if not info or not all(isinstance(url, str) for url in info.get("connect_urls") or ()):
        raise ProtocolError("the server's INFO is none")
    return info


def inbox_number(subject: bytes | str) -> int:
    """The number behind the last dot of an answer's subject: which request it answers. -1: none that was sent."""
    raw = subject if isinstance(subject, bytes) else subject.encode("latin-1", "replace")
    number = raw[raw.rfind(b".") + 1 :]
    if not number.isdigit() or len(number) > 19 or (number[:1] == b"0" and number != b"0"):
        return -1
    return int(number)


def time_nanoseconds(text: str) -> int:
    """RFC 3339 as nanoseconds since 1970, nothing cut: claims compare creation times exactly.

    Raises ValueError for anything else, a time without a zone included.
    """
    if not _TIME.fullmatch(text):
        raise ValueError("not an RFC 3339 time")
    whole, dot, rest = text.partition(".")
    digits = ""
    if dot:
        digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
        whole += rest[len(digits) :]
    return int(datetime.fromisoformat(whole).timestamp()) * 10**9 + int(digits[:9].ljust(9, "0"))
