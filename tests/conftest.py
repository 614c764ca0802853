"""What every test may ask for: one real nats-server per run, and the Java that Spark needs."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from demo.java import QUICK, java_home
from demo.nats_server import NatsServer
from demo.spark_home import spark_home
from jetstream_handoff.hold import hold, keep, settle
from jetstream_handoff.ledger import ledger, skipped
from jetstream_handoff.letters import discard
from jetstream_handoff.take import take
from tests.installed_server import has

gc.disable()  # until the tests are collected: what they consist of stays


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# Importing Airflow writes its configuration to AIRFLOW_HOME, by default into the user's home.
os.environ["AIRFLOW_HOME"] = str(
    Path(__file__).parent.parent / "build" / "tests" / f"airflow-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
)

# How long a case takes says what else the machine does, not whether the code is right.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

ONE_AIRFLOW = "tests/airflow_nats_jetstream/page/"
"""The tests in this folder share one Airflow, so they run in one process."""


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one process run all tests of a file, because they share servers."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class ByServer(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return ONE_AIRFLOW if nodeid.startswith(ONE_AIRFLOW) else nodeid.partition("::")[0]

    return ByServer(config, log)


NEWER = pytest.StashKey[int]()
"""Number of tests that need a newer nats-server than the installed one."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of what the installed nats-server does not have yet: `@pytest.mark.server("2.14")`."""
    marks = {item: mark for item in items if (mark := item.get_closest_marker("server"))}
    newer = {item for item, mark in marks.items() if not has(mark.args[0])}
    items[:] = [item for item in items if item not in newer]
    config.stash[NEWER] = len(newer)
    config.hook.pytest_deselected(items=[*newer])


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:  # this is a process of xdist
        output["newer"] = session.config.stash.get(NEWER, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process of xdist has collected all tests."""
    node.config.stash[NEWER] = node.workeroutput["newer"] if hasattr(node, "workeroutput") else 0


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if newer := config.stash.get(NEWER, 0):
        terminalreporter.write_line(f"{newer} tests left out, because they need a newer nats-server")


SPARK_PYTHON = os.environ.get("SPARK_PYTHON", sys.executable)
"""The Python that has Spark, and runs Spark's workers. It is another one if this one has only Spark's client."""


def _spark_home() -> str:
    if sys.executable == SPARK_PYTHON:
        return str(spark_home())
    made = [SPARK_PYTHON, "-c", "from demo.spark_home import spark_home; print(spark_home())"]
    return subprocess.run(made, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(autouse=True)
def nobody_is_killed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let settling not wait until a claim is a second old, and nothing for seconds before it reads once more: both
    matter only if a server is killed, frozen or deposed. With ``@pytest.mark.killed``, this process waits as usual."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.node.get_closest_marker("killed"):
            patch.setattr(settle, "BELIEVED", 0)
            for module in (discard, hold, keep, ledger, skipped, take):
                patch.setattr(module, "SECOND_READ", 0.1)
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asyncio alone: the control connection runs on nothing else."""
    return "asyncio"


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """One server for the run. A test that kills or restarts it starts a separate `NatsServer` instead."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session", autouse=True)
def spark_environment() -> None:
    """PySpark finds Java by JAVA_HOME, and would take its workers' Python from PATH.

    Its workers would also compile its modules again and again.
    """
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = SPARK_PYTHON
    os.environ["SPARK_HOME"] = _spark_home()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["SPARK_SUBMIT_OPTS"] = QUICK


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Where spans go, as Airflow sets it up with ``[traces] otel_on``; for this test alone."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.util._once import Once

    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter
