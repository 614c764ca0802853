# SPDX-License-Identifier: Apache-2.0
"""Divide a stream into partitions, create the consumer of each, and change their number (:mod:`..rules.partitions`).

A message's partition is decided when it is stored. If the number changes, a key can be in another partition from then
on, while messages in its old one are not processed yet, and two consumers would process it at the same time. So the
number changes in steps, and each step begins only when what was stored before it is done:

1. New messages are stored under ``between`` instead of a number, so the old partitions have an end. They are drained.
2. Their consumers are paused, and those of additional partitions are created, paused. New messages get their new
   partitions, so ``between`` has an end, too. A separate consumer drains it.
3. The consumers of the partitions are resumed, and what is no longer needed is deleted.

The server keeps the state: the ``subject_transform``, the consumers and their pauses. A pause is what keeps a take from
going ahead. So the steps may be repeated, and a caller that dies leaves nothing half done.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from jetstream_client.config import normalise
from jetstream_client.errors import MessageNotFound
from jetstream_client.filters import Filters, filters_of
from jetstream_handoff.errors import PartitionsUnsuitable
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.repair.deletion import delete
from jetstream_handoff.rules import consumer as consumers
from jetstream_handoff.rules.order_key import OrderKey
from jetstream_handoff.rules.partitions import BETWEEN, SINCE, START, Partitions, by_number
from jetstream_handoff.take.conservation import given_up

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo, StreamInfo

log = logging.getLogger(__name__)

_PAUSED = datetime(2100, 1, 1, tzinfo=UTC)
"""The end of a pause that these steps make, by which it is told from a pause that a person makes."""


@dataclass(frozen=True)
class Partitioned:
    """The consumers from which to take now.

    consumers:  their names, of which each has its partition, in order. While the number of partitions changes: those
                that have to be drained.
    changed:    what was changed, in words; empty if everything existed.
    waits_for:  while the number changes: what has to be processed before the next step, in words.
    """

    consumers: tuple[str, ...]
    changed: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()


async def ensure_partitions(
    js: JetStream,
    layout: Partitions,
    *,
    max_messages: int,
    consumer_config: Mapping[str, Any] | None = None,
    change_number: bool = False,
) -> Partitioned:
    """Divide a stream into partitions and create the consumer of each. What exists is checked, and not changed.

    max_messages:     the largest batch of the takes, from which follows how much a consumer may deliver.
    consumer_config:  fields of the consumers that this call creates, as the server names them. The existing ones must
                      have them, too, except for those that say where a consumer begins.
    change_number:    whether to go on with changing the number of partitions, as far as possible now, if the stream has
                      another one. Call this again until ``waits_for`` is empty. Not at the same time as with another
                      number.

    Raises:
        PartitionsUnsuitable: the stream is divided in another way, contains messages that would be in no partition,
            has consumers of others that would receive none any more, or has another number of partitions without
            ``change_number``, or with consumers of others that depend on it. Nothing was changed.
        ConsumerUnsuitable: a consumer breaks a rule for claims, or differs from ``consumer_config``.
        WrongLedger, LedgerUnavailable: it is unknown what has been processed.
        StreamNotFound: the stream does not exist.
    """
    steps = _Steps(js, layout, max_messages, consumer_config, change_number=change_number)
    await steps.check()
    while True:
        if result := await steps.next():
            return result


async def plan(js: JetStream, layout: Partitions, *, max_messages: int, change_number: bool = False, **how: Any) -> str:
    """Return what :func:`ensure_partitions`, which has the same parameters, would find and do, in words. Nothing is
    changed. Raises the same errors."""
    steps = _Steps(js, layout, max_messages, how.pop("consumer_config", None), change_number=change_number, **how)
    await steps.check()
    return await steps.plan()


class _Steps:
    """The steps, each of which is chosen by what the server has."""

    def __init__(
        self,
        js: JetStream,
        layout: Partitions,
        max_messages: int,
        consumer_config: Mapping[str, Any] | None,
        *,
        change_number: bool,
    ) -> None:
        self._js = js
        self._layout = layout
        self._stream = js.stream(layout.stream)
        self._max_messages = max_messages
        self._config = normalise(consumer_config or {})
        layout.check_consumers(self._config, max_messages)
        self._change_number = change_number
        self._changed: list[str] = []

    async def check(self) -> None:
        """Check what does not depend on the partitions that the stream has. Raises ConsumerUnsuitable."""
        layout, config = self._layout, (await self._stream.info()).config
        OrderKey.parse(layout.ordered_by).check_stream(layout.stream, layout.name(0), config)
        if left := layout.undivided(config.get("subjects") or ()):
            log.warning(
                "stream %s also stores messages under %s that do not match %s: they are in no partition, and no "
                "consumer of %s receives them",
                layout.stream,
                ", ".join(left),
                layout.subject,
                layout.group,
            )

    async def next(self) -> Partitioned | None:
        """Take the next step. Returns the result if it was the last one, or cannot be taken yet."""
        info = await self._stream.info()
        now = self._layout.number_of(info.config)
        mine, between = await self._consumers()
        if now is None:
            await self._divide(mine)
            return None
        if now == self._layout.partitions and between is None:
            return await self._stable(info, now, mine)
        if not self._change_number:
            raise self._other_number(now)
        if now and between and (now == self._layout.partitions or any(map(_is_paused, mine.values()))):
            return await self._end(info, now, mine, between)
        if now:
            await self._begin(info, now, mine, between)
            return None
        if between is None:
            remedy = (
                f"its number of partitions is being changed, but consumer {self._layout.name(BETWEEN)!r} does not "
                "exist, so another group of consumers changes it, or the consumer was deleted. What is stored "
                f"under {self._layout.filter(BETWEEN)} has to be processed before all later messages"
            )
            raise self._unsuitable("subject_transform", info.config["subject_transform"], remedy)
        return await self._switch(info, mine, between)

    async def plan(self) -> str:
        """Describe what there is and what would be done, without a change."""
        now = self._layout.number_of((await self._stream.info()).config)
        mine, between = await self._consumers()
        wanted = range(self._layout.partitions)
        changes = now is not None and (now != len(wanted) or between is not None)
        if changes and not self._change_number:
            raise self._other_number(now or 0)
        if now is None:
            await self._check_divisible()
        has = {None: "is not divided", 0: "is being changed"}.get(now, f"has {now} partitions")
        missing = [self._layout.name(each) for each in wanted if each not in mine]
        undone = await self._undone({**mine, **({BETWEEN: between} if between else {})}) if changes else []
        said = f"stream {self._layout.stream} {has}, and would have {len(wanted)} partitions"
        for what, names in (("would be created", missing), ("would have to be processed before", undone)):
            said += f"; {what}: {', '.join(names)}" if names else ""
        return said

    async def _divide(self, mine: Mapping[int, ConsumerInfo]) -> None:
        """Create the consumers, and then let the server divide: an interest stream drops what no consumer selects."""
        await self._check_divisible()
        await self._ensure(range(self._layout.partitions), mine, {})
        await self._transform(self._layout.transform)

    async def _stable(self, info: StreamInfo, now: int, mine: Mapping[int, ConsumerInfo]) -> Partitioned:
        if any(each not in mine for each in range(now)):
            self._check_since(info)
        await self._ensure(range(now), mine, {})
        await self._resume(mine)
        return Partitioned(tuple(map(self._layout.name, range(now))), tuple(self._changed))

    async def _begin(
        self, info: StreamInfo, now: int, mine: Mapping[int, ConsumerInfo], between: ConsumerInfo | None
    ) -> None:
        """Step 1: what is stored from now on belongs to no partition."""
        await self._check_alone()
        await self._stable(info, now, mine)
        await self._ensure([BETWEEN], {BETWEEN: between} if between else {}, _beginning(info))
        await self._transform(self._layout.between)

    async def _switch(
        self, info: StreamInfo, mine: Mapping[int, ConsumerInfo], between: ConsumerInfo
    ) -> Partitioned | None:
        """Step 2: what is stored from now on belongs to the new partitions."""
        if waits_for := await self._undone(mine):
            return self._draining(mine, waits_for)
        for each in mine:
            if not _is_paused(mine[each]):
                await self._stream.consumer(self._layout.name(each)).pause(_PAUSED)
        start = _beginning(info)
        await self._ensure(range(self._layout.partitions), mine, start)
        since = {SINCE: str(info.state["last_seq"] + 1)}
        await self._transform(self._layout.transform, metadata=since)
        await self._resume({BETWEEN: between})
        return None

    async def _end(
        self, info: StreamInfo, now: int, mine: Mapping[int, ConsumerInfo], between: ConsumerInfo
    ) -> Partitioned | None:
        """Step 3: go on with the partitions."""
        await self._resume({BETWEEN: between})
        if waits_for := await self._undone({BETWEEN: between}):
            return self._draining([BETWEEN], waits_for)
        if (since := await self._last(BETWEEN) + 1) > _since(info):
            await self._stream.update({"metadata": {SINCE: str(since)}})
        await self._resume({each: mine[each] for each in mine if each < now})
        for name in [*(self._layout.name(each) for each in mine if each >= now), self._layout.name(BETWEEN)]:
            await delete(self._js, self._layout.stream, name)
            self._tell(f"deleted consumer {name}, which is drained")
        return None

    def _draining(self, partitions: Any, waits_for: list[str]) -> Partitioned:
        names = tuple(map(self._layout.name, partitions))
        return Partitioned(names, tuple(self._changed), tuple(waits_for))

    async def _consumers(self) -> tuple[dict[int, ConsumerInfo], ConsumerInfo | None]:
        """Return the consumers of this group's partitions, in order, and that of ``between``."""
        found: dict[Any, ConsumerInfo] = {}
        async for each in self._stream.list_consumers():
            if (partition := self._layout.partition_of(str(each.raw["name"]), each.config)) is not None:
                found[partition] = each
        between = found.pop(BETWEEN, None)
        return dict(sorted(found.items())), between

    async def _ensure(self, partitions: Any, existing: Mapping[Any, ConsumerInfo], new: dict[str, Any]) -> None:
        """Check the consumers of partitions, and create those that do not exist with the fields of ``new``."""
        known = {field: value for field, value in self._config.items() if field not in START}
        for each in partitions:
            name = self._layout.name(each)
            config = known if each in existing else (known if new else self._config) | new
            await consumers.ensure(
                self._stream,
                name,
                {**config, "filter_subject": self._layout.filter(each)},
                max_messages=self._max_messages,
                shortest_ack_wait=timedelta(seconds=self._js.settings.shortest_ack_wait),
                ledger=self._js.settings.ledger,
            )
            if each not in existing:
                self._tell(f"created consumer {name}")

    async def _undone(self, partitions: Mapping[Any, ConsumerInfo]) -> list[str]:
        """Describe what is not processed yet of partitions in which nothing more is stored; empty if nothing."""
        found = []
        for each in partitions:
            ledger = Ledger(self._js, self._layout.stream, self._layout.name(each))
            record, info = await ledger.known(), await ledger.info()
            claims = len(record.open) if record and not record.new_life(info) else 0
            counts = {
                "not delivered": info.pending,
                "not acknowledged": info.ack_pending,
                "given up by the server": given_up(record, info).count,
                "open claims": claims,
                # their new partitions would not know that they have stopped
                "stopped keys": len(record.order.stopped) if record and record.order else 0,
            }
            wait = [f"{what}: {count}" for what, count in counts.items() if count]
            # A follower may answer that knows less than the leader of the stream.
            passed = info.floor if info.counter else info.delivered
            if not wait and passed < (last := await self._last(each)):
                wait = [f"sequence {last} is not acknowledged"]
            if wait:
                found.append(f"{ledger.consumer.name} ({', '.join(wait)})")
        return found

    async def _last(self, partition: int | str) -> int:
        """Return the sequence of the last message of a partition; 0 if it has none. The leader answers."""
        try:
            return (await self._stream.get_message(last_by_subject=self._layout.filter(partition))).sequence
        except MessageNotFound:
            return 0

    async def _transform(self, transform: Mapping[str, str], **more: Any) -> None:
        await self._stream.update({"subject_transform": transform, **more})
        self._tell(f"set subject_transform {dict(transform)}")

    async def _resume(self, partitions: Mapping[Any, ConsumerInfo]) -> None:
        for each, info in partitions.items():
            if _is_paused(info):
                await self._stream.consumer(self._layout.name(each)).resume()
                self._tell(f"resumed consumer {self._layout.name(each)}")

    def _tell(self, what: str) -> None:
        log.info("stream %s: %s", self._layout.stream, what)
        self._changed.append(what)

    async def _check_divisible(self) -> None:
        """Raise PartitionsUnsuitable if messages would be in no partition, or if consumers of others would no longer
        receive messages, because these are stored under other subjects."""
        await self._check_no_undivided()
        losing = []
        async for each in self._stream.list_consumers():
            filters = Filters(filters_of(each.config))
            if filters.overlapping(self._layout.subject) and not filters.overlapping(self._layout.filter(0)):
                losing.append(str(each.raw["name"]))
        if losing:
            remedy = (
                "their filters have the subjects under which messages are published, so they would receive none of "
                f"those that are stored under {self._layout.filter('*')} from then on. Give them filters for these "
                "subjects, too, or delete them when they are drained; or divide a new stream, which has this one as "
                "its source"
            )
            raise self._unsuitable("consumers", losing, remedy)

    async def _check_no_undivided(self) -> None:
        if self._config.get("deliver_policy", "all") != "all":
            return  # it is known where they begin
        try:
            found = await self._stream.get_message(next_by_subject=self._layout.subject)
        except MessageNotFound:
            return
        remedy = (
            "the stream contains messages that are in no partition, and the consumers of the partitions would never "
            "receive them. Process them with another consumer first, and then begin after them, with "
            "consumer_config={'deliver_policy': 'new'}; or divide a new stream, which has this one as its source"
        )
        raise self._unsuitable("subject", f"{found.subject} (sequence {found.sequence})", remedy)

    def _check_since(self, info: StreamInfo) -> None:
        since, begins = _since(info), self._config.get("deliver_policy", "all") != "all"
        if begins or int(info.state["first_seq"]) >= since:
            return
        remedy = (
            f"the messages before sequence {since} were stored with another number of partitions, so a key can be in "
            "two of them. Let the new consumers begin after them, with consumer_config="
            f"{{'deliver_policy': 'by_start_sequence', 'opt_start_seq': {since}}}"
        )
        raise self._unsuitable("first_seq", info.state["first_seq"], remedy)

    async def _check_alone(self) -> None:
        """Raise PartitionsUnsuitable if consumers of others would miss messages with another number of partitions."""
        others = [
            str(each.raw["name"])
            async for each in self._stream.list_consumers()
            if by_number(each.config) and self._layout.partition_of(str(each.raw["name"]), each.config) is None
        ]
        if others:
            remedy = (
                "these consumers of others select partitions by their numbers, and would miss messages; give this "
                "group a separate stream, which has this one as its source, or delete them first"
            )
            raise self._unsuitable("consumers", others, remedy)

    def _other_number(self, now: int) -> PartitionsUnsuitable:
        wanted = self._layout.partitions
        has = f"it has {now} partitions" if now else "its number of partitions is being changed"
        remedy = (
            f"{has}. Give the number that it has; or set change_number=True, with which the number changes as soon as "
            "everything in the old partitions is processed, so that no key is in two of them at the same time"
        )
        if now == wanted:
            remedy = "its number of partitions is being changed; set change_number=True until the change has ended"
        return self._unsuitable("partitions", wanted, remedy)

    def _unsuitable(self, rule: str, value: object, remedy: str) -> PartitionsUnsuitable:
        return PartitionsUnsuitable(self._layout.stream, rule, value, remedy)


def _is_paused(info: ConsumerInfo) -> bool:
    """Return whether these steps have paused a consumer."""
    return info.paused and info.config.get("pause_until") == _PAUSED.isoformat().replace("+00:00", "Z")


def _since(info: StreamInfo) -> int:
    """Return the first sequence with the present number of partitions, as the stream's metadata says; 0 if unknown."""
    noted = str((info.config.get("metadata") or {}).get(SINCE, ""))
    return int(noted) if noted.isdecimal() else 0


def _beginning(info: StreamInfo) -> dict[str, Any]:
    """Return the fields of a paused consumer that begins after everything that is stored now.

    A work queue delivers everything; what was drained is no longer in it.
    """
    paused = {"pause_until": _PAUSED}
    if info.config.get("retention") == "workqueue":
        return paused
    return {**paused, "deliver_policy": "by_start_sequence", "opt_start_seq": info.state["last_seq"] + 1}
