"""Writing on a real Spark: the stream contains each row once in spite of kills, or an error names the problem."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Self

import psutil
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from demo.service import until
from jetstream_client import ConnectionSettings, connect
from jetstream_client.stream import Stream
from jetstream_client.wire.blocking import Wire
from tests.pyspark_jetstream.streaming import run_to_the_end
from tests.slow import beyond

ROWS = int(os.environ.get("ROWS", "12000"))
"""Rows of the job whose tasks are killed. For a long run use ``ROWS=1000000 pytest … -k killed``."""

Batches = Iterator[pa.RecordBatch]


def write(rows: DataFrame, settings: ConnectionSettings, stream: str, **options: str) -> None:
    rows.write.format("jetstream").options(servers=settings.servers[0], stream=stream, **options).mode("append").save()


async def counted(stream: Stream) -> Counter[bytes]:
    """Return how many times the stream contains each payload."""
    messages = (await stream.info(patience=60)).state["messages"]
    reader = await stream.create_consumer({"ack_policy": "none"})
    counter: Counter[bytes] = Counter()
    while counter.total() < messages:
        counter.update(message.data for message in await reader.fetch(min(10_000, messages - counter.total())))
    return counter


class Held:
    """Return a function that counts the messages of a stream, over one connection."""

    def __init__(self, settings: ConnectionSettings, stream: str) -> None:
        self._wire = Wire.open(settings)
        self._stream = stream

    def __call__(self) -> int:
        return int(self._wire.api(f"STREAM.INFO.{self._stream}")["state"]["messages"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()


def contents(spark: SparkSession, stream: Stream, rows: int, size: int = 128) -> DataFrame:
    """Return four equal rows of each content, two in each of two partitions."""
    content = f"id % {rows // 4}"
    return spark.range(0, rows, 1, 2).selectExpr(
        f"concat('{stream.name}.', {content} % 7) as subject", f"lpad({content}, {size}, '0') as data"
    )


@contextmanager
def batches_of(spark: SparkSession, rows: int) -> Iterator[None]:
    """Spark passes rows on in Arrow batches of 10,000. An incomplete one waits for the end of its partition."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", rows)
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def in_another_order(folder: Path, stops: int) -> Callable[[Batches], Batches]:
    """Rows in an order of each attempt's own. The first ``stops`` attempts get no further than three quarters: they
    say so with a file, and wait for the kill."""

    def shuffled(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        attempt = context.attemptNumber()
        (folder / f"begun-{attempt}-{context.partitionId()}").touch()
        rows = pa.Table.from_batches(list(batches))
        order = list(range(rows.num_rows))
        random.Random(f"{context.partitionId()} {attempt}").shuffle(order)
        mixed = rows.take(pa.array(order))
        if attempt < stops:
            yield from mixed.slice(0, rows.num_rows * 3 // 4).to_batches(max_chunksize=rows.num_rows // 20)
            (folder / f"{attempt}-{context.partitionId()}").touch()
            time.sleep(300)
        yield from mixed.to_batches(max_chunksize=1_000)

    return shuffled


def kill_workers() -> None:
    """Return all Python workers of Spark, without the daemon that starts them."""
    for daemon in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # this may be a zombie
            if "pyspark.daemon" in daemon.cmdline():
                for worker in daemon.children():
                    worker.kill()


async def test_killed_tasks_and_rows_in_another_order_store_each_once(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path
) -> None:
    rows = contents(spark, stream, ROWS)
    mixed = rows.mapInArrow(in_another_order(tmp_path, stops=2), rows.schema)

    def strike() -> tuple[int, int]:
        with Held(settings, stream.name) as held:
            until("both have begun", lambda: len(list(tmp_path.glob("begun-0-*"))) == 2, seconds=300, every=0.02)
            until("they publish", lambda: held() > ROWS / 10, seconds=300, every=0.02)
            kill_workers()
            first = held()
            until("both wait", lambda: len(list(tmp_path.glob("1-*"))) == 2, seconds=300)
            until(
                "all sent is stored", lambda: held() > max(first, ROWS * 6 // 10), seconds=300
            )  # of other occurrences
            kill_workers()
            return first, held()

    with ThreadPoolExecutor() as threads, batches_of(spark, 500):
        struck = threads.submit(strike)
        write(mixed, settings, stream.name)
        first, second = struck.result()
    assert ROWS / 10 < first < second < ROWS
    counts = await counted(stream)
    assert (len(counts), set(counts.values())) == (ROWS // 4, {4})


@pytest.mark.slow
async def test_a_task_that_runs_again_after_the_duplicate_window_stores_nothing_twice(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path
) -> None:
    await stream.update({"duplicate_window": 100_000_000})
    rows = contents(spark, stream, 400, 10_000)
    mixed = rows.mapInArrow(in_another_order(tmp_path, stops=1), rows.schema)

    def strike() -> int:
        with Held(settings, stream.name) as held:
            until("both wait", lambda: len(list(tmp_path.glob("0-*"))) == 2, seconds=300)
            until("some is stored", lambda: held() > 100, seconds=300)
            time.sleep(0.5)
            kill_workers()
            return held()

    with ThreadPoolExecutor() as threads, batches_of(spark, 10):
        struck = threads.submit(strike)
        write(mixed, settings, stream.name)
        assert 100 < struck.result() < 400
    counts = await counted(stream)
    assert (len(counts), set(counts.values())) == (100, {4})


@pytest.mark.parametrize("accept", ["false", "true"])
async def test_a_task_that_cannot_look_is_refused_or_may_send_twice(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, accept: str
) -> None:
    """A work queue without direct get cannot be read without consuming it; its window of ids is very short."""
    name = f"{stream.name}Q"
    config = {"name": name, "subjects": [f"{name}.>"], "retention": "workqueue", "duplicate_window": 100_000_000}
    queue = await stream.js.create_stream(config)
    rows = contents(spark, queue, 400, 10_000).coalesce(1)

    def broken(batches: Batches) -> Batches:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            with Held(settings, name) as held:
                until("the writer has some", lambda: held() > 0, seconds=20)
            raise RuntimeError("broken")

    refused = nullcontext() if accept == "true" else pytest.raises(Exception, match="DuplicatesPossible")
    with batches_of(spark, 10), refused:
        write(rows.mapInArrow(broken, rows.schema), settings, name, acceptDuplicates=accept)
    stored = (await queue.info(patience=60)).state["messages"]
    assert stored > 400 if accept == "true" else 0 < stored <= 400
    await queue.delete()


async def test_two_jobs_store_their_rows_both(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream
) -> None:
    rows = contents(spark, stream, 400)
    write(rows, settings, stream.name)
    write(rows, settings, stream.name)
    assert set((await counted(stream)).values()) == {8}


@pytest.mark.slow
async def test_a_restarted_query_stores_its_batch_once(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path
) -> None:
    await stream.update({"duplicate_window": 3600 * 10**9})
    rows = contents(spark, stream, 400, 10_000)
    rows.write.parquet(str(tmp_path / "rows"))
    repaired, name = tmp_path / "repaired", stream.name

    def broken(batches: Batches) -> Batches:
        table = pa.Table.from_batches(list(batches))
        mixed = table.take(pa.array(random.sample(range(table.num_rows), table.num_rows)))
        yield from mixed.slice(0, table.num_rows * 3 // 4).to_batches(max_chunksize=10)
        if not repaired.exists():
            with suppress(TimeoutError), Held(settings, name) as held:  # the last rows wait in Spark's buffers
                until("the writer has some", lambda: held() > 50, seconds=5)
            raise RuntimeError("broken")
        yield from mixed.slice(table.num_rows * 3 // 4).to_batches()

    def run() -> None:
        messages = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "rows"))
        written = messages.mapInArrow(broken, rows.schema).writeStream.format("jetstream").queryName("q")
        options = {"stream": stream.name, "checkpointLocation": str(tmp_path / "checkpoint")}
        run_to_the_end(written.options(servers=settings.servers[0], **options))

    with batches_of(spark, 10), pytest.raises(Exception, match="broken"):
        run()
    assert 0 < (await stream.info(patience=60)).state["messages"] < 400
    repaired.touch()
    run()
    for commit in (tmp_path / "checkpoint" / "commits").iterdir():
        commit.unlink()  # the state that a driver leaves if it is killed when its tasks have published everything
    run()
    assert list((tmp_path / "checkpoint" / "commits").glob("0"))
    counts = await counted(stream)
    assert (len(counts), set(counts.values())) == (100, {4})


async def test_the_second_batch_of_a_query_is_another(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path
) -> None:
    rows = contents(spark, stream, 40)
    for _ in range(2):
        rows.coalesce(1).write.mode("append").parquet(str(tmp_path / "rows"))
        messages = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "rows"))
        written = messages.writeStream.format("jetstream").option("checkpointLocation", str(tmp_path / "checkpoint"))
        run_to_the_end(written.options(servers=settings.servers[0], stream=stream.name))
    assert set((await counted(stream)).values()) == {8}


async def test_headers_and_ids(spark: SparkSession, settings: ConnectionSettings, stream: Stream) -> None:
    schema = "subject STRING, data BINARY, headers MAP<STRING, ARRAY<STRING>>, msg_id STRING"
    name = stream.name
    rows: list[tuple[str, bytes, dict[str, list[str]] | None, str | None]] = [
        (f"{name}.a", b"\x00\xff", {"K": ["1", "2"], "Nats-Msg-Id": ["not this"]}, "first"),
        (f"{name}.a", b"another with the same id", None, "first"),
        (f"{name}.b", b"", {"Nats-Msg-Id": ["of the headers"]}, None),
        (f"{name}.c", b"", None, None),
        (f"{name}.c", b"", None, None),
    ]
    write(spark.createDataFrame(rows, schema).coalesce(1), settings, name)
    stored = [await stream.get_message(sequence) for sequence in range(1, 5)]
    assert (await stream.info()).state["messages"] == 4
    assert [(each.subject, each.data) for each in stored] == [
        (f"{name}.a", b"\x00\xff"),
        (f"{name}.b", b""),
        (f"{name}.c", b""),
        (f"{name}.c", b""),
    ]
    assert stored[0].headers["K"] == ["1", "2"]
    ids = [each.headers["Nats-Msg-Id"] for each in stored]
    assert ids[:2] == [["first"], ["of the headers"]]
    assert ids[2] != ids[3]
    flat = spark.createDataFrame(
        [(f"{name}.d", "text", {"K": "1"})], "subject STRING, data STRING, headers MAP<STRING, STRING>"
    )
    write(flat, settings, name)
    last = await stream.get_message(5)
    assert (last.data, last.headers["K"]) == (b"text", ["1"])


async def test_what_was_written_is_what_is_read(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream
) -> None:
    rows = contents(spark, stream, 25_000)
    write(rows, settings, stream.name, acceptDuplicates="true")
    read = spark.read.format("jetstream").options(servers=settings.servers[0], stream=stream.name).load()
    assert read.selectExpr("subject", "cast(data as string)").exceptAll(rows).count() == 0
    assert read.count() == 25_000


NO_MESSAGES = [
    ("cast(null as string) as subject, 'x' as data", r"subject=None: row 1 of partition 0"),
    ("'{}.*' as subject, 'x' as data", r"subject='{}\.\*': must not contain the wildcards"),
    ("'{}.a' as subject, cast(null as binary) as data", r"data=None: row 1 of partition 0"),
    ("'elsewhere.a' as subject, 'x' as data", r"subject='elsewhere.a': stream '{}' does not listen on this"),
    ("concat('{}.', repeat('x', 4000)) as subject, 'x' as data", "at most 3840 bytes, but this one has 4010"),
    ("'{}.a' as subject, repeat('x', 2000000) as data", r"data='2\d* bytes': .*at most 1048576 bytes"),
    ("'{}.a' as subject, 'x' as data, ' ' as msg_id", r"msg_id=' ': an id must not be empty"),
    (
        "'{}.a' as subject, 'x' as data, map('K', cast(null as string)) as headers",
        r"headers\['K'\]=None: a header needs values",
    ),
]


@pytest.mark.parametrize(("row", "named"), beyond(2, NO_MESSAGES))
async def test_a_row_that_is_no_message_is_named(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, row: str, named: str
) -> None:
    name = stream.name
    good = spark.sql(f"select '{name}.a' as subject, 'good' as data")
    bad = spark.sql(f"select {row.replace('{}', name)}")
    rows = good.unionByName(bad, allowMissingColumns=True).coalesce(1)
    with pytest.raises(Exception, match=named.replace("{}", name)):
        write(rows, settings, name)
    stored = await counted(stream)
    assert set(stored) <= {b"good"}
    if "None: row" in named:
        assert not stored


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ("'s' as subject", r"schema='struct<subject:string>': the column 'data' is missing"),
        (
            "'s' as subject, 1 as data",
            r"schema='data int': drop or cast this column; the columns are subject string, data binary or string",
        ),
        (
            "'s' as subject, 'x' as data, 's' as stream",
            r"schema='stream string': the server sets this, so it cannot be written; drop this column",
        ),
    ],
)
async def test_other_columns_are_named(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, columns: str, named: str
) -> None:
    with pytest.raises(Exception, match=named):
        write(spark.sql(f"select {columns}"), settings, stream.name)
    assert (await stream.info()).state["last_seq"] == 0


@pytest.mark.parametrize(
    ("options", "named"),
    beyond(
        3,
        [
            ({"stream": "S"}, "servers"),
            ({"servers": "nats://127.0.0.1:4222"}, "stream"),
            ({"servers": "nats://u:hidden@127.0.0.1:4222", "stream": "S"}, "servers"),
            ({"connection": "unknown", "stream": "S"}, "JETSTREAM_SECRET_UNKNOWN"),
            ({"connection": "nats_tests", "stream": "a.b"}, "stream"),
            ({"connection": "nats_tests", "stream": "MISSING"}, "stream='MISSING': .*create it first"),
            ({"connection": "nats_tests", "stream": "S", "password": "hidden"}, "credentials"),
            ({"connection": "nats_tests", "stream": "S", "startingOffsets": "1"}, "(?i)startingOffsets"),
            ({"connection": "nats_tests", "stream": "S", "acceptDuplicates": "maybe"}, "give true or false"),
        ],
    ),
)
def test_bad_options_are_named(spark: SparkSession, options: dict[str, str], named: str) -> None:
    rows = spark.sql("select 's' as subject, 'x' as data")
    with pytest.raises(Exception, match=named) as refused:
        rows.write.format("jetstream").options(**options).mode("append").save()
    assert "hidden" not in str(refused.value)


async def test_only_append(spark: SparkSession, settings: ConnectionSettings, stream: Stream) -> None:
    options = {"servers": settings.servers[0], "stream": stream.name}
    writer = contents(spark, stream, 40).write.format("jetstream").options(**options)
    with pytest.raises(Exception, match=r"mode='overwrite': .*use mode append.*purge"):
        writer.mode("overwrite").save()
    for mode in ("error", "ignore"):
        with pytest.raises(Exception, match='use either the "Append"'):
            writer.mode(mode).save()
    assert (await stream.info()).state["last_seq"] == 0


async def test_a_refusal_fails_the_job(spark: SparkSession, settings: ConnectionSettings, stream: Stream) -> None:
    await stream.update({"max_msgs": 500, "discard": "new"})
    write(contents(spark, stream, 400), settings, stream.name)
    with pytest.raises(Exception, match=r"PublishFailed: message \d+ .*maximum messages exceeded"):
        write(contents(spark, stream, 400), settings, stream.name)
    assert (await stream.info()).state["messages"] == 500


async def test_a_connection_of_the_environment_writes_over_tls(spark: SparkSession, secure: ConnectionSettings) -> None:
    async with connect(secure) as js:
        stream = await js.create_stream({"name": "WRITTEN", "subjects": ["WRITTEN.>"]})
        rows = contents(spark, stream, 400)
        rows.write.format("jetstream").options(connection="nats_secure", stream="WRITTEN").mode("append").save()
        assert set((await counted(stream)).values()) == {4}


COMMITS = """
import gc, logging
from pyspark_jetstream import writer
def state():
    loggers = [logging.getLogger(), *map(logging.getLogger, list(logging.root.manager.loggerDict))]
    return gc.get_threshold(), [(each.name, each.level, each.handlers[:]) for each in loggers]
before = state()
writer._committed("ORDERS", "the job", [writer.Written(0, stored=3)])
print(state() == before)
"""


def test_a_commit_is_shown_and_changes_nothing_of_its_process() -> None:
    """Spark commits in a process of its own, which configures no logging."""
    done = subprocess.run([sys.executable, "-c", COMMITS], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "True\n"
    assert "INFO pyspark_jetstream.writer: stream ORDERS contains all 3 messages of the job" in done.stderr
