"""Dagster's definitions: an asset, or a job that drains the consumer, for each of its pipelines, and their sensors.

The windows are marked and stretched as in the DAGs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
import psutil

from dagster_nats_jetstream import JetStreamResource, claimed_asset, claimed_op, jetstream_sensor, take_claims
from tests.chaos import broken, pipelines, windows
from tests.chaos.tables import appending
from tests.chaos.work import read_and_write

if TYPE_CHECKING:
    from dagster_nats_jetstream import HeldClaim
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.take.taking import Taking

windows.install()
broken.install()

AGAIN = dg.RetryPolicy(max_retries=30, delay=1)
# Steps are forked from a process that has imported Dagster, because an import takes two seconds of a core.
FORKED = {"preload_modules": ["dagster", "dagster_nats_jetstream", "tests.chaos.work"]}
EXECUTOR = dg.multiprocess_executor.configured({"max_concurrent": 2, "start_method": {"forkserver": FORKED}})


class MarkedResource(JetStreamResource):
    """The resource, which marks the windows between a take and a hold."""

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[JetStreamResource]:
        windows.OWN.update(run=context.run_id, worker=_run_worker())
        with super().yield_for_execution(context) as resource:
            yield resource

    def take(self, context: dg.OpExecutionContext, taking: Taking, wait: timedelta) -> list[Claim]:
        claims = super().take(context, taking, wait)
        run = str(taking.owner[1])
        if claims:
            time.sleep(windows.pause(windows.FETCH, f"{run} entered"))
        for claim in claims:
            windows.mark(windows.HAND_OFF, "enter", claim.stream, claim.id, ranges=claim.sequences.to_json())
        windows.mark(windows.FETCH, "leave", taking.stream, run)
        return claims

    @contextmanager
    def holding(self, context: dg.OpExecutionContext, claim: Claim, **options: Any) -> Iterator[HeldClaim]:
        windows.mark(windows.HAND_OFF, "enter", claim.stream, claim.id, ranges=claim.sequences.to_json())
        time.sleep(windows.pause(windows.HAND_OFF, f"{claim.id} {context.retry_number}"))
        with super().holding(context, claim, **options) as held:
            yield held


def _run_worker() -> int:
    """The process of this run: below the code server, which leads the session, and above the steps."""
    leader = os.getsid(0)
    above = [each.pid for each in psutil.Process().parents() if each.pid != leader and _session(each.pid) == leader]
    return above[-1] if above else 0


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return -1


def define(pipeline: pipelines.Pipeline) -> dg.Definitions:
    jetstream = MarkedResource(
        servers=os.environ[pipeline.connection.upper()],
        credentials=os.environ["CHAOS_CREDENTIALS"] if pipeline.servers == "one" else None,
        shortest_ack_wait=2,
    )
    of: dict[str, Any] = {"stream": pipeline.stream, "consumer": pipelines.CONSUMER, "resource": pipeline.connection}
    taken: dict[str, Any] = {
        **of,
        "gather": timedelta(seconds=1),
        "wait": timedelta(seconds=10),
        "hand_off_timeout": timedelta(seconds=40),
        "consumer_config": {"ack_wait": timedelta(seconds=pipeline.ack_wait), "max_ack_pending": 1_000},
        "retry_policy": AGAIN,
    }

    def work(claim: Any) -> int:
        append = appending(pipeline, claim)
        return read_and_write(jetstream.settings, claim.stream, claim.id, claim.attempt_id, claim.sequences, append)

    assets, jobs = [], []
    if pipeline.dagster == "asset":
        assets.append(claimed_asset(name=pipeline.name, max_messages=20, **taken)(work))
    else:
        take = take_claims(name=f"{pipeline.name}_take", max_messages=20, messages_per_claim=10, **taken)
        process = claimed_op(name=f"{pipeline.name}_work", retry_policy=AGAIN, resource=pipeline.connection)(work)

        # The daemon retries a failed run once, from failure; the sensor's next run takes over what is still open then.
        @dg.job(name=pipeline.name, tags={"dagster/max_retries": "1"}, executor_def=EXECUTOR)
        def drain() -> None:
            take().map(process)

        jobs.append(drain)
    running = dg.DefaultSensorStatus.RUNNING
    sensor = jetstream_sensor(
        name=f"{pipeline.name}_sensor",
        target=[*assets] or jobs[0],
        minimum_interval_seconds=5,
        default_status=running,
        **of,
    )
    return dg.Definitions(assets=assets, jobs=jobs, sensors=[sensor], resources={pipeline.connection: jetstream})


defs = dg.Definitions.merge(
    dg.Definitions(executor=EXECUTOR),
    *(define(each) for each in pipelines.read(windows.folder() / "pipelines.json") if each.dagster),
)
