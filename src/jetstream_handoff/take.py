"""Take: pull without acknowledging, enter the claims in the ledger, and lease the messages until the work starts."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from dataclasses import replace
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
from jetstream_handoff import answers, consumer, failures, settle
from jetstream_handoff.claim import Claim, new_claim_id, new_token
from jetstream_handoff.dead_letters import DeadLetters, Holder
from jetstream_handoff.errors import LedgerFull
from jetstream_handoff.events import tell
from jetstream_handoff.gather import LONGEST_PULL, LOOK, Batch, Delivery, GatherWindow, LeaseOver
from jetstream_handoff.ledger import PATIENCE, Ledger
from jetstream_handoff.moment import Moment
from jetstream_handoff.record import BELIEVED, OpenEntry, Record
from jetstream_handoff.settled import Settled
from jetstream_handoff.waiting import Waiting

if TYPE_CHECKING:
    from jetstream_client.consume.fetch import Pull
    from jetstream_client.consume.message import Message
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.taking import Taking

log = logging.getLogger(__name__)

_TO_TELL = 5.0  # seconds for finding out what is waited for
_SMALLEST_BATCH = 100  # below this, a record that is still too large is not the batch's fault


class Take:
    """One taking at work. What it holds and has not handed on is given back by :meth:`put_back`."""

    def __init__(self, js: JetStream, taking: Taking) -> None:
        self.taking = taking
        self._asks = taking.backlog_function()
        self.ledger = Ledger(js, taking.stream, taking.consumer)
        self._dead_letters = DeadLetters(js, taking.stream, taking.dead_letters)
        self._clock = asyncio.get_running_loop().time
        self._ack_wait = 60.0
        self._longest_pull = LONGEST_PULL
        self._waiting = Waiting(self.ledger, taking)
        self._window: GatherWindow | None = None
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
        with suppress(ConnectionLost, JetStreamNotEnabled, RequestTimeout):  # then taking finds out
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
            self._drop(self._gathered(), str(over))
            return []
        except (HeartbeatMissed, LeadershipChanged, ConnectionLost, PinLost, RequestTimeout) as error:
            if self.ledger.js.connection.ended:
                raise  # there is nothing to try again on
            log.warning("pull interrupted, trying again: %s", error)
            self._gathered()  # comes again when ack_wait is over
            await asyncio.sleep(0.2)
            return []
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
        """The claims are the event's now: nothing of this taking is to be given back."""
        self._entered = []

    async def put_back(self) -> None:
        """Give back what was pulled and not entered, and what was entered and not handed on. May be called twice."""
        batch = self._gathered()
        pulled = batch.sequences if batch else Sequences()
        claims, self._entered = self._entered, []
        entered = {claim.id: claim.taken_at for claim in claims}
        if entered:

            def withdraw(record: Record | None, info: ConsumerInfo) -> Record | None:  # noqa: ARG001
                if record is None:
                    return None
                return replace(
                    record,
                    open={
                        claim_id: entry
                        for claim_id, entry in record.open.items()
                        # Another try of this owner that has handed it on has changed the time.
                        if entry.token is not None or entered.get(claim_id) != entry.at
                    },
                )

            try:
                record, _ = await self.ledger.change(withdraw)
            except (ConsumerNotFound, StreamNotFound):
                return  # and with them everything that could be given back
            withdrawn = Sequences()
            for claim in claims:
                withdrawn |= claim.sequences
            for entry in record.open.values() if record else ():
                withdrawn -= entry.sequences  # on their way in a claim, whoever handed it on
            pulled |= withdrawn
        if pulled:
            log.info("giving back %d messages that were not handed on", pulled.count)
            tell("given_back", self.taking, pulled.count)
            with suppress(ConsumerNotFound, StreamNotFound):
                await answers.negative(self.ledger, pulled)

    async def _look(self) -> tuple[Record | None, ConsumerInfo]:
        """Begin a new life in the record if the consumer did."""

        def look(record: Record | None, info: ConsumerInfo) -> Record | None:
            return record.reborn(info) if record and record.new_life(info) else record

        record, _ = await self.ledger.read()
        info = await self.ledger.consumer.info(patience=PATIENCE)
        if record is None or not record.new_life(info):
            return record, info  # looked, without waiting for a turn to change it
        return await self.ledger.change(look)

    def _drop(self, batch: Batch | None, reason: str) -> None:
        count = len(batch.deliveries) if batch else 0
        log.warning("dropped a batch of %d messages, which are redelivered: %s", count, reason)
        tell("dropped", self.taking, count)

    async def _mine(self) -> list[Claim]:
        """Hand on what another try of this owner entered and nobody holds, under a new lease.

        The entry's time is changed first: from then on the other try cannot withdraw it any more. What is handed on
        here is never withdrawn from here either, because the other try may have handed it on as well.
        """
        record, _ = await self._look()
        if not self._of_this_owner(record):
            return []
        created = (await self.ledger.stream.info(patience=PATIENCE)).created
        mine: dict[str, OpenEntry] = {}

        def hand_on(record: Record | None, info: ConsumerInfo) -> Record | None:
            mine.clear()
            if record is None or record.new_life(info):
                return record
            found = self._of_this_owner(record)
            mine.update((claim_id, replace(entry, at=info.now)) for claim_id, entry in found.items())
            return replace(record, open={**record.open, **mine})

        record, _ = await self.ledger.change(hand_on)
        if record is None or not mine:
            return []
        claims = [self._claim(claim_id, entry, created, record.created) for claim_id, entry in mine.items()]
        log.info("handing on %d claims that an earlier try took: %s", len(claims), ", ".join(mine))
        for claim in claims:
            await answers.negative(self.ledger, claim.sequences, self.taking.hand_off_timeout)
        return claims

    def _of_this_owner(self, record: Record | None) -> dict[str, OpenEntry]:
        """The claims that were taken for this owner and that nobody holds."""
        open_claims = record.open if record else {}
        return {
            claim_id: entry
            for claim_id, entry in open_claims.items()
            if entry.owner == self.taking.owner and entry.token is None
        }

    def _claim(self, claim_id: str, entry: OpenEntry, stream_created: str, consumer_created: str) -> Claim:
        return Claim(
            id=claim_id,
            stream=self.taking.stream,
            stream_created=stream_created,
            consumer=self.taking.consumer,
            consumer_created=consumer_created,
            sequences=entry.sequences,
            bytes=entry.bytes,
            consumer_sequence=entry.counter,
            taken_at=entry.at,
            domain=self.ledger.address.domain,
            account=self.ledger.address.account,
        )

    async def _gather(self, deadline: float, *, look: bool = False) -> None:
        """Pull until the window has no further pull.

        Raises:
            LeaseOver: the batch was gathered too slowly.
        """
        clock, consumer = self._clock, self.ledger.consumer
        self._window = window = GatherWindow(
            self.taking, deadline=deadline, ack_wait=self._ack_wait, longest_pull=self._longest_pull, look=look
        )
        while window.wait(clock()):
            record, info = await self._look()
            life = (record.created, record.n) if record else (info.created, 0)
            window.on_look(life, Moment.of(info, clock()), elsewhere=bool(self._of_this_owner(record)))
            if (request := window.next_pull(clock())) is None:
                return
            pulling = consumer.pull(
                request.messages,
                expires=request.expires,
                heartbeat=request.heartbeat,
                priority=self.taking.priority,
            )
            async with pulling as pull:
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
        window.on_messages(map(self._delivery, messages), self._clock(), silence=pull.silence, pending=pending)

    def _delivery(self, message: Message) -> Delivery:
        meta, address = message.metadata, self.ledger.address
        if not address.covers(meta):
            raise InvalidValue("reply", message.reply, f"this is no delivery of the consumer under {address.prefix}")
        return Delivery(meta.sequence, meta.consumer_sequence, message.size, meta.delivered == 1)

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
        stream_created = (await self.ledger.stream.info(patience=PATIENCE)).created
        while True:
            entering = _Entering(self, batch)
            record, _ = await self.ledger.change(entering.change)
            if not entering.too_large:
                break
            if len(batch.deliveries) <= _SMALLEST_BATCH:
                log.info("giving back %d messages: no room in the record", whole.sequences.count)
                await answers.negative(self.ledger, whole.sequences)
                if entering.full:
                    raise LedgerFull(
                        f"the record of consumer {self.taking.consumer!r} would pass its limit; settle the open claims "
                        f"that `airflow jetstream claims --stream {self.taking.stream}` lists"
                    )
                await asyncio.sleep(BELIEVED / 1e9)  # then what is done is forgotten as far as it is acknowledged
                return []
            batch = batch.halved()
        if entering.dropped or record is None:
            self._drop(whole, entering.dropped)
            return []
        entered = {
            claim_id: self._claim(claim_id, entry, stream_created, record.created)
            for claim_id, entry in entering.entries.items()
        }
        poisoned = entered.pop(entering.poisoned, None)
        claims = list(entered.values())
        self._entered = claims
        for claim_id, entry in entering.superseded.items():
            log.warning("claim %s is superseded: its messages are delivered again", claim_id)
            tell("superseded", self.taking, entry.sequences.count, claim=claim_id)
        if entering.again:
            log.info("acknowledging %d messages again that are done", entering.again.count)
            tell("repeated", self.taking, entering.again.count)
            again = answers.Delivered.of(record, entering.again, batch.counter)
            await answers.acknowledge(self.ledger, again)
        for claim in claims:
            log.info(
                "claim %s is taken: %d messages of %s by consumer %s, sequences %s, %d bytes",
                claim.id,
                claim.count,
                claim.stream,
                claim.consumer,
                claim.sequences,
                claim.bytes,
            )
            await answers.negative(self.ledger, claim.sequences, self.taking.hand_off_timeout)
            seconds = self._clock() - whole.began
            tell("taken", claim, claim.count, claim=claim.id, seconds=seconds, origin=self._origin)
        tail = entering.left | whole.sequences - batch.sequences
        if tail:
            log.info("giving back %d messages: too many claims of what failed, or no room in the record", tail.count)
            tell("given_back", self.taking, tail.count)
            await answers.negative(self.ledger, tail)
        if poisoned is not None:
            await self._bury(poisoned, entering.token, record)
        return claims

    async def _bury(self, claim: Claim, token: str, record: Record) -> None:
        """Settle the claim of what failed too often: as any claim of which everything is rejected."""
        log.warning("claim %s: %d messages failed too often: %s", claim.id, claim.count, claim.sequences)
        await answers.negative(self.ledger, claim.sequences, self.taking.hand_off_timeout)
        rejected = {
            f"failed {failure.alone} times alone, the last time: {failure.reason}": failure.sequences & claim.sequences
            for failure in record.failures.values()
            if failure.sequences & claim.sequences
        }
        try:
            await self._dead_letters.copy(Holder(self.ledger, claim, token), rejected)
            await settle.settle_done(self.ledger, claim, token, None, claim.sequences)
        except JetStreamError as error:
            # Nothing else may wait for it: its lease ends, and a later taking tries again.
            log.error("claim %s could not be dead-lettered, trying again later: %s", claim.id, error)  # noqa: TRY400
            await settle.release(self.ledger, claim, token, self.taking.hand_off_timeout)


class _Entering:
    """The change that enters a batch. It may be applied several times; what it decided last stands."""

    def __init__(self, take: Take, batch: Batch) -> None:
        self._take = take
        self._batch = batch
        self.entries: dict[str, OpenEntry] = {}
        self.poisoned = new_claim_id()
        """The claim among ``entries`` that is not handed on, if there is one: ``token`` holds it."""
        self.token = new_token(0)
        self.left = Sequences()
        self.again = Sequences()
        self.superseded: dict[str, OpenEntry] = {}
        self.dropped = ""
        self.too_large = False
        self.full = False
        """Too large even when everything done will be forgotten."""

    def change(self, old: Record | None, info: ConsumerInfo) -> Record | None:
        if old and self.entries and self.entries.keys() <= old.open.keys():
            return old  # our own write, whose answer got lost
        if (reason := self._stale(info)) is not None:
            self.dropped = reason
            return old
        record = old or Record(info.created)
        pulled = self._batch.sequences
        done = record.all_settled
        if record.new_life(info) or self._delivered_anew(done & pulled):
            record, done = record.reborn(info), Settled()
        without_the_batch = record
        before = old.open if old else {}
        batch = pulled - Sequences.from_ranges([(1, record.floor)] if record.floor else [])
        self.again = (done & batch).sequences
        rest = batch - self.again
        superseded = {claim_id: entry for claim_id, entry in record.open.items() if entry.sequences & rest}
        opened = {claim_id: entry for claim_id, entry in record.open.items() if claim_id not in superseded}
        self.superseded = {claim_id: entry for claim_id, entry in before.items() if claim_id not in opened}
        for claim_id, entry in superseded.items():
            if entry.token is not None:
                counted = failures.failed(record.failures, claim_id, entry.sequences, "its holder died, or lost it")
                record = replace(record, failures=counted)
        self.entries = self._cut(record.failures, rest, info.now)
        self.left = rest - Sequences.from_ranges(
            each for entry in self.entries.values() for each in entry.sequences.ranges
        )
        new = replace(record, open=opened | self.entries).note(info).tidied(info)
        ledger = self._take.ledger
        # What is done is forgotten when the floor passes it: what holds the floor must find room, or nothing would.
        holds_the_floor = bool(done and rest) and rest.first < done.first
        self.too_large = not ledger.fits(new, reserve=holds_the_floor and pulled.count <= _SMALLEST_BATCH)
        self.full = self.too_large and not ledger.fits(replace(new, settled=Settled()))
        return without_the_batch.note(info).tidied(info) if self.too_large else new

    def _stale(self, info: ConsumerInfo) -> str | None:
        try:
            self._batch.check(Moment.of(info, self._take._clock()))
        except LeaseOver as over:
            return str(over)
        if info.counter < self._batch.counter:
            return "the consumer was reset or rolled back since it was pulled"
        return None

    def _delivered_anew(self, done: Settled) -> bool:
        """Whether a done message arrives as if it had never been delivered: the consumer began a new life."""
        return any(
            self._batch.deliveries[sequence].first or self._batch.deliveries[sequence].counter <= counter
            for first, last, counter in done.spans
            for sequence in range(first, last + 1)
        )

    def _cut(self, failed: failures.Failures, rest: Sequences, now: str) -> dict[str, OpenEntry]:
        taking = self._take.taking
        size = taking.messages_per_claim or taking.max_messages
        if taking.max_failures is None:
            return {new_claim_id(): self._entry(part, now) for part in rest.windows(size)}
        poison = rest & failures.poison(failed, taking.max_failures)
        entries = {new_claim_id(): self._entry(part, now) for part in failures.parts(failed, rest - poison, size)}
        if poison:
            entries[self.poisoned] = replace(self._entry(poison, now), token=self.token)
        return entries

    def _entry(self, part: Sequences, now: str) -> OpenEntry:
        deliveries = [self._batch.deliveries[sequence] for sequence in part]
        return OpenEntry(
            part,
            max(delivery.counter for delivery in deliveries),
            sum(delivery.size for delivery in deliveries),
            now,
            self._take.taking.owner,
        )
