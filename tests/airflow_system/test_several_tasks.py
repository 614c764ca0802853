"""Two of the examples in dags/ on the real scheduler, over one stream. (flight_delays runs in tests/cluster.)

`flights_to_sql`: another engine works on claims that are held meanwhile. `flights_arriving`: messages start the runs.
"""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from demo.service import until
from demo.stack import Stack
from tests.airflow_system.judge import Judge

DAG, STREAM, ACK_WAIT = "flights_to_sql", "FLIGHTS", 5
LOADED = "select sequence from departures where attempt = ?"


@pytest.mark.slow
def test_what_succeeded_is_settled_and_what_failed_comes_again(stack: Stack, judge: Judge) -> None:
    airflow = stack.airflow
    airflow.wait_for_dag(DAG)
    sql, arrivals = replace(judge, consumer="sql"), replace(judge, consumer="arrivals")
    sql.lay(STREAM, ["flights.>"], ACK_WAIT)
    messages = [(f"flights.JFK.{each}", json.dumps({"carrier": each}).encode()) for each in ("UA", "AA", "ZZ")]
    sequences = sql.send(messages)
    folder = Path(stack.environment["FLIGHTS_TO_SQL_OUT"])
    folder.mkdir()
    with closing(sqlite3.connect(folder / "warehouse.sqlite", isolation_level=None)) as warehouse:
        warehouse.execute("begin exclusive")  # the engine is busy with something else
        run_id = airflow.trigger(DAG, {"max_messages": 4, "messages_per_claim": 2})
        until("two claims to be held", lambda: sql.ledger(STREAM) == ["held", "held"], 240)
        sql.lease_ends(STREAM)
        assert sql.comes_again(STREAM) == 0
        assert sql.ledger(STREAM) == ["held", "held"]
        warehouse.execute("rollback")

        assert airflow.wait(DAG, run_id, 240) == "failed"
        assert {task.name: task.state for task in airflow.tasks(DAG, run_id)} == {
            "claims": "success",
            "each.load[0]": "success",
            "each.load[1]": "success",
            "each.check[0]": "success",
            "each.check[1]": "failed",
            "each.hold[0]": "success",
            "each.hold[1]": "success",
            "each.settle[0]": "success",
            "each.settle[1]": "failed",
        }
        assert [airflow.xcom(DAG, run_id, "each.hold", map_index=each) for each in (0, 1)] == ["done", "failed"]
        (done,) = sql.done(STREAM).values()
        assert [each for (each,) in warehouse.execute(LOADED, [done["value"]])] == sequences[:2] == sql.settled(STREAM)
        assert sql.ledger(STREAM) == ["done", "failed"]
        assert sql.comes_again(STREAM) == 1
    until("what arrived to be settled", lambda: len(arrivals.settled(STREAM)) == len(messages), 240)
    assert arrivals.settled(STREAM) == sequences
