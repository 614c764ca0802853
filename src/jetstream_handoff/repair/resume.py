# SPDX-License-Identifier: Apache-2.0
"""Let the keys of a consumer that have stopped (``on_poison="stop_key"``) go on, in order.

Their dead letters are published again, in the order in which their messages were published first. Until all of them
are, no take enters another message of these keys (docs/handoff.md, "resume").
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from jetstream_client.errors import InvalidValue, JetStreamError
from jetstream_client.filters import Filters, filters_of
from jetstream_client.wire.protocol import decode_headers
from jetstream_handoff.errors import ResumeRefused
from jetstream_handoff.ledger.buckets import PATIENCE
from jetstream_handoff.ledger.changes import Changed
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.order import HELD, Order
from jetstream_handoff.letters.letter import Letter, content, origin_of
from jetstream_handoff.letters.replay import replay_one, target_of
from jetstream_handoff.letters.selection import Decisions
from jetstream_handoff.letters.stored import stored, stored_message
from jetstream_handoff.letters.stubs import every
from jetstream_handoff.rules.order_key import OrderKey
from jetstream_handoff.take.by_key import digest
from jetstream_handoff.take.conservation import on_their_way

if TYPE_CHECKING:
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.ledger.record import Record
    from jetstream_handoff.letters.dead_letters import DeadLetters
    from jetstream_handoff.letters.letter import Head

log = logging.getLogger(__name__)

_RENEWED = HELD / 4  # seconds between two times at which the record is told that the resume goes on
_LOOK_EVERY = 0.2


class Resumed(NamedTuple):
    """The outcome of a resume.

    keys:       number of keys that go on.
    published:  number of dead letters that were published again. One that had to be published twice counts twice.
    """

    keys: int = 0
    published: int = 0


class _Hold(NamedTuple):
    """Messages of the stopped keys after ``through`` wait."""

    through: int
    order: Order


async def resume(letters: DeadLetters, consumer: str, *, patience: float = 60.0) -> Resumed:
    """Publish the dead letters of all keys of a consumer that have stopped again, in order, and let the keys go on.

    Sensors must run meanwhile: what was published before is settled first. If other messages of these keys are
    published between the dead letters, all of them become dead letters again, and the resume begins again. It may be
    killed and run again at any time.

    patience:  seconds for the whole. Default: 60.

    Raises:
        ResumeRefused: a dead letter cannot be published again, another resume is in progress, or the keys did not come
            to rest in time. The keys stay stopped.
        JetStreamError: the stream or the ledger cannot be read or written. The keys stay stopped.
    """
    work = _Resume(letters, consumer, patience)
    try:
        return await work.run()
    except BaseException:
        with suppress(JetStreamError):  # the hold then ends after HELD
            await work.end()
        raise


class _Resume:
    def __init__(self, letters: DeadLetters, consumer: str, patience: float) -> None:
        self._letters = letters
        self._ledger = Ledger(letters.js, letters.source.name, consumer)
        self._token = secrets.token_hex(4)
        self._clock = asyncio.get_running_loop().time
        self._deadline = self._clock() + patience
        self._said = 0.0
        self._published = 0

    async def run(self) -> Resumed:
        await self._ledger.buckets.check()
        while (hold := await self._hold()) is not None:
            await self._settled(hold)
            if await self._publish(hold) and await self._in_order(hold) and await self._lift(hold):
                log.info("%d stopped keys of consumer %s go on", len(hold.order.stopped), self._ledger.consumer.name)
                return Resumed(len(hold.order.stopped), self._published)
            self._check_time("other messages of the stopped keys were published between their dead letters")
        return Resumed(0, self._published)

    async def end(self) -> None:
        """End the hold if this resume has failed. May be repeated."""

        def ended(old: Record | None, _: ConsumerInfo) -> Changed[None]:
            if old is None or old.order is None or not self._ours(old.order):
                return Changed(old, None)
            return Changed(replace(old, order=replace(old.order, resuming=None)), None)

        await self._ledger.change(ended)

    def _ours(self, order: Order) -> bool:
        return order.resuming is not None and order.resuming[1] == self._token

    def _refused(self, why: str) -> ResumeRefused:
        return ResumeRefused(*self._ledger.names, why)

    def _check_time(self, why: str) -> None:
        if self._clock() > self._deadline:
            raise self._refused(f"{why}; try again when fewer messages of these keys arrive")

    async def _hold(self) -> _Hold | None:
        """Hold back all messages of the stopped keys that no take can have entered yet. None if no key is stopped."""
        last = await self._last()

        def held(old: Record | None, info: ConsumerInfo) -> Changed[_Hold | None]:
            if old is None or old.order is None or not old.order.stopped:
                return Changed(old, None)
            record = old.reborn(info, on_their_way(info)) if old.new_life(info) else old
            order = record.order or old.order
            if order.through(info.now) is not None and not self._ours(order):
                raise self._refused("another resume is in progress; wait until it has ended")
            through = max(last, info.delivered, *(entry.sequences.last for entry in record.open.values()), 1)
            order = replace(order, resuming=(through, self._token, info.now))
            return Changed(replace(record, order=order), _Hold(through, order))

        _, hold = await self._ledger.change(held)
        self._said = self._clock()
        return hold

    async def _still(self) -> None:
        """Tell the record that the resume goes on, if it is time to. Whether it was heard is found out at the end."""
        if self._clock() - self._said < _RENEWED:
            return

        def still(old: Record | None, info: ConsumerInfo) -> Changed[None]:
            if old is None or old.order is None or old.order.resuming is None or not self._ours(old.order):
                return Changed(old, None)
            resuming = (old.order.resuming[0], self._token, info.now)
            return Changed(replace(old, order=replace(old.order, resuming=resuming)), None)

        await self._ledger.change(still)
        self._said = self._clock()

    async def _settled(self, hold: _Hold) -> None:
        """Wait until all messages up to the hold are settled: those of the stopped keys are dead letters then."""
        while True:
            info = await self._ledger.info()
            if info.floor >= hold.through or not (info.pending or info.ack_pending):
                return
            if self._clock() > self._deadline:
                raise self._refused(
                    f"the messages up to {hold.through} are not all settled; let the sensors and their tasks run until "
                    "they are, and try again"
                )
            await self._still()
            await asyncio.sleep(_LOOK_EVERY)

    async def _last(self) -> int:
        return int((await self._letters.source.info(patience=PATIENCE)).state["last_seq"])

    async def _found(self, hold: _Hold) -> list[tuple[int, int]]:
        """The dead letters of the stopped keys in order: the origin of each, and its number. Those from before a key
        stopped are not among them: later messages of the key are processed."""
        found, before = list[tuple[int, int]](), 0
        decisions, rule, stopped = Decisions(self._letters), OrderKey.parse(hold.order.by), hold.order.stopped

        def may_be(head: Head) -> bool:
            return rule.header != "" or _key(rule, head.subject, b"") in stopped

        heads = [head async for head in self._heads() if may_be(head)]
        for each in heads:
            await self._still()
            head, own = each, b""
            if rule.header or each.parts:
                if (whole := await self._whole(each.number)) is None:
                    continue
                head, own = whole, whole.own_header
            if (at := stopped.get(_key(rule, head.subject, own))) is None:
                continue
            if head.sequence < at:
                before += 1
                continue
            if not await decisions.confirm(head):
                raise self._refused(
                    f"the ledger does not confirm dead letter {head.number} of stream {self._letters.name}, which is "
                    "of a stopped key; replay or discard it first (--unconfirmed)"
                )
            found.append((head.origin, head.number))
        if before:
            log.info("%d dead letters from before their keys stopped stay in stream %s", before, self._letters.name)
        return sorted(found)

    async def _heads(self) -> AsyncIterator[Head]:
        async for stub in every(self._letters, self._ledger.consumer.name):
            await self._still()
            if stub.head:
                yield stub.head

    async def _whole(self, number: int) -> Letter | None:
        """A dead letter with its content; None if it was replayed or discarded in the meantime."""
        message = await stored_message(self._letters.stream, {"seq": number})
        try:
            return None if message is None else await self._letters.whole(Letter.from_stored(message))
        except InvalidValue as incomplete:
            raise self._refused(f"dead letter {number}: {incomplete}") from None

    async def _publish(self, hold: _Hold) -> bool:
        """Publish the dead letters of the stopped keys. Returns False if one was changed in the meantime."""
        target, all_published = await target_of(self._letters), True
        for _, number in await self._found(hold):
            await self._still()
            done = await replay_one(self._letters, number, target)
            for refused, why in done.refused.items():
                raise self._refused(
                    f"dead letter {refused} of stream {self._letters.name} cannot be published again ({why}); correct "
                    "that, or discard it"
                )
            self._published += done.count
            all_published &= done.count == 1
        return all_published

    async def _in_order(self, hold: _Hold) -> bool:
        """Whether the messages of each stopped key after the hold are its dead letters, in order, and then others."""
        rule, last, others = OrderKey.parse(hold.order.by), dict[str, int](), set[str]()
        end = await self._last()
        filters = Filters(filters_of((await self._ledger.info()).config))
        async for message in stored(self._letters.source, ">", hold.through + 1):
            if message["seq"] > end:
                break
            header, subject = content(message)[0], message["subject"]
            key = _key(rule, subject, header)
            if key not in hold.order.stopped or filters.selecting(subject) is None:
                continue
            headers = decode_headers(header)
            (message_id,) = headers.get("Nats-Msg-Id", [""])[-1:]
            if not message_id.startswith(f"dead-letter.{self._letters.name}."):
                others.add(key)
            elif key in others or (first := origin_of(headers)) <= last.get(key, 0):
                return False
            else:
                last[key] = first
        return True

    async def _lift(self, hold: _Hold) -> bool:
        """Let the keys go on, if they were held back all the time."""

        def lifted(old: Record | None, info: ConsumerInfo) -> Changed[bool]:
            order = old.order if old else None
            if old is None or order is None or old.new_life(info) or not self._ours(order):
                return Changed(old, result=False)
            if order.through(info.now) is None:
                return Changed(old, result=False)
            stopped = {key: at for key, at in order.stopped.items() if hold.order.stopped.get(key) != at}
            return Changed(replace(old, order=replace(order, stopped=stopped, resuming=None)), result=True)

        _, done = await self._ledger.change(lifted)
        return done


def _key(rule: OrderKey, subject: str, header: bytes) -> str:
    """The digest of a message's key; empty if it has none."""
    try:
        (key,) = rule.keys([subject.encode()], [header])
    except InvalidValue:
        return ""
    return digest(key)
