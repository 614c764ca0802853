"""Take: pull without acknowledging, enter the claims in the ledger, and lease the messages until the work starts."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from jetstream_client.errors import (
    ConnectionLost,
    ConsumerNotFound,
    HeartbeatMissed,
    JetStreamNotEnabled,
    LeadershipChanged,
    PinLost,
    RequestTimeout,
    StreamNotFound,
)
from jetstream_client.sequences import Sequences
from jetstream_handoff import answers, consumer, settle
from jetstream_handoff.claim import Claim
from jetstream_handoff.dead_letters import DeadLetters, Holder
from jetstream_handoff.enter import SMALLEST_BATCH, Entered, enter
from jetstream_handoff.errors import ConsumerUnsuitable, LedgerFull
from jetstream_handoff.events import tell
from jetstream_handoff.gather import LONGEST_PULL, LOOK, Batch, Delivery, GatherWindow, LeaseOver
from jetstream_handoff.ledger import PATIENCE, Ledger
from jetstream_handoff.moment import Moment
from jetstream_handoff.record import BELIEVED, Record
from jetstream_handoff.waiting import Waiting

if TYPE_CHECKING:
    from jetstream_client.consume.fetch import Pull
    from jetstream_client.consume.message import Message
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.taking import Taking

log = logging.getLogger(__name__)

_TOO_SLOW = 3  # batches in a row: a network or a machine may stand still during one
_KEPT = 10  # times ack_wait: a batch that was kept leased for so long can be, unless something stands still
_TO_TELL = 5.0  # seconds for finding out what is waited for


class Take:
    """One take at work. What it holds and has not handed on is given back by :meth:`put_back`."""

    def __init__(self, js: JetStream, taking: Taking) -> None:
        self.taking = taking
        self._asks = taking.backlog_function()
        self.ledger = Ledger(js, taking.stream, taking.consumer)
        self._dead_letters = DeadLetters(js, taking.stream, taking.dead_letters)
        self._clock = asyncio.get_running_loop().time
        self._ack_wait = 60.0
        self._too_slow = 0
        self._longest_pull = LONGEST_PULL
        self._waiting = Waiting(self.ledger, taking)
        self._window: GatherWindow | None = None
        self._most = taking.max_messages
        """Messages of one batch: fewer after two in a row that could not be kept leased, which could go on for ever."""
        self._dropped = 0
        """Batches that were dropped since the last one that was entered."""
        self._entered: list[Claim] = []
        self._origin = ""
        """The ``traceparent`` of the batch's first message."""

    async def prepare(self) -> None:
        """:meth:`create`, and find what would stop those who hold and settle the claims, as far as this user can know.

        Raises: before anything is pulled, and beside the errors of :meth:`create`
            LedgerUnavailable: this user may not write records or receipts.
            PermissionDenied: it may not acknowledge for this consumer.
        """
        await self.create()
        with suppress(ConnectionLost, JetStreamNotEnabled, RequestTimeout):  # then the take finds out
            await self.ledger.check_writable()
            await answers.check_permitted(self.ledger)

    async def create(self) -> None:
        """Create the buckets and the consumer where they are missing, with ``max_failures`` the dead-letter stream.

        Raises:
            StreamNotFound, DirectGetDisabled, ConsumerUnsuitable, DeadLettersUnsuitable, LedgerUnavailable.
            AddressUnknown: in a domain.
        """
        taking = self.taking
        info = await consumer.ensure(
            self.ledger.stream,
            taking.consumer,
            taking.consumer_config,
            max_messages=taking.max_messages,
            shortest_ack_wait=timedelta(seconds=self.ledger.js.settings.shortest_ack_wait),
            group=taking.priority.group if taking.priority else None,
        )
        self._ack_wait = info.config["ack_wait"] / 1e9
        if longest := info.config.get("max_expires"):
            self._longest_pull = min(LONGEST_PULL, longest / 1e9)
        await self.ledger.locate()
        await self.ledger.create()
        if taking.max_failures is not None:
            await self._dead_letters.ensure()

    async def take(self, wait: float) -> list[Claim]:
        """The claims of one batch; ``[]`` when fewer than ``min_messages`` came within ``wait`` seconds.

        Claims that an earlier try of this owner entered and that nobody holds are handed on first, without a pull; so
        are those that another try which is still alive enters meanwhile.

        Raises:
            PullError: the consumer is gone, or refuses the pull.
            ConsumerUnsuitable: ``min_messages`` cannot be kept leased with its ``ack_wait``.
            LedgerUnavailable, LedgerFull: see the ledger.
        """
        deadline = self._clock() + wait
        while True:
            if mine := await self._mine():
                return mine
            if await self._enough() and (claims := await self._batch(deadline, look=self.taking.backlog is not None)):
                return claims
            left = deadline - self._clock()
            if left <= 0:
                return []
            if self.taking.backlog is not None:
                await asyncio.sleep(min(left, max(LOOK, self.taking.look_every.total_seconds())))

    async def look(self) -> list[Claim]:
        """The claims of what can be delivered now; ``[]`` when that is less than ``min_messages``, which is given back.

        Waits for more only until ``gather`` after the first message. Raises as :meth:`take`.
        """
        if mine := await self._mine():
            return mine
        return await self._batch(math.inf, look=True) if await self._enough() else []

    async def _enough(self) -> bool:
        """Whether the backlog is worth a pull."""
        if self._asks is None:
            return True
        info = await self.ledger.consumer.info(patience=PATIENCE)
        enough = bool(await asyncio.to_thread(self._asks, info))
        if not enough:
            self._waiting.tell_backlog(info)
        return enough

    async def _batch(self, deadline: float, *, look: bool) -> list[Claim]:
        """Gather once and enter it; what is too little goes back, and after an interruption there is nothing."""
        try:
            await self._gather(deadline, look=look)
        except LeaseOver as over:
            too_few = self._window is not None and not self._window.enough
            batch = self._gathered()
            self._drop(batch, str(over))
            kept = batch is not None and self._clock() - batch.began > _KEPT * self._ack_wait
            self._too_slow = self._too_slow + 1 if too_few and not kept else 0
            if self._too_slow == _TOO_SLOW:
                few = f"{_TOO_SLOW} times in a row fewer than min_messages={self.taking.min_messages}"
                remedy = f"{few} could not be kept leased: raise ack_wait, or lower min_messages"
                raise ConsumerUnsuitable(self.taking.consumer, "ack_wait", self._ack_wait, remedy) from over
            return []
        except (HeartbeatMissed, LeadershipChanged, ConnectionLost, PinLost, RequestTimeout) as error:
            if self.ledger.js.connection.ended:
                raise  # there is nothing to try again on
            log.warning("pull interrupted, trying again: %s", error)
            self._gathered()  # comes again when ack_wait is over
            await asyncio.sleep(0.2)
            return []
        self._too_slow = 0
        if self._window and self._window.enough:
            return await self._enter()
        if self._window and self._window.count:
            await self.put_back()
        return []

    def _gathered(self) -> Batch | None:
        """What has been gathered, which from now on is not to be put back."""
        window, self._window = self._window, None
        return window.batch if window else None

    def handed_on(self) -> None:
        """The claims are the event's now: nothing of this take is to be given back."""
        self._entered = []

    async def put_back(self) -> None:
        """Give back what was pulled and not entered, and what was entered and not handed on. May be called twice."""
        batch = self._gathered()
        pulled = batch.sequences if batch else Sequences()
        claims, self._entered = self._entered, []
        if claims:
            entered = {claim.id: claim.taken_at for claim in claims}
            try:
                record, _ = await self.ledger.change(lambda old, info: old and old.withdrawn(entered))  # noqa: ARG005
            except (ConsumerNotFound, StreamNotFound):
                return  # and with them everything that could be given back
            withdrawn = Sequences.from_ranges(each for claim in claims for each in claim.sequences.ranges)
            for entry in record.open.values() if record else ():
                withdrawn -= entry.sequences  # on their way in a claim, whoever handed it on
            pulled |= withdrawn
        if pulled:
            with suppress(ConsumerNotFound, StreamNotFound):
                await self._give_back(pulled, "they were not handed on")

    async def _look(self) -> tuple[Record | None, ConsumerInfo]:
        """Begin a new life in the record if the consumer did."""
        record, _ = await self.ledger.read()
        info = await self.ledger.consumer.info(patience=PATIENCE)
        if record is None or not record.new_life(info):
            return record, info  # looked, without waiting for a turn to change it
        return await self.ledger.change(lambda old, info: old.reborn(info) if old and old.new_life(info) else old)

    def _drop(self, batch: Batch | None, reason: str) -> None:
        count = len(batch.deliveries) if batch else 0
        log.warning("dropped a batch of %d messages, which are redelivered: %s", count, reason)
        tell("dropped", self.taking, count)
        self._dropped += 1
        if self._dropped > 1:  # once may have been a pause, of the machine or of the network
            self._most = max(1, self.taking.min_messages, min(count, self._most) // 2)

    async def _mine(self) -> list[Claim]:
        """Hand on what another try of this owner entered and nobody holds, under a new lease.

        The entry's time is changed first: from then on the other try cannot withdraw it any more. What is handed on
        here is never withdrawn from here either, because the other try may have handed it on as well.
        """
        owner = self.taking.owner
        record, _ = await self._look()
        if record is None or not record.unheld(owner):
            return []
        created = (await self.ledger.stream.info(patience=PATIENCE)).created
        record, info = await self.ledger.change(lambda old, info: old and old.handed_on_again(owner, info))
        mine = record.unheld(owner) if record and not record.new_life(info) else {}
        if record is None or not mine:
            return []
        claims = [self.ledger.claim_of(each, entry, created, record.created) for each, entry in mine.items()]
        log.info("handing on %d claims that an earlier try took: %s", len(claims), ", ".join(mine))
        for claim in claims:
            await answers.negative(self.ledger, claim.sequences, self.taking.hand_off_timeout)
        return claims

    async def _gather(self, deadline: float, *, look: bool = False) -> None:
        """Pull until the window has no further pull.

        Raises:
            LeaseOver: the batch was gathered too slowly.
        """
        clock = self._clock
        self._window = window = GatherWindow(
            self.taking,
            deadline=deadline,
            most=self._most,
            ack_wait=self._ack_wait,
            longest_pull=self._longest_pull,
            look=look,
        )
        while window.wait(clock()):
            record, info = await self._look()
            record = record or Record(info.created)
            window.on_look(record.life, Moment.of(info, clock()), elsewhere=bool(record.unheld(self.taking.owner)))
            if (request := window.next_pull(clock())) is None:
                return
            async with self.ledger.consumer.pull(**request) as pull:
                await self._receive(window, pull)

    async def _receive(self, window: GatherWindow, pull: Pull) -> None:
        while not pull.ended and (wait := window.wait(self._clock())):
            messages = await pull.receive(wait)
            self._report(window, pull, messages)
            if not messages and not window.enough:
                await self._waiting.tell(window.count, min(_TO_TELL, self._ack_wait / 4))
            if window.renewal_due(self._clock()):
                await self._renew(window, pull)
        self._report(window, pull, await pull.stop(), stopped=True)

    def _report(self, window: GatherWindow, pull: Pull, messages: list[Message], *, stopped: bool = False) -> None:
        if messages and not window.count:
            self._origin = "".join(messages[0].headers.get("traceparent", ())[:1])
        pending = messages[-1].metadata.pending if messages and not stopped else None
        deliveries = (Delivery.of(each, self.ledger.address) for each in messages)
        window.on_messages(deliveries, self._clock(), silence=pull.silence, pending=pending)

    async def _renew(self, window: GatherWindow, pull: Pull) -> None:
        """Lease all that was pulled anew.

        What the server had delivered before it answered INFO has arrived before the answer, so it is renewed as well.
        """
        asked = self._clock()
        began = (await self._moment()).at(asked)
        self._report(window, pull, await pull.receive(0))
        await answers.in_progress(self.ledger, window.batch.sequences, window.batch.counter)
        window.on_renewed(began, await self._moment())

    async def _moment(self) -> Moment:
        info = await self.ledger.consumer.info(patience=PATIENCE)
        return Moment.of(info, self._clock())

    async def _enter(self) -> list[Claim]:
        """Enter the batch as claims, acknowledge again what is done, lease the rest. ``[]``: nothing was entered."""
        if (whole := self._gathered()) is None:
            return []
        batch = whole
        created = (await self.ledger.stream.info(patience=PATIENCE)).created
        record, entered = await self._write(batch)
        while entered.too_large and batch.sequences.count > SMALLEST_BATCH:
            batch = batch.halved()
            record, entered = await self._write(batch)
        if entered.too_large:
            return await self._refuse(whole, entered)
        if entered.dropped or record is None:
            self._drop(whole, entered.dropped)
            return []
        self._dropped, self._most = 0, min(self.taking.max_messages, 2 * self._most)
        self._entered = claims = [
            self.ledger.claim_of(each, entry, created, record.created) for each, entry in entered.claims.items()
        ]
        for claim_id, entry in entered.superseded.items():
            log.warning("claim %s is superseded: its messages are delivered again", claim_id)
            tell("superseded", self.taking, entry.sequences.count, claim=claim_id)
        if entered.again:
            log.info("acknowledging %d messages again that are done", entered.again.count)
            tell("repeated", self.taking, entered.again.count)
            await answers.acknowledge(self.ledger, answers.Delivered.of(record, entered.again, batch.counter))
        for claim in claims:
            what = f"{claim.count} messages of {claim.stream} by consumer {claim.consumer}, sequences {claim.sequences}"
            log.info("claim %s is taken: %s, %d bytes", claim.id, what, claim.bytes)
            await answers.negative(self.ledger, claim.sequences, self.taking.hand_off_timeout)
            seconds = self._clock() - whole.began
            tell("taken", claim, claim.count, claim=claim.id, seconds=seconds, origin=self._origin)
        if tail := entered.left | whole.sequences - batch.sequences:
            await self._give_back(tail, "too many claims of what failed, or no room in the record")
        for claim_id, entry in entered.poisoned.items():
            claim = self.ledger.claim_of(claim_id, entry, created, record.created)
            holder = Holder(self.ledger, claim, entry.token or "")
            await settle.bury(self._dead_letters, holder, record.failures, self.taking.hand_off_timeout)
        return claims

    async def _give_back(self, sequences: Sequences, reason: str) -> None:
        log.info("giving back %d messages: %s", sequences.count, reason)
        tell("given_back", self.taking, sequences.count)
        await answers.negative(self.ledger, sequences)

    async def _write(self, batch: Batch) -> tuple[Record | None, Entered]:
        """Enter a batch in the ledger. The change may be applied several times; what the last one entered stands."""
        entered = Entered(None)

        def change(old: Record | None, info: ConsumerInfo) -> Record | None:
            nonlocal entered
            if entered.stands_in(old):
                return old
            entered = enter(old, info, batch, now=self._clock(), taking=self.taking, fits=self.ledger.fits)
            return entered.record

        record, _ = await self.ledger.change(change)
        return record, entered

    async def _refuse(self, batch: Batch, entered: Entered) -> list[Claim]:
        log.info("giving back %d messages: no room in the record", batch.sequences.count)
        await answers.negative(self.ledger, batch.sequences)
        if entered.full:
            raise LedgerFull(
                f"the record of consumer {self.taking.consumer!r} would pass its limit; settle the open claims "
                f"that `airflow jetstream claims --stream {self.taking.stream}` lists"
            )
        await asyncio.sleep(BELIEVED / 1e9)  # then what is done is forgotten as far as it is acknowledged
        return []
