"""Operators on the real scheduler: files beside the DAG, rendered and mapped; XComs and links through Airflow's API."""

from pathlib import Path

from demo.stack import Stack
from tests.airflow_system.judge import Judge


def test_streams_and_consumers_are_as_the_files_say(stack: Stack) -> None:
    judge = Judge(stack.nats.url, Path(stack.environment["HANDOFF_OUT"]))
    stack.airflow.wait_for_dag("operating")
    run_id = stack.airflow.trigger("operating", {"hours": 2})
    assert stack.airflow.wait("operating", run_id, 120) == "success"

    orders, consumer = judge.config("OP_ORDERS"), judge.config("OP_ORDERS", "work")
    assert (orders["subjects"], orders["max_age"], consumer["ack_wait"]) == (
        ["OP_ORDERS.>"],
        7_200 * 10**9,
        150 * 10**9,
    )
    assert judge.config("OP_RETURNS") == {}
    assert judge.subjects("OP_ORDERS") == {"OP_ORDERS.a": 1}

    def told(task: str, map_index: int = -1) -> object:
        return stack.airflow.xcom("operating", run_id, task, map_index=map_index)

    assert told("streams", 1) == {"stream": "OP_RETURNS", "created": True, "changed": []}
    assert told("consumers", 0) == {"stream": "OP_ORDERS", "consumer": "work", "created": True, "changed": []}
    got = told("got")
    assert isinstance(got, dict)
    assert (got["data"], got["sequence"]) == ('{"id": 7}', 1)
    assert told("gone", 0) == {"stream": "OP_RETURNS", "deleted": True, "messages": 0, "superseded": []}
    assert told("gone", 1) == {"stream": "OP_NOBODY", "deleted": False, "messages": 0, "superseded": []}
    for task, map_index, page in (("consumers", 1, "OP_RETURNS/work"), ("got", -1, "OP_ORDERS/")):
        links = stack.airflow.links("operating", run_id, task, map_index)
        assert links == {"JetStream": f"https://console.example.com/{page}"}
