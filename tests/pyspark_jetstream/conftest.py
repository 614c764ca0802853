"""One Spark session for the run, and a separate stream for each test."""

import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_nats_jetstream.airflow_connection import CREDENTIAL_FOLDERS
from airflow_nats_jetstream.get_provider_info import DEFAULT_LEDGER
from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.stream import Stream
from jetstream_client.wire.settings import environment_name
from pyspark_jetstream import spark_session
from tests.jetstream_client.servers import Authority, Nkey, Operator
from tests.jetstream_client.world import EACH_ONCE

HASTY = "hasty"


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectionSettings]:
    """Connections to servers that require credentials, with TLS."""
    folder = tmp_path_factory.mktemp("secure")
    authority, operator = Authority(folder), Operator()
    server = NatsServer(folder / "server", operator.config + authority.config())
    server.start()
    yield ConnectionSettings(
        servers=f"tls://localhost:{server.port}",
        tls_ca=authority.ca.read_text(),
        credentials=operator.credentials(Nkey()),
    )
    server.stop()


@pytest.fixture(scope="session")
def access(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the connections that :func:`access_name` names. Each is a file that a test has to write."""
    return tmp_path_factory.mktemp("access")


def access_name(kind: str, mode: str) -> str:
    """The name of the connection for a way to authenticate and a mode of TLS."""
    return f"access_{kind}_{mode}".replace(" ", "_")


@pytest.fixture(scope="session")
def spark(nats_server: NatsServer, secure: ConnectionSettings, access: Path) -> Iterator[SparkSession]:
    # The variable that the hook writes for an Airflow connection. The session must be started with exactly this value.
    settings = ConnectionSettings(servers=nats_server.url, credential_folders=CREDENTIAL_FOLDERS, ledger=DEFAULT_LEDGER)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("nats_tests", "nats_default"):
            patch.setenv(environment_name(name), settings.to_json())
        patch.setenv(environment_name(HASTY), replace(settings, shortest_ack_wait=1).to_json())
        patch.setenv("JETSTREAM_SECRET_NATS_SECURE", secure.to_json())
        patch.setenv("JETSTREAM_SECRET_NATS_MISTRUSTED", replace(secure, tls_ca=None).to_json())
        for name in ("imported", *(access_name(*each) for each in EACH_ONCE)):
            patch.setenv(environment_name(name), str(access / name))
        session = spark_session(
            "tests", master="local[2,3]", config={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
        )
        session.sparkContext.setLogLevel("FATAL")
        gateway = session.sparkContext._gateway
        yield session
        session.stop()
        assert gateway is not None
        gateway.shutdown()  # otherwise the garbage collector finds its sockets, and warns


@pytest.fixture
def hasty(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, settings: ConnectionSettings) -> str:
    """The name of a connection of this session with which consumers with a short ``ack_wait`` may be read."""
    monkeypatch.setenv(environment_name(HASTY), replace(settings, shortest_ack_wait=1).to_json())
    return HASTY


@pytest.fixture
def settings(nats_server: NatsServer) -> ConnectionSettings:
    # The ledger is that of an Airflow connection, because tasks in Airflow settle what these tests take.
    return ConnectionSettings(servers=nats_server.url, ledger=DEFAULT_LEDGER)


@pytest.fixture
async def stream(settings: ConnectionSettings) -> AsyncIterator[Stream]:
    async with connect(settings) as js:
        name = f"S{secrets.token_hex(4)}"
        stream = await js.create_stream({"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
        yield stream
        await stream.info(patience=60)  # Spark's jobs block the loop, so the connection may have been lost meanwhile
        await stream.delete()
