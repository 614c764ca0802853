"""A Spark Connect server. Its clients are two tasks at once, and a session of this process."""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.errors.exceptions.connect import SparkConnectException
from pyspark.sql.connect.session import SparkSession

from demo.java import QUICK
from demo.nats_server import NatsServer
from demo.service import Service, free_port, session, until
from demo.spark_connect import SparkConnect
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import ConsumerNotFound, SettingsMissing
from jetstream_client.publish.bulk import publish_all
from jetstream_client.sequences import Sequences
from jetstream_handoff.claim import Claim
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Receipt
from pyspark_jetstream import SchemaRegistry, decoded, read_claim
from pyspark_jetstream.held_claim import HeldClaim
from tests.cluster.environment import PROJECT
from tests.cluster.standalone import command
from tests.conftest import SPARK_PYTHON
from tests.jetstream_handoff.steps import CONSUMER, take
from tests.pyspark_jetstream.registry_server import registry_server
from tests.spark_connect.tasks import NAMES

ACK_WAIT = timedelta(seconds=10)  # of which a fifth passes until a lost claim is noticed


@dataclass(frozen=True)
class Warm:
    """The server, and streams whose messages are claimed."""

    server: SparkConnect
    settings: ConnectionSettings
    page: str
    folder: Path
    events: Path

    def claims(self, stream: str, sizes: list[int]) -> list[Claim]:
        """Publish numbers as JSON, each claim's last message malformed, and take the claims."""

        async def taken() -> list[Claim]:
            async with connect(self.settings) as js:
                made = await js.create_stream({"name": stream, "subjects": [stream], "allow_direct": True})
                claims = []
                for size in sizes:
                    texts = [json.dumps({"number": number}) for number in range(size - 1)]
                    messages = ((stream, text.encode()) for text in [*texts, "malformed"])
                    await asyncio.to_thread(publish_all, self.settings, messages)
                    claims += await take(made, f"run {size}", consumer_config={"ack_wait": ACK_WAIT}, max_messages=size)
                return claims

        return asyncio.run(taken())

    def settled(self, stream: str, consumer: str = CONSUMER) -> list[Receipt]:
        async def ask() -> list[Receipt]:
            async with connect(self.settings) as js:
                return await Ledger(js, stream, consumer).committed()

        return asyncio.run(ask())

    def tasks(self, environment: dict[str, str]) -> Service:
        """Airflow's task runner with the two tasks of the module `tasks`, each in a process."""
        found = {each: value for each, value in os.environ.items() if not each.startswith("JETSTREAM_")}
        who = {"login": self.settings.user, "password": self.settings.password}
        extra = {"servers": self.settings.servers[0], "shortest_ack_wait": self.settings.shortest_ack_wait}
        found["AIRFLOW_CONN_NATS_DEFAULT"] = json.dumps({"conn_type": "nats", **who, "extra": extra})
        found["PYTHONPATH"] = str(PROJECT)
        command = [sys.executable, "-m", "tests.spark_connect.tasks", str(self.folder)]
        return Service("tasks", command, folder=self.folder / "tasks", environment=found | environment)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectionSettings]:
    """A server that asks for a password."""
    password = f"planted-{secrets.token_hex(12)}"
    server = NatsServer(tmp_path_factory.mktemp("secured"), f'authorization {{ user: spark, password: "{password}" }}')
    server.start()
    # The ledger is that of an Airflow connection, because tasks in Airflow settle what these tests take.
    yield ConnectionSettings(
        servers=server.url, user="spark", password=password, shortest_ack_wait=0.5, ledger="airflow"
    )
    server.stop()


@pytest.fixture(scope="module")
def warm(
    settings: ConnectionSettings, spark_environment: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Warm]:
    folder, events, page = tmp_path_factory.mktemp("warm"), tmp_path_factory.mktemp("connect"), free_port()
    environment = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
    config = {
        "spark.driver.memory": "1g",
        "spark.eventLog.compress": "false",  # to be searched
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.enabled": "true",
        "spark.master": "local[4]",  # two jobs wait, each in one task
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",  # to compile costs more than there is to do
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "true",
        "spark.ui.port": str(page),
    }
    server = SparkConnect(
        folder / "server",
        Path(os.environ["SPARK_HOME"]),
        config=config,
        environment={**environment, "PYSPARK_PYTHON": SPARK_PYTHON, "SPARK_SUBMIT_OPTS": QUICK},
    )
    server.launch()
    try:
        server.connection("nats_default", settings)
        server.wait_ready(seconds=240)
        yield Warm(server, settings, f"http://127.0.0.1:{page}", folder, events)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def client(warm: Warm) -> Iterator[SparkSession]:
    """A session in this process."""
    remote = f"{warm.server.clients['SPARK_REMOTE']}/;token={warm.server.token}"
    session = SparkSession.builder.remote(remote).create()
    yield session
    session.stop()


QUERY = """
import sys
from pyspark_jetstream import spark_session

folder = sys.argv[1]
where = {"connection": "nats_default", "stream": "QUERIED", "consumer": "query"}
messages = spark_session().readStream.format("jetstream").options(**where).load().select("sequence")
writer = messages.writeStream.format("parquet").option("checkpointLocation", f"{folder}/state")
writer.start(f"{folder}/out").awaitTermination()
"""


def test_a_query_goes_on_and_acknowledges_without_its_client(warm: Warm, client: SparkSession, tmp_path: Path) -> None:
    async def create() -> None:
        async with connect(warm.settings) as js:
            await js.create_stream({"name": "QUERIED", "subjects": ["QUERIED"], "allow_direct": True})

    def acknowledged() -> int:
        async def ask() -> int:
            async with connect(warm.settings) as js:
                return (await js.stream("QUERIED").consumer("query").info()).floor

        try:
            return asyncio.run(ask())
        except ConsumerNotFound:
            return 0

    def publish(count: int) -> None:
        publish_all(warm.settings, (("QUERIED", b"%d" % number) for number in range(count)))

    asyncio.run(create())
    publish(100)
    command = [sys.executable, "-c", QUERY, str(tmp_path)]
    remote = f"{warm.server.clients['SPARK_REMOTE']}/;token={warm.server.token}"
    query = Service("query", command, folder=tmp_path / "client", environment={**os.environ, "SPARK_REMOTE": remote})
    query.start()
    until("it acknowledges", lambda: acknowledged() == 100 or not query.running, seconds=240)
    assert query.running, query.tail()
    query.kill()
    publish(50)
    until("it goes on", lambda: acknowledged() == 150, seconds=240)
    found = [row.sequence for row in client.read.parquet(f"{tmp_path}/out").collect()]
    assert sorted(found) == [*range(1, 151)]


def test_two_tasks_at_once_settle_their_claims(warm: Warm) -> None:
    """One is told of the server by an Airflow connection, and the other by its environment."""
    claims = warm.claims("PAIR", [1_000, 700])
    warm.claims("COPIES", [])
    for name, claim in zip(NAMES, claims, strict=True):
        (warm.folder / f"{name}.json").write_text(json.dumps(claim.to_json()))
    known = {"conn_type": "spark_connect", "host": "localhost", "port": warm.server.port, "password": warm.server.token}
    tasks = warm.tasks({**warm.server.clients, "AIRFLOW_CONN_WARM": json.dumps(known)})
    tasks.launch()
    try:
        until("both tasks to end", lambda: not tasks.running, seconds=240)
    finally:
        tasks.stop()
    receipts = {receipt.claim_id: receipt for receipt in warm.settled("PAIR")}
    assert receipts.keys() == {claim.id for claim in claims}, tasks.tail()
    for claim in claims:
        receipt = receipts[claim.id]
        assert receipt.rejected == Sequences.of([claim.sequences.last])
        rows = parquet.read_table(warm.folder / "out" / receipt.attempt_id).to_pydict()
        assert sorted(rows["sequence"]) == list(receipt.processed)
        assert sorted(rows["number"]) == list(range(claim.count - 1))
    assert receipts[claims[0].id].value == {"copied": 999, "streamed": 1_700}


def test_dagster_assets_settle_their_claims(warm: Warm) -> None:
    """One reads its claim in its step, and the other in a Pipes process."""
    warm.claims("ASSETS", [])
    texts = [*(json.dumps({"number": number}) for number in range(999)), "malformed"]
    publish_all(warm.settings, (("ASSETS", text.encode()) for text in reversed(texts)))
    environment = {each: value for each, value in os.environ.items() if not each.startswith("JETSTREAM_")}
    environment |= {**warm.server.clients, "PYTHONPATH": str(PROJECT), "DAGSTER_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-m", "tests.spark_connect.assets", str(warm.folder)]
    given: dict[str, Any] = {"input": warm.settings.to_json(), "text": True, "capture_output": True, "timeout": 240}
    ended = subprocess.run(command, env=environment, check=False, **given)
    assert ended.returncode == 0, ended.stderr
    step, process = warm.settled("ASSETS", consumer="assets")
    assert step.rejected == Sequences.of([1])
    for receipt in (step, process):
        rows = parquet.read_table(warm.folder / "out" / receipt.attempt_id).to_pydict()
        assert sorted(rows["sequence"]) == list(receipt.processed)
    assert warm.settings.password
    assert warm.settings.password not in ended.stdout + ended.stderr


def test_the_client_asks_a_schema_registry(warm: Warm, client: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server gets the schemas, and never the registry's password."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # spark_session() sets it; pyspark's functions need it
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": "long"}]})
    password = f"planted-{secrets.token_hex(12)}"
    with registry_server() as server:
        server.user = f"me:{password}"
        server.register("s", schema)
        registry = SchemaRegistry(server.url, username="me", password=password)
        payloads = [b"\0\0\0\0\1\x0a", b"\0\0\0\0\2\x0a", b"\x0a"]
        messages = client.createDataFrame([(each,) for each in payloads], "data BINARY")
        good, malformed = decoded(messages, schema, format="avro", registry=registry)
    assert [row.v for row in good.collect()] == [5]
    assert len(malformed.collect()) == 2
    assert all(password.encode() not in file.read_bytes() for file in warm.events.rglob("*") if file.is_file())


def waiting(folder: Path, name: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task of Spark does until it may end. Spark pickles it whole, because the server has no tests."""
    began, end = str(folder / f"{name}.began"), str(folder / f"{name}.end")

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        import time
        from pathlib import Path

        Path(began).touch()
        while not Path(end).exists():
            time.sleep(0.05)
        for batch in batches:
            yield batch.select(["sequence"])

    return wait


def test_a_lost_claim_interrupts_only_its_own_jobs(warm: Warm, client: SparkSession, tmp_path: Path) -> None:
    """Even in one session: two threads hold two claims, and another attempt takes one of them over."""
    ours, others = warm.claims("LOST", [1, 2])

    def work(name: str, claim: Claim) -> int:
        with HeldClaim.begin(warm.settings, claim, try_number=1) as held:
            held.connection = "nats_default"
            messages = held.read(client)  # type: ignore[arg-type]
            rows = messages.limit(1).mapInArrow(waiting(tmp_path, name), "sequence BIGINT").count()
            held.settle(rows)
        assert client.getTags() == set()
        return rows

    with ThreadPoolExecutor() as threads:
        lost, kept = threads.submit(work, "lost", ours), threads.submit(work, "kept", others)
        try:
            for name in ("lost", "kept"):
                until(f"the job of {name}", (tmp_path / f"{name}.began").exists, seconds=120)
            with HeldClaim.begin(warm.settings, ours, try_number=2):
                error = lost.exception(timeout=120)
        finally:
            assert not kept.done()
            (tmp_path / "kept.end").touch()
            (tmp_path / "lost.end").touch()
        assert isinstance(error, SparkConnectException)
        assert "OPERATION_CANCELED" in str(error)
        assert kept.result(timeout=120) == 1
    assert [(each.claim_id, each.value) for each in warm.settled("LOST")] == [(others.id, 1)]


def test_a_connection_is_looked_up_for_each_job(warm: Warm, client: SparkSession) -> None:
    (claim,) = warm.claims("LATER", [5])
    with pytest.raises(SettingsMissing, match=r"on the Spark Connect server.*JETSTREAM_SECRET_LATER.*No such file"):
        read_claim(client, claim, connection="later")  # type: ignore[arg-type]
    warm.server.connection("later", warm.settings)
    messages = read_claim(client, claim, connection="later")  # type: ignore[arg-type]
    assert messages.count() == 5
    warm.server.connection("later", replace(warm.settings, password="another"))
    with pytest.raises(SparkConnectException, match="AuthenticationFailed"):
        messages.count()
    warm.server.connection("later", warm.settings)
    assert messages.count() == 5


def text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        content: str = answer.read().decode()
        return content


def test_secrets_are_in_their_files_alone(warm: Warm, client: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    """And not in the server's log, pages, events and command lines, in plans, nor in what the tasks above logged."""
    (claim,) = warm.claims("SHOWN", [5])
    messages = read_claim(client, claim, connection="nats_default")  # type: ignore[arg-type]
    messages.explain(extended=True)
    assert messages.count() == 5
    beyond = replace(claim, sequences=Sequences.of([99]))
    with pytest.raises(SparkConnectException, match="MessagesMissing") as error:
        read_claim(client, beyond, connection="nats_default").count()  # type: ignore[arg-type]
    shown = {"plan": capfd.readouterr().out, "error": str(error.value)}
    assert "JetStream" in shown["plan"] or "jetstream" in shown["plan"]
    (application,) = json.loads(text(f"{warm.page}/api/v1/applications"))
    views = ("environment", "allexecutors", "sql", "stages?details=true&status=failed")
    api = [f"api/v1/applications/{application['id']}/{each}" for each in views]
    pages = [f"{each}/" for each in ("jobs", "stages", "environment", "executors", "SQL", "connect")]
    shown |= {page: text(f"{warm.page}/{page}") for page in (*pages, *api)}
    processes = session(warm.server.pid)
    shown |= {f"command line of {each.pid}": " ".join(command(each)) for each in processes}
    files = [path for path in (*warm.folder.rglob("*"), *warm.events.rglob("*")) if path.is_file()]
    public = [path for path in files if not path.is_relative_to(warm.server.connections)]
    shown |= {str(path): path.read_bytes().decode(errors="replace") for path in public}
    assert "Session" in shown[str(warm.server.log)]
    assert any("MessagesMissing" in shown[str(path)] for path in public if path.is_relative_to(warm.events))
    planted = (str(warm.settings.password), warm.server.token)
    assert [name for name, text in shown.items() if any(secret in text for secret in planted)] == []
    # The search can find: the files of the connections have the password, and the server's environment the token.
    assert all(planted[0] in path.read_text() and path.stat().st_mode & 0o077 == 0 for path in set(files) - set(public))
    assert planted[1] in str(processes[0].environ())
    assert not any(planted[0] in str(process.environ()) for process in processes)
