"""Stored messages as bulk reading hands them on: undecoded, and many of them as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import iadd
from typing import NamedTuple, Self

from jetstream_client.read.stored import StoredMessage
from jetstream_client.wire.protocol import decode_headers


class DirectMessage(NamedTuple):
    """A stored message, undecoded.

    ``time`` is RFC 3339, or nanoseconds since 1970 in digits; ``header`` holds the user's lines, or is empty.
    """

    sequence: int
    subject: bytes
    time: bytes
    header: bytes
    data: bytes

    def decoded(self) -> StoredMessage:
        """With texts for the subject and the headers; what is no UTF-8 there is replaced."""
        headers = decode_headers(b"\r\n" + self.header)
        return StoredMessage(
            self.subject.decode("utf-8", "replace"), self.sequence, self.time.decode(), headers, self.data
        )


@dataclass(frozen=True, slots=True)
class DirectMessages:
    """At least one message, as columns of one length: no object for each, which somebody would have to make, and
    Python's garbage collector to go through. Iteration makes them."""

    sequences: Sequence[int]
    subjects: Sequence[bytes]
    times: Sequence[bytes]
    headers: Sequence[bytes]
    data: Sequence[bytes]

    @classmethod
    def of(cls, messages: Iterable[DirectMessage]) -> Self:
        return cls(*zip(*messages, strict=True))

    @classmethod
    def joined(cls, parts: Sequence[DirectMessages]) -> DirectMessages:
        """One after the other, as one."""
        if len(parts) == 1:
            return parts[0]
        columns = ((part.sequences, part.subjects, part.times, part.headers, part.data) for part in parts)
        return cls(*(reduce(iadd, column, []) for column in zip(*columns, strict=True)))

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[DirectMessage]:
        rows = zip(self.sequences, self.subjects, self.times, self.headers, self.data, strict=True)
        return map(DirectMessage._make, rows)
