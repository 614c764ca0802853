"""The DAGs of the system tests: claims, and work that waits in its middle if the test asks for it.

`handoff` takes the messages that a test published. Its variants do the same, with other parameters that a run cannot
choose in Airflow. `whole` also creates its stream and publishes to it.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_nats_jetstream.compat import AirflowFailException, AirflowRescheduleException, AirflowSkipException
from airflow_nats_jetstream.operators.publish import JetStreamPublishOperator
from airflow_nats_jetstream.operators.stream import JetStreamCreateStreamOperator
from airflow_nats_jetstream.sensors import JetStreamPullSensor
from jetstream_handoff.hold.hold import Hold

OUT = Path(os.environ.get("HANDOFF_OUT", "out/handoff"))
COUNT = 2_000
OF_THE_WORK = {"gate": "", "tries_with_spark": 9, "first_try": "", "nats_conn_id": "nats_default"}
OF_A_RUN = {"stream": "S", "most": 1, "least": 1, "per_claim": 1, **OF_THE_WORK}


def report(context: Any, result: Any = None) -> None:
    """What the author does after the work, with the value that it returned."""
    assert isinstance(result, int)
    if context["params"]["first_try"] == "cannot report" and context["ti"].try_number == 1:
        raise OSError("the report of the first try fails")


@task.jetstream(
    nats_conn_id="{{ params.nats_conn_id }}", retries=3, retry_delay=timedelta(seconds=1), post_execute=report
)
def work(claim: Any, params: Any = None) -> int:
    """Write the claimed sequences as Parquet. With a gate, the last part waits until that file exists."""
    gate = Path(params["gate"]) if params["gate"] else None
    folder = OUT / claim.stream / f"attempt={claim.attempt_id}"
    try_number = int(claim.attempt_id.split("-")[1])
    if gate:
        # Tell the test that this attempt works on messages from this one on.
        gate.with_suffix(f".{claim.attempt_id}").write_text(str(claim.sequences.first))
    if try_number <= params["tries_with_spark"]:
        written_by_spark(claim, gate, folder)
    else:
        written_by_hand(claim, gate, folder)
    if try_number == 1:
        others = list(gate.parent.glob(f"{gate.stem}.*-*")) if gate else []
        end_of_the_first_try(params["first_try"], first=len(others) == 1)
    return int(claim.count)


def end_of_the_first_try(how: str, first: bool) -> None:
    """End as the test asks: return, raise, or wait for the alarm of the task's time-out, which is short then.

    first:  whether no other attempt has begun. A task that is rescheduled does not begin another try.
    """
    if how == "raises":
        raise RuntimeError("the first try raises")
    if how == "fails":
        raise AirflowFailException("the first try fails for good")
    if how == "skips":
        raise AirflowSkipException("the first try skips")
    if how == "exits":
        sys.exit(0)
    if how == "is rescheduled" and first:
        raise AirflowRescheduleException(datetime.now(UTC) + timedelta(seconds=1))  # type: ignore[no-untyped-call]
    if how == "hangs":
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        time.sleep(60)
    if how == "returns late":
        settle = Hold.settle

        async def late(hold: Hold, *value: Any) -> Any:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            return await settle(hold, *value)

        Hold.settle = late  # type: ignore[assignment]


def written_by_spark(claim: Any, gate: Path | None, folder: Path) -> None:
    from pyspark_jetstream import spark_session

    last = claim.sequences.last

    def wait_at_the_gate(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            while gate and batch["sequence"][-1].as_py() == last and not gate.exists():
                time.sleep(0.05)
            yield batch

    spark = spark_session(master="local[2]", memory="1g", config={"spark.ui.enabled": "false"})
    messages = claim.read(spark).select("sequence", "subject", "data")
    messages.mapInArrow(wait_at_the_gate, messages.schema).write.parquet(str(folder))


def written_by_hand(claim: Any, gate: Path | None, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    pq.write_table(pa.table({"sequence": list(claim.sequences)}), folder / "part.parquet")
    while gate and not gate.exists():
        time.sleep(0.05)


def claims_of_a_run(**sensor: Any) -> JetStreamPullSensor:
    """The sensor of the stream that the run names, with these arguments."""
    return JetStreamPullSensor(
        task_id="claims",
        stream="{{ params.stream }}",
        consumer="work",
        max_messages="{{ params.most }}",
        min_messages="{{ params.least }}",
        messages_per_claim="{{ params.per_claim }}",
        gather=timedelta(seconds=4),
        consumer_config={"ack_wait": timedelta(seconds=5)},
        timeout=600,
        **sensor,
    )


def over_a_stream(dag_id: str, sensor: dict[str, Any] | None = None, **work_arguments: Any) -> None:
    """Create one DAG: claims of the stream that its run names, and work on them, with these arguments."""

    @dag(dag_id, schedule=None, params=OF_A_RUN)
    def handing_off() -> None:
        claims = claims_of_a_run(**(sensor or {}))
        work.override(**work_arguments).expand(claim=claims.output)

    handing_off()


@task
def passed_on(claims: Any) -> Any:
    """Return the claims, so that the parsed DAG does not show that two tasks work on the same ones."""
    return claims


@task
def when_the_other_works(claims: Any, params: Any = None) -> Any:
    """Return the claims when the test opens the other gate."""
    while not Path(params["gate"]).with_suffix(".again").exists():
        time.sleep(0.05)
    return claims


@dag("one_after_another", schedule=None, params=OF_A_RUN)
def one_after_another() -> None:
    claims = claims_of_a_run()
    second = work.override(task_id="again").expand(claim=passed_on(claims.output))
    work.expand(claim=claims.output) >> second


@dag("one_next_to_another", schedule=None, params=OF_A_RUN)
def one_next_to_another() -> None:
    claims = claims_of_a_run()
    work.expand(claim=claims.output)
    work.override(task_id="again").expand(claim=when_the_other_works(claims.output))


@dag("only_taken", schedule=None, params=OF_A_RUN)
def only_taken() -> None:
    claims_of_a_run()


@dag("given", schedule=None, params={**OF_A_RUN, "claim": {}})
def given() -> None:
    @task
    def claims(params: Any = None) -> Any:
        return [params["claim"]]

    work.expand(claim=claims())


# It tries again, because on a busy machine Airflow fails tasks whose heartbeats or deferrals reach it late.
@dag(schedule=None, params=OF_THE_WORK, default_args={"retries": 2, "retry_delay": timedelta(seconds=1)})
def whole() -> None:
    def messages() -> Iterator[tuple[str, bytes]]:
        return ((f"whole.{number % 3}", b"%d" % number) for number in range(COUNT))

    config = {"name": "WHOLE", "subjects": ["whole.>"], "allow_direct": True}
    stream = JetStreamCreateStreamOperator(task_id="stream", config=config)
    publish = JetStreamPublishOperator(task_id="publish", stream="WHOLE", messages=messages)
    # One message more than there are, so that it gathers for 5 s: Airflow's scheduler can fail a sensor that resumes
    # at once, because it learns too late that the task had deferred.
    claims = JetStreamPullSensor(task_id="claims", stream="WHOLE", consumer="work", max_messages=COUNT + 1)
    stream >> publish >> claims
    work.expand(claim=claims.output)


over_a_stream("handoff")
over_a_stream("paused")
over_a_stream("in_the_worker", {"deferrable": False})
over_a_stream("hasty", execution_timeout=timedelta(minutes=2))
over_a_stream("retried", {"retries": 5, "retry_delay": timedelta(seconds=1)})
over_a_stream("queued", pool="queued")
over_a_stream("queued_too_long", {"hand_off_timeout": timedelta(seconds=6)}, pool="queued_too_long")
one_after_another()
one_next_to_another()
only_taken()
given()
whole()
