"""The claims of a mapped sensor in one list, over which tasks are mapped."""

from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_nats_jetstream.all_claims import all_claims
from airflow_nats_jetstream.compat import AirflowFailException
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.sensors import JetStreamPullSensor
from jetstream_client.errors import JetStreamError
from tests.airflow_nats_jetstream.steps import CONNECTION, CONSUMER, Supervisor, execute, publish, record, sensor, whole
from tests.airflow_nats_jetstream.test_between import LEASE, refuses_claims


def collecting(lists: Any) -> Any:
    """The task between a mapped sensor and a mapped task, with the XComs of the sensor."""
    with DAG("dag", schedule=None) as dag:
        claims = JetStreamPullSensor.partial(task_id="claims", stream="S").expand(consumer=["a", "b"])

        @task.jetstream
        def work(claim: Any) -> None: ...

        work.expand(claim=all_claims(claims.output, nats_conn_id=CONNECTION, retries=2))
    collects: Any = dag.get_task("all_claims")
    assert (collects.upstream_task_ids, collects.downstream_task_ids) == ({"claims"}, {"work"})
    collects.claims = lists
    return collects


def test_the_claims_of_all_sensors_are_mapped_over(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 4)
    first = execute(sensor(stream, messages_per_claim=3, consumer_config=LEASE))
    second = execute(sensor(stream, consumer="other", consumer_config=LEASE))
    collects = collecting([first, second])
    assert execute(collects) == [*first, *second]
    with pytest.raises(RuntimeError, match="the XCom is too large"):
        whole(collecting([first, second]), Supervisor(refuses_claims))
    (again,) = execute(sensor(stream, consumer_config=LEASE), run_id="other")
    assert again["count"] == 4
    (again,) = execute(sensor(stream, consumer="other", consumer_config=LEASE), run_id="other")
    assert again["count"] == 4


def test_more_claims_than_airflow_maps_are_released(
    hook: JetStreamHook, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hook, stream, 5)
    claims = execute(sensor(stream, messages_per_claim=1, consumer_config=LEASE))
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "4")
    collects = collecting([claims[:2], claims[2:]])
    with pytest.raises(JetStreamError, match=r"5 claims cannot be handed on.*max_map_length=4"):
        execute(collects)
    kept = record(hook, stream)
    assert kept is not None
    assert not kept.open
    assert CONSUMER in {claim["consumer"] for claim in claims}


def test_the_output_of_a_single_sensor_needs_no_flattening() -> None:
    with pytest.raises(AirflowFailException, match="got a dict in the place of a list of claims"):
        execute(collecting([{"id": "x"}]))
    assert execute(collecting(None)) == []
