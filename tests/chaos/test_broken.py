"""The judge notices when settling is broken in one of three ways, and finds no fault with the unbroken code.

There is no Airflow: an attempt is a process (`tests.chaos.attempt`) that holds a claim, reads its messages and settles.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from demo.nats_server import NatsServer
from demo.service import until
from jetstream_client import ConnectionSettings, connect
from jetstream_handoff.claim import Claim
from jetstream_handoff.take.take import Take
from tests.chaos import broken, windows
from tests.chaos.judge import Verdict, count, judge, judge_order, judge_tables
from tests.chaos.observer import LEDGER, Observer
from tests.chaos.pipelines import Pipeline
from tests.chaos.record import Record
from tests.jetstream_handoff.steps import taking

STREAM = "SCENE"
COUNT = 20


@dataclass
class Scene:
    """A stream, and attempts at its claims."""

    server: NatsServer
    folder: Path
    breaking: str | None

    @property
    def settings(self) -> ConnectionSettings:
        return ConnectionSettings(servers=self.server.url, shortest_ack_wait=0.5, ledger=LEDGER)

    async def publish(self) -> None:
        async with connect(self.settings) as js:
            await js.create_stream({"name": STREAM, "subjects": [f"{STREAM}.>"], "allow_direct": True})
            for number in range(COUNT):
                ack = await js.publish(f"{STREAM}.x", b"x", msg_id=f"m{number}")
                line = {"stream": STREAM, "id": f"m{number}", "sequence": ack.seq}
                Record(self.folder / "record" / "published.jsonl").append(line)

    async def take(self, wait: float = 5) -> list[Claim]:
        """Take as a separate sensor does. Messages that no attempt holds are redelivered after a second."""
        async with connect(self.settings) as js:
            take = Take(js, taking(js.stream(STREAM), f"run{wait}"))
            await take.prepare()
            claims = await take.take(wait)
            take.handed_on()
            return claims

    def attempt(self, claim: Claim, try_number: int = 1) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, windows.FOLDER: str(self.folder)}
        if self.breaking:
            environment[broken.BREAK] = self.breaking
        command = [sys.executable, "-m", "tests.chaos.attempt"]
        with (self.folder / "attempts.log").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=log)
        assert process.stdin
        asked = {"servers": self.server.url, "claim": claim.to_json(), "try_number": try_number}
        process.stdin.write(json.dumps(asked).encode())
        process.stdin.close()
        return process

    def stretch(self, **seconds: float) -> None:
        """Set how long attempts that begin now wait in a window; without a window they wait nowhere."""
        windows.ask(self.folder, 1, {getattr(windows, name): each for name, each in seconds.items()})

    async def strike(self, process: "subprocess.Popen[bytes]", window: str, number: signal.Signals) -> None:
        """Strike the attempt when it is in this window."""
        marks = Record(self.folder / "marks.jsonl")

        def inside() -> bool:
            assert process.poll() is None, (self.folder / "attempts.log").read_text()
            return any(
                (mark["window"], mark["edge"], mark["pid"]) == (window, "enter", process.pid) for mark in marks.news()
            )

        await asyncio.to_thread(until, f"the attempt in {window}", inside, 20, 0.02)
        process.send_signal(number)

    async def settle_what_comes(self) -> None:
        """Take and work until no messages are left."""
        self.stretch()
        while claims := await self.take(wait=3):
            for claim in claims:
                await asyncio.to_thread(self.attempt(claim).wait, 30)

    async def verdict(self) -> Verdict:
        async with Observer(self.server.url) as observer:
            return await judge(self.folder, {Pipeline(STREAM.lower(), "one", proxied=False, ack_wait=1): observer})


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[[str | None], Scene]]:
    """Makes a scene, with what to break, if anything."""
    servers: list[NatsServer] = []

    def made(breaking: str | None) -> Scene:
        folder = tmp_path / str(len(servers))
        servers.append(NatsServer(folder / "nats"))
        servers[-1].start()
        return Scene(servers[-1], folder, breaking)

    yield made
    for server in servers:
        server.stop()


async def killed_on_the_way_out(scene: Scene) -> Verdict:
    """An attempt is killed between the two halves of settling and not retried, so messages are redelivered."""
    await scene.publish()
    (claim,) = await scene.take()
    scene.stretch(ACKNOWLEDGE=60)
    attempt = scene.attempt(claim)
    await scene.strike(attempt, windows.ACKNOWLEDGE, signal.SIGKILL)
    attempt.wait()
    await scene.settle_what_comes()
    return await scene.verdict()


async def frozen_while_a_retry_settles(scene: Scene) -> Verdict:
    """The first attempt wakes up when the second one has done the work, and then finishes its own."""
    await scene.publish()
    (claim,) = await scene.take()
    scene.stretch(WORK=3)
    first = scene.attempt(claim)
    await scene.strike(first, windows.WORK, signal.SIGSTOP)
    scene.stretch()
    assert await asyncio.to_thread(scene.attempt(claim, try_number=2).wait, 30) == 0
    first.send_signal(signal.SIGCONT)
    await asyncio.to_thread(first.wait, 30)
    await scene.settle_what_comes()
    return await scene.verdict()


SCENES = [
    (broken.ACKNOWLEDGE_FIRST, killed_on_the_way_out, "lost"),
    (broken.SKIP_THE_LEDGER, killed_on_the_way_out, "settled_twice"),
    (broken.FORGET_THE_TOKEN, frozen_while_a_retry_settles, "committed_duplicates"),
]


@pytest.mark.parametrize(("breaking", "play", "fault"), SCENES, ids=[each[0].replace(" ", "_") for each in SCENES])
async def test_the_judge_notices(
    scene: Callable[[str | None], Scene], breaking: str, play: Callable[[Scene], Awaitable[Verdict]], fault: str
) -> None:
    sound, unsound = await asyncio.gather(play(scene(None)), play(scene(breaking)))
    assert sound.faultless, sound
    assert count(sound.published) == COUNT
    assert count(getattr(unsound, fault)) == COUNT
    assert not unsound.faultless


def test_the_judge_notices_what_is_wrong_in_a_table(tmp_path: Path) -> None:
    record = Record(tmp_path / "record" / "published.jsonl")
    for sequence in range(1, 5):
        record.append({"stream": STREAM, "id": f"scene-{sequence - 1}", "sequence": sequence})
    right = [(sequence, b"%d" % (sequence - 1)) for sequence in range(1, 5)]
    for rows, lost, twice, others in (
        (right, [], [], 0),
        (right[1:], [1], [], 0),
        ([*right, right[2]], [], [3], 0),
        ([*right[:3], (4, b"7")], [], [], 1),
        ([*right, (5, b"4")], [], [], 1),
    ):
        verdict = Verdict()
        judge_tables(tmp_path, verdict, {STREAM: rows})
        assert (verdict.lost_in_tables[STREAM], verdict.duplicates_in_tables[STREAM]) == (lost, twice)
        assert len(verdict.contradictions) == others
        assert verdict.faultless == (rows == right)


def test_the_judge_notices_rows_that_a_table_got_after_later_ones_of_their_key() -> None:
    """Messages 1 and 8 have the same key, as have 2 and 9."""
    verdict = Verdict()
    judge_order(verdict, STREAM, [(2, b"1"), (1, b"0"), (9, b"8"), (8, b"7")])
    assert verdict.faultless
    judge_order(verdict, STREAM, [(9, b"8"), (2, b"1"), (1, b"0"), (8, b"7")])
    assert verdict.out_of_order == {STREAM: [2]}
    assert not verdict.faultless
