# SPDX-License-Identifier: Apache-2.0
"""Stored messages: decoded ones, and undecoded ones in columns for bulk reading."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import compress
from operator import iadd
from typing import Any, NamedTuple, Self

from jetstream_client.errors import promised
from jetstream_client.wire.protocol import decode_headers, header_lines

MARKER_REASON = "Nats-Marker-Reason"
"""The header of a delete marker (ADR-43)."""


@dataclass(frozen=True)
class StoredMessage:
    """A stored message.

    subject:   the subject that it was published on.
    sequence:  stream sequence.
    time:      when it was stored, as RFC 3339 with the server's nanoseconds.
    headers:   names with all their values.
    data:      payload.
    """

    subject: str
    sequence: int
    time: str
    headers: dict[str, list[str]] = field(repr=False)
    data: bytes = field(repr=False)

    @property
    def marker(self) -> str:
        """Why the server stored this message as a delete marker, in its words: ``MaxAge``, ``Purge`` or ``Remove``. A
        marker has no data; it says that the last message on its subject was removed. Empty for any other message."""
        return (self.headers.get(MARKER_REASON) or [""])[-1]


class RawMessage(NamedTuple):
    """An undecoded stored message.

    ``time`` is RFC 3339, or nanoseconds since 1970 as digits. ``header`` contains the publisher's header lines, or is
    empty.
    """

    sequence: int
    subject: bytes
    time: bytes
    header: bytes
    data: bytes

    @classmethod
    def parse(cls, answer: Any) -> RawMessage:
        """Parse an answer to ``STREAM.MSG.GET``. Raises ProtocolError."""
        with promised("the answer to STREAM.MSG.GET"):
            message = answer["message"]
            block, data = (base64.b64decode(message.get(name, "")) for name in ("hdrs", "data"))
            subject, time = message["subject"].encode(), message["time"].encode()
            return cls(int(message["seq"]), subject, time, header_lines(block[:-2]), data)

    def decoded(self) -> StoredMessage:
        """The message with subject and headers as strings. Bytes that are not UTF-8 are replaced."""
        headers = decode_headers(b"\r\n" + self.header)
        return StoredMessage(
            self.subject.decode("utf-8", "replace"), self.sequence, self.time.decode(), headers, self.data
        )


@dataclass(frozen=True, slots=True)
class RawMessages:
    """At least one message, as columns of equal length. Without an object for each message, there is less to create and
    less for Python's garbage collector to scan. Iterating creates the objects."""

    sequences: Sequence[int]
    subjects: Sequence[bytes]
    times: Sequence[bytes]
    headers: Sequence[bytes]
    data: Sequence[bytes]

    @classmethod
    def of(cls, messages: Iterable[RawMessage]) -> Self:
        return cls(*zip(*messages, strict=True))

    @classmethod
    def joined(cls, parts: Sequence[RawMessages]) -> RawMessages:
        """Concatenate several parts."""
        if len(parts) == 1:
            return parts[0]
        columns = ((part.sequences, part.subjects, part.times, part.headers, part.data) for part in parts)
        return cls(*(reduce(iadd, column, []) for column in zip(*columns, strict=True)))

    def selected(self, selectors: bytes) -> Self:
        """The messages whose byte in ``selectors`` is not 0. They may be none."""
        sequences = list(compress(self.sequences, selectors))
        columns = (self.subjects, self.times, self.headers, self.data)
        return type(self)(sequences, *(list(compress(column, selectors)) for column in columns))

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[RawMessage]:
        rows = zip(self.sequences, self.subjects, self.times, self.headers, self.data, strict=True)
        return map(RawMessage._make, rows)
