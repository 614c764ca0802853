"""The documented table matches the declared events, and a share of them is played here; `make events` plays all."""

import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest

import tests.airflow_system.events_of_several_tasks
import tests.airflow_system.events_of_work  # noqa: F401 - it declares events
from demo.stack import Stack
from tests.airflow_system.event import Event, documented, table
from tests.airflow_system.events import EVENTS, clear_while_running, sensor_retried
from tests.airflow_system.judge import Judge
from tests.airflow_system.run import Run

PAGE = Path(__file__).parents[2] / "docs" / "airflow-events.md"
SHARE = (clear_while_running, sensor_retried)


def test_the_documented_table_is_the_declared_one() -> None:
    assert documented(PAGE) == table(EVENTS)


@pytest.mark.slow
def test_a_share_of_the_events(stack: Stack, judge: Judge, tmp_path: Path) -> None:
    share = [event for event in EVENTS if event.play in SHARE]
    assert at_the_same_time(share, stack, judge, tmp_path) == {event.title: event for event in share}


def at_the_same_time(events: Iterable[Event], stack: Stack, judge: Judge, folder: Path) -> dict[str, Event]:
    """Play each event on a separate run, print each row, and return what was observed, by title."""
    seen, errors = {}, []
    with ThreadPoolExecutor(4) as pool:
        plays = {
            pool.submit(event.played, Run(stack, judge, folder / event.play.__name__, event.messages)): event
            for event in events
        }
        for play in as_completed(plays):
            try:
                event = seen[plays[play].title] = play.result()
            except Exception as error:  # noqa: BLE001 - the others' rows come all the same
                error.add_note(plays[play].title)
                errors.append(error)
            else:
                sys.stdout.write(f"\n{event.lines()}")
    if errors:
        raise ExceptionGroup("not every event went as it should", errors)
    return seen
