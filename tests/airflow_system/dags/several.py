"""Several tasks work on each claim of the stream that a run names, and a settling task acknowledges its messages.

`work` loads the claim under a name that no other attempt has, `check` fails while the file `<gate>.bad` exists, and
`settle` records this name. In `several_skipping`, skipped work counts as done. In `staged`, a task that holds the claim
itself publishes what `work` has loaded. In `branched`, a branch chooses between `work` and another way to settle.
"""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, get_current_context, task

from airflow_nats_jetstream.operators.settle import JetStreamSettleOperator
from airflow_nats_jetstream.sensors import JetStreamPullSensor

OUT = Path(os.environ.get("HANDOFF_OUT", "out/handoff"))
OF_A_RUN = {"stream": "S", "most": 1, "least": 1, "per_claim": 1, "gate": "", "tries_with_spark": 0}


@task
def work(claim: Any, params: Any = None) -> str:
    """Write the claimed sequences as Parquet, and return when the gate is open."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    gate = Path(params["gate"])
    attempt = f"{claim['id']}-{get_current_context()['ti'].try_number}"
    gate.with_suffix(f".{attempt}").write_text(str(claim["ranges"][0][0]))
    folder = OUT / claim["stream"] / f"attempt={attempt}"
    folder.mkdir(parents=True)
    sequences = [each for first, last in claim["ranges"] for each in range(first, last + 1)]
    pq.write_table(pa.table({"sequence": sequences}), folder / "part.parquet")
    while not gate.exists():
        time.sleep(0.05)
    return attempt


@task
def check(attempt: str, params: Any = None) -> str:
    """Refuse the rows while the test says that they are bad."""
    if Path(params["gate"]).with_suffix(".bad").exists():
        raise ValueError(f"{attempt} has wrong rows")
    return attempt


def claims_of_a_run() -> JetStreamPullSensor:
    """The sensor of the stream that the run names."""
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
    )


def in_several_tasks(dag_id: str, **settling: Any) -> None:
    """Create one DAG, with these arguments for its settling task."""

    @dag(dag_id, schedule=None, params=OF_A_RUN)
    def working() -> None:
        claims = claims_of_a_run()
        checked = check.expand(attempt=work.expand(claim=claims.output))
        value = "{{ ti.xcom_pull('check', map_indexes=ti.map_index) }}"
        settle = JetStreamSettleOperator.partial(task_id="settle", value=value, **settling).expand(claim=claims.output)
        checked >> settle

    working()


@dag(schedule=None, params=OF_A_RUN)
def staged() -> None:
    @task.jetstream
    def publish(claim: Any) -> Any:
        ti: Any = get_current_context()["ti"]
        return ti.xcom_pull("work", map_indexes=ti.map_index)

    claims = claims_of_a_run()
    work.expand(claim=claims.output) >> publish.expand(claim=claims.output)


@dag(schedule=None, params=OF_A_RUN)
def branched() -> None:
    @task.branch
    def choose() -> str:
        return "work"

    @task
    def rest(claim: Any) -> None: ...

    claims, chosen = claims_of_a_run(), choose()
    worked, rested = work.expand(claim=claims.output), rest.expand(claim=claims.output)
    value = "{{ ti.xcom_pull('work', map_indexes=ti.map_index) }}"
    settle = JetStreamSettleOperator.partial(task_id="settle", value=value).expand(claim=claims.output)
    settle_rest = JetStreamSettleOperator.partial(task_id="settle_rest").expand(claim=claims.output)
    claims >> chosen >> [worked, rested]
    worked >> settle
    rested >> settle_rest


staged()
branched()
in_several_tasks("several")
in_several_tasks("several_skipping", settle_skipped=True)
