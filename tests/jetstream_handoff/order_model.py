"""A model of order per key, on real servers: takes, workers that fail, die, stand still and come too late, purges,
another client, resets to an earlier sequence, releases by hand, keys that stop and are resumed, restarts, and leaders
that step down or die.

The judge (:mod:`.order_judge`) finds out whether, in each life of the consumer, what is committed is

* **in order**: nothing of a key is committed after a later message of it;
* **no gaps**: when a message is committed, all earlier ones of its key are, became dead letters or were removed;
* **once**: no message is committed twice;
* **stopped**: with ``stop_key``, nothing of a key is processed behind its dead letter, and when the key is resumed, its
  messages are processed in the order in which they were published first;
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
from contextlib import AsyncExitStack, ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import JetStreamError
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from jetstream_client.wire.protocol import decode_headers
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.letters.letter import content, origin_of
from jetstream_handoff.letters.stored import stored
from jetstream_handoff.repair import reset as resets
from jetstream_handoff.repair import resume as resuming
from jetstream_handoff.repair.release import release_all
from jetstream_handoff.take import in_order
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from jetstream_handoff.watch import inspection
from tests.jetstream_client.cluster import Cluster, replicated_stream
from tests.jetstream_handoff.order_frozen import FrozenTake
from tests.jetstream_handoff.order_judge import Life, Stops, judge

CONSUMER = "work"
ACK_WAIT = timedelta(seconds=2)
KEYS = 12
ENDS = {"settle": 60, "fail": 12, "release": 5, "retry": 5, "die": 5, "freeze": 5, "late": 4, "cleared": 4}
"""How often the attempts of a worker end in each way, in percent."""
BAD = 41
"""The work fails for each so many-th message, always."""


class Model:
    """One run.

    seed:      chooses what happens, as far as the speed of the machine does not.
    messages:  how many are published.
    server:    restarted while the model runs, or whose leaders change; None to leave it alone.
    on_poison: what becomes of a key with a message that always fails.
    resets:    whether the consumer is reset, which takes five seconds each time.
    resumes:   whether stopped keys are resumed. The judge cannot tell their order after a reset, so not with resets.
    """

    def __init__(
        self,
        stream: Stream,
        seed: int,
        messages: int = 120,
        server: NatsServer | Cluster | None = None,
        on_poison: str = "skip",
        *,
        resets: bool = False,
        resumes: bool = False,
    ) -> None:
        self.stream = stream
        self.random = random.Random(seed)
        self.messages = messages
        self.server = server
        self.on_poison = on_poison
        self.resets = resets
        self.resumes = resumes
        self.lives: list[Life] = []
        self.lifts: list[datetime] = []
        self.origins: dict[int, int] = {}
        self.dead = 0
        self.keys: dict[int, str] = {}
        self.removed: set[int] = set()
        self.claims: asyncio.Queue[Claim] = asyncio.Queue()
        self.calm = False
        """Whether nothing fails any more."""
        self._runs = itertools.count()

    @property
    def told(self) -> str:
        """What has happened."""
        copies = sum(each != origin for each, origin in self.origins.items())
        return f"{len(self.lives)} resets, {self.dead} dead letters, {len(self.lifts)} resumes, {copies} copies"

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
                await self._drain(working)
                for _ in range(2 if self.resumes else 0):
                    await asyncio.gather(self._resume(within=60), self._publish(20))
                    await self._drain(working)
        except TimeoutError:
            return [f"stuck: {await self._left()}", *await self.judged()]
        finally:
            for each in working:
                each.cancel()
            await asyncio.gather(*working, return_exceptions=True)
        return await self.judged()

    async def judged(self) -> list[str]:
        await self._read()
        record, _ = await self.ledger.read()
        entries = record.done.items() if record else ()
        found = {each: self.ledger.receipts.of_done(each, entry) for each, entry in entries}
        found |= await self.ledger.receipts.done()  # also of claims of which all messages are dead letters
        receipts = list(found.values())
        self.dead = sum(each.rejected.count for each in receipts)
        if self.on_poison != "stop_key":
            return judge(self.keys, receipts, self.removed, self.lives)
        stops = Stops({} if self.lives else self.origins, self.lifts)
        return judge(self.keys, receipts, self.removed, self.lives, stops)

    async def _drain(self, working: list[asyncio.Task[None]]) -> None:
        while not await self._drained():
            if ended := [each for each in working if each.done()]:
                ended[0].result()
            await asyncio.sleep(0.1)

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
        resumes: list[asyncio.Task[None]] = []
        for at in range(count):
            await self._publish(self.messages // count)
            await asyncio.sleep(self.random.uniform(0, 1.5 if self.resumes else 0.15))  # until keys stop
            if self.random.random() < 0.3:
                await self._remove()
            if self.random.random() < 0.3:
                await self._steal()
            if self.random.random() < 0.3:
                await self._release()
            if self.resets and at in (5, 10):
                await self._reset()
            if at in (3, 8):
                await self._disturb()
            if at in (4, 7, 9, 11) and self.resumes:
                resumes.append(asyncio.create_task(self._resume(within=self.random.choice([1, 20]))))
        await asyncio.gather(*resumes)

    async def _publish(self, count: int) -> None:
        """Publish messages of keys with Zipf's distribution."""
        shares = [1 / rank for rank in range(1, KEYS + 1)]
        keys = [f"k{each}" for each in self.random.choices(range(KEYS), shares, k=count)]
        subjects = [(f"{self.stream.name}.{key}", b"x") for key in keys]
        with suppress(JetStreamError):  # without a leader, fewer are stored
            await asyncio.to_thread(publish_all, self.stream.js.settings, subjects)
        await self._read()

    async def _read(self) -> None:
        """Read the keys of new messages, and of which ones they are copies."""
        async for message in stored(self.stream, ">", max(self.keys, default=0) + 1):
            self.keys[message["seq"]] = message["subject"].split(".")[1]
            self.origins[message["seq"]] = origin_of(decode_headers(content(message)[0])) or message["seq"]

    async def _remove(self) -> None:
        """Remove the oldest messages, or one."""
        if self.random.random() < 0.5:
            first = int((await self.stream.info(patience=10)).state["first_seq"]) + self.random.randint(1, 5)
            self.removed |= {each for each in self.keys if each < first}
            with suppress(JetStreamError):  # without an answer, it may have been purged
                await self.stream.purge(sequence=min(first, max(self.keys)))
        else:
            sequence = self.random.choice(sorted(self.keys))
            self.removed.add(sequence)
            with suppress(JetStreamError):  # it was removed before
                await self.stream.delete_message(sequence)

    async def _steal(self) -> None:
        """Let another client receive messages and answer none, or negatively acknowledge them."""
        with suppress(JetStreamError):
            for message in await self.stream.consumer(CONSUMER).fetch_no_wait(self.random.randint(1, 6)):
                if self.random.random() < 0.5:
                    await message.nak()

    async def _release(self) -> None:
        """Release a claim by hand, also one that is held."""
        with suppress(JetStreamError):
            if claims := await inspection.open_claims(self.stream.js, self.stream.name, CONSUMER):
                await release_all(self.stream.js, [self.random.choice(claims)])

    async def _reset(self) -> None:
        """Reset the consumer to an earlier sequence, which begins a new life."""
        asked: list[datetime] = []

        async def request(*values: Any) -> tuple[int, int]:
            asked.append(datetime.now(UTC))
            return await ask(*values)

        ask = resets._request
        floor = (await self.ledger.info()).floor
        with patch.object(resets, "_request", request):
            while True:
                try:
                    done = await resets.reset(self.ledger, max(1, floor + 1 - self.random.randint(0, 40)), patience=20)
                except JetStreamError:
                    if not asked:
                        return  # refused
                    await asyncio.sleep(0.2)  # it is unknown whether the consumer was reset
                else:
                    self.lives.append(Life(asked[0], done.sequence))
                    return

    async def _resume(self, within: float) -> None:
        """Let stopped keys go on. The resume may be killed."""
        work = resuming._Resume(DeadLetters(self.stream.js, self.stream.name), CONSUMER, within)
        lift = work._lift

        async def lifts(hold: Any) -> bool:
            now = datetime.now(UTC)
            if done := await lift(hold):
                self.lifts.append(now)
            return done

        work._lift = lifts  # type: ignore[method-assign]
        with suppress(JetStreamError, TimeoutError):
            async with asyncio.timeout(within):
                await work.run()
                await work.end()

    async def _disturb(self) -> None:
        """Restart the server, which forgets negative acknowledgements, or change a leader of the cluster."""
        if isinstance(self.server, NatsServer):
            await asyncio.to_thread(self.server.stop)
            await asyncio.to_thread(self.server.start)
        elif self.server is not None:
            with suppress(JetStreamError):
                if self.random.random() < 0.5:
                    await self._step_down()
                else:
                    info = await self.stream.consumer(CONSUMER).info(patience=10)
                    node = self.server.named(info.raw["cluster"]["leader"])
                    await asyncio.to_thread(node.kill)
                    await asyncio.sleep(self.random.uniform(0, 5))
                    await asyncio.to_thread(node.start)

    async def _step_down(self) -> None:
        names = f"{self.stream.name}.{CONSUMER}"
        ledger = self.ledger.buckets.records.name
        await self.stream.js.api(
            self.random.choice(
                [
                    f"CONSUMER.LEADER.STEPDOWN.{names}",
                    f"STREAM.LEADER.STEPDOWN.{self.stream.name}",
                    f"STREAM.LEADER.STEPDOWN.{ledger}",
                ]
            )
        )

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
            max_failures=2,
            on_poison=self.on_poison,
            gather=timedelta(seconds=0.1),
            hand_off_timeout=timedelta(seconds=3),
            consumer_config={"ack_wait": ACK_WAIT},
        )

    async def _works(self) -> None:
        """A worker, whose attempts fail, are retried or released, die, stand still, or come too late."""
        while True:
            claim = await self.claims.get()
            ends = self.random.choices(*zip(*ENDS.items(), strict=True))[0] if not self.calm else "settle"
            if any(sequence % BAD == 0 for sequence in claim.sequences) and ends != "die":
                ends = "fail"
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
            elif ends == "cleared":  # another attempt begins, and this one goes on until it notices
                async with Hold.begin(self.stream.js, claim, try_number=2, holder=holder) as other:
                    with suppress(JetStreamError):
                        await hold.settle()
                    await other.settle()
            elif ends in ("release", "retry"):
                await hold.release(timedelta(seconds=3) if ends == "retry" else None)
                self.claims.put_nowait(claim)
            else:
                await asyncio.sleep(self.random.uniform(1, 4) if ends == "freeze" else 0)
                await hold.settle()


async def once(server: NatsServer | Cluster, seed: int, messages: int) -> tuple[list[str], str]:
    """Run the model on a new stream. The seed chooses the kind of the run.

    Returns what is wrong, and what has happened.
    """
    replicas = 3 if isinstance(server, Cluster) else 1
    async with AsyncExitStack() as stack:
        settings = ConnectionSettings(
            servers=server.url, shortest_ack_wait=0.5, ledger=f"o_{secrets.token_hex(4)}", request_timeout=5
        )
        js: JetStream = await stack.enter_async_context(connect(settings))
        name = f"S{secrets.token_hex(4)}"
        stream = await replicated_stream(js, name, [f"{name}.>"], replicas=replicas)
        disturbed = server if seed % 2 == 0 or replicas > 1 else None
        on_poison = "stop_key" if seed % 3 == 0 else "skip"
        resets = seed % 4 < 2
        resumes = on_poison == "stop_key" and not resets
        model = Model(stream, seed, messages, disturbed, on_poison, resets=resets, resumes=resumes)
        return await model.run(within=400), model.told


def main() -> None:
    parser = argparse.ArgumentParser(prog="make order")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--messages", type=int, default=600)
    parser.add_argument("--cluster", action="store_true", help="three servers, whose leaders step down and are killed")
    parser.add_argument("--control", action="store_true", help="leave the count out: the judge finds violations")
    options = parser.parse_args()
    if options.control:
        in_order.missing = lambda *_: 0
    failed = 0
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server: NatsServer | Cluster
        if options.cluster:
            server = stack.enter_context(Cluster(Path(folder)))
        else:
            server = NatsServer(Path(folder))
            server.start()
            stack.callback(server.stop)
        for seed in range(options.seed, options.seed + options.runs):
            began = time.monotonic()
            wrong, told = asyncio.run(once(server, seed, options.messages))
            failed += bool(wrong)
            line = f"seed {seed}: {time.monotonic() - began:.0f} s, {len(wrong)} violations ({told})"
            print(line, *wrong[:20], sep="\n  ", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
