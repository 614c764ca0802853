# SPDX-License-Identifier: Apache-2.0
"""Reading a consumer batch by batch, for a program whose own checkpoint decides what is processed (docs/handoff.md).

Each batch is a claim. The program writes the position after a batch into its checkpoint before it processes the batch,
and the batch is settled when the checkpoint says that it is committed. After a restart, the program repeats the batch
that it has logged and not committed, with exactly the same messages.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import (
    ConsumerNotFound,
    InvalidValue,
    JetStreamError,
    MessageNotFound,
    StreamNotFound,
)
from jetstream_client.sequences import Sequences
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.claim import Claim, is_claim_id
from jetstream_handoff.durations import HEARTBEATS
from jetstream_handoff.errors import (
    AlreadyDone,
    CheckpointRefused,
    ConsumerReserved,
    HeldByAnother,
    HoldLost,
    Superseded,
)
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.buckets import PATIENCE
from jetstream_handoff.ledger.changes import Changed
from jetstream_handoff.ledger.first_read import was_read
from jetstream_handoff.ledger.ledger import Ledger, believed
from jetstream_handoff.ledger.record import Record
from jetstream_handoff.ledger.reservation import Reader, Reservation, check_taker, is_reader_id, owner_of_batch
from jetstream_handoff.take.conservation import on_their_way
from jetstream_handoff.take.pace import Pace
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo

log = logging.getLogger(__name__)

GATHER = timedelta(seconds=1)
"""How long a batch waits for more messages after its first one."""
_LOOK_EVERY = 1.0  # seconds between two pulls while nothing is pending, and messages are leased
_IDLE = 0.1  # seconds between two questions whether messages wait
_LONGER = 10.0  # seconds beyond ack_wait that a reader of what is available now waits for leased messages
_LOOKED_AT = 10  # how many messages are looked at to find one that still exists
_SKIPPED = (
    "batch {} is committed, but none of its messages were read, because its sink has a batch with the same number from "
    "another query, as a file sink in a folder that is not new has. Its messages are not acknowledged; give the query "
    "a new output folder and a new checkpoint"
)
_REMEMBERED = 100  # how many committed claims a run remembers


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
        return self.claim.sequences - _sequences(self.owed) if self.claim else Sequences()

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
            raise CheckpointRefused(consumer, "of this query", problem)
        reader, batch, after = fields.get("reader"), fields.get("batch"), fields.get("after", "")
        claim = Claim.from_json(fields["claim"]) if "claim" in fields else None
        numbered = type(batch) is int and 0 <= batch < 2**63 and bool(batch) == (claim is not None)
        chained = isinstance(after, str) and (not after or is_claim_id(after)) and (not batch or batch == 1 or after)
        if not is_reader_id(reader) or not numbered or not chained:
            raise CheckpointRefused(consumer, "of this query", "it is not what this package writes")
        if claim is not None and (claim.stream, claim.consumer) != (stream, consumer):
            raise CheckpointRefused(consumer, str(reader), f"its claim {claim.id} belongs to another consumer")
        return cls(stream, consumer, str(reader), int(str(batch)), claim, _owed(fields.get("owed", [])), str(after))


def _sequences(owed: Iterable[tuple[str, Sequences]]) -> Sequences:
    return Sequences.from_ranges(each for _, sequences in owed for each in sequences.ranges)


def _without(owed: Owed, sequences: Sequences) -> Owed:
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


class _JustTaken(Hold):
    leased = True


class ConsumerReader:
    """One run of a reader. Its methods are called one at a time.

    js:        the JetStream context.
    stream, consumer:  what to read. A consumer that does not exist is created for the first batch.
    most:      the largest number of messages in a batch.
    replaces:  the id of the reader whose place this one takes; default: none.
    """

    def __init__(self, js: JetStream, stream: str, consumer: str, most: int, replaces: str = "") -> None:
        self._js = js
        self._ledger = Ledger(js, stream, consumer)
        self._most = most
        self._replaces = replaces
        self._run = new_reader_id()
        self._before: Reservation | None = None
        """The reservation before this run. A killed server can forget that the run has begun."""
        self._planned = ""  # the claim of the last batch whose messages this run was asked for
        self._ours = False  # whether the consumer is reserved for this run
        self._found = Position(stream, consumer, "")
        """The last position whose batch this run has found committed, and has settled if that was possible."""
        self._owed: Owed = ()
        """What is committed after that position, and could not be settled."""
        self._committed: deque[Claim] = deque(maxlen=_REMEMBERED)
        self._next: Position | None = None
        self._hold: Hold | None = None
        self._holding = AsyncExitStack()
        self._pace = Pace()
        self._clock = asyncio.get_running_loop().time
        self._looked = 0.0  # when messages were last looked for; 0 before the first time
        self._began = 0.0  # when the last take began
        self._acknowledging: list[asyncio.Task[None]] = []
        self._last: int | None = None
        self._ack_wait = 60.0

    @property
    def consumer(self) -> str:
        return self._ledger.consumer.name

    async def next(self, start: Position) -> Position:
        """Settle the batch that ends at ``start``, which the checkpoint has committed, and take the next one.

        Returns the position after it, which must be logged before its messages are processed; ``start`` if no messages
        can be delivered now.

        Raises:
            ConsumerReserved: the consumer is reserved for another reader.
            CheckpointRefused: messages would be missing if the reader went on with this checkpoint.
            HeldByAnother: another run of this reader has begun.
            LedgerUnavailable, ConsumerUnsuitable, JetStreamError: as :meth:`~.take.Take.take`.
        """
        if self._next is not None and self._next.after == start.id and self._next.reader == start.reader:
            return self._next  # it was not logged
        if self._last is None and self._is_idle(start) and not await self._may_look(start):
            await asyncio.sleep(_IDLE)
            return start
        await self._begin(start)
        await self._acknowledged()  # the messages of the batch before
        claim = await self._commit_and_look(start)
        deadline = self._clock() + self._ack_wait + _LONGER
        while claim is None:
            if self._last is None or await self._exhausted(deadline):
                await self._acknowledged()
                return start
            await asyncio.sleep(_IDLE)
            claim = await self._look(start)
        await self._held(claim, start.batch + 1, start.reader)
        owed = await self._owed_with(claim)
        self._next = replace(start, batch=start.batch + 1, claim=claim, owed=owed, after=start.id)
        return self._next

    async def end_with_the_present(self) -> None:
        """Let :meth:`next` return no messages when those that are in the stream now are processed."""
        self._last = int((await self._ledger.stream.info(patience=PATIENCE)).state["last_seq"])

    async def logged(self, start: Position, end: Position) -> None:
        """Make sure that the batch from ``start`` to ``end``, which is in the checkpoint, can be processed: reserve the
        consumer with the first batch, and after a restart hold the batch again. A process that reads messages of
        the first batch marks that (:func:`~jetstream_handoff.ledger.first_read.mark_read`).

        Raises:
            ConsumerReserved, CheckpointRefused, HeldByAnother: as :meth:`next`.
        """
        if end.batch == 1:
            start = Position(end.stream, end.consumer, end.reader)  # the initial position is not in the checkpoint
        if (start.reader, start.batch + 1, start.id) != (end.reader, end.batch, end.after):
            raise CheckpointRefused(self.consumer, end.reader, f"its batch {end.batch} does not follow the one before")
        if not self._ours:
            try:
                await self._begin(start, logged=end)
            except (ConsumerReserved, HeldByAnother, CheckpointRefused):
                await self.release()
                raise
        if self._hold is not None and self._hold.claim.id == end.id:
            await self._plan(end)
        elif end.claim is not None:
            if start.batch:
                await self._commit(start, settled=True)
                self._owed = _without(self._owed, _sequences(end.owed) | end.claim.sequences)
            await self._plan(end)
            await self._held(end.claim, end.batch, end.reader, again=True)
            self._next = None

    async def release(self) -> None:
        """Release the batch that is held, because the reader does not process it, and end acknowledging."""
        hold, self._hold, self._next = self._hold, None, None
        if hold is not None:
            await hold.let_go()
            await self._holding.aclose()
        await self._acknowledged()

    # The reservation

    async def _begin(self, start: Position, *, logged: Position | None = None) -> None:
        """Begin the run in the ledger, if it has not begun: check the checkpoint against what was settled, and make
        this run the newest one.

        logged:  the position of the batch that is logged after ``start``.
        """
        if self._ours:
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
                found.check_checkpoint(self.consumer, start.batch, start.id, start.after, last)
                ours = replace(found, run=self._run, at=info.now)
            elif found is not None and (found.reader != self._replaces or start.batch):
                raise ConsumerReserved(self.consumer, found.reader, found.at)
            elif found is None and start.batch and self._replaces != reader:
                problem = (
                    f"it has committed {start.batch} batches, and the ledger {self._ledger.name!r} does not know the "
                    "reader: the ledger was deleted or restored from an older copy, or the reservation was ended"
                )
                if start.batch == 1:
                    problem += f"; or {_SKIPPED.format(1)}"
                raise CheckpointRefused(self.consumer, reader, problem)
            else:
                ours = Reservation(reader, self._run, info.now, start.batch, start.id, start.id)
            if self._replaces == reader:
                ours = replace(ours, planned=start.id)
            record = record or Record.begun(info, on_their_way(info))
            return Changed(replace(record, reader=ours), found)

        _, self._before = await believed(lambda: self._ledger.change(begin))
        self._ours = True
        text = "run %s of reader %s reads consumer %s of stream %s"
        log.info(text, self._run, reader, *reversed(self._ledger.names))

    async def _is_new(self, reader: str) -> bool:
        """Whether nothing is in the checkpoint yet, so that the consumer is not reserved for this reader.

        Raises:
            ConsumerReserved: it is reserved for another one.
        """
        record = await self._ledger.known()
        found = record.reader if record else None
        check_taker(self.consumer, found, Reader(reader, found.run if found else "", self._replaces))
        return found is None or found.reader != reader

    async def _check_created(self, start: Position, logged: Position | None) -> None:
        """Refuse a checkpoint whose stream or consumer was deleted or recreated: its sequences are other messages, or
        messages that were processed would be delivered again."""
        claim = (logged or start).claim
        if claim is None:
            return
        try:
            stream, consumer = await self._ledger.stream.info(patience=PATIENCE), await self._ledger.info()
        except (StreamNotFound, ConsumerNotFound) as gone:
            problem = f"the server says {gone.description!r}"
            raise CheckpointRefused(self.consumer, start.reader, problem) from gone
        self._check_same(start.reader, claim, stream.created, consumer.created)

    def _check_same(self, reader: str, claim: Claim, stream_created: str, consumer_created: str) -> None:
        for kind, created, known in (
            ("stream", stream_created, claim.stream_created),
            ("consumer", consumer_created, claim.consumer_created),
        ):
            if created != known:
                problem = (
                    f"the {kind} was recreated at {created}, and the checkpoint has read the one created at {known}"
                )
                raise CheckpointRefused(self.consumer, reader, problem)

    # The batch that is committed

    async def _commit(self, position: Position, *, settled: bool = False) -> None:
        """Settle the claim of a position that the checkpoint has committed. What cannot be settled is owed.

        settled:  whether an earlier run has settled it, as a later batch in the checkpoint shows.
        """
        if await self._noted(position, settled=settled):
            await self._settled(position)

    async def _commit_and_look(self, start: Position) -> Claim | None:
        """Settle the claim of a position while the next batch is taken. An entry is settled when it is a second old."""
        if not await self._noted(start):
            return await self._look(start)
        looking = asyncio.create_task(self._look(start))
        try:
            await self._settled(start)
        except BaseException:
            looking.cancel()
            await asyncio.wait([looking])
            raise
        return await looking

    async def _noted(self, position: Position, *, settled: bool = False) -> bool:
        """Note that the checkpoint has committed a position. Returns whether its claim is still to be settled."""
        if position.claim is None or self._found.id == position.id:
            return False
        if position.batch == 1 and self._replaces != position.reader and not settled:
            await believed(partial(self._check_read, position))
        await self._note(position, settled=settled)
        return True

    async def _settled(self, position: Position) -> None:
        """Settle the claim of a position, or note that it is owed."""
        claim = position.claim
        if claim is None:
            return
        owed = (*_without(self._owed, _sequences(position.owed)), *position.owed)
        done = await self._settle(claim, position.batch, position.reader)
        if not done:
            log.warning(
                "batch %d of reader %s is committed, but its claim %s cannot be settled: its %d messages are "
                "acknowledged when they are redelivered, and are not processed again",
                position.batch,
                position.reader,
                claim.id,
                claim.count,
            )
        left = _without(owed, claim.sequences)
        self._owed = left if done else (*left, (claim.taken_at, claim.sequences))
        self._committed.append(claim)
        self._found, self._next = position, None

    async def _acknowledged(self) -> None:
        """Wait until the messages of the batches that are settled are acknowledged."""
        acknowledging, self._acknowledging = self._acknowledging, []
        for each in acknowledging:
            await each

    async def _check_read(self, position: Position) -> None:
        """Refuse a first batch of which nothing was read: its sink has skipped it, and would skip others."""
        if not await was_read(self._ledger, position.id):
            raise CheckpointRefused(self.consumer, position.reader, _SKIPPED.format(1))

    async def _note(self, position: Position, *, settled: bool) -> None:
        """Write the number of a committed batch to the reservation, before the batch is settled: a checkpoint that has
        not committed it is an older copy from now on.

        Raises:
            HeldByAnother: another run of this reader has begun.
            ConsumerReserved: another reader has taken its place.
        """

        def noted(ours: Reservation) -> Reservation:
            if not settled and position.id not in (ours.planned, self._planned):
                raise CheckpointRefused(self.consumer, position.reader, _SKIPPED.format(position.batch))
            return replace(ours, batch=position.batch, claim=position.id)

        await self._change(position.reader, noted)

    async def _plan(self, end: Position) -> None:
        """Write to the reservation that the reader asks for the messages of a batch. A sink that skips a batch does not
        let the reader ask for them."""
        if self._planned != end.id:
            await self._change(end.reader, lambda ours: replace(ours, planned=end.id))
            self._planned = end.id

    async def _change(self, reader: str, function: Callable[[Reservation], Reservation]) -> None:
        """Change the reservation, if it is that of this run. Raises as :meth:`_note`."""

        def change(record: Record | None, info: ConsumerInfo) -> Changed[None]:
            found = record.reader if record else None
            if found == self._before:  # a killed server has forgotten that the run began
                found = Reservation(reader, self._run, info.now)
            elif found is None:
                raise CheckpointRefused(self.consumer, reader, "its reservation was ended")
            check_taker(self.consumer, found, Reader(reader, self._run))
            ours = replace(record or Record.begun(info, on_their_way(info)), reader=function(found))
            return Changed(ours, None)

        await believed(lambda: self._ledger.change(change))

    async def _settle(self, claim: Claim, batch: int, reader: str) -> bool:
        """Settle a claim that the checkpoint has committed. Returns whether it is settled. Its messages are
        acknowledged while the next batch is processed."""
        hold, self._hold = self._hold, None
        try:
            if hold is not None and hold.claim.id == claim.id:
                try:
                    self._acknowledge(await hold.record())
                except (HoldLost, HeldByAnother) as lost:  # such as a release by hand: nobody else reads this consumer
                    log.warning("claim %s of a committed batch is held again: %s", claim.id, lost)
                else:
                    return True
            async with self._hold_of(claim, batch, reader) as again:
                self._acknowledge(await again.record())
        except AlreadyDone:
            return True
        except Superseded as gone:
            log.warning("%s", gone)
            return False
        finally:
            await self._holding.aclose()
        return True

    def _acknowledge(self, acknowledging: Coroutine[Any, Any, None]) -> None:
        self._acknowledging.append(asyncio.create_task(acknowledging))

    def _hold_of(self, claim: Claim, batch: int, reader: str, *, leased: bool = False) -> Any:
        piece = owner_of_batch(reader, batch)
        kind = _JustTaken if leased else Hold
        return kind.begin(self._js, claim, try_number=1, holder=(*piece, 1), piece=piece)

    # The next batch

    async def _owed_with(self, claim: Claim) -> Owed:
        """What is owed when the next batch has these messages: also those that are in committed batches, and are
        redelivered although they were settled, because the consumer was reset or rolled back."""
        known = [*self._owed, *((each.taken_at, each.sequences & claim.sequences) for each in self._committed)]
        found: list[tuple[str, Sequences]] = []
        for at, sequences in known:
            new = sequences - _sequences(found)
            again = new & claim.sequences
            if again and await self._others(again, at):
                new -= again
            elif again:
                text = "%d redelivered messages are in committed batches, and are not processed again: sequences %s"
                log.warning(text, again.count, again)
            if new:
                found.append((at, new))
        return tuple(found)

    async def _others(self, messages: Sequences, taken_at: str) -> bool:
        """Whether these sequences may be other messages than those of a claim that was taken at that time, because the
        stream was restored from an older copy. Then they are processed."""
        for sequence in reversed(list(messages)[-_LOOKED_AT:]):
            with suppress(MessageNotFound):
                message = await self._ledger.stream.get_message(sequence)
                return time_nanoseconds(message.time) > time_nanoseconds(taken_at)
        return True

    def _is_idle(self, start: Position) -> bool:
        """Whether the batch that ends at ``start`` is settled, and this run has looked for messages before."""
        return self._looked > 0 and self._found.id == start.id

    async def _look(self, start: Position) -> Claim | None:
        return await self._take(start) if await self._may_look(start) else None

    async def _may_look(self, start: Position) -> bool:
        """Whether messages may be delivered now. An idle reader only asks for INFO. A claim that was settled, and whose
        settlement a killed server has forgotten, is settled again."""
        if start.batch or self._looked > 0:
            info = await self._ledger.info()
            if self._last is not None and info.floor >= self._last:
                return False
            if not info.pending and (not info.ack_pending or self._clock() - self._looked < _LOOK_EVERY):
                return False
            known = {*(each.id for each in self._committed), start.after}
            record, _ = await self._ledger.read()
            for claim_id, entry in record.open.items() if record else ():
                if claim_id in known:
                    await self._ledger.locate()
                    created = (await self._ledger.stream.info(patience=PATIENCE)).created
                    claim = self._ledger.claim_of(claim_id, entry, created, record.created)  # type: ignore[union-attr]
                    _, reader, batch = entry.owner
                    if await self._settle(claim, int(batch), str(reader)):
                        self._owed = _without(self._owed, claim.sequences)
        return True

    async def _take(self, start: Position) -> Claim | None:
        """Take the next batch; None if no messages can be delivered now. A batch that an earlier run took, and did not
        log, is this one."""
        taking = Taking(
            stream=start.stream,
            consumer=start.consumer,
            owner=owner_of_batch(start.reader, start.batch + 1),
            max_messages=self._most,
            max_claims=1,
            gather=GATHER,
            even_if_held=True,
            create_consumer=not start.batch,
        )
        take = Take(self._js, taking, Reader(start.reader, self._run, self._replaces))
        take.pace = self._pace
        self._began = self._clock()
        try:
            await (take.create() if start.batch else take.prepare())
            self._ack_wait = (await self._ledger.info()).config["ack_wait"] / 1e9
            claims = await take.look()
            self._looked = self._clock()
            if claims and start.claim:
                self._check_same(start.reader, start.claim, claims[0].stream_created, claims[0].consumer_created)
            take.handed_on()
        finally:
            self._pace = take.pace
            await take.put_back()
        return claims[0] if claims else None

    async def _exhausted(self, deadline: float) -> bool:
        """Whether everything that was in the stream when the run began is processed, as far as the server delivers it.

        Raises:
            JetStreamError: messages wait, and the server delivers none.
        """
        info = await self._ledger.info()
        self._ack_wait = info.config["ack_wait"] / 1e9
        if info.floor >= (self._last or 0) or not (info.pending or info.ack_pending):
            return True
        if self._clock() < deadline:
            return False
        if info.pending:
            paused = f"; it is paused until {info.config['pause_until']}" if info.config.get("pause_until") else ""
            raise JetStreamError(
                f"{info.pending} messages wait for consumer {self.consumer!r}, but the server delivers none{paused}"
            )
        text = "the run ends although %d messages of consumer %s are leased; the next run gets them"
        log.warning(text, info.ack_pending, self.consumer)
        return True

    async def _held(self, claim: Claim, batch: int, reader: str, *, again: bool = False) -> None:
        """Hold the claim of a batch until it is committed.

        again:  whether it is in the checkpoint. Then the batch must be processed, whatever became of its claim.
        """
        await self._holding.aclose()
        leased = not again and self._clock() - self._began < self._ack_wait / HEARTBEATS
        try:
            self._hold = await self._holding.enter_async_context(self._hold_of(claim, batch, reader, leased=leased))
        except AlreadyDone as done:
            problem = f"its batch {batch} is not committed, but was settled at {done.at}: it is an older copy"
            raise CheckpointRefused(self.consumer, reader, problem) from done
        except Superseded as gone:
            if not again:
                raise
            log.warning("batch %d of reader %s is processed again without a hold: %s", batch, reader, gone)
