"""The driver of the large job: take, and for each claim hold, read and aggregate on Spark, write the result, settle.

    python -m benchmarks.large.driver <JSON of a Job>

It is started again with the next try number when it was killed, and continues with the claims that are still open.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.large.journal import FINISHED, Journal
from benchmarks.large.messages import CONSUMER, STREAM
from jetstream_client import ConnectionSettings, connect
from jetstream_handoff.hold.blocking import BlockingHold
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from pyspark_jetstream import read_claim, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from jetstream_handoff.claim import Claim

NAME = "large job"
CONFIG = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
AGGREGATES = {
    "count": "count(*)",
    "first": "min(sequence)",
    "last": "max(sequence)",
    "sequences": "sum(sequence)",
    "bytes": "sum(length(data))",
    "crc32": "sum(crc32(data))",
}
"""What the work computes of a claim's messages."""


@dataclass(frozen=True)
class Job:
    """What a driver is started with.

    servers:     the addresses of the nats-servers, separated by commas.
    master:      the address of Spark's master.
    folder:      where journals and results are written.
    messages:    how many messages a take may have.
    claim:       how many messages a claim may have.
    try_number:  1, and one more after each kill of the driver.
    """

    servers: str
    master: str
    folder: str
    messages: int
    claim: int
    try_number: int = 1

    @property
    def results(self) -> Path:
        return Path(self.folder) / "results"

    def to_json(self, try_number: int) -> str:
        return json.dumps({**asdict(self), "try_number": try_number})

    @property
    def taking(self) -> Taking:
        """The same owner for each try, so that a try inherits the open claims of the killed one, also the held one."""
        return Taking(
            stream=STREAM,
            consumer=CONSUMER,
            owner=(NAME,),
            max_messages=self.messages,
            messages_per_claim=self.claim,
            hand_off_timeout=timedelta(hours=6),  # the last claim waits until all others are settled
            even_if_held=True,
        )


async def take(settings: ConnectionSettings, taking: Taking) -> list[Claim]:
    """Take as a sensor does that looks before it defers. Returns no claims when all messages are acknowledged."""
    async with connect(settings) as js:
        taker = Take(js, taking)
        await taker.prepare()
        while not (claims := await taker.look()):
            info = await taker.ledger.info()
            if not info.pending + info.ack_pending:
                break
            await asyncio.sleep(1)
        taker.handed_on()
        return claims


def work(job: Job, settings: ConnectionSettings, spark: SparkSession, claim: Claim, journal: Journal) -> None:
    """Process a claim. Its result is named by the attempt, and the receipt of the claim says which attempt counts."""
    holder = (NAME, claim.id, job.try_number)
    with BlockingHold.begin(settings, claim, try_number=job.try_number, holder=holder) as held:
        journal.note("held", claim=claim.id)
        messages = read_claim(spark, claim, servers=job.servers)
        (row,) = messages.selectExpr(*(f"{what} AS {name}" for name, what in AGGREGATES.items())).collect()
        write(job.results / f"{held.attempt_id}.json", row.asDict())
        journal.note("worked", claim=claim.id)
        held.settle({"attempt": held.attempt_id})
        journal.note("settled", claim=claim.id, count=claim.count)


def write(path: Path, result: dict[str, Any]) -> None:
    """Write a result completely or not at all."""
    path.parent.mkdir(exist_ok=True)
    begun = path.with_suffix(".begun")
    begun.write_text(json.dumps(result))
    begun.replace(path)


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    job = Job(**json.loads(sys.argv[1]))
    settings = ConnectionSettings(servers=job.servers)
    journal = Journal(Path(job.folder), job.try_number)
    spark = spark_session(NAME, master=job.master, memory="1g", config=CONFIG)
    journal.note("spark")
    while claims := asyncio.run(take(settings, job.taking)):
        journal.note("taken", claims={claim.id: len(json.dumps(claim.to_json())) for claim in claims})
        for claim in claims:
            work(job, settings, spark, claim, journal)
    journal.note(FINISHED)
    spark.stop()


if __name__ == "__main__":
    main()
