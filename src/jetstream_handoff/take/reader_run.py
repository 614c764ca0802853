# SPDX-License-Identifier: Apache-2.0
"""One run of a reader in the ledger: it reserves the consumer, and notes which batches the checkpoint has committed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from jetstream_client.errors import ConsumerNotFound, StreamNotFound
from jetstream_handoff.errors import CheckpointRefused, ConsumerReserved, LedgerUnavailable
from jetstream_handoff.ledger.buckets import PATIENCE, never_used
from jetstream_handoff.ledger.changes import Changed
from jetstream_handoff.ledger.first_read import was_read
from jetstream_handoff.ledger.ledger import believed
from jetstream_handoff.ledger.record import Record
from jetstream_handoff.ledger.reservation import Reader, Reservation, check_taker
from jetstream_handoff.take.conservation import on_their_way
from jetstream_handoff.take.position import Position, new_reader_id

if TYPE_CHECKING:
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.ledger.ledger import Ledger

log = logging.getLogger(__name__)

_SKIPPED = (
    "batch {} is committed, but none of its messages were read, because its sink has a batch with the same number from "
    "another query, as a file sink in a folder that is not new has, or because foreachBatch did not use its DataFrame. "
    "Or a server that was killed has forgotten that they were read. They are not acknowledged"
)
_READ = (
    "If they are not in the output, give the query a new output folder, a new checkpoint and the option replaces={}, "
    "and let foreachBatch read each batch"
)
_AGAIN = "Start a query with a new checkpoint, a new output folder and the option replaces={}"
_KNOWN = (
    "If this is the newest checkpoint, start the same query once with the option replaces={}, its own id: it goes on, "
    "and messages that it has committed, and that were not acknowledged yet, may be processed again"
)


class ReaderRun:
    """A run of a reader.

    ledger:    the ledger of the consumer that it reads.
    replaces:  the id of the reader whose place it takes; empty if it takes none.
    """

    def __init__(self, ledger: Ledger, replaces: str = "") -> None:
        self.began = False
        """Whether the consumer is reserved for this run."""
        self._ledger = ledger
        self._replaces = replaces
        self._id = new_reader_id()
        self._before: Reservation | None = None
        """The reservation before this run. A killed server can forget that the run has begun."""
        self._planned = ""  # the claim of the last batch whose messages this run was asked for

    @property
    def _consumer(self) -> str:
        return self._ledger.consumer.name

    def taker(self, reader: str) -> Reader:
        """What a take of this run says who takes."""
        return Reader(reader, self._id, self._replaces)

    async def begin(self, start: Position, *, logged: Position | None = None) -> None:
        """Begin the run in the ledger, if it has not begun: check the checkpoint against what was settled, and make
        this run the newest one.

        logged:  the position of the batch that is logged after ``start``.

        Raises:
            ConsumerReserved: the consumer is reserved for another reader.
            CheckpointRefused: messages would be missing if the reader went on with this checkpoint.
        """
        if self.began:
            return
        reader = start.reader
        if not start.batch and logged is None and await believed(partial(self._is_new, reader)):
            return
        await self._check_created(start, logged)
        if self._replaces == reader:  # the ledger may have been deleted
            await self._ledger.create()

        def begin(record: Record | None, info: ConsumerInfo) -> Changed[Reservation | None]:
            found = record.reader if record else None
            if found is not None and found.reader == reader:
                last = logged.id if logged else ""
                found.check_checkpoint(self._consumer, start.batch, start.id, start.after, last)
                ours = replace(found, run=self._id, at=info.now)
            elif found is not None and (found.reader != self._replaces or start.batch):
                raise ConsumerReserved(self._consumer, found.reader, found.at)
            elif found is None and start.batch and self._replaces != reader:
                problem = (
                    f"it has committed {start.batch} batches, and the ledger {self._ledger.name!r} does not know the "
                    "reader: the ledger was deleted or restored from an older copy, or the reservation was ended"
                )
                remedy = _KNOWN.format(reader)
                if start.batch == 1:
                    problem += f"; or {_SKIPPED.format(1)}"
                    remedy += f". {_READ.format(reader)}"
                raise CheckpointRefused(self._consumer, reader, problem, remedy)
            else:
                ours = Reservation(reader, self._id, info.now, start.batch, start.id, start.id)
            if self._replaces == reader:
                ours = replace(ours, planned=start.id)
            record = record or Record.begun(info, on_their_way(info))
            return Changed(replace(record, reader=ours), found)

        _, self._before = await believed(lambda: self._ledger.change(begin))
        self.began = True
        text = "run %s of reader %s reads consumer %s of stream %s"
        log.info(text, self._id, reader, *reversed(self._ledger.names))

    async def note(self, position: Position, *, again: bool) -> None:
        """Write the number of a committed batch to the reservation, before the batch is settled: a checkpoint that has
        not committed it is an older copy from now on.

        again:  whether an earlier run has noted it, as a later batch in the checkpoint shows. The reservation shows it,
                too: a run that took its own place, because the ledger was lost, has noted a batch without its mark.

        Raises:
            HeldByAnother: another run of this reader has begun.
            ConsumerReserved: another reader has taken its place.
            CheckpointRefused: the batch was skipped: nothing of it was read.
        """
        again = again or (self._before is not None and self._before.claim == position.id)
        if position.batch == 1 and self._replaces != position.reader and not again:
            await believed(partial(self._check_read, position))

        def noted(ours: Reservation) -> Reservation:
            if not again and position.id not in (ours.planned, self._planned):
                raise self._unread(position, ours)
            return replace(ours, batch=position.batch, claim=position.id)

        await self._change(position.reader, noted)

    async def plan(self, end: Position) -> None:
        """Write to the reservation that the reader asks for the messages of a batch. A sink that skips a batch does not
        let the reader ask for them. Raises as :meth:`note`."""
        if self._planned != end.id:
            await self._change(end.reader, lambda ours: replace(ours, planned=end.id))
            self._planned = end.id

    def check_same(self, reader: str, claim: Claim, stream_created: str, consumer_created: str) -> None:
        """Refuse a checkpoint whose stream or consumer was recreated: its sequences are other messages, or messages
        that were processed would be delivered again.

        claim:  a claim of the checkpoint.

        Raises:
            CheckpointRefused: their times of creation are others than the claim's.
        """
        for kind, created, known in (
            ("stream", stream_created, claim.stream_created),
            ("consumer", consumer_created, claim.consumer_created),
        ):
            if created != known:
                problem = (
                    f"the {kind} was recreated at {created}, and the checkpoint has read the one created at {known}"
                )
                raise CheckpointRefused(self._consumer, reader, problem, _AGAIN.format(reader))

    @contextmanager
    def checked(self, position: Position) -> Iterator[None]:
        """Turn the errors of a stream, a consumer or a ledger that was deleted into one of this position's checkpoint.

        Raises:
            CheckpointRefused: one of them does not exist, although the checkpoint has batches.
        """
        try:
            yield
        except (StreamNotFound, ConsumerNotFound) as gone:
            if not position.batch:
                raise
            problem, remedy = f"the server says {gone.description!r}", _AGAIN.format(position.reader)
            raise CheckpointRefused(self._consumer, position.reader, problem, remedy) from gone
        except LedgerUnavailable as lost:
            if not position.batch or not never_used(lost):
                raise
            raise CheckpointRefused(
                self._consumer, position.reader, str(lost), _KNOWN.format(position.reader)
            ) from lost

    def _unread(self, position: Position, ours: Reservation | None = None) -> CheckpointRefused:
        """Return the error for a committed batch of which the ledger does not know that it was read.

        ours:  the reservation; None if nobody has marked that the first batch was read.
        """
        reader, batch = position.reader, position.batch
        if ours is None or ours.planned == position.after:
            remedy = (
                f"{_READ.format(reader)}. If they are, start the same query once with replaces={reader}, its own id"
            )
            return CheckpointRefused(self._consumer, reader, _SKIPPED.format(batch), remedy)
        problem = (
            f"it has committed {batch} batches, and the ledger {self._ledger.name!r} knows {ours.batch} of them: the "
            "ledger was restored from an older copy"
        )
        return CheckpointRefused(self._consumer, reader, problem, _KNOWN.format(reader))

    async def _is_new(self, reader: str) -> bool:
        """Whether nothing is in the checkpoint yet, so that the consumer is not reserved for this reader.

        Raises:
            ConsumerReserved: it is reserved for another one.
        """
        record = await self._ledger.known()
        found = record.reader if record else None
        check_taker(self._consumer, found, Reader(reader, found.run if found else "", self._replaces))
        return found is None or found.reader != reader

    async def _check_created(self, start: Position, logged: Position | None) -> None:
        """Refuse a checkpoint whose stream or consumer was deleted or recreated."""
        claim = (logged or start).claim
        if claim is None:
            return
        stream, consumer = await self._ledger.stream.info(patience=PATIENCE), await self._ledger.info()
        self.check_same(start.reader, claim, stream.created, consumer.created)

    async def _check_read(self, position: Position) -> None:
        """Refuse a first batch of which nothing was read: its sink has skipped it, and would skip others."""
        if not await was_read(self._ledger, position.id):
            raise self._unread(position)

    async def _change(self, reader: str, function: Callable[[Reservation], Reservation]) -> None:
        """Change the reservation, if it is that of this run. Raises as :meth:`note`."""

        def change(record: Record | None, info: ConsumerInfo) -> Changed[None]:
            found = record.reader if record else None
            if found == self._before:  # a killed server has forgotten that the run began
                found = Reservation(reader, self._id, info.now)
            elif found is None:
                raise CheckpointRefused(self._consumer, reader, "its reservation was ended", _KNOWN.format(reader))
            check_taker(self._consumer, found, Reader(reader, self._id))
            ours = replace(record or Record.begun(info, on_their_way(info)), reader=function(found))
            return Changed(ours, None)

        await believed(lambda: self._ledger.change(change))
