"""Run the state machine for a short time, always in the same way. ``make machine`` runs it longer, with a seed."""

import os
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from demo.nats_server import NatsServer
from tests.jetstream_handoff.machine_of_strangers import HandoffAmongStrangers

LONG = os.environ.get("EXAMPLES")


def test_the_state_machine(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    try:
        run_state_machine_as_test(
            type("HandoffOnOneServer", (HandoffAmongStrangers,), {"server": server}),
            settings=settings(
                max_examples=int(LONG or 4),
                stateful_step_count=30 if LONG else 15,
                deadline=None,
                derandomize=not LONG,
                database=None,
                phases=[Phase.generate],  # no shrinking: with a real server, a shorter failure would be another one
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        server.stop()
