# SPDX-License-Identifier: Apache-2.0
"""The position of a reader: what its checkpoint contains for each batch. No I/O."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.claim import Claim, is_claim_id
from jetstream_handoff.errors import CheckpointRefused
from jetstream_handoff.ledger.reservation import is_reader_id

_NEW = "Give the query a new checkpoint and a new output folder; or let it read what the checkpoint belongs to"


def new_reader_id() -> str:
    """A new id of a reader, or name of one of its runs. It is random, because a checkpoint can be lost."""
    return secrets.token_hex(8)


Owed = tuple[tuple[str, Sequences], ...]
"""Committed messages that could not be settled, as the server's time when a claim with them was taken, and their
sequences. A stream that is restored from an older copy uses sequences again: a message that was stored after this time
is another one."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position of a reader: what its checkpoint contains for each batch.

    stream, consumer:  what it reads.
    reader:  the id of the reader.
    batch:   the number of the batch that ends here, from 1; 0 before the first one.
    claim:   the messages of the batch; None before the first one.
    owed:    sequences that the reader has committed, and that could not be settled, each with the time at which their
             claim was taken. They are not read again when they are redelivered, and are settled with the batch that
             contains them then.
    after:   the id of the claim of the batch before; empty if there is none.
    """

    stream: str
    consumer: str
    reader: str
    batch: int = 0
    claim: Claim | None = None
    owed: Owed = ()
    after: str = ""

    @property
    def id(self) -> str:
        """The id of its claim; empty before the first batch."""
        return self.claim.id if self.claim else ""

    @property
    def wanted(self) -> Sequences:
        """The messages that the batch consists of."""
        return self.claim.sequences - sequences_of(self.owed) if self.claim else Sequences()

    def to_json(self) -> dict[str, Any]:
        """Return the position as a JSON value. Equal positions have the same JSON."""
        return {
            "stream": self.stream,
            "consumer": self.consumer,
            "reader": self.reader,
            "batch": self.batch,
            **({"claim": self.claim.to_json()} if self.claim else {}),
            **({"owed": [[at, sequences.to_json()] for at, sequences in self.owed]} if self.owed else {}),
            **({"after": self.after} if self.after else {}),
        }

    @classmethod
    def from_json(cls, value: object, stream: str, consumer: str) -> Position:
        """Read a position of a reader of this consumer from the value of :meth:`to_json`, or from anything else.

        Raises:
            CheckpointRefused: it is not a position of a reader of this consumer.
            ClaimInvalid, InvalidValue: its claim or its sequences are not valid.
        """
        fields = value if isinstance(value, Mapping) else {}
        if (fields.get("stream"), fields.get("consumer")) != (stream, consumer):
            what = f"consumer {str(fields.get('consumer'))[:60]!r}, stream {str(fields.get('stream'))[:60]!r}"
            problem = f"it belongs to {what}" if fields.get("consumer") else "it belongs to a query without a consumer"
            raise CheckpointRefused(consumer, "of this query", problem, _NEW)
        reader, batch, after = fields.get("reader"), fields.get("batch"), fields.get("after", "")
        claim = Claim.from_json(fields["claim"]) if "claim" in fields else None
        numbered = type(batch) is int and 0 <= batch < 2**63 and bool(batch) == (claim is not None)
        chained = isinstance(after, str) and (not after or is_claim_id(after)) and (not batch or batch == 1 or after)
        if not is_reader_id(reader) or not numbered or not chained:
            raise CheckpointRefused(consumer, "of this query", "it is not what this package writes", _NEW)
        if claim is not None and (claim.stream, claim.consumer) != (stream, consumer):
            raise CheckpointRefused(consumer, str(reader), f"its claim {claim.id} belongs to another consumer", _NEW)
        return cls(stream, consumer, str(reader), int(str(batch)), claim, _owed(fields.get("owed", [])), str(after))


def sequences_of(owed: Iterable[tuple[str, Sequences]]) -> Sequences:
    return Sequences.from_ranges(each for _, sequences in owed for each in sequences.ranges)


def without(owed: Owed, sequences: Sequences) -> Owed:
    left = ((at, each - sequences) for at, each in owed)
    return tuple((at, each) for at, each in left if each)


def _owed(value: object) -> Owed:
    """Read what is owed. Raises InvalidValue for anything else than what :meth:`Position.to_json` writes."""
    found = []
    for each in value if isinstance(value, list) else [None]:
        if not isinstance(each, list) or len(each) != 2:
            raise InvalidValue("owed", type(each), "it must be pairs of a time and sequences")
        at, sequences = each
        try:
            time_nanoseconds(at)
        except (ValueError, TypeError):
            raise InvalidValue("owed", type(at), "it must be pairs of a time and sequences") from None
        found.append((str(at), Sequences.from_json(sequences, "owed")))
    return tuple(found)
