"""Assets `nats://…`, made by Airflow's own `Asset` with our handler."""

from typing import Any

import pytest
from airflow.sdk import DAG, Asset, task

from airflow_nats_jetstream.assets import create_asset
from airflow_nats_jetstream.hooks import JetStreamHook
from jetstream_client.errors import InvalidValue
from tests.airflow_nats_jetstream.steps import CONNECTION, claim, context_of, run
from tests.airflow_versions import PARTITIONS, ProvidersManagerTaskRuntime


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("nats://nats.example.com/FLIGHTS", "nats://nats.example.com:4222/FLIGHTS"),
        ("NATS://NATS.Example.com:4222/FLIGHTS/", "nats://nats.example.com:4222/FLIGHTS"),
        ("nats://h:5222/FLIGHTS/flights.JFK.*", "nats://h:5222/FLIGHTS/flights.JFK.*"),
        ("nats://h/FLIGHTS/flights.>", "nats://h:4222/FLIGHTS/flights.>"),
        ("nats://h/FLIGHTS/flights.%3E", "nats://h:4222/FLIGHTS/flights.>"),
        ("nats://h/FL%C3%9CGE", "nats://h:4222/FL%C3%9CGE"),
        ("nats://h/FLÜGE", "nats://h:4222/FL%C3%9CGE"),
        ("nats://h/S/a%2Fb%3Fc", "nats://h:4222/S/a%2Fb%3Fc"),
        ("nats://[::1]/S", "nats://[::1]:4222/S"),
    ],
)
def test_one_stream_has_one_uri(given: str, kept: str) -> None:
    assert Asset(given).uri == kept
    assert Asset(kept).uri == kept


@pytest.mark.parametrize(
    "wrong",
    [
        "nats:///FLIGHTS",
        "nats://h",
        "nats://h/",
        "nats://h//flights.>",
        "nats://h/FLIGHTS/flights.>/more",
        "nats://h/FLI.GHTS",
        "nats://h/FLIGHTS/flights.>.more",
        "nats://h/FLIGHTS/flights..JFK",
        "nats://h:many/FLIGHTS",
        "nats://h:4222,i:4222/FLIGHTS",
        "nats://user@h/FLIGHTS",
        "nats://h/FLIGHTS?consumer=delays",
        "nats://h/FLI%20GHTS",
    ],
)
def test_what_is_no_stream_fails_when_the_dag_is_parsed(wrong: str) -> None:
    with pytest.raises(InvalidValue):
        Asset(wrong)


def test_a_password_is_dropped_by_airflow() -> None:
    with pytest.warns(UserWarning, match="password"):
        assert Asset("nats://user:secret@h/FLIGHTS").uri == "nats://h:4222/FLIGHTS"


@pytest.mark.parametrize(
    ("fields", "uri"),
    [
        ({"server": "h", "stream": "FLIGHTS"}, "nats://h:4222/FLIGHTS"),
        ({"server": "h:5222", "stream": "FLIGHTS", "subject": "flights.>"}, "nats://h:5222/FLIGHTS/flights.>"),
        ({"server": "h", "stream": "S", "subject": "a/b#c%d?e"}, "nats://h:4222/S/a%2Fb%23c%25d%3Fe"),
    ],
)
def test_airflow_finds_the_factory(fields: dict[str, Any], uri: str) -> None:
    factory = ProvidersManagerTaskRuntime().asset_factories["nats"]  # type: ignore[no-untyped-call]
    assert factory(**fields).uri == uri
    assert create_asset(**fields, name="flights", group="air").name == "flights"


@pytest.mark.parametrize("wrong", [{"stream": "A.B"}, {"subject": "a b"}, {"server": "nats://h"}, {"server": ""}])
def test_the_factory_refuses_what_is_no_stream(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        create_asset(**{"server": "h", "stream": "S", **wrong})


def test_a_task_gives_tokens_of_subjects_as_partition_keys(hook: JetStreamHook, stream: str) -> None:
    """docs/how-to/event-driven.md."""
    value = claim(hook, stream)
    made = Asset("departures")

    @task.jetstream(nats_conn_id=CONNECTION, outlets=[made])
    def sort(claim: Any, outlet_events: Any = None) -> None:
        tokens = {message.subject.split(".")[1] for message in claim.messages()}
        if PARTITIONS:
            outlet_events[made].add_partitions(sorted(tokens))
        else:
            outlet_events[made].extra = {"tokens": sorted(tokens)}

    with DAG("dag", schedule=None) as dag:
        sort(value)
    sorting: Any = dag.get_task("sort")
    context = context_of(sorting)
    run(sorting, context, sorting.execute)
    event = context["outlet_events"][made]
    assert (set(event.partition_keys) if PARTITIONS else set(event.extra["tokens"])) == {"0", "1", "2"}
