"""The work of the main job without Airflow: take, hold, read, append to a table in one warm Spark session, settle."""

from __future__ import annotations

import asyncio
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.main_job.messages import STREAM, publish, recreate, wait_for_pull
from benchmarks.main_job.stages import Stage, Timeline
from jetstream_client import ConnectionSettings, connect
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.blocking import BlockingHold
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from jetstream_tables import DeltaTable
from pyspark_jetstream import read_claim

CONSUMER = "delays"


@dataclass(frozen=True)
class WithoutAirflow:
    """One server and one session.

    out:  the folder of the tables.
    """

    settings: ConnectionSettings
    spark: SparkSession
    out: Path

    def main_job(self, messages: int, *, waiting: bool) -> Timeline:
        """Do the work once.

        waiting: publish when the take waits, and measure from then on. Otherwise publish first.
        """
        recreate(self.settings)
        with ThreadPoolExecutor(1) as pool:
            if waiting:
                taking = pool.submit(asyncio.run, self._taken())
                wait_for_pull(self.settings, CONSUMER)
                begin = publish(self.settings, messages)
            else:
                publish(self.settings, messages)
                begin = time.time()
                taking = pool.submit(asyncio.run, self._taken())
            claims, taken = taking.result()
        steps, table = [(Stage.TAKE, taken)], DeltaTable(str(self.out / secrets.token_hex(4)))
        for claim in claims:
            steps += self._processed(claim, table)
        return Timeline.of(begin, *steps)

    async def _taken(self) -> tuple[list[Claim], float]:
        """Take as the DAG's sensor does. Returns the claims, and when they were taken."""
        owner = ("main job", secrets.token_hex(4), 1)
        taking = Taking(stream=STREAM, consumer=CONSUMER, owner=owner, max_messages=400_000, messages_per_claim=100_000)
        async with connect(self.settings) as js:
            take = Take(js, taking)
            await take.prepare()
            claims = await take.at_once() or await take.take(60)
            take.handed_on()
            return claims, time.time()

    def _processed(self, claim: Claim, table: DeltaTable) -> list[tuple[Stage, float]]:
        from dags.flight_delays import parsed

        steps = []
        with BlockingHold.begin(self.settings, claim, try_number=1) as held:
            steps.append((Stage.HOLD, time.time()))
            read = read_claim(self.spark, claim, servers=",".join(self.settings.servers))
            held.append_to(table, read.transform(parsed).toArrow())
            steps.append((Stage.WORK, time.time()))
            held.settle(held.count)
        return [*steps, (Stage.SETTLE, time.time())]
