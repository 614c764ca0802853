"""Partitions from a DAG: the operator, and a pull sensor that is mapped over its output."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_nats_jetstream.all_claims import all_claims
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.partitions import JetStreamPartitionStreamOperator
from airflow_nats_jetstream.sensors import JetStreamPullSensor
from jetstream_client.errors import InvalidValue
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import ConsumerUnsuitable, PartitionsUnsuitable
from jetstream_handoff.hold.hold import Hold
from tests.airflow_nats_jetstream.one_run import OneRun
from tests.airflow_nats_jetstream.steps import CONNECTION, execute, rendered
from tests.airflow_nats_jetstream.test_dag_rules import errors

KEYS = 12


def operator(stream: str, **changes: Any) -> JetStreamPartitionStreamOperator:
    values = {"group": "g", "subject": f"{stream}.*.*", "partitions": 3, "ordered_by": "{3}", **changes}
    return JetStreamPartitionStreamOperator(task_id="partitions", stream=stream, nats_conn_id=CONNECTION, **values)


def pipeline(stream: str, **changes: Any) -> DAG:
    with DAG("dag", schedule=None) as dag:
        claims = JetStreamPullSensor.partial(
            task_id="claims",
            stream=stream,
            nats_conn_id=CONNECTION,
            ordered_by="{3}",
            claims=2,
            create_consumer=False,
            deferrable=False,
            timeout=20,
        ).expand(consumer=operator(stream, **changes).output)

        @task.jetstream
        def book(claim: Any) -> None: ...

        book.expand(claim=all_claims(claims.output))
    return dag


def publish(hook: JetStreamHook, stream: str) -> None:
    async def all_keys(js: Any) -> None:
        for each in [*range(KEYS)] * 2:
            await js.publish(f"{stream}.{each}.paid", b"x")

    hook.run(all_keys)


def test_a_mapped_sensor_takes_from_each_partition_in_order(
    hook: JetStreamHook, stream: str, run: OneRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instances are rendered from the output of the operator, as Airflow does it, and run one after another."""
    run.states = {}
    dag: Any = pipeline(stream)
    consumers = execute(dag.get_task("partitions"))
    monkeypatch.setattr(RuntimeTaskInstance, "xcom_pull", lambda *_, **__: consumers)
    assert consumers == ["g-0", "g-1", "g-2"]
    publish(hook, stream)
    instances = [rendered(dag.get_task("claims"), {}, map_index=index) for index in range(3)]
    claims = [claim for index, each in enumerate(instances) for claim in execute(each, map_index=index)]
    places = defaultdict(set)
    sequences = []

    async def look(js: Any) -> None:
        for claim in map(Claim.from_json, claims):
            for each in claim.sequences:
                subject = (await js.stream(stream).get_message(each)).subject
                places[subject.split(".")[2]].add(claim.id)
                sequences.append(each)
            async with Hold.begin(js, claim, try_number=1) as hold:
                await hold.settle()

    hook.run(look)
    assert sorted(sequences) == [*range(1, 2 * KEYS + 1)]
    assert {len(each) for each in places.values()} == {1}
    assert len({claim["consumer"] for claim in claims}) == 3
    assert execute(dag.get_task("partitions")) == consumers


def test_another_number_is_refused_until_it_is_asked_for(
    hook: JetStreamHook, stream: str, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(operator(stream))
    publish(hook, stream)
    with pytest.raises(PartitionsUnsuitable, match=r"partitions=4: it has 3 partitions.*change_number=True"):
        execute(operator(stream, partitions=4))
    with pytest.raises(PartitionsUnsuitable, match="change_number=True"):
        operator(stream, partitions=4).dry_run()
    assert execute(operator(stream, partitions="4", change_number=True)) == ["g-0", "g-1", "g-2"]
    said = f"stream {stream} gets 4 partitions in the next runs: before the next step, g-0 (not delivered: "
    assert said in capsys.readouterr().out


def test_the_dry_run_says_what_there_is(hook: JetStreamHook, stream: str, capsys: pytest.CaptureFixture[str]) -> None:
    operator(stream).dry_run()
    said = f"stream {stream} is not divided, and would have 3 partitions; would be created: g-0, g-1, g-2"
    assert said in capsys.readouterr().out
    execute(operator(stream))
    operator(stream).dry_run()
    assert f"stream {stream} has 3 partitions, and would have 3 partitions " in capsys.readouterr().out
    publish(hook, stream)
    operator(stream, partitions=2, change_number=True).dry_run()
    assert "would have 2 partitions; would have to be processed before: g-0 (not deliv" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"partitions": 0}, InvalidValue, "partitions=0"),
        ({"ordered_by": "{2}"}, InvalidValue, "ordered_by='{2}'.*at least one of them a"),
        ({"ordered_by": "header:Customer"}, InvalidValue, "does not divide by headers"),
        ({"subject": "orders..7"}, InvalidValue, "subject="),
        ({"consumer_config": {"filter_subject": "a"}}, InvalidValue, r"consumer_config\['filter_subject'\]"),
        ({"consumer_config": {"max_ack_pendign": 1}}, InvalidValue, r"consumer_config\['max_ack_pendign'\]"),
        ({"consumer_config": {"ack_policy": "all"}}, ConsumerUnsuitable, "ack_policy='all'"),
        ({"consumer_config": {"max_ack_pending": 100_000}}, ConsumerUnsuitable, "max_ack_pending=100000"),
        ({"max_messages": "many"}, InvalidValue, "max_messages='many'"),
    ],
)
def test_what_is_wrong_fails_when_the_dag_is_parsed(changes: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match.replace("{2}", "[{]2[}]")):
        operator("S", **changes)
    with pytest.raises(error, match=match.replace("{2}", "[{]2[}]")):
        execute(rendered(operator("{{ params.stream }}", **changes), {"stream": "S"}))


@pytest.mark.parametrize(
    ("ordered_by", "book", "said"),
    [
        ("{3}", "load.expand(claim=all_claims(sensors.output))", ""),
        ("3", "load.expand(claim=all_claims(sensors.output))", "ordered_by='3'"),
        ("{3}", "parquet.expand(claim=sensors.output)", "'sensors' is itself mapped"),
    ],
)
def test_a_sensor_that_is_mapped_over_partitions_is_checked_when_the_dag_is_parsed(
    tmp_path: Path, ordered_by: str, book: str, said: str
) -> None:
    body = f"""
    from airflow_nats_jetstream.operators.partitions import JetStreamPartitionStreamOperator

    partitions = JetStreamPartitionStreamOperator(
        task_id="partitions", stream="S", group="g", subject="orders.*", partitions=3, ordered_by="{{3}}"
    )
    partial = JetStreamPullSensor.partial(task_id="sensors", stream="S", ordered_by="{ordered_by}", claims=2)
    sensors = partial.expand(consumer=partitions.output)
    {book}
    """
    found = errors(tmp_path, body)
    assert said in found
    assert bool(said) is bool(found)
