"""A DAG that holds the claims of a run's stream around an operator, as a user writes it."""

from datetime import timedelta
from typing import Any

from airflow.sdk import dag

from airflow_nats_jetstream.holding import holding
from airflow_nats_jetstream.sensors import JetStreamPullSensor

ATTEMPT = "{{ claim.attempt_id }}"
ARGUMENTS = ["--claim", "{{ claim.json }}", "--out", ATTEMPT]
RETRIED: dict[str, Any] = {"retries": 3, "retry_delay": timedelta(seconds=1)}


def held(dag_id: str, operator: Any, **parameters: Any) -> None:
    """Create the DAG. Its task is retried, because Airflow's scheduler can fail a task that resumes at once."""

    @dag(dag_id, schedule=None, params={"stream": "", "gate": ""})
    def holds() -> None:
        claims = JetStreamPullSensor(
            task_id="claims",
            stream="{{ params.stream }}",
            consumer="work",
            consumer_config={"ack_wait": timedelta(seconds=5)},
            deferrable=False,
            timeout=120,
        )
        holding(operator).partial(task_id="work", **RETRIED, **parameters).expand(claim=claims.output)

    holds()
