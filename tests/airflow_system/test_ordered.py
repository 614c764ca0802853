"""A sensor that is mapped over partitions with an order per key, on the real scheduler."""

from collections import defaultdict
from dataclasses import replace

import pytest

from demo.service import until
from demo.stack import Stack
from tests.airflow_system.judge import Judge

DAG, STREAM = "ordered", "ORDERED"
KEYS = ("bad", "7", "1", "2")  # the first two are in partition 0 of three, the others in partition 1
EACH = 4


@pytest.mark.slow
def test_each_key_is_processed_in_order_by_the_consumer_of_its_partition(stack: Stack, judge: Judge) -> None:
    """A partition without messages is skipped, and the claims of the others are processed. About 90 s: the sensor of
    that partition waits for a minute."""
    airflow = stack.airflow
    airflow.wait_for_dag(DAG)
    judge.create(STREAM, 60)
    run_id = airflow.trigger(DAG)
    until("the stream to be divided", lambda: "subject_transform" in judge.config(STREAM), 240)
    judge.send([(f"{STREAM}.{key}.paid", b"%d" % number) for number in range(EACH) for key in KEYS])
    airflow.succeeds(DAG, run_id, 240)
    assert {subject[0] for subject in judge.subjects(STREAM)} == {"0", "1"}
    tasks = {task.name: task.state for task in airflow.tasks(DAG, run_id)}
    assert [tasks[f"claims[{index}]"] for index in range(3)] == ["success", "success", "skipped"]
    of_key = defaultdict(list)
    for index in range(4):
        if f"book[{index}]" in tasks:
            for key, number in airflow.xcom(DAG, run_id, "book", map_index=index):
                of_key[key].append((index, int(number)))
    assert of_key.keys() == set(KEYS)
    for messages in of_key.values():
        assert messages == [(messages[0][0], number) for number in range(EACH)]
    consumers = [replace(judge, consumer=f"booking-{index}") for index in range(3)]
    assert [each.pending(STREAM) for each in consumers] == [(0, 0)] * 3
    settled = [sequence for each in consumers for sequence in each.settled(STREAM)]
    assert sorted(settled) == [*range(1, EACH * len(KEYS) + 1)]
