# SPDX-License-Identifier: Apache-2.0
"""Order per key, without partitions: what a take with ``ordered_by`` waits for before it enters a batch.

One take at a time gathers, and only when no claim is open. A batch is entered only if it contains everything that is
delivered and not done, with every key in one claim (:mod:`.by_key`). So nothing of a key is ever processed while an
earlier message of it is not done (docs/handoff.md, "order").
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jetstream_client.read.direct import MOST_LISTED
from jetstream_client.sequences import Sequences
from jetstream_handoff.errors import ConsumerUnsuitable
from jetstream_handoff.hold import answers
from jetstream_handoff.ledger.buckets import PATIENCE
from jetstream_handoff.ledger.changes import Changed
from jetstream_handoff.ledger.order import Order
from jetstream_handoff.ledger.record import Record
from jetstream_handoff.moment import Moment
from jetstream_handoff.rules.order_key import OrderKey, check_same
from jetstream_handoff.take.barrier import Barrier
from jetstream_handoff.take.by_key import Keys
from jetstream_handoff.take.conservation import on_their_way
from jetstream_handoff.take.deliveries import Deliveries
from jetstream_handoff.take.enter import Whole, delivered_anew, passed_by, superseded_by
from jetstream_handoff.take.gather import LOOK, Batch, LeaseOver
from jetstream_handoff.take.waiting import tell_superseded

if TYPE_CHECKING:
    from jetstream_client.consume.metadata import Metadata
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.ledger.ledger import Ledger
    from jetstream_handoff.ledger.record import OpenEntry
    from jetstream_handoff.take.taking import Taking
    from jetstream_handoff.take.waiting import Waiting

log = logging.getLogger(__name__)

_SAYS = 3  # times per ack_wait that a take says that it gathers, or looks whether the lease of an open claim has ended
_BELIEVED = 1.2  # times ack_wait: a take that has not said so for this long does not gather any more
_LOOKS = 20  # looks per ack_wait while a take waits
_LONGEST_PAUSE = 1.0  # seconds between two looks
_FEWEST = 2  # messages of a pull that looks whether a lease has ended
_EXPIRES = 5.0  # seconds of such a pull request, which usually ends earlier

Look = Callable[[], Awaitable[tuple["Record | None", "ConsumerInfo"]]]


@dataclass(frozen=True, slots=True)
class Missing:
    """A batch does not contain everything that is delivered and not done.

    count:   how many messages are missing.
    reason:  why the batch can never be complete; empty if it can.
    """

    count: int
    reason: str = ""


def missing(info: ConsumerInfo, known: Sequences) -> int:
    """Return how many messages are delivered, unacknowledged, and not in ``known``."""
    return info.ack_pending - known.count


class InOrder:
    """The order of one take.

    taking:   what it takes; with ``ordered_by``.
    waiting:  logs what the take waits for.
    ours:     returns its argument, or raises InvalidValue if another consumer has delivered these messages.
    """

    def __init__(self, ledger: Ledger, taking: Taking, waiting: Waiting, ours: Callable[[Metadata], Metadata]) -> None:
        self._ledger = ledger
        self._taking = taking
        self._waiting = waiting
        self._ours = ours
        self._clock = asyncio.get_running_loop().time
        self._id = secrets.token_hex(4)
        self._ack_wait = self._longest_pull = 60.0
        self._said = self._probed = -math.inf
        self._removed: tuple[int, int] | None = None
        self.rule = OrderKey.parse(taking.ordered_by)
        self.keys = Keys(self.rule)
        """The keys of the messages of the batch."""
        self.unacknowledged = 0
        """How many messages were delivered and not acknowledged when the turn of this take began."""

    @property
    def every(self) -> float:
        """Seconds between two times at which the take says that it gathers."""
        return self._ack_wait / _SAYS

    @property
    def pause(self) -> float:
        """Seconds between two looks while the take waits."""
        return min(_LONGEST_PAUSE, self._ack_wait / _LOOKS)

    async def check(self) -> None:
        """Check the stream, and the configuration with which the consumer would be created. Raises ConsumerUnsuitable,
        InvalidValue."""
        taking = self._taking
        self.rule.check_config(taking.consumer, taking.consumer_config, taking.max_messages)
        await self._state()

    def known(self, ack_wait: float, longest_pull: float) -> None:
        """Note the consumer's ``ack_wait``, and the longest duration of a pull that it allows, in seconds."""
        self._ack_wait, self._longest_pull = ack_wait, longest_pull

    async def turn(self, deadline: float, look: Look) -> bool:
        """Wait until this take is the one that gathers, and no open claim blocks a new batch.

        Returns False at the ``deadline``, and if there are claims that the take hands on instead.

        Raises:
            ConsumerUnsuitable: the other takes of the consumer have another ``ordered_by``.
            JetStreamError: the ledger or the server cannot be asked.
        """
        while True:
            record, info = await look()
            if record is not None and record.inherited(self._taking.heir):
                return False
            if record is None or record.order is None or not self._taken(record.order, info):
                record, info = await self._say(record, info)
            if record.order is None or not record.order.gathers(self._id):
                self._waiting.tell_order(None)
            elif (barrier := Barrier.seen(record, info)) is None:
                self.keys, self.unacknowledged = Keys(self.rule), info.ack_pending
                self._removed = await self._state()
                return True
            else:
                self._waiting.tell_order(barrier)
                if self._clock() - self._probed >= self.every:
                    self._probed = self._clock()
                    if await self._probe(info, barrier.blocking):
                        continue
            if (left := deadline - self._clock()) <= 0:
                await self.leave()
                return False
            await asyncio.sleep(min(left, self.pause))

    async def still(self) -> None:
        """Say again that this take gathers, if it is time to.

        Raises:
            LeaseOver: another take gathers, because this one was silent for too long.
        """
        if self._clock() - self._said < self.every:
            return
        record, _ = await self._say(None, None)
        if record.order is None or not record.order.gathers(self._id):
            raise LeaseOver("another take gathers the messages of this consumer")

    async def leave(self) -> None:
        """Let another take gather, if this one did. May be repeated."""
        if self._said == -math.inf:
            return
        self._said = -math.inf

        def left(old: Record | None, _: ConsumerInfo) -> Changed[None]:
            return Changed(old and replace(old, order=old.order and old.order.left_by(self._id)), None)

        await self._ledger.change(left)

    def entered(self) -> None:
        """Note that the take has entered its batch: with this, it has let another one gather."""
        self._said = -math.inf

    def _taken(self, order: Order, info: ConsumerInfo) -> bool:
        return order.taken(self._id, info.now, _BELIEVED * self._ack_wait * 1e9)

    async def _say(self, record: Record | None, info: ConsumerInfo | None) -> tuple[Record, ConsumerInfo]:
        """Write that this take gathers, unless another one does, and which open claims do not block. Not written if the
        record says so since a short time.

        record, info:  what was read last; None to write in any case.
        """
        if record and info and record.order and not self._due(record, record.order, info):
            return record, info

        def say(old: Record | None, info: ConsumerInfo) -> Changed[ConsumerInfo]:
            begun = old or Record.begun(info, on_their_way(info))
            if begun.new_life(info):
                begun = begun.reborn(info, on_their_way(info))
            check_same(self._taking.consumer, begun.order.by if begun.order else None, self.rule.rule)
            order = begun.order or Order(self.rule.rule)
            if self._taken(order, info):
                return Changed(old, info)
            order = replace(order.without_gone(begun.open, info), gathering=(self._id, info.now))
            return Changed(replace(begun, order=order).note(info), info)

        now = self._clock()
        written, seen = await self._ledger.change(say)
        written = written or Record.begun(seen, on_their_way(seen))
        self._said = now if written.order and written.order.gathers(self._id) else -math.inf
        return written, seen

    def _due(self, record: Record, order: Order, info: ConsumerInfo) -> bool:
        lately = order.gathers(self._id) and self._clock() - self._said < self.every
        return not lately or record.new_life(info) or order.without_gone(record.open, info) != order

    async def _probe(self, info: ConsumerInfo, blocking: Mapping[str, OpenEntry]) -> bool:
        """Pull a few messages, to learn whether the lease of an open claim has ended: only a redelivery shows it. Such
        a claim is superseded. All messages are negatively acknowledged.

        As many are pulled as are delivered outside of the claims: the server delivers them before new ones, in turns.

        Returns whether a claim was superseded.
        """
        outside = info.ack_pending - sum(entry.sequences.count for entry in blocking.values())
        pulled, since, began = Deliveries(), Moment.of(info, self._clock()), self._clock()
        count = min(max(_FEWEST, outside), self._taking.max_messages)
        expires = min(_EXPIRES, self._longest_pull)
        heartbeat = min(expires / 2.5, self._ack_wait / 4)
        async with self._ledger.consumer.pull_metadata(count, expires=expires, heartbeat=heartbeat) as pull:
            while not pull.ended and (left := began + LOOK - self._clock()) > 0:
                for each in await pull.receive(left):
                    pulled.add(self._ours(each))
            for each in await pull.stop():
                pulled.add(self._ours(each))
        if not pulled:
            return False
        batch = Batch(pulled, since, began, self._ack_wait)

        def supersede(old: Record | None, info: ConsumerInfo) -> Changed[dict[str, OpenEntry]]:
            if old is None or old.new_life(info) or info.counter < batch.counter:
                return Changed(old, {})
            batch.check(Moment.of(info, self._clock()))
            messages = batch.sequences - passed_by(batch, old) - old.all_settled.sequences
            lost, failed = superseded_by(old, messages)
            return Changed(replace(old.without(lost), failures=failed).note(info), lost)

        try:
            _, lost = await self._ledger.change(supersede)
        except LeaseOver as over:
            log.warning("%d messages that were pulled to find ended leases are redelivered: %s", len(pulled), over)
            return False
        tell_superseded(self._taking, lost)
        await answers.negative(self._ledger, batch.sequences)
        return bool(lost)

    async def count(self, batch: Batch, life: tuple[str, int]) -> Whole | Missing:
        """Count what is delivered and not done, and return what the batch knows of it, or how much is missing.

        Messages of the batch that are done are acknowledged again, because they count until the server knows it.

        life:  the life of the consumer in which the batch was delivered.
        """
        record, _ = await self._ledger.read()
        info = await self._ledger.info()
        if record is None:
            return Missing(0, "the ledger's record was deleted")
        inside = batch.sequences - passed_by(batch, record)
        done = record.all_settled & inside
        known = inside - done.sequences
        if record.new_life(info) or record.life != life or delivered_anew(batch, done):
            return Whole(known, info.delivered, life, self._id, self.keys)  # not entered, as enter() finds
        if done:
            log.info("acknowledging %d redelivered messages that are already done", done.sequences.count)
            delivered = answers.Delivered.of(record, done.sequences, batch.counter)
            await answers.acknowledge(self._ledger, delivered, within=self.every)
            info = await self._ledger.info()
        if info.counter < batch.counter or (known and known.last > info.delivered):
            return Missing(0, "the server has forgotten deliveries")
        if known and (removed := await self._removed_from(known)):
            return Missing(0, f"messages were removed from the stream while they were gathered: {removed}")
        if (left := missing(info, known)) < 0:
            return Missing(left, "messages that were delivered to this take are no longer unacknowledged")
        return Missing(left) if left else Whole(known, info.delivered, life, self._id, self.keys)

    async def _state(self) -> tuple[int, int]:
        """Return the first sequence of the stream, and how many are missing behind it. As long as both stay the same,
        no message is removed."""
        info = await self._ledger.stream.info(patience=PATIENCE)
        self.rule.check_stream(self._ledger.stream.name, self._taking.consumer, info.config)
        return int(info.state["first_seq"]), int(info.state.get("num_deleted", 0))

    async def _removed_from(self, known: Sequences) -> str:
        """Return which messages of the batch the stream no longer has; empty if it has all of them. A message that is
        removed is no longer unacknowledged: it would hide a message that is missing."""
        state = await self._state()
        if state[0] > known.first:
            return f"those below {state[0]}"
        if state == self._removed or not state[1]:
            return ""
        if state[1] > MOST_LISTED:
            remedy = (
                f"stream {self._ledger.stream.name!r} has {state[1]:,} deleted messages between others, more than a "
                f"server can list ({MOST_LISTED:,}), so their order cannot be checked; purge the stream up to a later "
                "sequence, or leave ordered_by out"
            )
            raise ConsumerUnsuitable(self._taking.consumer, "ordered_by", self.rule.rule, remedy)
        deleted = (await self._ledger.stream.info(deleted=True, patience=PATIENCE)).state
        gone = Sequences.of(each for each in deleted.get("deleted") or () if each in known)
        if gone or int(deleted["first_seq"]) > known.first:
            return str(gone) or f"those below {deleted['first_seq']}"
        self._removed = state
        return ""
