"""The plugin for pytest in projects of users, which pytest runs in a process of its own, without this repository."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from jetstream_testing.nats_server import NatsServer, NatsServerMissing, nats_server_program

DAG = """
from airflow.sdk import dag, task

from airflow_nats_jetstream.sensors import JetStreamPullSensor


@dag(schedule=None)
def orders():
    claims = JetStreamPullSensor(task_id="claims", stream="ORDERS", consumer="revenue")

    @task.jetstream
    def revenue(claim):
        return sum(int(message.data) for message in claim.messages())

    revenue.expand(claim=claims.output)


orders()
"""
TESTS = """
import pytest
from airflow.dag_processing.dagbag import DagBag


@pytest.fixture
def dag(jetstream_hook):
    bag = DagBag("dags/orders.py")
    assert bag.import_errors == {}
    return bag.dags["orders"]


@pytest.mark.parametrize("amounts", [[b"7", b"5"], [b"7", b"malformed"]], ids=["green", "red"])
def test_revenue(dag, amounts, jetstream_stream, jetstream_claims_of, jetstream_hook):
    stream = jetstream_stream("ORDERS", ["orders.>"])
    stream.publish([("orders.north", amount) for amount in amounts])
    [claim] = jetstream_claims_of(dag.get_task("claims"))
    try:
        with jetstream_hook.processing(claim) as held:
            held.value = dag.get_task("revenue").python_callable(held)
    except ValueError:
        assert claim.unacknowledged == len(amounts)
    assert claim.settled, claim.state
    assert claim.receipt.value == 12
    assert (claim.unacknowledged, stream.unacknowledged("revenue")) == (0, 0)
"""
LOADED = """
import sys


def test_it():
    names = {name for name in sys.modules if name.startswith("jetstream_testing")}
    assert names == {"jetstream_testing", "jetstream_testing.plugin"}
    others = {"airflow", "airflow_nats_jetstream", "dagster", "jetstream_client", "jetstream_handoff", "nats", "psutil"}
    assert not others & sys.modules.keys()
"""
WITHOUT_A_SERVER = """
import sysconfig

sysconfig.get_path = lambda name: "/nonexistent"


def test_it(jetstream_server):
    pass
"""
WITHOUT_A_PACKAGE = """
import sys

sys.modules["psutil"] = None


def test_it(jetstream_server):
    pass
"""


def run_pytest(folder: Path, **environment: str) -> tuple[Mapping[str, int], str]:
    """The outcomes of a project's tests, and what pytest prints."""
    kept = {"PATH": os.environ["PATH"], "HOME": str(folder), "AIRFLOW_HOME": str(folder / "airflow")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={folder / 'temporary'}", "."]
    done = subprocess.run(
        command, cwd=folder, env={**kept, **environment}, capture_output=True, text=True, check=False, timeout=240
    )
    printed = done.stdout + done.stderr
    *_, last = done.stdout.strip().splitlines()
    return {kind: int(count) for count, kind in re.findall(r"(\d+) (\w+)", last.rpartition(" in ")[0])}, printed


def test_a_users_project_on_a_real_server(tmp_path: Path) -> None:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "orders.py").write_text(DAG)
    (tmp_path / "test_orders.py").write_text(TESTS)
    outcomes, printed = run_pytest(tmp_path)
    assert {kind: outcomes[kind] for kind in ("passed", "failed")} == {"passed": 1, "failed": 1}, printed
    assert "FAILED test_orders.py::test_revenue[red] - AssertionError: open" in printed
    assert list((tmp_path / "temporary").glob("jetstream*/nats-server.conf"))
    left = [each for each in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(each.info["cmdline"] or [])]
    assert left == []


def test_a_project_that_does_not_use_it_loads_the_fixtures_alone(tmp_path: Path) -> None:
    (tmp_path / "test_loaded.py").write_text(LOADED)
    outcomes, printed = run_pytest(tmp_path)
    assert outcomes == {"passed": 1}, printed


@pytest.mark.parametrize(
    ("project", "missing"),
    [
        (WITHOUT_A_SERVER, "nats-server is neither in /nonexistent nor on PATH"),
        (WITHOUT_A_PACKAGE, "the package psutil;"),
    ],
    ids=["server", "package"],
)
def test_what_is_missing_is_an_error_and_not_a_skip(project: str, missing: str, tmp_path: Path) -> None:
    (tmp_path / "test_without.py").write_text(project)
    outcomes, printed = run_pytest(tmp_path, PATH="/nonexistent")
    assert outcomes == {"error": 1}, printed
    assert missing in printed
    assert 'install it with `pip install "airflow-provider-nats-jetstream[testing]"`' in printed


def test_the_server_of_the_environment_comes_before_that_of_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "nats-server"
    other.write_text("")
    other.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nats_server_program() == Path(sys.executable).with_name("nats-server")
    monkeypatch.setattr("sysconfig.get_path", lambda _: "/nonexistent")
    assert nats_server_program() == other
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NatsServerMissing, match="neither in /nonexistent nor on PATH"):
        NatsServer(tmp_path)
