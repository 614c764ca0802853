"""An event-driven DAG on the real scheduler and triggerer: messages start it, also after a kill and a pause."""

import time

from demo.service import until
from demo.stack import Stack
from tests.airflow_system.judge import Judge

STREAM, DAG = "ARRIVING", "arriving"  # the asset has the name of the DAG
ACK_WAIT, REMIND_AFTER = 2, 8  # seconds, as the DAG has them


def test_what_arrives_is_processed_once_through_a_kill_and_a_pause(stack: Stack, judge: Judge) -> None:
    airflow = stack.airflow
    airflow.wait_for_dag(DAG)
    judge.publish(STREAM, 30)
    settled(stack, judge, 30)
    assert next(iter(airflow.runs(DAG))).startswith("asset_triggered__")

    airflow.pause(DAG)
    runs, deliveries, events = len(airflow.runs(DAG)), judge.deliveries(STREAM), airflow.asset_events(DAG)
    began = time.monotonic()
    stack.triggerer.kill()
    judge.publish(STREAM, 20)
    stack.triggerer.start()
    until("a notice", lambda: airflow.asset_events(DAG) > events, 240, every=1)
    time.sleep(max(0, began + 5 * ACK_WAIT - time.monotonic()))
    assert airflow.asset_events(DAG) - events <= 1 + (time.monotonic() - began) / REMIND_AFTER
    assert len(airflow.runs(DAG)) == runs
    assert judge.pending(STREAM) == (20, 0)
    assert judge.deliveries(STREAM) == deliveries
    airflow.pause(DAG, False)
    settled(stack, judge, 50)


def settled(stack: Stack, judge: Judge, count: int) -> None:
    """Return when no run is left; then every message that was ever published is settled, once.

    On a busy machine, a run that starts late is followed by a reminder, and so by another run that is skipped.
    """

    def over() -> bool:
        if stack.airflow.event_waits(DAG):
            return False
        return not {"queued", "running"}.intersection(stack.airflow.runs(DAG).values())

    until(f"{count} messages to be settled", lambda: len(judge.settled(STREAM)) >= count, 240, every=0.5)
    until("the last run", over, 240, every=1)
    judge.every_message_settled_once(STREAM, count)
