"""Every event on the real Airflow, and the table of them in the documentation: `make events`.

`make test` does not collect this file: it plays a share of the events.
"""

from pathlib import Path

import pytest

from demo.stack import Stack
from tests.airflow_system.event import document
from tests.airflow_system.events import EVENTS
from tests.airflow_system.judge import Judge
from tests.airflow_system.test_events import PAGE, at_the_same_time


@pytest.mark.timeout(1200)
def test_every_event(stack: Stack, judge: Judge, tmp_path: Path) -> None:
    together = [event for event in EVENTS if not event.alone]
    seen = at_the_same_time(together, stack, judge, tmp_path)
    for event in EVENTS:
        if event.alone:
            seen |= at_the_same_time([event], stack, judge, tmp_path)
    assert [seen[event.title] for event in EVENTS] == EVENTS
    document(PAGE, [seen[event.title] for event in EVENTS])
