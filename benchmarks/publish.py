"""Publishing the departures, each answered, against nats-py's ``await js.publish`` one after the other."""

import asyncio
import itertools

import nats

from airflow_nats_jetstream.client import ConnectionSettings
from airflow_nats_jetstream.client.bulk import publish_all
from benchmarks.comparison import Comparison
from benchmarks.departures import departures

SAMPLE = 20_000  # of the baseline, whose rate does not depend on the number


def compare(url: str) -> Comparison:
    asyncio.run(_stream(url))
    runs = itertools.count()

    def ours() -> int:
        settings = ConnectionSettings(servers=url)
        return publish_all(settings, departures(), stream="FLIGHTS", scope=f"run {next(runs)}").stored

    def baseline() -> int:
        return asyncio.run(_one_by_one(url))

    departures()
    return Comparison("publish", required=6, aim=10).run(ours, baseline)


async def _stream(url: str) -> None:
    connection = await nats.connect(url)
    await connection.jetstream().add_stream(name="FLIGHTS", subjects=["flights.>"])
    await connection.close()


async def _one_by_one(url: str) -> int:
    connection = await nats.connect(url)
    js = connection.jetstream()
    for subject, data in departures()[:SAMPLE]:
        await js.publish(subject, data)
    await connection.close()
    return SAMPLE
