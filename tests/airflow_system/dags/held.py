"""Operators that know nothing of claims, each held around the claims of a run's stream.

Their work waits for files: `<gate>.jobs` lists the attempts that began, and `<gate>.1` and so on let them go on.
"""

from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator, ShortCircuitOperator
from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync
from airflow.providers.standard.sensors.filesystem import FileSensor
from airflow.sdk import dag, task_group

from airflow_nats_jetstream.holding import JetStreamHeld, holding
from airflow_nats_jetstream.sensors import JetStreamPullSensor
from tests.airflow_nats_jetstream.deferring import Deferring

FIRST = "{{ ti.xcom_pull('claims')[0] | tojson }}"
RETRIED: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=1)}
WAITS = "echo {{ claim.attempt_id }} >> {{ params.gate }}.jobs; until [ -e {{ params.gate }}.1 ]; do sleep 0.1; done; "


class Waiting(JetStreamHeld, Deferring):
    """The importable form."""


def taken(per_claim: int = 1000) -> JetStreamPullSensor:
    return JetStreamPullSensor(
        task_id="claims",
        stream="{{ params.stream }}",
        consumer="work",
        max_messages=1000,
        messages_per_claim=per_claim,
        gather=timedelta(seconds=1),
        consumer_config={"ack_wait": timedelta(seconds=5)},
        deferrable=False,
        timeout=120,
    )


def held(dag_id: str, operator: Any, *, expand: bool = True, **parameters: Any) -> None:
    """Create a DAG in which each claim is held around one mapped task `work` of this operator."""

    @dag(dag_id, schedule=None, params={"stream": "", "gate": ""})
    def holds() -> None:
        claims = taken()
        if expand:
            operator.partial(task_id="work", **parameters).expand(claim=claims.output)
        else:
            claims >> operator(task_id="work", claim=FIRST, **parameters)

    holds()


def report(context: Any, result: Any = None) -> None:
    """What the author does after the work, which fails in the first try."""
    assert result == "done"
    if context["ti"].try_number == 1:
        raise OSError("the report of the first try fails")


@dag(schedule=None, params={"stream": "", "gate": ""})
def held_in_a_group() -> None:
    """Each claim runs through a group: a task that holds it, and tasks downstream."""

    @task_group
    def work(claim: Any) -> None:
        (
            holding(PythonOperator)(
                task_id="work",
                claim=claim,
                python_callable=lambda claim: {"count": claim.count, "attempt": claim.attempt_id},
            )
            >> EmptyOperator(task_id="after")
        )

    work.expand(claim=taken(5).output)


@dag(schedule=None, params={"stream": "", "gate": ""})
def held_short_circuit() -> None:
    claims = taken()
    work = holding(ShortCircuitOperator)(task_id="work", claim=FIRST, python_callable=lambda: False)
    claims >> work >> EmptyOperator(task_id="after")


script = f"{WAITS} bash {{{{ params.gate }}}}.1"
gate: dict[str, Any] = {"folder": "{{ claim.attempt_id }}", "gate": "{{ params.gate }}"}
file: dict[str, Any] = {"filepath": "{{ params.gate }}.1", "poke_interval": 1}
held("held_bash", holding(BashOperator), bash_command=script, **RETRIED)
held("held_bash_reported", holding(BashOperator), bash_command=script, post_execute=report, **RETRIED)
held("held_bash_once", holding(BashOperator), bash_command=script)
held("held_bash_too_long", holding(BashOperator), bash_command=script, longest_hold="PT8S", **RETRIED)
held("held_deferring", holding(Deferring), rounds=2, **gate, **RETRIED)
held("held_waiting", Waiting, expand=False, **gate, **RETRIED)
held("held_deferring_too_long", holding(Deferring), longest_hold="PT8S", **gate, **RETRIED)
# With retries, because Airflow's scheduler can fail a task that resumes at once.
held("held_date", holding(DateTimeSensorAsync), target_time="{{ macros.datetime(2020, 1, 1) }}", **RETRIED)
held("held_file_rescheduled", holding(FileSensor), mode="reschedule", **{**file, "poke_interval": 10})
held("held_file_deferred", holding(FileSensor), deferrable=True, **file, **RETRIED)
held("held_file_poked", holding(FileSensor), timeout=3, **file, **RETRIED)
held_in_a_group()
held_short_circuit()
