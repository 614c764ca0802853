"""The state machine, in which others also edit the consumer, and restore the stream or the ledger from a backup.

In addition to the properties of :mod:`tests.jetstream_handoff.machine`:

* **no silence**: what the server does not deliver again is reported by the next take, with its sequences;
* a take pulls nothing from a consumer that breaks a rule;
* what is published after a restore is processed, although its sequences were used before.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from jetstream_client.context import JetStream
from jetstream_client.errors import ConsumerDeleted, ConsumerNotFound, PullLimitExceeded
from jetstream_client.sequences import Sequences
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import ConsumerUnsuitable, DeliveriesGivenUp
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.repair import reset
from jetstream_handoff.take.conservation import without_receipt
from tests.installed_server import has
from tests.jetstream_handoff.machine import ACK_WAIT, PATIENT, Handoff

MAX_BATCH = 2
EDITS: tuple[dict[str, Any], ...] = (
    {"ack_wait": 300_000_000},
    {"backoff": [300_000_000, 500_000_000]},
    {"description": "changed"},
    {"headers_only": True},
    {"inactive_threshold": 600_000_000_000},
    {"max_ack_pending": 3},
    {"max_batch": MAX_BATCH},
    {"max_deliver": 1},
    {"max_deliver": 3},
    {"metadata": {}},
    {"sample_freq": "100%"},
)
"""What a stranger changes, in the server's terms."""
HARMLESS = frozenset({"description", "headers_only", "metadata", "sample_freq"})
"""Fields that break no rule for claims, whose messages are read by direct get."""


@dataclass
class Backup:
    """Copies of the folders of the stream and the ledger, and what the machine knew at that time."""

    folder: Path
    life: int
    stored: dict[int, str]
    owed: set[int]
    filter: str
    edited: dict[str, Any]
    lowered: bool


class HandoffAmongStrangers(Handoff):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.edited: dict[str, Any] = {}
        """The fields of the consumer that a stranger has changed, and their values before; None: the field was not
        set."""
        self.backup: Backup | None = None

    def suitable(self) -> bool:
        return not (self.lowered or self.edited.keys() - HARMLESS)

    # Takes.

    async def _take(
        self, size: int, per_claim: int, wait: float = 1.0, js: JetStream | None = None, **limits: Any
    ) -> list[Claim]:
        try:
            claims = await super()._take(size, per_claim, wait, js, **limits)
        except ConsumerUnsuitable as unsuitable:
            if unsuitable.rule not in self.edited:
                raise
            return []
        except DeliveriesGivenUp:
            if not self.lowered:
                raise
            return []
        fits = {"max_batch"} if size <= MAX_BATCH else set()
        broken = self.edited.keys() - HARMLESS - fits
        assert not (claims and broken), f"{claims} were taken despite {broken}"
        return claims

    # What strangers do.

    @rule(changes=st.sampled_from(EDITS))
    def a_stranger_edits_the_consumer(self, changes: dict[str, Any]) -> None:
        if before := self.call(self._edit, changes):
            for name in changes:
                self.edited.setdefault(name, before.get(name))
                if name == "backoff":
                    self.edited.setdefault("ack_wait", before["ack_wait"])  # the server sets it to the first value
            self.lowered = self.lowered or "max_deliver" in changes

    @rule(changes=st.sampled_from(EDITS), size=st.integers(1, 30))
    def a_stranger_edits_the_consumer_while_a_sensor_waits(self, changes: dict[str, Any], size: int) -> None:
        waiting = self.portal.start_task_soon(self._take_before_an_edit, size)
        self.a_stranger_edits_the_consumer(changes=changes)
        self._work_on(waiting.result(90))

    async def _take_before_an_edit(self, size: int) -> list[Claim]:
        """What is taken before the take sees the edit stays claimed."""
        try:
            return await super()._take(size, size)
        except (ConsumerUnsuitable, DeliveriesGivenUp):
            return []

    @rule(put_right=st.booleans())
    def the_server_gives_deliveries_up(self, put_right: bool) -> None:
        """A stranger lowers max_deliver, and pulls after the leases of the present claims have ended."""
        self.a_stranger_edits_the_consumer(changes={"max_deliver": 1})
        self.call(asyncio.sleep, 1.1 * ACK_WAIT.total_seconds())
        self.call(self._pull)
        if put_right:
            self.the_consumer_is_put_right()

    async def _pull(self) -> None:
        with suppress(ConsumerDeleted, PullLimitExceeded):
            await self.js.stream(self.name).consumer("work").fetch_no_wait(50)

    @rule()
    def the_consumer_is_put_right(self) -> None:
        if self.edited:
            self.call(self._put_right)

    async def _put_right(self) -> None:
        await self._edit({name: value for name, value in self.edited.items() if name not in HARMLESS})
        self.edited.clear()

    async def _edit(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Change the consumer's configuration. Returns the one before; empty if there is no consumer, or the server
        refuses the change."""
        try:
            info = await self.js.stream(self.name).consumer("work").info(patience=30)
        except ConsumerNotFound:
            return {}
        config = {name: value for name, value in {**info.config, **changes}.items() if value is not None}
        answer = await self.js.connection.request(
            f"$JS.API.CONSUMER.CREATE.{self.name}.work"
            + (f".{only}" if (only := config.get("filter_subject")) else ""),
            json.dumps({"stream_name": self.name, "config": config, "action": "update"}).encode(),
            timeout=PATIENT,
        )
        return {} if b'"error"' in answer.data else info.config

    def _new_life(self, *, from_sequence: int) -> None:
        super()._new_life(from_sequence=from_sequence)
        self.lowered = "max_deliver" in self.edited

    def _consumer_is_new(self) -> None:
        self.edited.clear()
        super()._consumer_is_new()

    @precondition(lambda self: not self.unwritten)
    @rule()
    def a_backup_is_made(self) -> None:
        self.server.kill()
        folder = Path(mkdtemp(dir=self.server.folder))
        for each in self._folders():
            shutil.copytree(each, folder / each.name)
        self.server.start()
        self.call(self._back)
        stored, owed, edited = dict(self.stored), set(self.owed), dict(self.edited)
        self.backup = Backup(folder, self.life, stored, owed, self.filter, edited, self.lowered)

    @precondition(lambda self: not self.unwritten)
    @rule(which=st.sampled_from(["stream", "ledger", "both"]))
    def a_stranger_restores(self, which: str) -> None:
        """The same backup can be restored repeatedly. Claims that were settled since then may be processed again, and
        need not be, except with the ledger's older state."""
        if (backup := self.backup) is None:
            return
        self.server.kill()
        for each in self._folders() | {self._streams / copy.name for copy in backup.folder.iterdir()}:
            if which == "both" or (each.name == self.name) == (which == "stream"):
                shutil.rmtree(each, ignore_errors=True)
                if (copy := backup.folder / each.name).exists():
                    shutil.copytree(copy, each)
        self.server.start()
        self.call(self._back)
        if which != "ledger":
            since = [done for life, done in self.settled.items() if life >= backup.life]
            done = set().union(*since) if which == "stream" else set()
            self.stored, self.filter = dict(backup.stored), backup.filter
            self.edited, self.lowered = dict(backup.edited), backup.lowered
            self.owed = backup.owed - done
        self.life += 1
        self.booked.clear()  # the same attempt can settle the same claim again

    @property
    def _streams(self) -> Path:
        return self.server.store / "jetstream" / "$G" / "streams"

    def _folders(self) -> set[Path]:
        """The folders of the stream and of the ledger's buckets that exist."""
        return {each for each in self._streams.iterdir() if each.name == self.name or self.settings.ledger in each.name}

    async def _create_stream(self) -> None:
        self.backup = None  # it is one of another stream
        await super()._create_stream()

    # The end.

    def _drain(self) -> None:
        self.call(self._put_right)
        for _ in range(12):
            if not (self.lowered and self.owed):
                break
            self.call(self._take_or_reset)
        if self.lowered and self.owed:
            self.call(self._reset_to_what_is_claimed)
        super()._drain()

    async def _reset_to_what_is_claimed(self) -> None:
        """A purge has hidden what the server gave up. The page names the open claims that the floor has passed, and,
        after the ledger was lost with its claims, what is acknowledged without a receipt."""
        ledger = Ledger(self.js, self.name, "work")
        record, _ = await ledger.read()
        info = await ledger.consumer.info(patience=30)
        passed = [entry.sequences for entry in (record.open.values() if record else ())]
        told = without_receipt(record, info, ledger.name, vanishing=False)
        if unreported := self.owed.difference(*passed, told):
            raise AssertionError(f"neither delivered nor reported: {Sequences.of(unreported)}")
        await self._repair(min(self.owed))

    async def _repair(self, sequence: int | None = None) -> None:
        """Have messages delivered again that the server gave up, as a person does who has read about them."""
        ledger = Ledger(self.js, self.name, "work")
        if has("2.14"):
            self._new_life(from_sequence=(await reset.reset(ledger, sequence)).sequence)
        else:
            await ledger.consumer.delete()
            self._consumer_is_new()

    async def _take_or_reset(self) -> None:
        """Settle what still comes. Reset the consumer as soon as a take reports that the rest will not come."""
        try:
            claims = await Handoff._take(self, 10_000, 10_000, wait=2.5)
        except DeliveriesGivenUp as given_up:
            delivered = {each for each in self.owed if each <= given_up.sequences.last}  # the others are pending
            if unreported := delivered - set(given_up.sequences):
                raise AssertionError(f"not reported: {Sequences.of(unreported)}") from given_up
            await self._repair()
            return
        await self._settle_all(claims)
