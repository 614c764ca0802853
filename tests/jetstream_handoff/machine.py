"""A state machine of everything that can happen to claims, against a real server.

The machine records which messages were published, settled and removed. After each step it asks the server whether the
owed messages still exist:

* **nothing is lost**: the server still owes (pending or unacknowledged) all messages not settled in this life;
* **nothing is settled twice** in one life of the consumer;
* **a reset processes again**: all messages from its sequence on are owed again;
* **a claim has one piece of work**: no other one holds it, or hears that it is done;
* **nothing is stuck**: at the end all owed messages can be taken, held and settled, after any deaths before.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import ApiError, ConnectionLost, ConsumerNotFound, JetStreamError, RequestTimeout
from jetstream_client.publish.bulk import publish_all
from jetstream_client.sequences import Sequences
from jetstream_client.wire.protocol import Reply
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import (
    AlreadyDone,
    HeldByAnother,
    HoldLost,
    LedgerFull,
    LedgerUnavailable,
    OtherWork,
    ResetRefused,
    Superseded,
)
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger import ledger
from jetstream_handoff.ledger.changes import Queue
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import stored_record
from jetstream_handoff.repair import reset
from jetstream_handoff.take.gather import LeaseOver
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from tests.chaos.proxy import Proxy
from tests.installed_server import has

Result = TypeVar("Result")

ACK_WAIT = timedelta(seconds=0.8)
SUBJECTS = 3
WHICH = st.integers(0, 999)
"""Which of the claims or attempts a rule uses. These are no bundles of Hypothesis: how many there are depends on the
server's speed, and Hypothesis generates an example again only if it can choose as before."""
PATIENT = 30.0
LOST = (AlreadyDone, OtherWork, Superseded, HeldByAnother, HoldLost)
"""The errors that a fenced attempt gets."""


def owner_of(run: str) -> tuple[str | int, ...]:
    return ("dag", run, "sensor", -1, 0, "started")


def chosen(pile: list[Result], which: int) -> Result | None:
    return pile[which % len(pile)] if pile else None


class Attempt:
    """A process of a task's try. It can die without a release, and wake up late. Several processes can have the same
    token, because one hands the claim over and another resumes the hold."""

    def __init__(self, claim: Claim, hold: Hold, stack: ExitStack) -> None:
        self.claim = claim
        self.hold = hold
        self._stack = stack

    @property
    def id(self) -> str:
        return self.hold.attempt_id

    async def freeze(self) -> None:
        """Freeze it as SIGSTOP does: it sends no heartbeat, does not release, and does not notice that time passes."""
        await self.hold._stop_beats()

    async def vanish(self) -> None:
        await self.freeze()
        self.hold.ended = True  # leaving the context releases nothing

    def leave(self) -> None:
        self._stack.close()


class Handoff(RuleBasedStateMachine):
    """See the module. A subclass names its ``server``, which it must not share, because the machine kills it."""

    server: NatsServer

    def __init__(self) -> None:
        super().__init__()
        self.claims: list[Claim] = []
        self.attempts: list[Attempt] = []
        self.handed_over: list[Attempt] = []
        self.name = f"S{secrets.token_hex(4)}"
        self.settings = ConnectionSettings(
            servers=self.server.url, shortest_ack_wait=0.5, ledger=f"m_{secrets.token_hex(4)}", request_timeout=2
        )
        self.filter = f"{self.name}.>"
        self.runs = itertools.count()
        self.life = 0
        self.owed: set[int] = set()
        """Messages that are in the stream, match the consumer's filter, and are not settled in this life."""
        self.settled: dict[int, set[int]] = {}
        self.stored: dict[int, str] = {}
        """The subjects of the stream's messages, by sequence."""
        self.told: list[Attempt] = []
        self.booked: set[str] = set()
        """The attempts that have settled their claims."""
        self.belongs: dict[str, str] = {}
        """The piece of work for which each claim was held, since a take handed it on."""
        self.settled_by: dict[str, str] = {}
        """The piece of work that settled each claim."""
        self._stack = ExitStack()
        self.portal: BlockingPortal = self._stack.enter_context(start_blocking_portal())
        self.js: JetStream = self._stack.enter_context(self.portal.wrap_async_context_manager(connect(self.settings)))
        self.stranger = self.js.with_options(request_timeout=PATIENT)
        """What others do takes effect, however slow the server is."""
        self.unwritten = False
        """Whether nats-server has kept the counters from before a stranger's reset, and would undo the reset if it was
        killed (docs/handoff.md, What remains)."""
        self.lowered = False
        """Whether the server may have given up deliveries in this life, because max_deliver was lowered."""
        self._lose_answers = 0
        self._intercept()
        self.call(self._create_stream)

    def call(self, function: Callable[..., Awaitable[Result]], *arguments: Any) -> Result:
        async def limited() -> Result:
            return await asyncio.wait_for(function(*arguments), 90)  # nothing may hang

        return self.portal.call(limited)

    def _intercept(self) -> None:
        """Let writes to the ledger succeed without their answers arriving."""
        request = self.js.connection.request

        async def losing(subject: str, data: bytes = b"", **options: Any) -> Reply:
            reply = await request(subject, data, **options)
            if subject.startswith("$KV.") and self._lose_answers:
                self._lose_answers -= 1
                raise RequestTimeout("the answer got lost")
            return reply

        self.js.connection.request = losing  # type: ignore[method-assign]

    # Changes of the stream.

    async def _create_stream(self) -> None:
        await self.js.create_stream({"name": self.name, "subjects": [f"{self.name}.>"], "allow_direct": True})

    @rule(count=st.integers(1, 40))
    def publish(self, count: int) -> None:
        subjects = [f"{self.name}.{number % SUBJECTS}" for number in range(count)]
        publish_all(self.settings, ((subject, b"x") for subject in subjects))
        last = self.call(self._last_sequence)
        for sequence, subject in zip(range(last - count + 1, last + 1), subjects, strict=True):
            self.stored[sequence] = subject
            if self._delivered(subject):
                self.owed.add(sequence)

    async def _last_sequence(self) -> int:
        return int((await self.js.stream(self.name).info(patience=30)).state["last_seq"])

    def _delivered(self, subject: str) -> bool:
        return self.filter.endswith(">") or self.filter == subject

    @rule(keep=st.integers(1, 30))
    def purge(self, keep: int) -> None:
        self.call(lambda: self.js.stream(self.name).purge(keep=keep))
        for sequence in sorted(self.stored)[:-keep]:
            self._gone(sequence)

    @rule(which=WHICH)
    def one_message_expires(self, which: int) -> None:
        if sequence := chosen(sorted(self.stored), which):
            self.call(lambda: self.stranger.api(f"STREAM.MSG.DELETE.{self.name}", {"seq": sequence, "no_erase": True}))
            self._gone(sequence)

    def _gone(self, sequence: int) -> None:
        del self.stored[sequence]
        self.owed.discard(sequence)

    # Sensors.

    @initialize(count=st.integers(10, 60), per_claim=st.integers(1, 25))
    def published_and_taken(self, count: int, per_claim: int) -> None:
        self.publish(count=count)
        self.claims += self.call(self._take, 40, per_claim)

    def taking(self, size: int, per_claim: int, run: str = "", **inherits: Any) -> Taking:
        config = {"ack_wait": ACK_WAIT, "max_ack_pending": 10_000}
        if not self.filter.endswith(">"):
            config["filter_subject"] = self.filter
        return Taking(
            stream=self.name,
            consumer="work",
            owner=owner_of(run or f"run {next(self.runs)}"),
            max_messages=size,
            messages_per_claim=per_claim,
            gather=timedelta(seconds=0.05),
            hand_off_timeout=timedelta(seconds=1.5),
            consumer_config=config,
            **inherits,
        )

    async def _take(
        self, size: int, per_claim: int, wait: float = 1.0, js: JetStream | None = None, **limits: Any
    ) -> list[Claim]:
        work = Take(js or self.js, self.taking(size, per_claim, **limits))
        await work.prepare()
        try:
            claims = await work.take(wait)
        except LedgerFull:
            return []  # the pulled messages are redelivered
        work.handed_on()
        return [Claim.from_json(claim.to_json()) for claim in claims]

    @rule(size=st.integers(1, 60), per_claim=st.integers(1, 25))
    def take(self, size: int, per_claim: int) -> None:
        self.claims += self.call(self._take, size, per_claim)

    @rule(size=st.integers(2, 60), of=st.sampled_from(["min_messages", "min_bytes"]))
    def take_when_max_wait_is_over(self, size: int, of: str) -> None:
        """Fewer messages than the least are released, or taken if the oldest has waited, as after a redelivery."""
        limits: dict[str, Any] = {of: size if of == "min_messages" else 10**6, "max_wait": timedelta(seconds=1)}
        self.claims += self.call(partial(self._take, size, size, **limits))

    @rule(size=st.integers(1, 30), rivals=st.integers(2, 4))
    def sensors_race(self, size: int, rivals: int) -> None:
        async def race() -> list[list[Claim]]:
            return await asyncio.gather(*(self._take(size, size) for _ in range(rivals)))

        for batch in self.call(race):
            self.claims += batch

    def suitable(self) -> bool:
        """Whether claims can be taken from the consumer. This is no precondition of rules: Hypothesis would choose
        others when it repeats an example and the server happens to be slower."""
        return True

    @rule(size=st.integers(1, 30), entered=st.booleans(), tidy=st.booleans())
    def a_sensor_dies(self, size: int, entered: bool, tidy: bool) -> None:
        """A sensor dies before or after it entered its claims in the ledger, with or without its cleanup."""
        if not self.suitable():
            return

        async def die() -> None:
            work = Take(self.js, self.taking(size, size))
            await work.prepare()
            if entered:
                with suppress(LedgerFull):
                    await work.take(1)
            else:
                with suppress(LeaseOver):
                    await work._gather(asyncio.get_running_loop().time() + 1)
            if tidy:
                await work.put_back()

        self.call(die)

    @rule(size=st.integers(1, 60), settled=st.booleans())
    def the_machine_of_a_sensor_is_paused(self, size: int, settled: bool) -> None:
        """Its machine is paused between delivery and entering: its clock stands still, and its leases end."""
        if not self.suitable():
            return
        work = self.call(self._prepared, size)

        async def gather() -> bool:
            await work._gather(asyncio.get_running_loop().time() + 1)
            return work._window is not None and work._window.count > 0

        async def resume() -> list[Claim]:
            with suppress(LedgerFull):
                await work._enter()
            claims, work._entered = work._entered, []
            return claims

        try:
            gathered = self.call(gather)
        except (JetStreamError, LeaseOver):
            return  # interrupted, as after a kill of the server, or too slow for the short lease
        if not gathered:
            return
        paused = self.call(self._now)
        work._clock = lambda: paused
        self._somebody_else_takes(settled)
        self._work_on(self.call(resume))

    async def _prepared(self, size: int) -> Take:
        work = Take(self.js, self.taking(size, size))
        await work.prepare()
        return work

    async def _now(self) -> float:
        return asyncio.get_running_loop().time()

    @rule(size=st.integers(1, 60), count=st.integers(1, 20), settled=st.booleans())
    def the_network_of_a_sensor_stalls(self, size: int, count: int, settled: bool) -> None:
        """Nothing from the server arrives for longer than a lease; then everything does."""
        if not self.suitable():
            return
        with ExitStack() as stack:
            proxy = stack.enter_context(self.portal.wrap_async_context_manager(self._proxy()))
            settings = replace(self.settings, servers=f"nats://127.0.0.1:{proxy.port}")
            js = stack.enter_context(self.portal.wrap_async_context_manager(connect(settings)))
            taking = self.portal.start_task_soon(self._take, size, size, 5.0, js)
            self.call(asyncio.sleep, 0.3)
            self.portal.call(proxy.hold, "down")
            self.publish(count=count)
            self._somebody_else_takes(settled)
            self.portal.call(proxy.heal)
            with suppress(RequestTimeout, ConnectionLost):
                self._work_on(taking.result(90))

    @asynccontextmanager
    async def _proxy(self) -> AsyncIterator[Proxy]:
        proxy = Proxy(int(self.settings.servers[0].rpartition(":")[2]))
        await proxy.start()
        try:
            yield proxy
        finally:
            await proxy.stop()

    def _somebody_else_takes(self, settled: bool) -> None:
        """Another sensor takes, after all leases that were not renewed have ended."""
        self.call(asyncio.sleep, 1.1 * ACK_WAIT.total_seconds())
        claims = self.call(self._take, 60, 60)
        if settled:
            self._work_on(claims)

    def _work_on(self, claims: list[Claim]) -> None:
        for claim in claims:
            self._hold_and_settle(claim)

    @rule(
        size=st.integers(1, 30),
        handed_on=st.booleans(),
        meanwhile=st.sampled_from([0, 0.5, 1.7]),
        tidy=st.booleans(),
    )
    def a_sensor_is_retried(self, size: int, handed_on: bool, meanwhile: float, tidy: bool) -> None:
        """A sensor is retried after Airflow failed it or it died. Its older try may still be alive and end late.

        With ``handed_on`` both tries may have tasks for the same claims.
        """
        if not self.suitable():
            return

        async def retried() -> list[Claim]:
            run = f"run {next(self.runs)}"
            older = Take(self.js, self.taking(size, size, run))
            await older.prepare()
            taken: list[Claim] = []
            with suppress(LedgerFull):
                taken = await older.take(1)
            if handed_on:
                older.handed_on()
            await asyncio.sleep(meanwhile)
            newer = Take(self.js, self.taking(size, size, run))
            await newer.prepare()
            with suppress(LedgerFull):
                found = await newer.take(1)
                newer.handed_on()
                self._free(found)
                before = await self._nobody_holds()
                if tidy:
                    await older.put_back()
                kept = before & await self._nobody_holds()
                lost = {claim.id for claim in found} & before - kept
                assert not lost, f"the older try withdrew what the newer one handed on: {lost}"
                return [Claim.from_json(claim.to_json()) for claim in (*(taken if handed_on else ()), *found)]
            return taken if handed_on else []

        self.claims += self.call(retried)

    @rule(size=st.integers(1, 30), settled=st.booleans(), held=st.booleans(), follows=st.booleans())
    def a_run_is_succeeded(self, size: int, settled: bool, held: bool, follows: bool) -> None:
        """A run ends while its claims are open, and another run, or a retry of the same task, inherits them. An attempt
        of the first run may still be alive, and settle before or after that."""
        if not self.suitable():
            return

        async def taken(run: str, **inherits: Any) -> list[Claim]:
            work = Take(self.js, self.taking(size, max(1, size // 2), run, **inherits))
            await work.prepare()
            claims: list[Claim] = []
            with suppress(LedgerFull):
                claims = await work.take(1)
            work.handed_on()
            self._free(claims)
            return [Claim.from_json(claim.to_json()) for claim in claims]

        first = f"run {next(self.runs)}"
        older = self.call(taken, first)
        alive = self._hold(older[0], 1) if held and older else None
        if settled and alive:
            self._settle(alive)
        if follows:
            inherited = self.call(lambda: taken(f"run {next(self.runs)}", predecessors=(owner_of(first),)))
        else:
            inherited = self.call(lambda: taken(first, even_if_held=True))
        self._work_on(inherited[1:])
        if alive:
            self._settle(alive)
        self.claims += [*older, *inherited]

    def _free(self, claims: list[Claim]) -> None:
        """Note that a take has handed these claims on, so that any piece of work may have them."""
        for claim in claims:
            self.belongs.pop(claim.id, None)

    async def _nobody_holds(self) -> set[str]:
        record, _ = await Ledger(self.js, self.name, "work").read()
        return {claim_id for claim_id, entry in (record.open.items() if record else ()) if entry.token is None}

    # Attempts.

    @rule(which=WHICH, number=st.integers(1, 3), work=st.sampled_from(["", "parquet", "warehouse"]))
    def hold(self, which: int, number: int, work: str) -> None:
        if (claim := chosen(self.claims, which)) and (attempt := self._hold(claim, number, work)):
            self.attempts.append(attempt)

    def _hold(self, claim: Claim, number: int, work: str = "parquet") -> Attempt | None:
        """An attempt of one of two tasks, or of a script, which has no piece of work, holds a claim."""
        stack = ExitStack()
        holder = ("dag", "run", work, -1, number) if work else ()
        holding = Hold.begin(self.js, claim, try_number=number, holder=holder)
        try:
            hold = stack.enter_context(self.portal.wrap_async_context_manager(holding))
        except AlreadyDone:
            by = self.settled_by.get(claim.id, work)
            assert by == work or not work, f"{work} took the success of {by or 'a script'} for its own"
            return None
        except OtherWork:
            assert work != self.settled_by.get(claim.id, self.belongs.get(claim.id)), "its own work was refused"
            return None
        except (Superseded, LedgerUnavailable):
            return None
        assert self.belongs.get(claim.id, work) == work, f"{work} took a claim over from {self.belongs[claim.id]}"
        if work:
            self.belongs[claim.id] = work
        attempt = Attempt(claim, hold, stack)
        self.told.append(attempt)
        return attempt

    @rule(which=WHICH)
    def hold_and_settle(self, which: int) -> None:
        if claim := chosen(self.claims, which):
            self._hold_and_settle(claim)

    def _hold_and_settle(self, claim: Claim) -> None:
        if attempt := self._hold(claim, 1):
            self._settle(attempt)

    @rule(which=WHICH)
    def freeze(self, which: int) -> None:
        if attempt := chosen(self.attempts, which):
            self.call(attempt.freeze)

    @rule(which=WHICH)
    def die(self, which: int) -> None:
        if attempt := chosen(self.attempts, which):
            self.attempts.remove(attempt)
            self.call(attempt.vanish)

    @rule(which=WHICH)
    def settle(self, which: int) -> None:
        if attempt := chosen(self.attempts, which):
            self._settle(attempt)

    def _settle(self, attempt: Attempt) -> bool:
        try:
            self.call(attempt.hold.settle, {"rows": attempt.claim.count})
        except LOST:
            return False
        except LedgerUnavailable:  # its bucket was deleted: nothing was acknowledged
            return False
        self._booked(attempt)
        return True

    def _booked(self, attempt: Attempt) -> None:
        if attempt.id in self.booked:
            return
        self.booked.add(attempt.id)
        self.settled_by[attempt.claim.id] = str(attempt.hold.work.holder[2]) if attempt.hold.work.holder else ""
        self._counts_as_settled(attempt.claim)

    def _counts_as_settled(self, claim: Claim) -> None:
        sequences = set(claim.sequences)
        earlier = self.settled.setdefault(self.life, set())
        assert not sequences & earlier, f"settled twice in one life: {Sequences.of(sequences & earlier)}"
        earlier |= sequences
        self.owed -= sequences

    @rule(which=WHICH)
    def fail(self, which: int) -> None:
        if attempt := chosen(self.attempts, which):
            with suppress(*LOST, LedgerUnavailable):
                self.call(attempt.hold.fail)

    @rule(which=WHICH, delay=st.sampled_from([None, timedelta(seconds=0.5), timedelta(seconds=2)]))
    def release(self, which: int, delay: timedelta | None) -> None:
        if attempt := chosen(self.attempts, which):
            with suppress(LedgerUnavailable):
                self.call(attempt.hold.release, delay)

    @rule(which=WHICH)
    def skip(self, which: int) -> None:
        if attempt := chosen(self.attempts, which):
            with suppress(*LOST, LedgerUnavailable):
                self.call(attempt.hold.skip)

    @rule(which=WHICH, lease=st.sampled_from([0.5, 2.0]))
    def hand_over(self, which: int, lease: float) -> None:
        if (attempt := chosen(self.attempts, which)) is None:
            return
        with suppress(HoldLost, LedgerUnavailable, ConsumerNotFound):
            self.call(attempt.hold.hand_over, timedelta(seconds=lease))
            self.handed_over.append(attempt)

    @rule(which=WHICH)
    def resume(self, which: int) -> None:
        if (attempt := chosen([*self.attempts, *self.handed_over], which)) and (resumed := self._resume(attempt)):
            self.attempts.append(resumed)

    def _resume(self, attempt: Attempt) -> Attempt | None:
        """Another process continues the attempt, whether the earlier one handed it over, died, or is only frozen."""
        before = self.call(self._tokens)
        stack = ExitStack()
        holder = attempt.hold.work.holder
        holding = Hold.resume(self.js, attempt.claim, token=attempt.hold.token, holder=holder)
        try:
            hold = stack.enter_context(self.portal.wrap_async_context_manager(holding))
        except OtherWork:
            assert attempt.claim.id not in before, "an attempt can resume its own hold"
            return None
        except HeldByAnother:
            assert before.get(attempt.claim.id) != attempt.hold.token, "an attempt can resume its own hold"
            return None
        except (AlreadyDone, Superseded, LedgerUnavailable):
            return None
        finally:
            assert self.call(self._tokens) == before, "resuming has changed who holds a claim"
        resumed = Attempt(attempt.claim, hold, stack)
        self.told.append(resumed)
        return resumed

    async def _tokens(self) -> dict[str, str | None]:
        record = None
        with suppress(LedgerUnavailable):
            record, _ = await Ledger(self.js, self.name, "work").read()
        return {claim_id: entry.token for claim_id, entry in (record.open.items() if record else ())}

    @rule(which=WHICH, other=WHICH)
    def two_attempts_settle_at_once(self, which: int, other: int) -> None:
        first, second = chosen(self.attempts, which), chosen(self.attempts, other)
        pair = {each for each in (first, second) if each}

        async def both() -> list[BaseException | None]:
            return await asyncio.gather(*(each.hold.settle("raced") for each in pair), return_exceptions=True)

        for attempt, result in zip(pair, self.call(both), strict=True):
            if result is None:
                self._booked(attempt)
            elif not isinstance(result, (*LOST, LedgerUnavailable)):
                raise result

    # Failures of servers and the ledger.

    @rule(count=st.integers(1, 3))
    def answers_of_the_ledger_get_lost(self, count: int) -> None:
        self._lose_answers = count

    @rule(seconds=st.sampled_from([0.3, 1.0, 1.7]))
    def time_goes_by(self, seconds: float) -> None:
        """Wait, so that leases end and counters are believed."""
        self.call(asyncio.sleep, seconds)

    @precondition(lambda self: not self.unwritten)
    @rule()
    def the_server_is_killed(self) -> None:
        self.server.kill()
        self.server.start()
        self.call(self._back)

    @precondition(lambda self: not self.unwritten)
    @rule(which=WHICH, after=st.floats(0, 1.5))
    def the_server_is_killed_while_settling(self, which: int, after: float) -> None:
        if (attempt := chosen(self.attempts, which)) is None:
            return
        settling = self.portal.start_task_soon(attempt.hold.settle, "killed meanwhile")
        self.call(asyncio.sleep, after)
        self.server.kill()
        self.server.start()
        self.call(self._back)
        try:
            settling.result(90)
        except (*LOST, LedgerUnavailable):
            return
        self._booked(attempt)

    async def _back(self) -> None:
        self.belongs.clear()  # it may have forgotten the last writes
        self.settled_by.clear()
        await self.js.stream(self.name).info(patience=30)

    @precondition(lambda _: has("2.14"))
    @rule(seconds=st.sampled_from([0, 0.2]), share=st.floats(0, 1))
    def a_stranger_resets_the_consumer(self, seconds: float, share: float) -> None:
        last = max(self.stored, default=1)
        sequence = max(1, round(share * last))

        async def reset() -> dict[str, Any]:
            await asyncio.sleep(seconds)
            if not await self._consumer_is_there():
                return {}
            return dict(await self.stranger.api(f"CONSUMER.RESET.{self.name}.work", {"seq": sequence}))

        if answer := self.call(reset):
            self._new_life(from_sequence=sequence)
            self.unwritten = answer["delivered"]["consumer_seq"] > 0

    async def _consumer_is_there(self) -> bool:
        """Whether the consumer exists: nats-server 2.15.1 does not answer a reset of one that does not."""
        try:
            await self.js.stream(self.name).consumer("work").info(patience=30)
        except ConsumerNotFound:
            return False
        return True

    @precondition(lambda _: has("2.14"))
    @rule()
    def a_stranger_resets_to_the_floor(self) -> None:
        async def reset() -> int | None:
            if not await self._consumer_is_there():
                return None
            return int((await self.stranger.api(f"CONSUMER.RESET.{self.name}.work"))["reset_seq"])

        sequence = self.call(reset)
        if sequence is not None:
            self._new_life(from_sequence=sequence)

    @precondition(lambda _: has("2.14"))
    @rule(share=st.none() | st.floats(0, 1))
    def our_operator_resets(self, share: float | None) -> None:
        """Reset to the acknowledgement floor, or to a sequence that skips nothing."""

        async def ours() -> reset.Reset | None:
            if not await self._consumer_is_there():
                return None
            info = await self.js.stream(self.name).consumer("work").info(patience=30)
            sequence = None if share is None else max(1, round(share * (info.floor + 1)))
            return await reset.reset(Ledger(self.js, self.name, "work"), sequence)

        try:
            done = self.call(ours)
        except (ResetRefused, LedgerUnavailable):
            return
        if done:
            self._new_life(from_sequence=done.sequence)

    @rule(room=st.sampled_from([1_000, 2_000, 512 << 10]))
    def the_record_has_room_for(self, room: int) -> None:
        """Limit the record so that a batch is cut or refused."""
        ledger.LARGEST_RECORD = room

    @rule()
    def the_consumer_is_recreated(self) -> None:
        async def delete() -> None:
            with suppress(ConsumerNotFound):
                await self.stranger.stream(self.name).consumer("work").delete()

        self.call(delete)
        self._consumer_is_new()

    @rule()
    def the_stream_is_recreated(self) -> None:
        self.call(lambda: self.stranger.stream(self.name).delete())
        self.call(self._create_stream)
        self.stored.clear()
        self.owed.clear()
        self._consumer_is_new()

    def _consumer_is_new(self) -> None:
        self._new_life(from_sequence=1)

    @rule(narrow=st.booleans())
    def the_filter_changes(self, narrow: bool) -> None:
        subject = f"{self.name}.1" if narrow else f"{self.name}.>"

        async def update() -> bool:
            consumer = self.js.stream(self.name).consumer("work")
            try:
                config = (await consumer.info()).config
            except ConsumerNotFound:
                return False
            config["filter_subject"] = subject
            await self.stranger.api(
                f"CONSUMER.CREATE.{self.name}.work.{subject}",
                {"stream_name": self.name, "config": config, "action": "update"},
            )
            return True

        if not self.call(update):
            self.filter = subject
            self.owed = {each for each in self.owed if self._delivered(self.stored[each])}
            return
        # The server goes on at its position: a wider filter does not deliver what the old one skipped, and messages
        # that the old one has delivered stay owed to their claims. Only messages that match both filters are counted.
        self.filter = subject
        self.owed = {each for each in self.owed if self._delivered(self.stored[each])}

    @rule()
    def the_ledger_is_deleted(self) -> None:
        """The ledger forgets which claims are done, so unacknowledged messages are processed again."""

        async def delete() -> None:
            for bucket in ("claims", "receipts"):
                with suppress(ApiError):
                    await self.stranger.stream(f"KV_{self.settings.ledger}_{bucket}").delete()

        self.call(delete)
        self.life += 1
        self.belongs.clear()

    def _new_life(self, *, from_sequence: int) -> None:
        """Begin a new life, in which the messages from a sequence on are owed. Those below are skipped on purpose."""
        self.life += 1
        self.unwritten = False
        self.owed = {
            sequence
            for sequence, subject in self.stored.items()
            if sequence >= from_sequence and self._delivered(subject)
        }

    # Invariants.

    @invariant()
    def the_server_owes_what_is_not_settled(self) -> None:
        async def outstanding() -> int | None:
            """Wait, because the server counts a new message for a consumer a moment after it has confirmed it."""
            counted = asyncio.get_running_loop().time() + 30
            while True:
                try:
                    info = await self.js.stream(self.name).consumer("work").info(patience=30)
                except ConsumerNotFound:
                    return None
                held = info.pending + info.ack_pending
                if held >= len(self.owed) or asyncio.get_running_loop().time() > counted:
                    return held
                await asyncio.sleep(0.05)

        if self.lowered:
            return  # the server may never deliver what is owed; the next take reports that
        held = self.call(outstanding)
        assert held is None or held >= len(self.owed), f"the server owes {held}, not settled: {len(self.owed)}"

    @invariant()
    def a_record_that_was_written_is_the_one_that_would_be_read(self) -> None:
        book = Ledger(self.js, self.name, "work")
        queue = Queue.of(self.js, book._subject)
        assert not queue.read or stored_record(queue.read, "record") == queue.record

    def teardown(self) -> None:
        try:
            for attempt in self.told:
                with suppress(JetStreamError):
                    self.call(attempt.vanish)
            self._lose_answers = 0
            ledger.LARGEST_RECORD = 512 << 10
            self._drain()
        finally:
            for attempt in self.told:
                with suppress(Exception):
                    attempt.leave()
            with suppress(Exception):
                self.call(lambda: self.stranger.stream(self.name).delete())
            self._stack.close()

    def _drain(self) -> None:
        """A last run must be able to take, hold and settle all owed messages."""

        async def work() -> None:
            await self._settle_all(await self._take(10_000, 10_000, wait=2.5))

        async def unacknowledged() -> int:
            info = await self.js.stream(self.name).consumer("work").info()
            return info.pending + info.ack_pending

        for _ in range(12):
            self.call(work)
            if not self.owed and not self.call(unacknowledged):
                break
        if self.owed:
            raise AssertionError(f"stuck or lost: {Sequences.of(self.owed)}; {self.call(self._state)}")
        assert self.call(unacknowledged) == 0
        receipts = self.call(lambda: Ledger(self.js, self.name, "work").committed())
        count = sum(receipt.sequences.count for receipt in receipts)
        assert count >= len(self.settled.get(self.life, ()))

    async def _state(self) -> str:
        """INFO and the record, for the error: a failure depends on time, so that it is hard to cause again."""
        of = Ledger(self.js, self.name, "work")
        record, _ = await of.read()
        return f"{(await of.consumer.info()).raw}; {record}"

    async def _settle_all(self, claims: list[Claim]) -> None:
        for claim in claims:
            async with Hold.begin(self.js, claim, try_number=1) as hold:
                await hold.settle("drained")
                self._counts_as_settled(claim)
