"""The streams, claims and dead letters that the page's tests look at, on real servers."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import httpx
from anyio.from_thread import start_blocking_portal

from demo.nats_server import NatsServer
from demo.service import free_port
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.info import ConsumerInfo
from jetstream_client.publish.bulk import publish_all
from jetstream_client.sequences import Sequences
from jetstream_handoff.claim import Claim, new_claim_id
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.history import Attempt
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Record
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.letters.letter import PREFIX, address_of
from tests.airflow_nats_jetstream.page.api_server import RUN
from tests.jetstream_handoff.steps import rewrite, take

Result = TypeVar("Result")

STREAM, CONSUMER = "ORDERS", "work"
ACK_WAIT = timedelta(seconds=2)
ACTED = "acted"
"""The ledger of the claims that tests of actions change."""
SECRET = f"hush-{secrets.token_hex(8)}"
HOSTILE = "<img src=x onerror=alert(1)> \u202egnp.exe"


@contextmanager
def made(folder: Path) -> "Iterator[World]":
    """Start the servers in a new folder, make the streams and claims, and stop the servers at the end."""
    port = free_port()
    config = f"""
    http: "127.0.0.1:{port}"
    authorization {{
      users: [
        {{ user: all, password: "{SECRET}" }}
        {{ user: mute, password: "{SECRET}", permissions: {{ publish: {{ deny: "$KV.muted_claims.>" }} }} }}
        {{ user: blind, password: "{SECRET}", permissions: {{ publish: {{ deny: "$JS.API.CONSUMER.>" }} }} }}
      ]
    }}
    """
    world = World(NatsServer(folder / "one", config), NatsServer(folder / "other"), f"http://127.0.0.1:{port}")
    world.nats.start()
    world.other.start()
    try:
        world.build()
        yield world
    finally:
        world.nats.stop()
        world.other.stop()


@dataclass
class World:
    """What the tests look at.

    nats, other:  the server with all claims, and one that tests freeze and kill.
    monitor:      the address of the monitoring of ``nats``.
    claims:       the ids of claims: ``held``, ``mapped``, ``waiting``, ``resting``, ``done``, ``failed``.
    """

    nats: NatsServer
    other: NatsServer
    monitor: str
    claims: dict[str, str] = field(default_factory=dict)

    def settings(self, **changes: Any) -> ConnectionSettings:
        values: dict[str, Any] = {"servers": self.nats.url, "user": "all", "password": SECRET, "ledger": "page"}
        return ConnectionSettings(**{**values, "shortest_ack_wait": 0.5, **changes})

    def connections(self) -> dict[str, Any]:
        """Airflow connections by id: ``full`` to the stream ``ORDERS``, ``other``, and some that do not work."""
        extra = {"servers": self.nats.url, "ledger": "page", "request_timeout": 30}
        full, blind = (
            {"conn_type": "nats", "login": user, "password": SECRET, "extra": extra} for user in ("all", "blind")
        )
        return {
            "full": full,
            "acting": {**full, "extra": {**extra, "ledger": ACTED}},
            "blind": blind,
            "empty": {**full, "extra": {**extra, "ledger": "empty"}},
            "muted": {**full, "login": "mute", "extra": {**extra, "ledger": "muted"}},
            "gone": {**full, "extra": {**extra, "ledger": "gone"}},
            "many": {**full, "extra": {**extra, "ledger": "many"}},
            "hostile": {**full, "extra": {**extra, "ledger": "hostile"}},
            "wrong": {**full, "password": "no"},
            "broken": {**full, "extra": {**extra, "token": SECRET}},
            "other": {"conn_type": "nats", "extra": {"servers": self.other.url}},
            "elsewhere": {"conn_type": "http", "host": "example.com"},
        }

    def run(self, steps: Callable[[JetStream], Awaitable[Result]], **changes: Any) -> Result:
        """Return the result of steps on a separate connection, in a thread, because the loop of a browser may run."""

        async def connected() -> Result:
            async with connect(self.settings(**changes)) as js:
                return await steps(js)

        with start_blocking_portal() as portal:
            return portal.call(connected)

    def received(self) -> dict[int, int]:
        """How many messages the server has received from each open connection of the page, by the connection's id."""
        found = httpx.get(f"{self.monitor}/connz").json()["connections"]
        return {each["cid"]: each["in_msgs"] for each in found if each.get("name") == "Airflow's page JetStream"}

    def build(self) -> None:
        """Make the stream ``ORDERS`` and claims in every state."""
        self.run(self._build)

    async def _build(self, js: JetStream) -> None:
        done = await self._take(js, STREAM, 20, _taker(0))
        await _settle(js, done, rejected=True)
        failed = await self._take(js, STREAM, 5, _taker(1))
        async with Hold.begin(js, failed, try_number=1, holder=("orders", RUN, "work", 0, 1)) as hold:
            await hold.fail("no rows")
        found = {
            "done": done,
            "failed": failed,
            "held": await self._take(js, STREAM, 10, _taker(2)),
            "mapped": await self._take(js, STREAM, 3, _taker(3)),
            "waiting": await self._take(js, STREAM, 4, ("unknown\u202e", "run", "sensor", -1, 0, "")),
            "resting": await self._take(js, STREAM, 6, ("resting", RUN, "take", -1, 0, "")),
        }
        await hold_silently(js, found["held"], Attempt("2-held", "", ("orders", RUN, "work", 0, 2)))
        await hold_silently(js, found["mapped"], Attempt("2-mapped", "", ("orders", RUN, "work", 1, 2)))
        self.claims = {name: claim.id for name, claim in found.items()}

    def claim(self, stream: str, count: int, *, rejected: bool = False, **changes: Any) -> Claim:
        """Make a stream, and take a claim of it. With ``rejected``, all its messages become dead letters.

        changes:  of the settings of the connection.
        """

        async def make(js: JetStream) -> Claim:
            claim = await self._take(js, stream, count, _taker())
            if rejected:
                await _settle(js, claim, rejected=True)
            return claim

        return self.run(make, **{"ledger": ACTED, **changes})

    def late_claim(self, stream: str, dag_id: str, *, skipped: bool = False, run: str = RUN) -> Claim:
        """Make a stream, and take a claim of it for a DAG, as if that had been a while ago. With ``skipped``, an
        attempt has skipped its work."""
        then = "2026-01-02T00:00:00Z"

        async def make(js: JetStream) -> Claim:
            claim = await self._take(js, stream, 3, (dag_id, run, "take", -1, 0, ""))
            if skipped:
                async with Hold.begin(js, claim, try_number=1, holder=(dag_id, run, "work", 0, 1)) as hold:
                    await hold.skip()

            def aged(record: Record | None, info: ConsumerInfo) -> Record:
                assert record is not None
                entry = record.open[claim.id]
                attempts = tuple(replace(each, at=then) for each in entry.history.attempts)
                history = replace(entry.history, attempts=attempts, released=then if skipped else "")
                return replace(record, open={**record.open, claim.id: replace(entry, at=then, history=history)})

            await rewrite(Ledger(js, stream, CONSUMER), aged)
            return claim

        return self.run(make, ledger=ACTED)

    def holder(self, claim: Claim) -> str | None:
        """The attempt that holds an open claim, according to the ledger."""
        record, _ = self.run(lambda js: Ledger(js, claim.stream, claim.consumer).read(), ledger=ACTED)
        assert record is not None
        return record.open[claim.id].token or None

    def hold(self, claim: Claim) -> None:
        """Let an attempt hold a claim that sends no heartbeats, as after the death of its worker."""
        attempt = Attempt("2-dead", "", ("orders", RUN, "work", 0, 2))
        self.run(lambda js: hold_silently(js, claim, attempt), ledger=ACTED)

    @contextmanager
    def holding(self, claim: Claim) -> Iterator[None]:
        """Hold a claim with heartbeats during the block."""
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(self._holding(claim)):
            yield

    def settle(self, claim: Claim) -> None:
        self.run(lambda js: _settle(js, claim), ledger=ACTED)

    def limit(self, stream: str, messages: int) -> None:
        """Let a stream refuse more messages than these."""
        limits = {"max_msgs": messages, "discard": "new"}
        self.run(lambda js: js.stream(stream).update(limits))

    def consumer(self, stream: str) -> ConsumerInfo:
        return self.run(lambda js: js.stream(stream).consumer(CONSUMER).info())

    def fill_many(self, claims: int, letters: int) -> None:
        """Make the stream ``MANY`` with so many open claims and dead letters, in a separate ledger."""

        async def fill(js: JetStream) -> None:
            claim = await self._take(js, "MANY", 10, _taker())

            def entered(record: Record | None, info: ConsumerInfo) -> Record:
                assert record is not None
                entry = record.open[claim.id]
                more = {
                    new_claim_id(): replace(
                        entry,
                        sequences=Sequences.from_ranges([(number * 10, number * 10 + 5)]),
                        owner=("orders", f"manual__{number}", "take", -1, 0, ""),
                    )
                    for number in range(2, claims + 1)
                }
                return replace(record, open={**record.open, **more})

            await rewrite(Ledger(js, "MANY", CONSUMER), entered)
            await DeadLetters(js, "MANY").ensure()
            messages = [_letter(claim, number) for number in range(1, letters + 1)]
            await asyncio.to_thread(publish_all, js.settings, messages)

        self.run(fill, ledger="many")

    @staticmethod
    async def _take(js: JetStream, stream: str, count: int, owner: tuple[Any, ...]) -> Claim:
        config = {"name": stream, "subjects": [f"{stream}.>"], "allow_direct": True}
        handle = await js.get_or_create_stream(config)
        payloads = [b"payload \xff" if number % 2 else b"payload" for number in range(count)]
        messages = ((f"{stream}.{number}", payload) for number, payload in enumerate(payloads))
        await asyncio.to_thread(publish_all, js.settings, messages)
        consumer = {"ack_wait": ACK_WAIT, "max_ack_pending": 10_000}
        claims = await take(handle, owner=owner, max_messages=count, consumer_config=consumer)
        return claims[0]

    @asynccontextmanager
    async def _holding(self, claim: Claim) -> AsyncIterator[None]:
        holder = ("orders", RUN, "work", 0, 2)
        async with connect(self.settings(ledger=ACTED)) as js, Hold.begin(js, claim, try_number=2, holder=holder):
            yield


def _taker(cleared: int = 0) -> tuple[str | int, ...]:
    """The task that takes claims. A take with the same owner would hand its unheld claims on."""
    return ("orders", RUN, "take", -1, cleared, "")


async def _settle(js: JetStream, claim: Claim, *, rejected: bool = False) -> None:
    async with Hold.begin(js, claim, try_number=1, holder=("orders", RUN, "work", 0, 1)) as hold:
        if rejected:
            await hold.reject(claim.sequences, HOSTILE)
        await hold.settle({"rows": 0, "note": HOSTILE})


async def hold_silently(js: JetStream, claim: Claim, attempt: Attempt) -> None:
    """Let an attempt hold a claim without heartbeats."""

    def held(record: Record | None, info: ConsumerInfo) -> Record:
        assert record is not None
        return record.held(claim.id, replace(attempt, at=info.now))

    await rewrite(Ledger(js, claim.stream, claim.consumer), held)


def _letter(claim: Claim, number: int) -> tuple[str, bytes, dict[str, str]]:
    """A dead letter as an attempt writes it, of a message that the claim does not contain."""
    headers = {
        "Stream": claim.stream,
        "Stream-Created": claim.stream_created,
        "Sequence": str(number),
        "Subject": f"{claim.stream}.x",
        "Time-Stamp": claim.taken_at,
        "Consumer": claim.consumer,
        "Reason": f"reason {number % 7}",
        "Claim": claim.id,
        "Token": "1-x",
        "Failures": "0",
    }
    subject = f"{claim.stream}.x"
    address = address_of(claim.stream, claim.consumer, number, claim.stream_created, subject, hashed=False)
    return address, b"x", {f"{PREFIX}{name}": value for name, value in headers.items()}
