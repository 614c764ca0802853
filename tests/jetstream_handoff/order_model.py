"""A model of order per key, on a real server: takes, workers that fail and die, purges, another client, restarts.

The judge reads what the ledger says is committed, in the order in which it was decided:

* **in order**: nothing of a key is committed after a later message of it;
* **no gaps**: when a message is committed, all earlier ones of its key are, became dead letters or were removed;
* **once**: no message is committed twice;
* **all**: at the end nothing is left that was not removed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import JetStreamError
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Receipt, Record
from jetstream_handoff.take import in_order
from jetstream_handoff.take.enter import Entered
from jetstream_handoff.take.gather import Batch
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking

CONSUMER = "work"
ACK_WAIT = timedelta(seconds=2)
KEYS = 12
ENDS = {"settle": 64, "fail": 12, "release": 5, "retry": 5, "die": 5, "freeze": 5, "late": 4}
"""How often the attempts of a worker end in each way, in percent."""


def judge(keys: Mapping[int, str], receipts: Iterable[Receipt], removed: Collection[int] = ()) -> list[str]:
    """Return what is wrong with the committed order.

    keys:      the key of each message, by its sequence.
    receipts:  the settled claims, of one life of the consumer.
    removed:   messages that were removed from the stream at some time.
    """
    wrong: list[str] = []
    done = {*removed}
    last: dict[str, int] = {}
    seen: set[int] = set()
    for receipt in sorted(receipts, key=lambda each: datetime.fromisoformat(each.at)):
        for sequence in receipt.sequences:
            key, what = keys[sequence], f"{sequence} in claim {receipt.claim_id}"
            if sequence in seen:
                wrong.append(f"twice: {what}")
            seen.add(sequence)
            if sequence in removed:
                continue  # it has no order any more
            if sequence < last.get(key, 0):
                wrong.append(f"out of order: {what}, after {last[key]}")
            last[key] = max(sequence, last.get(key, 0))
        done |= {*receipt.sequences}
        for key in {keys[sequence] for sequence in receipt.sequences} & last.keys():
            wrong += [
                f"gap: {each} of key {key} before {last[key]} in claim {receipt.claim_id}"
                for each in keys
                if each < last[key] and keys[each] == key and each not in done
            ]
    return wrong


class FrozenTake(Take):
    """A take that stands still after it has counted its batch, for longer than its leases last, or almost as long."""

    async def _write(self, batch: Batch) -> tuple[Record | None, Entered]:
        await asyncio.sleep(random.uniform(0.5, 1.5) * ACK_WAIT.total_seconds())
        return await super()._write(batch)


class Model:
    """One run.

    seed:      chooses what happens, as far as the speed of the machine does not.
    messages:  how many are published.
    server:    restarted while the model runs; None to leave it alone.
    """

    def __init__(self, stream: Stream, seed: int, messages: int = 120, server: NatsServer | None = None) -> None:
        self.stream = stream
        self.random = random.Random(seed)
        self.messages = messages
        self.server = server
        self.keys: dict[int, str] = {}
        self.removed: set[int] = set()
        self.claims: asyncio.Queue[Claim] = asyncio.Queue()
        self.calm = False
        """Whether nothing fails any more."""
        self._runs = itertools.count()

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.stream.js, self.stream.name, CONSUMER)

    async def run(self, within: float = 150.0, takers: int = 3, workers: int = 4) -> list[str]:
        """Run the model until all messages are done, and return what is wrong."""
        working = [asyncio.create_task(self._takes()) for _ in range(takers)]
        working += [asyncio.create_task(self._works()) for _ in range(workers)]
        try:
            await self._attacks()
            self.calm = True
            async with asyncio.timeout(within):
                while not await self._drained():
                    if ended := [each for each in working if each.done()]:
                        ended[0].result()
                    await asyncio.sleep(0.1)
        except TimeoutError:
            return [f"stuck: {await self._left()}", *await self.judged()]
        finally:
            for each in working:
                each.cancel()
            await asyncio.gather(*working, return_exceptions=True)
        return await self.judged()

    async def judged(self) -> list[str]:
        receipts = await self.ledger.committed()
        dead = {each for receipt in receipts for each in receipt.rejected}
        return judge(self.keys, receipts, self.removed | dead)

    async def _drained(self) -> bool:
        with suppress(JetStreamError):
            info = await self.stream.consumer(CONSUMER).info(patience=10)
            return not info.pending and not info.ack_pending and info.counter > 0
        return False

    async def _left(self) -> str:
        info = await self.stream.consumer(CONSUMER).info(patience=10)
        record, _ = await self.ledger.read()
        return f"{info.pending} pending, {info.ack_pending} unacknowledged, {record and record.to_json()}"

    async def _attacks(self) -> None:
        count = 12
        for at in range(count):
            await self._publish(self.messages // count)
            await asyncio.sleep(self.random.uniform(0, 0.15))
            if self.random.random() < 0.3:
                await self._remove()
            if self.random.random() < 0.3:
                await self._steal()
            if self.server is not None and at in (3, 8):  # a restart forgets negative acknowledgements
                await asyncio.to_thread(self.server.stop)
                await asyncio.to_thread(self.server.start)

    async def _publish(self, count: int) -> None:
        """Publish messages of keys with Zipf's distribution."""
        shares = [1 / rank for rank in range(1, KEYS + 1)]
        keys = [f"k{each}" for each in self.random.choices(range(KEYS), shares, k=count)]
        subjects = [(f"{self.stream.name}.{key}", b"x") for key in keys]
        await asyncio.to_thread(publish_all, self.stream.js.settings, subjects)
        last = int((await self.stream.info(patience=10)).state["last_seq"])
        self.keys |= dict(zip(range(last - count + 1, last + 1), keys, strict=True))

    async def _remove(self) -> None:
        """Remove the oldest messages, or one."""
        if self.random.random() < 0.5:
            first = int((await self.stream.info(patience=10)).state["first_seq"]) + self.random.randint(1, 5)
            await self.stream.purge(sequence=min(first, max(self.keys)))
            self.removed |= {each for each in self.keys if each < first}
        else:
            sequence = self.random.choice(sorted(self.keys))
            with suppress(JetStreamError):  # it was removed before
                await self.stream.delete_message(sequence)
            self.removed.add(sequence)

    async def _steal(self) -> None:
        """Let another client receive messages and answer none, or negatively acknowledge them."""
        with suppress(JetStreamError):
            for message in await self.stream.consumer(CONSUMER).fetch_no_wait(self.random.randint(1, 6)):
                if self.random.random() < 0.5:
                    await message.nak()

    async def _takes(self) -> None:
        """Sensors, one after the other: some are killed."""
        while True:
            frozen = not self.calm and self.random.random() < 0.15
            take = (FrozenTake if frozen else Take)(self.stream.js, self._taking())
            with suppress(JetStreamError, TimeoutError):
                await take.prepare()
                if not self.calm and self.random.random() < 0.15:
                    async with asyncio.timeout(self.random.uniform(0.05, 1)):
                        await take.take(5)  # killed in between, or before it hands the claims on: nothing is put back
                    continue
                for claim in await take.take(5):
                    self.claims.put_nowait(Claim.from_json(claim.to_json()))
                take.handed_on()
                await take.put_back()
            await asyncio.sleep(0)

    def _taking(self) -> Taking:
        return Taking(
            stream=self.stream.name,
            consumer=CONSUMER,
            owner=("dag", f"run{next(self._runs)}", "sensor", -1, 0),
            max_messages=40,
            ordered_by="{2}",
            claims=self.random.choice([2, 4]),
            max_failures=3,
            gather=timedelta(seconds=0.1),
            hand_off_timeout=timedelta(seconds=3),
            consumer_config={"ack_wait": ACK_WAIT},
        )

    async def _works(self) -> None:
        """A worker, whose attempts fail, are retried or released, die, stand still, or come too late."""
        while True:
            claim = await self.claims.get()
            ends = self.random.choices(*zip(*ENDS.items(), strict=True))[0] if not self.calm else "settle"
            with suppress(JetStreamError):
                await self._work(claim, ends)

    async def _work(self, claim: Claim, ends: str) -> None:
        if ends == "late":
            await asyncio.sleep(self.random.uniform(3, 5))
        holder = ("dag", claim.id, "work", -1, 1)
        async with Hold.begin(self.stream.js, claim, try_number=1, holder=holder) as hold:
            await asyncio.sleep(self.random.uniform(0, 0.1))
            if ends in ("die", "freeze"):
                await hold._stop_beats()
            if ends == "die":
                hold.ended = True
            elif ends == "fail":
                await hold.fail("failed")
            elif ends in ("release", "retry"):
                await hold.release(timedelta(seconds=3) if ends == "retry" else None)
                self.claims.put_nowait(claim)
            else:
                await asyncio.sleep(self.random.uniform(1, 4) if ends == "freeze" else 0)
                await hold.settle()


async def once(server: NatsServer, seed: int, messages: int, *, restarts: bool) -> list[str]:
    """Run the model on a new stream, and return what is wrong."""
    async with AsyncExitStack() as stack:
        settings = ConnectionSettings(
            servers=server.url, shortest_ack_wait=0.5, ledger=f"o_{secrets.token_hex(4)}", request_timeout=5
        )
        js: JetStream = await stack.enter_async_context(connect(settings))
        name = f"S{secrets.token_hex(4)}"
        stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        return await Model(stream, seed, messages, server if restarts else None).run(within=240)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make order")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--messages", type=int, default=600)
    parser.add_argument("--control", action="store_true", help="leave the count out: the judge finds violations")
    options = parser.parse_args()
    if options.control:
        in_order.missing = lambda *_: 0
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder))
        server.start()
        try:
            for seed in range(options.seed, options.seed + options.runs):
                began = time.monotonic()
                wrong = asyncio.run(once(server, seed, options.messages, restarts=seed % 2 == 0))
                failed += bool(wrong)
                print(
                    f"seed {seed}: {time.monotonic() - began:.0f} s, {len(wrong)} violations", *wrong[:20], sep="\n  "
                )
        finally:
            server.stop()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
