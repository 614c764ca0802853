"""One standalone Spark for the run, a session on it, and a server that asks for a password."""

import asyncio
import importlib.util
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_nats_jetstream.airflow_connection import CREDENTIAL_FOLDERS
from airflow_nats_jetstream.get_provider_info import DEFAULT_LEDGER
from demo.java import QUICK
from demo.nats_server import NatsServer
from demo.service import free_port
from demo.spark_home import spark_home
from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_fast
from pyspark_jetstream import spark_session
from tests.cluster.environment import PROJECT, environment
from tests.cluster.standalone import Standalone

STREAM = "CLUSTER"
COUNT = 150_000
TOTALS = ("count(*)", "count(distinct sequence)", "min(sequence)", "max(sequence)", "sum(int(string(data)) - sequence)")
"""How many messages, and whether each is the one that was published."""


@pytest.fixture(scope="session")
def python() -> Path:
    """What the executors run: pyspark, pyarrow and the wheel."""
    return environment(PROJECT / "build" / "tests" / "executors", installed=True)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, spark_environment: None) -> Iterator[Standalone]:
    cluster = Standalone(tmp_path_factory.mktemp("cluster"), spark_home())
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@dataclass(frozen=True)
class Secured:
    """A server with a password: the stream ``CLUSTER`` with ``COUNT`` messages of 300 bytes."""

    server: NatsServer
    settings: ConnectionSettings
    monitor: str


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    password, monitor = f"planted-{secrets.token_hex(12)}", free_port()
    config = f'authorization {{ user: spark, password: "{password}" }}\nhttp: "127.0.0.1:{monitor}"'
    server = NatsServer(tmp_path_factory.mktemp("secured"), config)
    # The ledger of an Airflow connection, because a task compares its settings with those of the Spark session.
    settings = ConnectionSettings(servers=server.url, user="spark", password=password, ledger=DEFAULT_LEDGER)

    async def create() -> None:
        async with connect(settings) as js:
            await js.create_stream({"name": STREAM, "subjects": [STREAM], "allow_direct": True, "allow_batched": True})

    server.start()
    try:
        asyncio.run(create())
        publish_fast(settings, ((STREAM, b"%0300d" % number) for number in range(1, COUNT + 1)))
        yield Secured(server, settings, f"http://127.0.0.1:{monitor}")
    finally:
        server.stop()


@pytest.fixture(scope="session")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark logs its events."""
    return tmp_path_factory.mktemp("events")


def linked(folder: Path, *modules: str) -> Path:
    """A folder with modules that the driver has in addition to what the executors have."""
    for name in modules:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        file = Path(str(spec.origin))
        file = file.parent if file.name == "__init__.py" else file
        (folder / file.name).symlink_to(file)
    return folder


@pytest.fixture(scope="session")
def spark(
    cluster: Standalone, secured: Secured, python: Path, events: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A session on the cluster that knows four connections.

    ``by_environment`` and ``nats_default`` as a task of Airflow has them; ``by_file``, which the executors read from a
    file while this process has the text; and ``by_lost_file``, whose file they do not have.
    """
    file = tmp_path_factory.mktemp("credentials") / "by_file.json"
    file.touch(mode=0o600)
    file.write_text(secured.settings.to_json())
    config = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.eventLog.compress": "false",  # to be searched
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.enabled": "true",
        "spark.executor.extraJavaOptions": QUICK,
        "spark.executorEnv.JETSTREAM_SECRET_BY_FILE": str(file),
        "spark.executorEnv.JETSTREAM_SECRET_BY_LOST_FILE": "/nowhere/by_lost_file.json",
        "spark.ui.port": str(free_port()),
    }
    with pytest.MonkeyPatch.context() as patch:
        # What the hook writes for an Airflow connection: a session has to be started with just that.
        settings = replace(secured.settings, credential_folders=CREDENTIAL_FOLDERS)
        for name in ("BY_ENVIRONMENT", "NATS_DEFAULT", "BY_FILE", "BY_LOST_FILE"):
            patch.setenv(f"JETSTREAM_SECRET_{name}", settings.to_json())
        patch.setenv("PYSPARK_PYTHON", str(python))
        patch.setenv("PYTHONPATH", str(linked(tmp_path_factory.mktemp("driver"), "anyio", "idna", "typing_extensions")))
        patch.setenv("SPARK_CONF_DIR", str(PROJECT / "docker" / "spark"))  # the one of docker/compose.yaml
        session = spark_session("cluster", master=cluster.url, memory="1g", config=config)
        session.sparkContext.setLogLevel("FATAL")
        gateway = session.sparkContext._gateway
        yield session
        session.stop()
        assert gateway is not None
        gateway.shutdown()  # or its sockets are left to the garbage collector, which warns
