"""Deleting a consumer or a stream: refused while claims of it are open, unless they do not matter.

A foreign deletion is noticed by whoever holds a claim, at its next heartbeat. This one looks first, and takes the
claims away before their messages go, so that nothing late is settled.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jetstream_client.errors import ConsumerNotFound, StreamNotFound
from jetstream_handoff.errors import DeletionRefused, LedgerUnavailable
from jetstream_handoff.inspection import open_claims
from jetstream_handoff.ledger import Ledger, never_used

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.inspection import Seen
    from jetstream_handoff.record import Record

log = logging.getLogger(__name__)

_NAMED = 5  # claims that an error describes


@dataclass(frozen=True)
class Deletion:
    """What a deletion is about to remove.

    messages:    that the stream holds; for a consumer those that it has not acknowledged.
    claims:      that are open and can still be settled.
    lost:        messages of an interest stream that go with the consumer: the server keeps them only for consumers.
    superseded:  the ids of the claims that were taken away.
    """

    stream: str
    consumer: str | None
    messages: int
    claims: tuple[Seen, ...] = ()
    lost: int = 0
    superseded: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        return f"stream {self.stream!r}" if self.consumer is None else f"consumer {self.consumer!r} of {self.stream!r}"

    def describe(self) -> str:
        """What would happen now, in words."""
        if self.consumer is None:
            text = f"{self.what} would be deleted with its {self.messages} messages"
        else:
            text = f"{self.what} would be deleted; it has not acknowledged {self.messages} messages"
        if self.lost:
            text += ", which the stream does not keep unless another consumer waits for them"
        if self.claims:
            text += f"; {len(self.claims)} claims are open: {'; '.join(map(_described, self.claims[:_NAMED]))}"
        return text

    def check(self, *, despite_open_claims: bool, despite_unprocessed: bool) -> None:
        """Raises DeletionRefused."""
        if self.claims and not despite_open_claims:
            shown = "; ".join(map(_described, self.claims[:_NAMED]))
            more = f"; and {len(self.claims) - _NAMED} more" if len(self.claims) > _NAMED else ""
            raise DeletionRefused(
                f"{self.what} is not deleted: {len(self.claims)} claims are open: {shown}{more}. Pause the sensor's "
                "DAG and wait until they are settled (airflow jetstream claims), or delete with "
                "despite_open_claims=True: their work is stopped then, and does not count",
                tuple(seen.id for seen in self.claims),
            )
        if self.lost and not despite_unprocessed:
            raise DeletionRefused(
                f"{self.what} is not deleted: the stream has retention 'interest', and {self.lost} messages that this "
                "consumer has not acknowledged are deleted with it, unless others wait for them, too. Let them be "
                "processed, or delete with despite_unprocessed=True",
                unprocessed=self.lost,
            )


async def plan(
    js: JetStream, stream: str, consumer: str | None = None, *, despite_open_claims: bool = False
) -> Deletion | None:
    """What deleting the stream, or one of its consumers, would remove at this moment; None when it is not there.

    Raises:
        LedgerUnavailable: it cannot be told whether claims are open, unless they do not matter.
    """
    try:
        info = await js.stream(stream).info()
        if consumer is None:
            found = Deletion(stream, None, int(info.state["messages"]))
        else:
            state = await js.consumer(stream, consumer).info()
            left = state.pending + state.ack_pending
            lost = left if info.config.get("retention") == "interest" else 0
            found = Deletion(stream, consumer, left, lost=lost)
    except (StreamNotFound, ConsumerNotFound):
        return None
    try:
        ledger = stream in (f"KV_{js.settings.ledger}_{bucket}" for bucket in ("claims", "receipts"))
        seen = await open_claims(js, None if ledger else stream, consumer)
    except LedgerUnavailable as error:
        if never_used(error):
            return found
        if not despite_open_claims:
            raise
        log.warning("%s is deleted although nobody knows whether claims of it are open: %s", found.what, error)
        return found
    return replace(found, claims=tuple(each for each in seen if each.current))


async def delete(
    js: JetStream,
    stream: str,
    consumer: str | None = None,
    *,
    despite_open_claims: bool = False,
    despite_unprocessed: bool = False,
) -> Deletion | None:
    """Delete a stream, or one of its consumers; what was deleted, None when it was not there.

    Open claims, if they do not matter, are superseded first: attempts that hold them stop and cannot settle.

    Raises:
        DeletionRefused, LedgerUnavailable: nothing was deleted.
    """
    found = await plan(js, stream, consumer, despite_open_claims=despite_open_claims)
    if found is None:
        return None
    found.check(despite_open_claims=despite_open_claims, despite_unprocessed=despite_unprocessed)
    superseded: set[str] = set()
    for names in {(seen.stream, seen.consumer) for seen in found.claims}:
        superseded |= await _supersede(Ledger(js, *names))
    try:
        if consumer is None:
            await js.delete_stream(stream)
        else:
            await js.delete_consumer(stream, consumer)
    except (StreamNotFound, ConsumerNotFound):  # somebody else was faster, or our answer was lost
        return None
    return replace(found, superseded=tuple(sorted(superseded)))


async def _supersede(ledger: Ledger) -> set[str]:
    """Nothing that is open can be settled any more. What is done stays known, should the deletion fail."""
    superseded: set[str] = set()

    def nothing_open(record: Record | None, info: ConsumerInfo) -> Record | None:  # noqa: ARG001
        if record is None:
            return None
        superseded.update(record.open)
        return replace(record, open={})

    with suppress(StreamNotFound, ConsumerNotFound):  # gone meanwhile, and its claims with it
        await ledger.change(nothing_open)
    return superseded


def _described(seen: Seen) -> str:
    by = f"held by attempt {seen.holder}" if seen.holder else "held by nobody"
    taken_by = seen.entry.taken_by if seen.entry else "nobody"
    return f"{seen.id} ({seen.sequences.count} messages of consumer {seen.consumer!r}, taken by {taken_by}, {by})"
