"""The NATS client protocol as values: commands, header blocks, reply subjects. No I/O.

Source: docs.nats.io, "Client Protocol"; header lines as ADR-4; acknowledgement subjects as ADR-15.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jetstream_client.errors import InvalidValue, NotJetStreamMessage, ProtocolError

HEADER_LINE = b"NATS/1.0"
STATUS_LINE = HEADER_LINE + b" "
FIRST_LINE = HEADER_LINE + b"\r\n"
"""How a header block begins that has no status."""
DELIVERY = b"$JS.ACK."
"""How the reply subject of every message begins that a consumer delivers; the server's statuses have none such."""
_PLACE = (
    b"\r\nNats-Time-Stamp: "  # what the server adds to a message that it answers a direct get with, and to no status
)
NO_RESPONDERS = 503
PUBLISH, SUBSCRIBE = "publish on", "subscribe to"
_LONGEST_ADDRESS = 4_096 - 2 * len(" 1000000000")  # bytes of a line's subjects, beside two sizes (max_control_line)
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
_HEADER_NAME = re.compile(r"[!-9;-~]+")


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


def encode_publish(subject: str, reply: str, data: bytes, header: bytes = b"") -> bytes:
    """PUB, or HPUB with a header block from :func:`encode_headers`. Subjects are the caller's to check, but for their
    length: a line that is too long would end the connection of all who share it. Raises InvalidValue."""
    address = (f"{subject} {reply}" if reply else subject).encode()
    if len(address) > _LONGEST_ADDRESS:
        remedy = f"with the subject of the answer it may have {_LONGEST_ADDRESS} bytes and has {len(address)}"
        raise InvalidValue("subject", subject, remedy)
    if header:
        return b"HPUB %b %d %d\r\n%b%b\r\n" % (address, len(header), len(header) + len(data), header, data)
    return b"PUB %b %d\r\n%b\r\n" % (address, len(data), data)


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


def header_lines(block: bytes) -> bytes:
    """The whole lines of a header block after its first one, each with its line break.

    ``block`` comes without its last two bytes. They are a line break, unless a publisher has ended the block in the
    middle of a line: nats-server puts the lines that it adds in their place, whatever they were. What is left of such a
    line is nobody's header, and is left out.
    """
    if block.startswith(FIRST_LINE) and block.endswith(b"\r\n"):
        return block[len(FIRST_LINE) :]
    lines = block.partition(b"\r\n")[2]
    return lines[: lines.rfind(b"\r\n") + 2] if b"\r\n" in lines else b""


def decode_status(block: bytes) -> tuple[int, str]:
    """Status and description of a header block's first line; ``(0, "")`` for a message without one.

    nats-server removes a status that a client publishes, but not where the line does not end (2.15.1). Once the server
    has added lines of its own it does end: a consumer's deliveries are told from statuses by :data:`DELIVERY`, and the
    answers to direct gets by the time that only a message has.
    """
    line, end, _ = block.partition(b"\r\n")
    if not (end and line.startswith(STATUS_LINE)) or _PLACE in block:
        return 0, ""
    words = line[len(STATUS_LINE) :].strip().split(b" ", 1)
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
