# SPDX-License-Identifier: Apache-2.0
"""Delete a consumer or a stream. This is refused while its claims are open, unless ``despite_open_claims`` is set.

An attempt notices a deletion by another client only at its next heartbeat. A deletion by this module looks for open
claims first and supersedes them before it deletes anything, so that no attempt settles them after the deletion.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jetstream_client.errors import ConsumerNotFound, PermissionDenied, StreamNotFound
from jetstream_handoff.errors import DeletionRefused, LedgerUnavailable
from jetstream_handoff.ledger.buckets import never_used
from jetstream_handoff.ledger.changes import Changed
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.rules import ledger_mark
from jetstream_handoff.take.conservation import given_up
from jetstream_handoff.watch.inspection import look_at, oldest_first
from jetstream_handoff.words import Words, words_of

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo, StreamInfo
    from jetstream_handoff.ledger.record import Record
    from jetstream_handoff.watch.seen import Seen

log = logging.getLogger(__name__)

_NAMED = 5  # how many claims an error message describes


@dataclass(frozen=True)
class Deletion:
    """The effect of a deletion.

    messages:    number of messages in the stream; for a consumer, the number of messages that it has not acknowledged.
    claims:      the claims that are open and can still be settled.
    lost:        number of messages that an interest stream may delete with the consumer. The stream keeps messages that
                 another consumer has not acknowledged.
    superseded:  the ids of the claims that were superseded.
    readers:     the consumers that are reserved for a reader: stream, consumer and the id of the reader.
    """

    stream: str
    consumer: str | None
    messages: int
    claims: tuple[Seen, ...] = ()
    lost: int = 0
    superseded: tuple[str, ...] = ()
    readers: tuple[tuple[str, str, str], ...] = ()

    @property
    def what(self) -> str:
        return (
            f"stream {self.stream!r}"
            if self.consumer is None
            else f"consumer {self.consumer!r} of stream {self.stream!r}"
        )

    def describe(self) -> str:
        """Return the effect that the deletion would have now, in words."""
        if self.consumer is None:
            text = f"{self.what} would be deleted with its {self.messages} messages"
        else:
            text = f"{self.what} would be deleted; {self.messages} of its messages have not been acknowledged"
        if self.lost:
            text += ", and the stream would delete those that no other consumer still has to acknowledge"
        if self.claims:
            text += f"; {len(self.claims)} claims are open: {self._shown}"
        for _, consumer, reader in self.readers:
            text += f"; consumer {consumer!r} is reserved for reader {reader}"
        return text

    @property
    def _shown(self) -> str:
        more = f"; and {len(self.claims) - _NAMED} more" if len(self.claims) > _NAMED else ""
        return "; ".join(map(_described, self.claims[:_NAMED])) + more

    def check(self, words: Words, *, despite_open_claims: bool, despite_unprocessed: bool) -> None:
        """Raise DeletionRefused if something that is still needed would be deleted."""
        if self.claims and not despite_open_claims:
            raise DeletionRefused(
                f"{self.what} was not deleted, because {len(self.claims)} claims are open: {self._shown}. Wait until "
                f"the tasks of these claims have finished and no sensor takes new claims ({words.command('claims')} "
                "lists the open claims), or delete with despite_open_claims=True, which stops the work on the claims "
                "and discards its results",
                tuple(seen.id for seen in self.claims),
            )
        if self.readers and not despite_open_claims:
            named = "; ".join(f"consumer {consumer!r} for reader {reader}" for _, consumer, reader in self.readers)
            raise DeletionRefused(
                f"{self.what} was not deleted, because consumers are reserved for readers (streaming queries), which "
                f"could not go on: {named}. Stop the query and end the reservation (command reader), or delete with "
                "despite_open_claims=True"
            )
        if self.lost and not despite_unprocessed:
            raise DeletionRefused(
                f"{self.what} was not deleted, because {self.lost} of its messages have not been acknowledged, and "
                "the stream (retention 'interest') would delete those that no other consumer still has to "
                "acknowledge. Process these messages first, or delete with despite_unprocessed=True",
                unprocessed=self.lost,
            )


async def plan(
    js: JetStream, stream: str, consumer: str | None = None, *, despite_open_claims: bool = False
) -> Deletion | None:
    """Return the effect that deleting the stream, or one of its consumers, would have now; None if it does not exist.

    Raises:
        WrongLedger, LedgerUnavailable: it is unknown whether claims are open, and ``despite_open_claims`` is not set.
    """
    try:
        info = await js.stream(stream).info()
        if consumer is None:
            found = Deletion(stream, None, int(info.state["messages"]))
        else:
            state = await js.consumer(stream, consumer).info()
            left = state.pending + state.ack_pending + await _given_up(js, info, state)
            lost = left if info.config.get("retention") == "interest" else 0
            found = Deletion(stream, consumer, left, lost=lost)
        if not despite_open_claims:
            await _check_ledger(js, stream, consumer)
    except (StreamNotFound, ConsumerNotFound):
        return None
    try:
        ledger = stream in (f"KV_{js.settings.ledger}_{bucket}" for bucket in ("claims", "receipts"))
        looked = await look_at(js, None if ledger else stream, consumer)
    except LedgerUnavailable as error:
        if never_used(error):
            return found
        if not despite_open_claims:
            raise
        log.warning("deleting %s, although it is unknown whether it has open claims: %s", found.what, error)
        return found
    claims = tuple(seen for seen in oldest_first(looked) if seen.current)
    readers = tuple((*of.names, record.reader.reader) for of, record, _ in looked if record and record.reader)
    return replace(found, claims=claims, readers=readers)


async def delete(
    js: JetStream,
    stream: str,
    consumer: str | None = None,
    *,
    despite_open_claims: bool = False,
    despite_unprocessed: bool = False,
) -> Deletion | None:
    """Delete a stream, or one of its consumers. Returns the effect of the deletion, or None if the stream or consumer
    did not exist.

    despite_open_claims:  delete although claims are open. They are superseded first: attempts that hold them stop, and
                          cannot settle.
    despite_unprocessed:  delete a consumer of an interest stream although it has not acknowledged all messages.

    Raises:
        DeletionRefused, WrongLedger, LedgerUnavailable: nothing was deleted.
    """
    found = await plan(js, stream, consumer, despite_open_claims=despite_open_claims)
    if found is None:
        return None
    how = {"despite_open_claims": despite_open_claims, "despite_unprocessed": despite_unprocessed}
    found.check(words_of(js.settings), **how)
    superseded: set[str] = set()
    for names in {(seen.stream, seen.consumer) for seen in found.claims} | {each[:2] for each in found.readers}:
        superseded |= await _supersede(Ledger(js, *names))
    try:
        if consumer is None:
            await js.delete_stream(stream)
        else:
            await js.delete_consumer(stream, consumer)
    except (StreamNotFound, ConsumerNotFound):  # another client was faster, or the answer to our request was lost
        return None
    return replace(found, superseded=tuple(sorted(superseded)))


async def _given_up(js: JetStream, stream: StreamInfo, consumer: ConsumerInfo) -> int:
    """The number of messages that the server will not deliver again although they are not done; at most, because
    messages that the consumer's filter does not select may be among them."""
    if not consumer.gave_up:
        return 0
    try:
        record = await Ledger(js, str(stream.config["name"]), str(consumer.raw["name"])).known()
    except LedgerUnavailable:
        record = None
    return min(given_up(record, consumer).count, int(stream.state["messages"]))


async def _check_ledger(js: JetStream, stream: str, consumer: str | None) -> None:
    """Raise WrongLedger if claims of the consumer, or of a consumer of the stream, may be open in another ledger."""
    if consumer is not None:
        await Ledger(js, stream, consumer).info()
        return
    try:
        async for each in js.stream(stream).list_consumers():
            ledger_mark.check(stream, str(each.raw["name"]), each.config, js.settings.ledger, words_of(js.settings))
    except PermissionDenied as denied:
        log.warning("it is unknown whether consumers of stream %s belong to another ledger: %s", stream, denied)


async def _supersede(ledger: Ledger) -> set[str]:
    """Supersede the open claims, so that none of them can be settled, and end the reservation for a reader. Claims that
    are done stay in the record, in case the deletion fails."""

    def nothing_open(record: Record | None, info: ConsumerInfo) -> Changed[set[str]]:  # noqa: ARG001
        return Changed(record and replace(record, open={}, reader=None), {*(record.open if record else ())})

    with suppress(StreamNotFound, ConsumerNotFound):  # already deleted, so its claims cannot be settled
        return (await ledger.change(nothing_open)).result
    return set()


def _described(seen: Seen) -> str:
    by = f"held by attempt {seen.holder}" if seen.holder else "not held"
    taken_by = seen.entry.taken_by if seen.entry else "an unknown owner"
    return f"{seen.id} ({seen.sequences.count} messages of consumer {seen.consumer!r}, taken by {taken_by}, {by})"
