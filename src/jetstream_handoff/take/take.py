# SPDX-License-Identifier: Apache-2.0
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
    InvalidValue,
    JetStreamError,
    JetStreamNotEnabled,
    LeadershipChanged,
    PinLost,
    RequestTimeout,
    StreamNotFound,
)
from jetstream_client.sequences import Sequences
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import ConsumerUnsuitable, LedgerFull
from jetstream_handoff.events import tell
from jetstream_handoff.hold import answers, settle
from jetstream_handoff.ledger.buckets import PATIENCE
from jetstream_handoff.ledger.changes import Changed
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.order import MOST_STOPPED
from jetstream_handoff.ledger.record import BELIEVED, SECOND_READ, Record
from jetstream_handoff.ledger.reservation import check_taker
from jetstream_handoff.ledger.sharing import shared
from jetstream_handoff.letters.dead_letters import DeadLetters, Holder
from jetstream_handoff.moment import Moment
from jetstream_handoff.rules import consumer, missing
from jetstream_handoff.rules.existing import existing
from jetstream_handoff.rules.order_key import check_same
from jetstream_handoff.take import conservation
from jetstream_handoff.take.enter import SMALLEST_BATCH, Entered, Whole, enter
from jetstream_handoff.take.gather import LONGEST_PULL, LOOK, Batch, GatherWindow, LeaseOver
from jetstream_handoff.take.in_order import InOrder, Missing
from jetstream_handoff.take.pace import Pace
from jetstream_handoff.take.period_end import LOOK_EVERY, PeriodEnd
from jetstream_handoff.take.waiting import Waiting, tell_superseded
from jetstream_handoff.take.withdraw import withdraw
from jetstream_handoff.words import words_of

if TYPE_CHECKING:
    from jetstream_client.consume.fetch import MetadataPull
    from jetstream_client.consume.metadata import Metadata
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.ledger.history import Owner
    from jetstream_handoff.ledger.reservation import Reader
    from jetstream_handoff.take.taking import Taking

log = logging.getLogger(__name__)

_KEPT = 10  # times ack_wait: a batch that kept its leases this long and then lost them was interrupted, not too slow
_COMPLETED_IN = {True: 5.0, False: math.inf}
"""Seconds until a batch with ``ordered_by`` must be complete, for a look and for a take that waits: the next look pulls
again what this one negatively acknowledges."""
_INTERRUPTIONS = (HeartbeatMissed, LeadershipChanged, ConnectionLost, PinLost, RequestTimeout)
_ACKNOWLEDGED_IN = 0.1  # seconds until messages are counted again while acknowledgements are on their way
_TO_TELL = 5.0  # seconds for finding the reason why the take waits


class Take:
    """One take. :meth:`put_back` negatively acknowledges messages that were pulled or entered but not handed on.

    js:      the JetStream context to take with.
    taking:  what to take.
    reader:  the reader that takes; default: none, so that a consumer that is reserved for a reader is refused.
    """

    def __init__(self, js: JetStream, taking: Taking, reader: Reader | None = None) -> None:
        self.taking = taking
        self._reader = reader
        self.pace = Pace()
        """The pace after the batches so far. To continue an earlier take, assign its pace before the first pull."""
        self._asks = taking.backlog_function()
        self.ledger = Ledger(js, taking.stream, taking.consumer)
        self._dead_letters = DeadLetters(js, taking.stream, taking.dead_letters)
        self._clock = asyncio.get_running_loop().time
        self._ack_wait = 60.0
        self._longest_pull = LONGEST_PULL
        self._waiting = Waiting(self.ledger, taking)
        self._order = InOrder(self.ledger, taking, self._waiting, self._ours) if taking.ordered_by else None
        self._whole: Whole | None = None
        self.period = PeriodEnd(self.ledger, taking.until)
        """The end of what is taken. When it is exhausted, a take returns no claims."""
        self._window: GatherWindow | None = None
        self._entered: list[Claim] = []
        self._owners: set[Owner] = set()
        self._origin = ""
        """The ``traceparent`` of the batch's first message; empty if it has none."""

    async def prepare(self) -> None:
        """Call :meth:`create`, and check as far as possible that claims could be held and settled. Pulls nothing.

        Raises:
            LedgerUnavailable: this user is not permitted to write records or receipts.
            PermissionDenied: this user is not permitted to acknowledge for this consumer.
            JetStreamError: as :meth:`create`.
        """
        await self.create()
        with suppress(ConnectionLost, JetStreamNotEnabled, RequestTimeout):  # the take raises these if they persist
            await self.ledger.check_writable()
            await answers.check_permitted(self.ledger)

    async def create(self) -> None:
        """Create the consumer and the buckets if they do not exist, and with ``max_failures`` the dead-letter stream.

        Raises:
            ConsumerNotFound: the consumer does not exist, and the taking says that it must.
            WrongLedger: the consumer belongs to another ledger.
            StreamNotFound, DirectGetDisabled, ServerTooOld, ConsumerUnsuitable, DeadLettersUnsuitable,
                LedgerUnavailable: one of them cannot be used.
            AddressUnknown: the stream is in a domain, and the address of acknowledgements cannot be found.
        """
        taking = self.taking
        if self._order is not None:
            await self._order.check()
        info = await consumer.ensure(
            self.ledger.stream,
            taking.consumer,
            taking.consumer_config,
            max_messages=taking.max_messages,
            shortest_ack_wait=timedelta(seconds=self.ledger.js.settings.shortest_ack_wait),
            ledger=self.ledger.name,
            group=taking.priority.group if taking.priority else None,
            create=taking.create_consumer,
        )
        self._ack_wait = info.config["ack_wait"] / 1e9
        if longest := info.config.get("max_expires"):
            self._longest_pull = min(LONGEST_PULL, longest / 1e9)
        if self._order is not None:
            self._order.known(self._ack_wait, self._longest_pull)
            self._longest_pull = min(self._longest_pull, self._order.every)
            self._check_consumer(info)
        await self.ledger.locate()
        await self.ledger.create()
        if taking.max_failures is not None:
            await self._dead_letters.ensure()

    async def take(self, wait: float) -> list[Claim]:
        """Take one batch and return its claims; ``[]`` if too few messages arrive within ``wait`` seconds, or, with
        ``until``, if the period is exhausted.

        Claims that another try of this owner has entered and that no attempt holds are handed on first, without a
        pull. This includes claims that such a try enters while this take waits, and the claims of the taking's
        ``predecessors``.

        Raises:
            PullError: the consumer no longer exists, or the server refuses the pull.
            ConsumerUnsuitable: ``min_messages`` messages cannot be kept leased with the consumer's ``ack_wait``.
            ConsumerReserved: the consumer is reserved for a reader.
            LedgerUnavailable: the ledger cannot be read or written.
            LedgerFull: the open claims leave no room in the consumer's record.
        """
        deadline = self._clock() + wait
        while True:
            if mine := await self._mine():
                return mine
            look = self.taking.backlog is not None or self.taking.until is not None
            if (
                await self._enough()
                and await self._turn(deadline)
                and (claims := await self._batch(deadline, look=look))
            ):
                return claims
            left = deadline - self._clock()
            if left <= 0 or self.period.exhausted:
                await self._leave()
                return []
            if self.taking.backlog is not None:
                await asyncio.sleep(min(left, max(LOOK, self.taking.look_every.total_seconds())))
            elif look:
                await asyncio.sleep(min(left, LOOK_EVERY))

    async def look(self, wait: float = math.inf) -> list[Claim]:
        """Take the messages that can be delivered now and return their claims; ``[]`` if there are too few.

        After the first message this waits for more, but no longer than ``gather``, nor than ``wait`` seconds. Too few
        messages are negatively acknowledged.

        Raises:
            JetStreamError: as :meth:`take`.
        """
        if mine := await self._mine():
            return mine
        if await self._enough() and await self._turn(self._clock()):
            claims = await self._batch(self._clock() + wait, look=True)
            if not claims:
                await self._leave()
            return claims
        return []

    async def at_once(self, wait: float = math.inf) -> list[Claim]:
        """Return the claims of :meth:`look`, within ``wait`` seconds, if enough messages wait for their first delivery.
        If not, or if a pull may be in vain, only claims that this take inherits. A pull may be in vain with
        ``min_bytes``; with ``ordered_by`` while others are delivered, which must be in the same batch; if
        ``max_ack_pending`` leaves too little room; and with ``priority``, where it could also pin the consumer to this
        client. With ``backlog``, a function decides that may take long.

        Raises:
            JetStreamError: as :meth:`take`.
        """
        taking = self.taking
        if any(each is not None for each in (taking.min_bytes, taking.priority, taking.backlog)):
            return await self._mine()
        info = await self.ledger.info()
        if info.deliverable < taking.min_messages or (self._order is not None and info.ack_pending > 0):
            return await self._mine()
        return await self.look(wait)

    async def _turn(self, deadline: float) -> bool:
        """With ``ordered_by``, wait until a batch may be gathered. Returns whether it may."""
        if self._order is None:
            return True
        try:
            return await self._order.turn(deadline, self._look)
        except _INTERRUPTIONS as error:
            await self._interrupted(error)
            return False

    async def _leave(self) -> None:
        """With ``ordered_by``, let another take gather."""
        if self._order is None:
            return
        try:
            await self._order.leave()
        except (ConsumerNotFound, StreamNotFound):
            pass
        except JetStreamError as error:
            log.warning("another take gathers only after ack_wait, because this one could not end its turn: %s", error)

    async def _interrupted(self, error: JetStreamError) -> None:
        if self.ledger.js.connection.ended:
            raise error  # the connection does not reconnect
        log.warning("the pull was interrupted and is tried again: %s", error)
        await asyncio.sleep(0.2)

    async def _enough(self) -> bool:
        """Whether to pull: True if the backlog function returns True, or if there is no such function, but not before
        the period has ended."""
        if not await self.period.known():
            return False
        if self._asks is None:
            return True
        info = await self.ledger.info()
        enough = bool(await asyncio.to_thread(self._asks, info))
        if not enough:
            self._waiting.tell_backlog(info)
        return enough

    async def _batch(self, deadline: float, *, look: bool) -> list[Claim]:
        """Take a batch as :meth:`_any`, and give the messages from after the period back."""
        self.period.begin()
        claims = await self._any(deadline, look=look)
        await self.period.ended(claims=len(claims))
        if beyond := self.period.beyond:
            await self._give_back(beyond, f"the stream did not store them before {self.period.until}")
        return claims

    async def _any(self, deadline: float, *, look: bool) -> list[Claim]:
        """Gather a batch and enter it in the ledger. If too few messages have arrived, they are negatively
        acknowledged. Returns ``[]`` in this case and after an interruption."""
        try:
            await self._gather(deadline, look=look)
            if self._order is not None and self._window and self._window.enough(self._clock()):
                await self._complete(self._window, self._order, min(deadline, self._clock() + _COMPLETED_IN[look]))
        except LeaseOver as over:
            too_few = self._window is not None and not self._window.filled
            batch = self._gathered()
            kept = batch is not None and self._clock() - batch.began > _KEPT * self._ack_wait
            self._drop(batch, str(over), too_few=too_few and not kept)
            if self.pace.hopeless:
                least = self.taking.threshold.least
                few = f"{self.pace.too_few} times in a row, the lease ended before {least} messages had arrived"
                lower = "min_messages" if self.taking.min_bytes is None else "min_messages or min_bytes"
                remedy = f"{few}; raise ack_wait, or lower {lower}"
                raise ConsumerUnsuitable(self.taking.consumer, "ack_wait", self._ack_wait, remedy) from over
            return []
        except _INTERRUPTIONS as error:
            self._gathered()  # these messages are redelivered after ack_wait
            await self._interrupted(error)
            return []
        if self._window and self._window.enough(now := self._clock()):
            if self.taking.max_wait or self.taking.min_bytes:
                log.info("the wait ends: %s", self._window.said(now))
            return await self._enter()
        if self._window and self._window.count:
            self.pace = self.pace.after_kept(self._window.count)
            await self.put_back()
        return []

    def _gathered(self) -> Batch | None:
        """Return the gathered batch. From now on :meth:`put_back` does not put it back."""
        window, self._window = self._window, None
        return window.batch if window else None

    def handed_on(self) -> None:
        """Report that the claims were handed on, so that :meth:`put_back` does not put them back."""
        self._entered = []

    async def put_back(self) -> None:
        """Negatively acknowledge messages that were pulled but not entered, or entered but not handed on. May be
        repeated."""
        batch = self._gathered()
        pulled = batch.sequences if batch else Sequences()
        claims, self._entered = self._entered, []
        if claims:
            try:
                pulled |= await withdraw(self.ledger, claims)
            except (ConsumerNotFound, StreamNotFound):
                return  # without the consumer, there are no messages to negatively acknowledge
        if pulled:
            with suppress(ConsumerNotFound, StreamNotFound):
                await self._give_back(pulled, "they were pulled, but not handed on in a claim")
        await self._leave()

    async def _look(self) -> tuple[Record | None, ConsumerInfo]:
        """Read record and INFO. If the consumer began a new life, write that to the record."""
        record, _ = await self.ledger.read()
        info = await self.ledger.info()
        self._check_consumer(info)
        check_same(self.taking.consumer, record.order.by if record and record.order else None, self.taking.ordered_by)
        check_taker(self.taking.consumer, record.reader if record else None, self._reader)
        if conservation.given_up(record, info):  # believed only if a second read says the same
            await asyncio.sleep(SECOND_READ)
            record, _ = await self.ledger.read()
            info = await self.ledger.info()
            last = (await self.ledger.stream.info(patience=PATIENCE)).state["last_seq"]
            conservation.check(*self.ledger.names, record, info, last)
        elif not (self._window and self._window.count) and (
            conservation.unreceipted(record, info, self.ledger.name) or conservation.overtaken(record, info)
        ):
            await self._note_unreceipted(record, info)
        if record is None or not record.new_life(info):
            return record, info  # without a change there is no need to wait for a turn

        def reborn(old: Record | None, info: ConsumerInfo) -> Changed[ConsumerInfo]:
            new = old and old.new_life(info)
            return Changed(old.reborn(info, conservation.on_their_way(info)) if old and new else old, info)

        return await self.ledger.change(reborn)

    async def _note_unreceipted(self, record: Record | None, info: ConsumerInfo) -> None:
        """Log, and note in the record, that messages were acknowledged without the ledger. Believed only if a second
        read says the same, and where messages vanish by design, only of messages that exist: the server acknowledges
        one that vanishes itself."""
        config = (await self.ledger.stream.info(patience=PATIENCE)).config
        exist = await existing(self.ledger.stream, config, info.config, conservation.overtaken(record, info))
        vanishing = missing.vanishing(config)
        if exist or (conservation.unreceipted(record, info, self.ledger.name) and not vanishing):
            await asyncio.sleep(SECOND_READ)

        def note(old: Record | None, info: ConsumerInfo) -> Changed[Sequences]:
            unknown = conservation.overtaken(old, info)
            messages = unknown & exist
            if not vanishing:
                messages |= conservation.unreceipted(old, info, self.ledger.name)
            if not messages and not unknown:
                return Changed(old, messages)
            return Changed(
                (old or Record.begun(info, conservation.on_their_way(info))).with_unreceipted(messages, info), messages
            )

        _, noted = await self.ledger.change(note)
        if noted:
            again = conservation.again(info, noted.first)
            log.error(conservation.UNRECEIPTED, self.taking.consumer, self.taking.stream, noted, again)

    def _check_consumer(self, info: ConsumerInfo) -> None:
        """Raise ConsumerUnsuitable if the consumer breaks a rule by now: it may have been changed since the last
        look."""
        group = self.taking.priority.group if self.taking.priority else None
        shortest = timedelta(seconds=self.ledger.js.settings.shortest_ack_wait)
        consumer.check_existing(*self.ledger.names, info.config, self.taking.max_messages, shortest, group)
        if self._order is not None:
            self._order.rule.check_consumer(self.taking.consumer, info.config, self.taking.max_messages)

    def _drop(self, batch: Batch | None, reason: str, *, too_few: bool = False) -> None:
        count = len(batch.deliveries) if batch else 0
        log.warning("dropping a batch of %d messages, which are redelivered: %s", count, reason)
        tell("dropped", self.taking, count)
        self.pace = self.pace.after_drop(self.taking, count, too_few=too_few)

    async def _mine(self) -> list[Claim]:
        """Hand on claims that this take inherits, with a new lease: usually those of another try of this owner.

        The time of their entries is changed first, so that the other try cannot withdraw them. This take does not
        withdraw them either, because the other try may have handed them on too.
        """
        heir = self.taking.heir
        record, _ = await self._look()
        if record is None or not record.inherited(heir):
            return []
        created = (await self.ledger.stream.info(patience=PATIENCE)).created

        def again(old: Record | None, info: ConsumerInfo) -> Changed[ConsumerInfo]:
            check_taker(self.taking.consumer, old.reader if old else None, self._reader)
            return Changed(old and old.handed_on_again(heir, info), info)

        record, info = await self.ledger.change(again)
        mine = record.inherited(heir) if record and not record.new_life(info) else {}
        if record is None or not mine:
            return []
        claims = [self.ledger.claim_of(each, entry, created, record.created) for each, entry in mine.items()]
        log.info("handing on %d claims that an earlier try or run took: %s", len(claims), ", ".join(mine))
        await self._lease(claims)
        return claims

    async def _lease(self, claims: list[Claim]) -> None:
        """Lease the messages of all claims at once: one after the other, the last ones could be redelivered first."""
        messages = Sequences.from_ranges(each for claim in claims for each in claim.sequences.ranges)
        await answers.negative(self.ledger, messages, self.taking.hand_off_timeout)

    async def _gather(self, deadline: float, *, look: bool = False) -> None:
        """Pull until the window needs no other pull.

        Raises:
            LeaseOver: the batch was gathered too slowly.
        """
        clock = self._clock
        self._window = window = GatherWindow(
            self.taking,
            deadline=deadline,
            most=self.pace.most(self.taking) + (self._order.unacknowledged if self._order else 0),
            ack_wait=self._ack_wait,
            longest_pull=self._longest_pull,
            look=look,
        )
        while window.wait(clock()):
            await self._seen(window)
            if (request := window.next_pull(clock())) is None:
                return
            async with self.ledger.consumer.pull_metadata(**request) as pull:
                await self._receive(window, pull)

    async def _seen(self, window: GatherWindow) -> None:
        """Read record and INFO before a pull."""
        record, info = await self._look()
        if self._order is not None:
            await self._order.still()
        record = record or Record(info.created)
        elsewhere = bool(record.inherited(self.taking.heir))
        window.on_look(record.life, Moment.of(info, self._clock()), elsewhere=elsewhere)

    async def _complete(self, window: GatherWindow, order: InOrder, deadline: float) -> None:
        """Pull until the batch contains everything that is delivered and not done. If it does not by the ``deadline``,
        or can never do so, its messages are negatively acknowledged."""
        self._whole, before, pulled = None, math.inf, True
        while window.count:
            found = await order.count(window.batch, window.life)
            if not isinstance(found, Missing):
                self._whole = found
                return
            if found.reason or self._clock() >= deadline:
                log.info("the batch is not complete: %s", found.reason or f"{found.count} messages are missing")
                await self.put_back()
                await asyncio.sleep(order.pause)
                return
            self._waiting.tell_missing(found.count, window.count)
            # Less is missing than before, at least at first, when acknowledgements are still on their way. Otherwise,
            # it may be due for redelivery. If it is not, a pull for all of it would get as many new messages.
            count = 0 if found.count < before else 1 if pulled else found.count
            await self._fetch(window, order, count)
            before, pulled = found.count, count > 0

    async def _fetch(self, window: GatherWindow, order: InOrder, count: int) -> None:
        """Pull ``count`` messages that are missing, if any, for as long as a look may take, and keep the batch
        leased."""
        await self._seen(window)
        end = self._clock() + (order.pause if count else min(_ACKNOWLEDGED_IN, order.pause))
        if not count and window.renewal_due(self._clock()):
            await self._renew(window, None)
        if count:
            request = window.request(min(count, self.taking.max_messages), order.every)
            async with self.ledger.consumer.pull_metadata(**request) as pull:
                while not pull.ended and (left := end - self._clock()) > 0:
                    self._report(window, pull, await pull.receive(left))
                    if window.renewal_due(self._clock()):
                        await self._renew(window, pull)
                self._report(window, pull, await pull.stop(), stopped=True)
        if count <= 1:
            await asyncio.sleep(max(0.0, end - self._clock()))

    async def _receive(self, window: GatherWindow, pull: MetadataPull) -> None:
        while not pull.ended and (wait := window.wait(self._clock())):
            arrived = await pull.receive(wait)
            self._report(window, pull, arrived)
            if not arrived and not window.enough(self._clock()):
                await self._waiting.tell(window.count, min(_TO_TELL, self._ack_wait / 4))
            if window.renewal_due(self._clock()):
                await self._renew(window, pull)
        self._report(window, pull, await pull.stop(), stopped=True)

    def _report(
        self, window: GatherWindow, pull: MetadataPull, arrived: list[Metadata], *, stopped: bool = False
    ) -> None:
        if arrived and not window.count:
            self._origin = "".join(arrived[0].headers.get("traceparent", ())[:1])
        pending = arrived[-1].last.pending if arrived and not stopped else None
        ours = self.period.within(list(map(self._ours, arrived)))
        window.on_messages(ours, self._clock(), silence=pull.silence, pending=pending)
        if self._order is not None:
            for each in arrived:
                self._order.keys.add(each)
        if self.period.over:
            window.end()

    def _ours(self, arrived: Metadata) -> Metadata:
        """Return the arrived messages. Raises InvalidValue if another consumer delivered them."""
        address = self.ledger.address
        if not address.covers(arrived.last):
            remedy = f"this message was not delivered by the consumer whose acknowledgements go to {address.prefix}"
            raise InvalidValue("reply", arrived.reply, remedy)
        return arrived

    async def _renew(self, window: GatherWindow, pull: MetadataPull | None) -> None:
        """Renew the leases of all messages that were pulled.

        Messages that the server delivered before it answered INFO have arrived before the answer, so they are included.
        """
        asked = self._clock()
        began = (await self._moment()).at(asked)
        if pull is not None:
            self._report(window, pull, await pull.receive(0))
        await answers.in_progress(self.ledger, window.batch.deliveries.sequences, window.batch.counter)
        window.on_renewed(began, await self._moment())

    async def _moment(self) -> Moment:
        info = await self.ledger.info()
        return Moment.of(info, self._clock())

    async def _enter(self) -> list[Claim]:
        """Enter the batch as claims and lease their messages. Messages that are done are acknowledged again.

        Returns the claims; ``[]`` if nothing was entered.
        """
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
        self.pace = self.pace.after_entered(self.taking)
        self._entered = claims = [
            self.ledger.claim_of(each, entry, created, record.created) for each, entry in entered.claims.items()
        ]
        self._tell(entered)
        if entered.again:
            log.info("acknowledging %d redelivered messages that are already done", entered.again.count)
            tell("repeated", self.taking, entered.again.count)
            await answers.acknowledge(self.ledger, answers.Delivered.of(record, entered.again, batch.counter))
        seconds = self._clock() - whole.began
        for claim in claims:
            what = f"{claim.count} messages of stream {claim.stream}, consumer {claim.consumer}"
            log.info("claim %s is taken: %s, sequences %s, %d bytes", claim.id, what, claim.sequences, claim.bytes)
            tell("taken", claim, claim.count, claim=claim.id, seconds=seconds, origin=self._origin)
        if claims and self._reader is None:  # a reader holds its claim at once
            await self._lease(claims)
        if tail := entered.left | whole.sequences - batch.sequences:
            await self._give_back(
                tail,
                "they would make too many claims for one take, the ledger's record has no room for them, or the dead "
                "letters of their key are being replayed",
            )
        await self._bury(record, entered, created)
        if self._order is not None and not claims:
            await asyncio.sleep(self._order.pause)  # what waits is delivered again at once
        return claims

    async def _bury(self, record: Record, entered: Entered, created: str) -> None:
        """Make dead letters of the messages that are given up."""
        for claim_id, entry in entered.poisoned.items():
            claim = self.ledger.claim_of(claim_id, entry, created, record.created)
            holder = Holder(self.ledger, claim, entry.token or "")
            if self.taking.max_failures is None:
                await self._dead_letters.ensure()  # the keys were stopped by a take with max_failures
            rejected = settle.reasons(record.failures, claim.sequences, entered.behind)
            await settle.bury(self._dead_letters, holder, rejected, self.taking.hand_off_timeout)

    def _tell(self, entered: Entered) -> None:
        if self._order is not None:
            self._order.entered()
            if without := self._order.keys.without:
                text = "%d of %d messages have no header %s, or an empty one, so they have one key in common"
                log.warning(text, without, len(self._order.keys.of), self._order.rule.header)
        words = words_of(self.ledger.js.settings)
        if self._reader is None and (text := shared(*self.ledger.names, self._owners, words)):
            log.warning("%s", text)
        tell_superseded(self.taking, entered.superseded)
        if entered.passed:
            log.info("%d redelivered messages were acknowledged in the meantime", entered.passed.count)
        if entered.waiting:
            text = "%d keys have stopped, and no more can: messages that failed too often are tried again: sequences %s"
            log.warning(text, MOST_STOPPED, entered.waiting)

    async def _give_back(self, sequences: Sequences, reason: str) -> None:
        log.info("negatively acknowledging %d messages: %s", sequences.count, reason)
        tell("given_back", self.taking, sequences.count)
        await answers.negative(self.ledger, sequences)

    async def _write(self, batch: Batch) -> tuple[Record | None, Entered]:
        """Enter a batch in the ledger."""

        def change(old: Record | None, info: ConsumerInfo) -> Changed[Entered]:
            now, taking, fits = self._clock(), self.taking, self.ledger.fits
            self._owners = {taking.owner} | (old.owners if old else set())
            whole, reader = self._whole, self._reader
            entered = enter(old, info, batch, now=now, taking=taking, fits=fits, whole=whole, reader=reader)
            return Changed(entered.record, entered)

        return await self.ledger.change(change)

    async def _refuse(self, batch: Batch, entered: Entered) -> list[Claim]:
        log.info("negatively acknowledging %d messages: the ledger's record has no room", batch.sequences.count)
        await answers.negative(self.ledger, batch.sequences)
        self.pace = self.pace.after_kept(batch.sequences.count)
        if entered.full:
            claims = words_of(self.ledger.js.settings).command(f"claims --stream {self.taking.stream}")
            raise LedgerFull(
                f"the ledger's record of consumer {self.taking.consumer!r} has no room for another claim; let the "
                f"tasks settle the open claims that {claims} lists"
            )
        await asyncio.sleep(BELIEVED / 1e9)  # by then, settled messages that are acknowledged leave the record
        return []
