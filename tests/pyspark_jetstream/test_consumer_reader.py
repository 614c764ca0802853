"""A streaming query that acknowledges, on a real Spark: what is committed, repeated, refused and acknowledged."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from demo.nats_server import NatsServer
from demo.service import until
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import InvalidValue
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from jetstream_handoff.errors import CheckpointRefused, ConsumerReserved, ConsumerUnsuitable
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from pyspark_jetstream import DefaultSource, compat
from pyspark_jetstream.consumer_reader import JetStreamConsumerReader
from tests.pyspark_jetstream.streaming import begin, run_to_the_end

GIVEN = {"servers": "nats://127.0.0.1:4222", "stream": "S", "consumer": "c"}


def publish(settings: ConnectionSettings, stream: str, count: int) -> None:
    publish_all(settings, ((f"{stream}.x", b"%d" % number) for number in range(count)))


def load(spark: SparkSession, servers: str, stream: str, **options: str) -> DataFrame:
    given = {"servers": servers, "stream": stream, "consumer": "revenue", "maxOffsetsPerTrigger": "100"} | options
    return spark.readStream.format("jetstream").options(**given).load()


def to_files(messages: DataFrame, folder: Path) -> DataStreamWriter:
    rows = messages.select("sequence")
    return rows.writeStream.format("parquet").option("checkpointLocation", f"{folder}/state")


def sequences(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(row.sequence for row in spark.read.parquet(f"{folder}/out").collect())


async def waiting(stream: Stream) -> tuple[int, int, int]:
    """How many messages are in the stream, pending and unacknowledged."""
    info = await stream.consumer("revenue").info(patience=60)
    return (await stream.info(patience=60)).state["messages"], info.pending, info.ack_pending


async def until_acknowledged(stream: Stream) -> None:
    """Wait until a query has acknowledged all messages."""
    last = (await stream.info(patience=60)).state["last_seq"]
    async with asyncio.timeout(240):
        while (await stream.consumer("revenue").info(patience=60)).floor < last:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)


async def test_what_is_committed_is_acknowledged_and_an_older_checkpoint_is_refused(
    spark: SparkSession, settings: ConnectionSettings, tmp_path: Path
) -> None:
    """Four queries on a work queue, one after the other, because a query takes seconds to start."""
    async with connect(settings) as js:
        config = {"name": f"W{tmp_path.name}".replace("-", "_"), "retention": "workqueue", "allow_direct": True}
        stream = await js.create_stream({**config, "subjects": [f"{config['name']}.>"]})
        messages = load(spark, settings.servers[0], stream.name)
        publish(settings, stream.name, 250)
        run_to_the_end(to_files(messages, tmp_path), f"{tmp_path}/out")
        assert sequences(spark, tmp_path) == [*range(1, 251)]
        assert await waiting(stream) == (0, 0, 0)

        shutil.copytree(tmp_path, tmp_path / "copy")
        publish(settings, stream.name, 50)
        run_to_the_end(to_files(messages, tmp_path), f"{tmp_path}/out")
        assert sequences(spark, tmp_path) == [*range(1, 301)]
        assert await waiting(stream) == (0, 0, 0)

        publish(settings, stream.name, 50)
        with pytest.raises(Exception, match=r"committed 3 batches, .* 4 were committed: it is an older copy"):
            run_to_the_end(to_files(messages, tmp_path / "copy"), f"{tmp_path}/copy/out")
        with pytest.raises(Exception, match="is reserved for reader"):
            run_to_the_end(to_files(messages, tmp_path / "other"), f"{tmp_path}/other/out")
        taking = Taking(stream=stream.name, consumer="revenue", owner=("dag",), max_messages=10)
        async with connect(ConnectionSettings(servers=settings.servers)) as same_ledger:
            with pytest.raises(ConsumerReserved):
                await Take(same_ledger, taking).look()
        assert (await waiting(stream))[0] == 50
        await stream.delete()


async def test_a_batch_that_fails_is_repeated_with_the_same_messages_and_then_acknowledged(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path
) -> None:
    publish(settings, stream.name, 150)
    seen: dict[int, list[list[int]]] = {}

    def work(batch: DataFrame, number: int) -> None:
        seen.setdefault(number, []).append(sorted(row.sequence for row in batch.collect()))
        if len(seen) == 2 and len(seen[number]) == 1:
            raise RuntimeError("the second batch fails")

    writer = load(spark, settings.servers[0], stream.name).writeStream.foreachBatch(work)
    writer = writer.option("checkpointLocation", f"{tmp_path}/state")
    with pytest.raises(Exception, match="the second batch fails"):
        run_to_the_end(writer)
    (committed,), (failed,) = seen.values()  # 100 and 50, or fewer on a busy machine
    try:
        async with asyncio.timeout(60):  # what has failed is not acknowledged, and what is committed is
            while sum((await waiting(stream))[1:]) != 150 - len(committed):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"{len(committed)} messages are committed, {len(failed)} failed: {await waiting(stream)}")
    publish(settings, stream.name, 20)
    run_to_the_end(writer)
    first, second, *others = seen.values()
    assert (first, second) == ([committed], [failed, failed])
    later = [sequence for runs in others for run in runs for sequence in run]
    assert sorted([*committed, *failed, *later]) == [*range(1, 171)]
    assert (await waiting(stream))[1:] == (0, 0)


@pytest.mark.slow
async def test_a_query_with_two_sources_and_state(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path
) -> None:
    """Each source has its consumer. The state has each message once, also those of a batch that is repeated."""
    async with connect(settings) as js:
        config = {"name": f"{stream.name}B", "subjects": [f"{stream.name}B.>"], "allow_direct": True}
        other = await js.create_stream({**config, "retention": "workqueue"})
        counts: dict[str, int] = {}
        failing = [1]

        def work(batch: DataFrame, _: int) -> None:
            counts.update({row.stream: row["count"] for row in batch.collect()})
            if failing and sum(counts.values()) > 100:
                failing.clear()
                raise RuntimeError("the sink fails")

        both = load(spark, settings.servers[0], stream.name).union(load(spark, settings.servers[0], other.name))
        writer = both.groupBy("stream").count().writeStream.outputMode("update").foreachBatch(work)
        writer = writer.option("checkpointLocation", f"{tmp_path}/state")
        publish(settings, stream.name, 250)
        publish(settings, other.name, 30)
        with pytest.raises(Exception, match="the sink fails"):
            run_to_the_end(writer)
        publish(settings, other.name, 100)
        run_to_the_end(writer)
        assert counts == {stream.name: 250, other.name: 130}
        assert (await waiting(stream))[1:] == (0, 0)
        assert await waiting(other) == (0, 0, 0)
        await other.delete()


@pytest.mark.slow  # the test of what is committed shows daily that a query acknowledges
async def test_a_query_that_goes_on_acknowledges_and_one_that_tracks_its_progress_asynchronously_is_refused(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path
) -> None:
    """A query that goes on shows that it waits for its logs with an empty micro-batch after its first one. The other
    one is refused before any message is acknowledged, also if it begins with what an earlier run has committed. Spark
    cannot start a query again in this session after that, because it fails to end it."""
    refused = r"asyncProgressTrackingEnabled='true': the messages of a micro-batch would be acknowledged before"

    def writer(stream: Stream, *, asynchronous: bool) -> DataStreamWriter:
        publish(settings, stream.name, 5)
        rows = load(spark, settings.servers[0], stream.name).select("sequence").writeStream.format("noop")
        rows = rows.option("checkpointLocation", f"{tmp_path}/{stream.name}")
        return rows.option("asyncProgressTrackingEnabled", str(asynchronous))

    async with connect(settings) as js:
        other = await js.create_stream(
            {"name": f"{stream.name}N", "subjects": [f"{stream.name}N.>"], "allow_direct": True}
        )
        with pytest.raises(Exception, match=refused):
            begin(writer(other, asynchronous=True)).awaitTermination()
        assert (await waiting(other))[1:] == (0, 5)

    query = begin(writer(stream, asynchronous=False))
    await until_acknowledged(stream)
    publish(settings, stream.name, 5)
    await until_acknowledged(stream)
    query.stop()
    with pytest.raises(Exception, match=refused):
        begin(writer(stream, asynchronous=True)).awaitTermination()
    assert (await waiting(stream))[1:] == (0, 5)


@pytest.mark.parametrize("trigger", [{"continuous": "1 second"}, {"realTime": "5 seconds"}])
def test_a_trigger_without_micro_batches_is_refused_by_spark(
    spark: SparkSession, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    writer = load(spark, "nats://127.0.0.1:1", "S").writeStream.format("noop").trigger(**trigger)
    with pytest.raises(Exception, match=r"continuous|REAL_TIME"):
        writer.outputMode("update").option("checkpointLocation", f"{tmp_path}/state").start().awaitTermination()


async def test_a_folder_with_batches_of_another_query_is_noticed(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path
) -> None:
    """Spark's file sink skips batches whose numbers it has, without an error, and does not even plan them."""
    publish(settings, stream.name, 5)
    plain = {"servers": settings.servers[0], "stream": stream.name, "startingOffsets": "earliest"}
    before = spark.readStream.format("jetstream").options(**plain).load()
    run_to_the_end(to_files(before, tmp_path / "before"), f"{tmp_path}/out")
    with pytest.raises(Exception, match=r"batch 1 is committed, but none of its messages were read"):
        run_to_the_end(to_files(load(spark, settings.servers[0], stream.name), tmp_path), f"{tmp_path}/out")
    assert (await waiting(stream))[2] == 5


SCRIPT = """
import sys
from pathlib import Path
from pyspark_jetstream import spark_session
from tests.pyspark_jetstream.streaming import begin
from tests.pyspark_jetstream.test_consumer_reader import load, to_files

servers, folder = sys.argv[1:]
spark = spark_session(master="local[2]", config={"spark.ui.enabled": "false", "spark.log.level": "FATAL"})
begin(to_files(load(spark, servers, "S"), Path(folder)), f"{folder}/out").awaitTermination()
"""


@pytest.mark.slow
def test_a_driver_killed_and_started_again_gives_the_exact_set_and_acknowledges_it(
    spark: SparkSession, tmp_path: Path, spark_environment: None
) -> None:
    """It takes longer than 5 s, because a driver is started in a separate process, so that it can be killed with all
    that Spark has started."""
    server = NatsServer(tmp_path / "server")
    server.start()
    settings = ConnectionSettings(servers=server.url, shortest_ack_wait=1)
    consumer = {"durable_name": "revenue", "ack_policy": "explicit", "ack_wait": timedelta(seconds=60)}

    async def create() -> None:
        async with connect(settings) as js:
            stream = await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
            await stream.create_consumer({**consumer, "max_deliver": -1, "max_ack_pending": 1_000})

    async def left() -> tuple[int, int, int]:
        async with connect(settings) as js:
            return await waiting(js.stream("S"))

    def committed() -> int:
        return len([each for each in (tmp_path / "state" / "commits").glob("*") if each.name.isdigit()])

    try:
        asyncio.run(create())
        publish(settings, "S", 1_000)
        command = [sys.executable, "-c", SCRIPT, server.url, str(tmp_path)]
        with (tmp_path / "driver.log").open("wb") as log:
            process = subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)
        try:
            until("it commits", lambda: committed() >= 3 or process.poll() is not None, seconds=240)
            assert process.poll() is None, (tmp_path / "driver.log").read_text()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert asyncio.run(left())[2] >= 100  # the last batch at least is not acknowledged
        run_to_the_end(to_files(load(spark, server.url, "S"), tmp_path), f"{tmp_path}/out")
        assert sequences(spark, tmp_path) == [*range(1, 1_001)]
        assert asyncio.run(left()) == (1_000, 0, 0)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"claim": "{}"}, "claim"),
        ({"subjects": "S.x"}, "subjects='S.x': leave it out with the option 'consumer'"),
        ({"startingOffsets": "earliest"}, "startingOffsets"),
        ({"startingTimestamp": "2026-11-21T03:00:00Z"}, "startingTimestamp"),
        ({"endingOffsets": "7"}, "endingOffsets"),
        ({"minOffsetsPerTrigger": "7"}, "minOffsetsPerTrigger"),
        ({"failOnDataLoss": "false"}, "failOnDataLoss"),
        ({"missing": "skip"}, "missing"),
        ({"maxOffsetsPerTrigger": "100001"}, "maxOffsetsPerTrigger.*from 1 to 100000"),
        ({"consumer": "a.b"}, "consumer"),
        ({"replaces": "x"}, "replaces='x': give the id of a reader"),
    ],
)
def test_bad_options_are_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        DefaultSource({**GIVEN, **options}).streamReader(StructType())


def test_a_reader_to_replace_needs_a_consumer() -> None:
    given: dict[str, Any] = {**GIVEN, "replaces": "0" * 16}
    del given["consumer"]
    with pytest.raises(InvalidValue, match="it belongs to the option 'consumer'"):
        DefaultSource(given).streamReader(StructType())


@pytest.mark.parametrize(
    ("options", "offset", "problem"),
    [
        (GIVEN, {"stream": "T", "consumer": "c"}, "it belongs to consumer 'c', stream 'T'. Give the query a new check"),
        (GIVEN, {"stream": "S", "consumer": "d"}, "it belongs to consumer 'd', stream 'S'. Give the query a new check"),
        (GIVEN, {"stream": "S", "sequence": 7}, "it belongs to a query without a consumer. Give the query a new check"),
        (
            {name: value for name, value in GIVEN.items() if name != "consumer"},
            {"stream": "S", "consumer": "c", "reader": "0" * 16, "batch": 0},
            "consumer=None: the checkpoint belongs to a query with consumer 'c'; give this option, or another",
        ),
    ],
    ids=["another stream's", "another consumer's", "without a consumer", "with a consumer"],
)
def test_a_checkpoint_of_another_query_is_refused(
    options: dict[str, str], offset: dict[str, Any], problem: str
) -> None:
    """Before a connection is made."""
    for call in ("latestOffset", "partitions"):
        reader: Any = DefaultSource(options).streamReader(StructType())
        with pytest.raises((CheckpointRefused, InvalidValue), match=problem):
            getattr(reader, call)(offset, offset | {"_": 1} if call == "partitions" else compat.ReadMaxRows(1))


def test_a_batch_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"consumer='c': a batch has no checkpoint .* use spark.readStream"):
        DefaultSource(GIVEN).reader(StructType())


def test_a_spark_that_does_not_say_what_is_committed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "ADMISSION_CONTROL", False)
    with pytest.raises(InvalidValue, match=rf"Spark {pyspark.__version__} does not tell .* needs Spark 4.2"):
        DefaultSource(GIVEN).streamReader(StructType())


def test_a_driver_without_the_dependencies_is_told_where_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors have only pyspark, pyarrow and this package, and their Python may also plan the query."""
    monkeypatch.delitem(sys.modules, "pyspark_jetstream.reader_thread", raising=False)
    monkeypatch.setitem(sys.modules, "anyio.from_thread", None)
    reader: Any = DefaultSource(GIVEN).streamReader(StructType())
    with pytest.raises(ModuleNotFoundError, match=r"needs anyio.*: install this package with .* in .*python"):
        reader.latestOffset(reader.initialOffset(), compat.ReadMaxRows(1))


@pytest.mark.parametrize(
    ("given", "named"),
    [({"maxOffsetsPerTrigger": "1001"}, "maxOffsetsPerTrigger=1001"), ({}, "maxOffsetsPerTrigger, whose default is")],
)
async def test_a_consumer_that_is_too_small_is_refused_with_the_option_of_the_query(
    settings: ConnectionSettings, stream: Stream, given: dict[str, str], named: str
) -> None:
    """As one that was created by hand, with the server's default."""
    config = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": timedelta(seconds=60), "max_deliver": -1}
    await stream.create_consumer({**config, "max_ack_pending": 1_000})
    options = {"servers": settings.servers[0], "stream": stream.name, "consumer": "c", **given}
    reader: Any = DefaultSource(options).streamReader(StructType())
    told = rf"max_ack_pending=1000: .*max_messages is the option {named}.* another consumer needs a new checkpointLoc"
    with pytest.raises(ConsumerUnsuitable, match=told):
        await asyncio.to_thread(reader.latestOffset, reader.initialOffset(), compat.ReadMaxRows(1))
    await asyncio.to_thread(reader.stop)


def test_the_trigger_once_is_refused() -> None:
    """It needs no server: Spark asks for all that is available."""
    reader = DefaultSource(GIVEN).streamReader(StructType())
    assert isinstance(reader, JetStreamConsumerReader)
    start = reader.initialOffset()
    assert reader.initialOffset() == start
    assert reader.partitions(start, start) == []
    with pytest.raises(InvalidValue, match=r"trigger='once'.* use the trigger availableNow"):
        reader.latestOffset(start, compat.ReadAllAvailable())
