# SPDX-License-Identifier: Apache-2.0
"""The reservation of a consumer for one reader, and the checks of a reader's checkpoint against it. No I/O.

A reader is a program that processes the messages of a consumer batch by batch, and has its own durable log of what it
has committed: its checkpoint, as a streaming query of Spark has one. The checkpoint decides what is processed, and the
ledger what is acknowledged. So nobody else may take from the consumer, and a checkpoint that is older than what was
settled must not be continued (docs/handoff.md).
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from jetstream_client.times import time_nanoseconds
from jetstream_handoff.claim import is_claim_id
from jetstream_handoff.errors import CheckpointRefused, ConsumerReserved, HeldByAnother

if TYPE_CHECKING:
    from jetstream_handoff.ledger.history import Owner

_ID = re.compile(r"[0-9a-f]{16,32}")
_KIND = "reader"


def is_reader_id(text: object) -> bool:
    """Whether this value can be the id of a reader, or the name of one of its runs."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def owner_of_batch(reader: str, batch: int) -> Owner:
    """The owner of the claim of a reader's batch. Only a take for the same batch inherits the claim."""
    return _KIND, reader, batch


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader that asks for a consumer.

    id:        the reader, whose id its checkpoint contains.
    run:       the name of its present run. A reader runs once at a time, and the newest run counts.
    replaces:  the id of the reader whose place it takes; empty if it takes none. Its own id, if the ledger has lost the
               reservation.
    """

    id: str
    run: str
    replaces: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """The reader that a consumer is reserved for.

    reader:  its id.
    run:     its newest run.
    at:      when that run began, by the server's clock.
    batch:   the number of the last batch that its checkpoint is known to have committed; 0 if none is.
    claim:   the id of the claim of that batch; empty if there is none.
    planned: the id of the claim of the last batch whose messages the reader has asked for; empty if there is none.
    """

    reader: str
    run: str
    at: str
    batch: int = 0
    claim: str = ""
    planned: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Reservation:
        """The reverse of :meth:`to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        reader, run, at, batch, claim, planned = (value[each.name] for each in fields(cls))
        known = is_reader_id(reader) and is_reader_id(run) and type(batch) is int and 0 <= batch < 2**63
        claims = all(isinstance(each, str) and (not each or is_claim_id(each)) for each in (claim, planned))
        if not known or not claims or bool(claim) != bool(batch):
            raise ValueError("not a reservation")
        time_nanoseconds(at)
        return cls(reader, run, at, batch, claim, planned)

    def check_checkpoint(self, consumer: str, batch: int, claim: str, after: str, logged: str = "") -> None:
        """Check that a checkpoint of this reader is not older than what was settled, and belongs to the same sequence
        of batches.

        batch, claim:  the last batch that the checkpoint has committed, and the id of its claim.
        after:         the id of the claim of the batch before it; empty if there is none.
        logged:        the id of the claim of the batch that it has logged after it; empty if there is none.

        Raises:
            CheckpointRefused: it is an older copy, or another copy went on.
        """
        if self.batch > batch:
            problem = (
                f"it has committed {batch} batches, and the ledger knows that {self.batch} were committed: it is an "
                "older copy, and the messages of the later batches would be missing in the output"
            )
        elif (self.batch == batch and claim != self.claim) or (0 < self.batch == batch - 1 and after != self.claim):
            problem = (
                f"its batch {self.batch} is not the one that the ledger knows: another copy of it went on, and "
                "messages would be missing in the output"
            )
        elif self.batch == batch and self.planned not in ("", claim, logged):
            problem = (
                f"the reader has logged batch {batch + 1} with claim {self.planned}, which is not in it: it is an "
                "older copy"
            )
        else:
            return
        raise CheckpointRefused(consumer, self.reader, problem)


def check_taker(consumer: str, found: Reservation | None, asks: Reader | None) -> None:
    """Check that a take may take from a consumer.

    found:  the consumer's reservation, if any.
    asks:   the reader that takes; None for a take that is not a reader's.

    Raises:
        ConsumerReserved: the consumer is reserved for another reader.
        HeldByAnother: a newer run of this reader has begun.
    """
    if found is None or (asks and asks.replaces == found.reader != asks.id):
        return
    if asks is None or found.reader != asks.id:
        raise ConsumerReserved(consumer, found.reader, found.at)
    if found.run != asks.run:
        raise HeldByAnother(
            f"another run of reader {asks.id} began at {found.at}, and only the newest one reads consumer "
            f"{consumer!r}; run the reader once at a time, and do not copy its checkpoint"
        )
