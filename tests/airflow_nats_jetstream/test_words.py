"""Messages of the packages without Airflow name a command that works in Airflow."""

import subprocess
import sys

import pytest

SHOWS = """
import importlib, sys
importlib.import_module(sys.argv[1])
from jetstream_handoff import orchestrator
print(orchestrator.command("claims"), orchestrator.pipeline, orchestrator.obstacles, sep="; ")
"""


@pytest.mark.parametrize("module", ["hooks", "operators.process", "sensors", "triggers", "watcher", "page.plugin"])
def test_airflow_users_are_told_what_to_do_in_airflow(module: str) -> None:
    arguments = [sys.executable, "-c", SHOWS, f"airflow_nats_jetstream.{module}"]
    said = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=120)
    words = "`airflow jetstream claims`; DAG; its queue, its pool, and whether the DAG is paused"
    assert said.stdout.splitlines()[-1] == words
