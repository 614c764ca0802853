# SPDX-License-Identifier: Apache-2.0
"""The metadata of many deliveries as columns, without an object for each message. No I/O."""

from __future__ import annotations

import functools
import re
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jetstream_client.consume.priority import pin_of
from jetstream_client.errors import NotJetStreamMessage
from jetstream_client.wire.protocol import AckSubject, decode_headers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetstream_client.consume.message import Message
    from jetstream_client.wire.run import Columns

_NUMBER = b"(?:0|[1-9][0-9]{0,18})"  # as in AckSubject.parse
_SIZE = b"\r\nNats-Msg-Size:"
_PIN = b"\r\nNats-Pin-Id:"
_DIGITS = b"0123456789"
_LONGEST = 10  # digits of a size that Message.size reads


@dataclass(frozen=True, slots=True)
class Metadata:
    """Deliveries of one consumer in the order of their arrival, as columns of equal length; at least one delivery.

    sequences:  stream sequences.
    counters:   consumer sequences.
    sizes:      bytes of the payloads, as :attr:`Message.size`.
    firsts:     1 for a first delivery, 0 for a redelivery.
    times:      when the stream stored the messages, in nanoseconds since 1970.
    last:       the parsed reply subject of the last delivery. The reply subjects of the other deliveries contain the
                same stream, consumer, domain and account.
    reply:      the reply subject of the last delivery.
    headers:    the headers of the delivery that arrived first.
    pin:        the id of this client's pin in a priority group, if the headers contain it, else empty.
    subjects:   the subjects of the messages. Bytes that are not UTF-8 may have been replaced.
    blocks:     the header blocks of the messages, likewise.
    """

    sequences: Sequence[int]
    counters: Sequence[int]
    sizes: Sequence[int]
    firsts: Sequence[int]
    times: Sequence[int]
    last: AckSubject
    reply: str
    headers: dict[str, list[str]]
    pin: str
    subjects: Sequence[bytes] = ()
    blocks: Sequence[bytes] = ()

    def __len__(self) -> int:
        return len(self.sequences)

    def at(self, places: Sequence[int]) -> Metadata:
        """Return the deliveries at these indexes, of which there must be at least one. The fields of the last delivery
        and the headers stay."""
        names = ("sequences", "counters", "sizes", "firsts", "times", "subjects", "blocks")
        columns: dict[str, Any] = {name: column for name in names if (column := getattr(self, name))}
        kept: dict[str, Any] = {name: [column[at] for at in places] for name, column in columns.items()}
        return replace(self, **kept)

    @classmethod
    def of(cls, message: Message) -> Metadata:
        """The metadata of one message."""
        meta = message.metadata
        numbers = ([meta.sequence], [meta.consumer_sequence], [message.size], [meta.delivered == 1], [meta.timestamp])
        lines = [f"\r\n{name}: {value}" for name, values in message.headers.items() for value in values]
        texts = [message.subject.encode()], ["".join(lines).encode()]
        return cls(*numbers, meta, message.reply, message.headers, pin_of(message.headers), *texts)

    @classmethod
    def cut(cls, columns: Columns) -> Metadata | None:
        """The metadata of messages that arrived together, without a Python loop. None unless all of them are deliveries
        of the same consumer. After None, read the messages one by one with :meth:`of`: :class:`Message` refuses
        messages that are not deliveries."""
        replies, headers = columns.replies, columns.headers
        reply = replies[-1].decode("utf-8", "replace")
        try:
            last = AckSubject.parse(reply)
        except NotJetStreamMessage:
            return None
        if last.tokens > 11:
            return None  # the numbers are not the last tokens of the subject
        # Nothing lies between the matches. No reply subject contains a space, so a space precedes each of them.
        parts = _delivery(replies[-1].rsplit(b".", 5)[0]).split(b" %b" % b" ".join(replies))
        if any(parts[::5]):
            return None
        firsts = bytes(map(b"1".__eq__, parts[1::5]))
        sequences, counters, times = (array("Q", map(int, parts[at::5])) for at in (2, 3, 4))
        sizes = _sizes(headers, columns.data)
        of_last = last, reply, decode_headers(headers[0]), _pin(headers)
        return cls(sequences, counters, sizes, firsts, times, *of_last, columns.subjects, headers)


@functools.lru_cache(maxsize=16)
def _delivery(stem: bytes) -> re.Pattern[bytes]:
    """Matches a reply subject after a space: its delivery count, stream sequence, consumer sequence and
    time."""
    return re.compile(rb" %b\.(%b)\.(%b)\.(%b)\.(%b)\.%b(?= |\Z)" % (re.escape(stem), *[_NUMBER] * 5))


def _pin(headers: Sequence[bytes]) -> str:
    if _PIN not in b"".join(headers):
        return ""
    return pin_of(decode_headers(next((block for block in reversed(headers) if _PIN in block), b"")))


def _sizes(headers: Sequence[bytes], data: Sequence[bytes]) -> Sequence[int]:
    """The sizes, as :attr:`Message.size`. A publisher may have set the same header; the last one is the server's."""
    stated = [block.rpartition(_SIZE)[2] for block in headers]
    if (
        b"".join(stated).translate(None, _DIGITS) == b" \r\n\r\n" * len(stated)
        and len(b" \r\n\r\n") < min(map(len, stated))
        and max(map(len, stated)) <= len(b" \r\n\r\n") + _LONGEST
        and not any(data)
    ):
        return array("Q", map(int, stated))
    return array("Q", map(_size, headers, data))


def _size(block: bytes, data: bytes) -> int:
    at = -1 if data else block.rfind(_SIZE)
    stated = block[at + len(_SIZE) :].partition(b"\r\n")[0].strip() if at >= 0 else b""
    return int(stated) if 0 < len(stated) <= _LONGEST and not stated.translate(None, _DIGITS) else len(data)
