"""Run the state machines for a short time, always in the same way. ``make machine`` runs them longer, with a seed."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from demo.nats_server import NatsServer
from tests.jetstream_handoff.machine_of_reader import ReaderMachine
from tests.jetstream_handoff.machine_of_strangers import HandoffAmongStrangers

LONG = os.environ.get("EXAMPLES")


@pytest.mark.killed
@pytest.mark.parametrize(
    ("machine", "examples", "steps"),
    [
        pytest.param(HandoffAmongStrangers, 4, 15, id="claims"),
        pytest.param(ReaderMachine, 4, 10, id="reader", marks=pytest.mark.slow),  # test_dying.py is its short form
    ],
)
def test_the_state_machine(tmp_path: Path, machine: type[RuleBasedStateMachine], examples: int, steps: int) -> None:
    server = NatsServer(tmp_path)
    server.start()
    try:
        run_state_machine_as_test(
            type("OnOneServer", (machine,), {"server": server}),
            settings=settings(
                max_examples=int(LONG or examples),
                stateful_step_count=30 if LONG else steps,
                deadline=None,
                derandomize=not LONG,
                database=None,
                phases=[Phase.generate],  # no shrinking: with a real server, a shorter failure would be another one
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        server.stop()
