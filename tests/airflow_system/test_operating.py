"""Operators on the real scheduler: files next to the DAG, rendered and mapped; XComs and links in Airflow's API."""

from pathlib import Path

from demo.stack import Stack
from tests.airflow_system.judge import Judge


def test_streams_and_consumers_are_as_the_files_say(stack: Stack) -> None:
    judge = Judge(stack.nats.url, Path(stack.environment["HANDOFF_OUT"]))
    stack.airflow.wait_for_dag("operating")
    run_id = stack.airflow.trigger("operating", {"hours": 2})
    stack.airflow.succeeds("operating", run_id, 120)

    orders, returns = judge.config("OP_ORDERS"), judge.config("OP_RETURNS")
    assert (orders["subjects"], orders["max_age"], orders["max_msgs"]) == (["OP_ORDERS.>"], 7_200 * 10**9, -1)
    assert (returns["subjects"], returns["max_age"], returns["max_msgs"]) == (["OP_RETURNS.>"], 0, 7)
    for number, stream in enumerate(("OP_ORDERS", "OP_RETURNS")):
        assert judge.config(stream, "work")["ack_wait"] == 150 * 10**9
        made = {"stream": stream, "created": True, "changed": []}
        assert stack.airflow.xcom("operating", run_id, "streams", map_index=number) == made
        assert stack.airflow.xcom("operating", run_id, "consumers", map_index=number) == {**made, "consumer": "work"}
        for task, page in (("streams", f"{stream}/"), ("consumers", f"{stream}/work")):
            links = stack.airflow.links("operating", run_id, task, number)
            assert links == {"JetStream": f"https://console.example.com/{page}"}
