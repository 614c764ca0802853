"""The pipelines of these tests. They do what files in a folder tell them: be killed, wait, raise, or refuse a retry.

The points are, in the order of a step: `begun` and `entered` in a take; `worked`, `storing`, `stored`, `decided` and
`settled` in the work on a claim.
"""

import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_nats_jetstream import (
    HeldClaim,
    JetStreamResource,
    claimed_asset,
    claimed_op,
    jetstream_sensor,
    runs,
    take_claims,
)
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.take.take import Take

WORLD = Path(os.environ["WORLD"])
CONSUMER = "work"
MESSAGES_PER_CLAIM = 200
TAKEN_OVER = ("RETRIED", "LIMITED", "UNLIMITED")
"""The streams whose runs are killed while they hold claims. The messages of a held claim are redelivered when its lease
has ended; on the other streams, that would hide that a retry had not got its claims back."""
RETRIES = dg.RetryPolicy(max_retries=20)
MAX_RUNTIME = {"dagster/max_runtime": "40"}
PRELOADED = ["dagster", "dagster_nats_jetstream", "jetstream_handoff.take.take", "jetstream_handoff.hold.hold"]
FORKED = dg.multiprocess_executor.configured(
    {"max_concurrent": 2, "start_method": {"forkserver": {"preload_modules": PRELOADED}}}
)
runs.SILENT = timedelta(seconds=30)  # instead of 15 minutes


def reach(stream: str, point: str) -> None:
    """Do what one of the files `<stream>.<point>.<number>` says, and remove it."""
    for order in sorted((WORLD / "orders").glob(f"{stream}.{point}.*")):
        try:
            what = order.read_text()
            order.unlink()
        except FileNotFoundError:  # another step obeys this order
            continue
        (WORLD / order.name).write_text(str(os.getpid()))
        (WORLD / order.name).rename(WORLD / "reached" / order.name)
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "raise":
            raise RuntimeError(point)
        if what == "refuse":
            raise dg.Failure(point, allow_retries=False)
        while what == "wait":
            time.sleep(0.05)


async def decide(self: Ledger, function: Any, claim_id: str, *more: Any) -> Any:
    """Write a decision, and reach the point `decided` if it was to settle."""
    result = await decides(self, function, claim_id, *more)
    if function.__name__ == "done":
        reach(self.stream.name, "decided")
    return result


def settle(self: HeldClaim, value: Any = None) -> None:
    settles(self, value)
    reach(self.stream, "settled")


async def prepare(self: Take) -> None:
    reach(self.taking.stream, "begun")
    await prepares(self)


def handed_on(self: Take) -> None:
    reach(self.taking.stream, "entered")
    hands_on(self)


decides, Ledger.decide = Ledger.decide, decide  # type: ignore[method-assign,assignment]
settles, HeldClaim.settle = HeldClaim.settle, settle  # type: ignore[method-assign,assignment]
prepares, Take.prepare = Take.prepare, prepare  # type: ignore[method-assign]
hands_on, Take.handed_on = Take.handed_on, handed_on  # type: ignore[method-assign]


class Stored(dg.IOManager):
    """Stores an output under its attempt, and notes each storing under the run and step."""

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        reach(obj["stream"], "storing")
        (WORLD / "stored" / obj["attempt"]).write_text(json.dumps(obj))
        with (WORLD / "steps" / f"{context.run_id}.{context.step_key}").open("a") as notes:
            notes.write(obj["attempt"] + "\n")
        reach(obj["stream"], "stored")

    def load_input(self, context: dg.InputContext) -> Any:
        raise NotImplementedError


def worked(claim: HeldClaim) -> dict[str, Any]:
    """Write the numbers of the messages under the attempt, as work with a large output does."""
    numbers = [int(message.data) for message in claim.messages()]
    (WORLD / "outputs" / claim.attempt_id).write_text(json.dumps(numbers))
    reach(claim.stream, "worked")
    return {"stream": claim.stream, "attempt": claim.attempt_id, "rows": len(numbers)}


def draining(
    stream: str,
    executor: dg.ExecutorDefinition,
    retries: dg.RetryPolicy | None = RETRIES,
    tags: dict[str, str] | None = None,
    lease: timedelta = timedelta(minutes=2),
) -> dg.JobDefinition:
    """A job that takes the messages of a stream in claims and processes each in a step."""
    name = stream.lower()
    take = take_claims(
        name=f"take_{name}",
        messages_per_claim=MESSAGES_PER_CLAIM,
        hand_off_timeout=lease,
        retry_policy=retries,
        **taking(stream),
    )

    @claimed_op(name=f"process_{name}", out=dg.Out(io_manager_key="stored"), retry_policy=retries)
    def process(claim: HeldClaim) -> dict[str, Any]:
        return worked(claim)

    @dg.job(name=name, executor_def=executor, tags=tags)
    def drain() -> None:
        take().map(process)

    return drain


def taking(stream: str) -> dict[str, Any]:
    quick = {"gather": timedelta(seconds=0.3), "wait": timedelta(seconds=3)}
    ack_wait = timedelta(seconds=6 if stream in TAKEN_OVER else 60)
    return {"stream": stream, "consumer": CONSUMER, "consumer_config": {"ack_wait": ack_wait}, **quick}


@claimed_asset(name="orders", io_manager_key="stored", retry_policy=RETRIES, **taking("ORDERS"))
def orders(claim: HeldClaim) -> dict[str, Any]:
    return worked(claim)


@claimed_asset(
    name="checked",
    check_specs=[dg.AssetCheckSpec("wanted", asset="checked", blocking=True)],
    **taking("CHECKED"),
)
def checked(claim: HeldClaim) -> Any:
    """An asset without a value: its output is what `worked` has written."""
    worked(claim)
    try:
        reach(claim.stream, "checked")
        passed = True
    except RuntimeError:
        passed = False
    yield dg.MaterializeResult(check_results=[dg.AssetCheckResult(check_name="wanted", passed=passed)])


def watched(stream: str, job: dg.JobDefinition) -> dg.SensorDefinition:
    status = (
        dg.DefaultSensorStatus.RUNNING if stream in os.environ["WATCHED"].split() else dg.DefaultSensorStatus.STOPPED
    )
    return jetstream_sensor(
        stream=stream, consumer=CONSUMER, target=job, minimum_interval_seconds=1, default_status=status
    )


retried = draining("RETRIED", FORKED, None, {**MAX_RUNTIME, "dagster/max_retries": "1"})
limited = draining("LIMITED", FORKED, None, MAX_RUNTIME)
unlimited = draining("UNLIMITED", FORKED, None, lease=timedelta(seconds=20))

defs = dg.Definitions(
    assets=[orders, checked],
    jobs=[
        draining("DRAIN", FORKED),
        draining("SPAWNED", dg.multiprocess_executor.configured({"max_concurrent": 2})),
        draining("ALONE", dg.in_process_executor),
        dg.define_asset_job("orders_job", [orders], executor_def=FORKED),
        dg.define_asset_job("checked_job", [checked], executor_def=FORKED),
        retried,
        limited,
        unlimited,
    ],
    sensors=[watched("RETRIED", retried), watched("LIMITED", limited), watched("UNLIMITED", unlimited)],
    resources={
        "jetstream": JetStreamResource(servers=dg.EnvVar("NATS_URL"), shortest_ack_wait=0.5),
        "stored": Stored(),
    },
)
