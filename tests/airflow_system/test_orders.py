"""The batch example in dags/, that of the quickstart, on the real scheduler."""

import json
from dataclasses import replace
from pathlib import Path

from demo.stack import Stack
from tests.airflow_system.judge import Judge

DAG, STREAM = "orders", "ORDERS"


def test_each_order_is_added_up_once(stack: Stack, judge: Judge) -> None:
    airflow, revenue = stack.airflow, replace(judge, consumer="revenue")
    airflow.wait_for_dag(DAG)
    run_id = airflow.trigger(DAG)
    assert airflow.wait(DAG, run_id, 240) == "success"
    assert revenue.settled(STREAM) == list(range(1, 1_001))
    assert revenue.pending(STREAM) == (0, 0)
    recorded = {f"{key}-{done['token']}": done["value"] for key, done in revenue.done(STREAM).items()}
    files = Path(stack.environment["ORDERS_OUT"]).iterdir()
    written = {path.stem: json.loads(path.read_text()) for path in files}
    assert written == recorded
    assert len(written) == 2
    totals = {shop: sum(value.get(shop, 0) for value in written.values()) for shop in ("north", "south", "west")}
    assert totals == {shop: sum(range(first, 1_001, 3)) for shop, first in (("north", 3), ("south", 1), ("west", 2))}
