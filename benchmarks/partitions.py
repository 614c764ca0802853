"""How long a tick of Dagster's ``jetstream_sensor`` takes with many partitions, in three states of them.

python -m benchmarks.partitions [number of partitions, default: 3,000]
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from benchmarks.arguments import numbers
from dagster_nats_jetstream import JetStreamResource, jetstream_sensor
from demo.nats_server import NatsServer
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking

if TYPE_CHECKING:
    from jetstream_client.context import JetStream

TAKES = 50  # at the same time


async def take_all(js: JetStream, owners: dict[str, str]) -> None:
    """Take a claim from each partition, for the run whose id is given."""
    slots = asyncio.Semaphore(TAKES)

    async def one(key: str, run_id: str) -> None:
        async with slots:
            owner = ("orders", run_id, "op", -1, "dagster")
            options: dict[str, Any] = {"consumer_config": {"filter_subject": f"orders.{key}"}, "max_messages": 1}
            take = Take(js, Taking(stream="ORDERS", consumer=f"c-{key}", owner=owner, gather=timedelta(0), **options))
            await take.create()
            assert await take.take(10)
            take.handed_on()

    await asyncio.gather(*(one(*each) for each in owners.items()))


def main() -> None:
    logging.getLogger("jetstream_handoff").setLevel(logging.ERROR)  # each created consumer is a warning
    (count,) = numbers("benchmarks.partitions", __doc__, partitions=3_000)
    keys = [f"p{number}" for number in range(count)]
    partitions = dg.StaticPartitionsDefinition(keys)

    @dg.asset(partitions_def=partitions)
    def orders() -> None: ...

    sensor = jetstream_sensor(
        stream="ORDERS",
        consumer="c",
        subject="orders.{partition}",
        partitions_def=partitions,
        target=[orders],
        max_runs=count,
    )
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(Path(folder))
        server.start()
        try:
            measure(JetStreamResource(servers=server.url), keys, orders, sensor)
        finally:
            server.stop()


def measure(jetstream: JetStreamResource, keys: list[str], orders: Any, sensor: Any) -> None:
    # Without max_consumers, nats-server 2.15 creates at most 1,000 consumers of a stream.
    stream = {"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True, "max_consumers": 2 * len(keys)}
    jetstream.ensure_stream(stream)
    jetstream.publish("ORDERS", [(f"orders.{key}", b"x") for key in keys], scope="benchmark")
    resources = {"jetstream": jetstream}
    repository = dg.Definitions(assets=[orders], sensors=[sensor], resources=resources).get_repository_def()
    with tempfile.TemporaryDirectory() as folder, dg.DagsterInstance.local_temp(folder) as instance:

        def tick(state: str, expected: int) -> list[dg.RunRequest]:
            with dg.build_sensor_context(instance=instance, resources=resources, repository_def=repository) as context:
                start = time.perf_counter()
                requests = list(sensor.evaluate_tick(context).run_requests or ())
                print(f"{len(keys):,} partitions {state}: {time.perf_counter() - start:.1f} s a tick", flush=True)
            assert len(requests) == expected
            return requests

        owners = {}
        for request in tick("wait for a run", len(keys)):
            run = dg.DagsterRun(job_name="orders", status=dg.DagsterRunStatus.STARTING, tags=dict(request.tags))
            owners[str(request.partition_key)] = instance.add_run(run).run_id
        tick("have a run that has not pulled", 0)
        jetstream.run(lambda js: take_all(js, owners))
        tick("are worked on", 0)


if __name__ == "__main__":
    main()
