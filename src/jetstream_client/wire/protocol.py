# SPDX-License-Identifier: Apache-2.0
"""The NATS client protocol as values: commands, header blocks, reply subjects. No I/O.

Sources: docs.nats.io, "Client Protocol"; ADR-4 for header lines; ADR-15 for acknowledgement subjects.
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
"""Beginning of a header block without a status."""
DELIVERY = b"$JS.ACK."
"""Beginning of the reply subject of every message that a consumer delivers. A status has another reply subject."""
_PLACE = b"\r\nNats-Time-Stamp: "  # the server adds it to the messages that answer a direct get, and never to a status
NO_RESPONDERS = 503
PUBLISH, SUBSCRIBE = "publish on", "subscribe to"
UNSAFE = re.compile(r"[ \t\r\n]")
"""Finds a character that would end a subject, or the line of a command."""
_LONGEST_ADDRESS = 4_096 - 2 * len(" 1000000000")  # bytes of a line's subjects: max_control_line less two sizes
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
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")  # the server's notation for signed integers
_NINE_TOKENS = re.compile(r"\$JS\.ACK\.([^.]+)\.([^.]+)" + rf"\.({_NUMBER.pattern})" * 5)
_HEADER_NAME = re.compile(r"[!-9;-~]+")


class Reply(NamedTuple):
    """A message that arrived in an inbox. ``status`` is 0 for a normal message; 503 means that nothing listens on the
    subject of the request."""

    subject: str
    reply: str
    status: int
    description: str
    headers: dict[str, list[str]]
    data: bytes
    size: int = 0
    """Bytes of subject, reply, headers and data, which is the size that the server counts in a pull."""


def parse_violation(text: str) -> tuple[str, str] | None:
    """The subject and the forbidden action of a permissions violation, or None for any other ``-ERR``."""
    found = _VIOLATION.search(text)
    if found is None:
        return None
    return found[2], PUBLISH if found[1].lower() == "publish" else SUBSCRIBE


def is_authentication_error(text: str) -> bool:
    """Whether an ``-ERR`` means that the server refuses the credentials. A time-out of the handshake does not."""
    words = text.lower()
    return ("authorization" in words or "authentication" in words) and "timeout" not in words


def encode_publish(subject: str, reply: str, data: bytes, header: bytes = b"") -> bytes:
    """PUB, or HPUB with a header block from :func:`encode_headers`.

    The caller checks the subjects. Only their length is checked here, because the server ends a shared connection at a
    line that is too long. Raises InvalidValue.
    """
    address = (f"{subject} {reply}" if reply else subject).encode()
    if len(address) > _LONGEST_ADDRESS:
        remedy = (
            f"this and the reply subject have {len(address)} bytes together; shorten it until they have "
            f"{_LONGEST_ADDRESS} at most"
        )
        raise InvalidValue("subject", subject, remedy)
    if header:
        return b"HPUB %b %d %d\r\n%b%b\r\n" % (address, len(header), len(header) + len(data), header, data)
    return b"PUB %b %d\r\n%b\r\n" % (address, len(data), data)


def too_large(size: int, largest: int) -> InvalidValue:
    """The error for a message of ``size`` bytes, if the server accepts ``largest`` bytes (``max_payload``)."""
    remedy = (
        f"data and headers must have at most {largest} bytes together, which is the server's max_payload; send less "
        "data, or raise max_payload"
    )
    return InvalidValue("data", f"{size} bytes", remedy)


def encode_headers(headers: Mapping[str, str | Sequence[str]]) -> bytes:
    """Encode a header block. Names keep their case; a name with several values becomes several lines (ADR-4).

    Raises:
        InvalidValue: a name is empty or has a colon, white space or control character, or a value has a line break.
    """
    lines = [HEADER_LINE]
    for name, values in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise InvalidValue("headers", name, "a header name must be visible ASCII characters without a colon")
        for value in (values,) if isinstance(values, str) else values:
            if "\r" in value or "\n" in value:
                raise InvalidValue(f"headers[{name!r}]", "…", "a header value must not contain a line break")
            try:
                lines.append(f"{name}: {value}".encode())
            except UnicodeEncodeError:
                remedy = "a header value must be valid Unicode, without surrogates"
                raise InvalidValue(f"headers[{name!r}]", "…", remedy) from None
    return b"\r\n".join([*lines, b"", b""])


def decode_headers(block: bytes) -> dict[str, list[str]]:
    """Decode a header block: all values of each name, in order. Bytes that are not UTF-8 are replaced."""
    headers: dict[str, list[str]] = {}
    if not block:
        return headers
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            headers.setdefault(name.decode("utf-8", "replace"), []).append(value.strip().decode("utf-8", "replace"))
    return headers


def header_lines(block: bytes) -> bytes:
    """The complete lines of a header block after its first line, each with its line break.

    ``block`` is given without its last two bytes, because nats-server replaces these two bytes, whatever they are, by
    the lines that it adds. They are a line break, unless the publisher ended the block in the middle of a line. In this
    case, the rest of the incomplete line is left out.
    """
    if block.startswith(FIRST_LINE) and block.endswith(b"\r\n"):
        return block[len(FIRST_LINE) :]
    lines = block.partition(b"\r\n")[2]
    return lines[: lines.rfind(b"\r\n") + 2] if b"\r\n" in lines else b""


def decode_status(block: bytes) -> tuple[int, str]:
    """Return the status and description in the first line of a header block, or ``(0, "")`` if the message has no
    status.

    nats-server removes a status line that a client publishes, but not one that lacks its final line break (seen with
    2.15.1). The server then appends its own headers, which complete that line. So a status does not prove that the
    server wrote it: a consumer's delivery is recognised by :data:`DELIVERY`, and an answer to a direct get by the
    header ``Nats-Time-Stamp``. The server's own statuses have neither.
    """
    line, end, _ = block.partition(b"\r\n")
    if not (end and line.startswith(STATUS_LINE)) or _PLACE in block:
        return 0, ""
    words = line[len(STATUS_LINE) :].strip().split(b" ", 1)
    if not (words[0].isdigit() and len(words[0]) == 3):
        return 0, ""
    return int(words[0]), words[1].strip().decode("utf-8", "replace") if len(words) > 1 else ""


class AckSubject(NamedTuple):
    """The reply subject of a delivered message, which contains its metadata.

    It has nine tokens, ``$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>``, or
    eleven and more, with domain (``_``: no domain) and account hash after ``ACK`` (ADR-15, server flag
    ``js_ack_fc_v2``).

    stream, consumer:   names of the stream and the consumer.
    delivered:          how many times the message was delivered, from 1.
    sequence:           stream sequence of the message.
    consumer_sequence:  consumer sequence of this delivery.
    timestamp:          when the stream stored the message, in nanoseconds since 1970.
    pending:            number of messages that wait for their first delivery.
    domain:             JetStream domain; empty if there is none.
    account:            hash of the account's name; empty in a subject of nine tokens.
    """

    stream: str
    consumer: str
    delivered: int
    sequence: int
    consumer_sequence: int
    timestamp: int
    pending: int
    domain: str = ""
    account: str = ""
    tokens: int = 9

    @classmethod
    def parse(cls, reply: str) -> AckSubject:
        """Parse a reply subject. Raises NotJetStreamMessage for any other subject."""
        if nine := _NINE_TOKENS.fullmatch(reply):
            stream, consumer, delivered, sequence, counter, time, left = nine.groups()
            fields = (stream, consumer, int(delivered), int(sequence), int(counter), int(time), int(left), "", "", 9)
            return tuple.__new__(cls, fields)  # calling the constructor would double the time
        words = reply.split(".")
        at = 2 if len(words) == 9 else 4
        texts = words[at + 2 : at + 7]
        if (
            len(words) not in (9, 11, 12)
            or words[:2] != ["$JS", "ACK"]
            or "" in words[: at + 7]
            or not all(_NUMBER.fullmatch(number) for number in texts)
        ):
            raise NotJetStreamMessage(
                f"no consumer delivered this message: its reply subject is {reply[:80]!r}; either another client "
                "published it to this inbox, so let only the server publish there, or an import of the account changes "
                "reply subjects, so read where the stream is"
            )
        domain, account = ("", "") if at == 2 else ("" if words[2] == "_" else words[2], words[3])
        delivered, sequence, consumer_sequence, timestamp, pending = map(int, texts)
        of = (delivered, sequence, consumer_sequence, timestamp, pending)
        return cls(words[at], words[at + 1], *of, domain, account, len(words))


def decode_object(data: bytes | str, what: str) -> dict[str, Any]:
    """Decode a received JSON object. ``what`` is its name in the error.

    Raises:
        ProtocolError: it is not JSON, is nested too deeply, or is not an object.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ProtocolError(f"{what} is not JSON") from None
    if not isinstance(value, dict):
        raise ProtocolError(f"{what} is not a JSON object but {type(value).__name__}")
    return value


def decode_info(text: bytes) -> dict[str, Any]:
    """The fields of a server's INFO line. Raises ProtocolError if a field that the client uses is invalid."""
    info = decode_object(text, "the server's INFO")
    for name, kind in _INFO.items():
        if name in info and (not isinstance(info[name], kind) or (kind is int and not 0 < info[name] < 1 << 31)):
            raise ProtocolError(f"the server's INFO contains an invalid {name}")
    if not info or not all(isinstance(url, str) for url in info.get("connect_urls") or ()):
        raise ProtocolError("the server's INFO is empty or contains invalid connect_urls")
    return info


def inbox_number(subject: bytes | str) -> int:
    """The number after the last dot of an answer's subject, which identifies the request; -1 if there is none."""
    raw = subject if isinstance(subject, bytes) else subject.encode("latin-1", "replace")
    number = raw[raw.rfind(b".") + 1 :]
    if not number.isdigit() or len(number) > 19 or (number[:1] == b"0" and number != b"0"):
        return -1
    return int(number)
