"""A data source whose processes are killed at a point of a micro-batch, and queries that go on after that.

A point is written to a file, the mark. The first process that reaches the point removes the mark, and kills itself, or
the whole session if the mark also names its process group.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_all
from jetstream_client.sequences import Sequences
from jetstream_handoff.hold import settle
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_tables import DeltaTable
from pyspark_jetstream import DefaultSource, append_batch
from pyspark_jetstream.compat import ReadLimit
from pyspark_jetstream.consumer_reader import JetStreamConsumerReader
from pyspark_jetstream.options import Options
from tests.pyspark_jetstream.streaming import begin, run_to_the_end

POINTS = (
    "after the take",
    "after the offset log",
    "in read",
    "after the sink, before the commit log",
    "after the commit log",
    "after the decision, before acknowledging",
    "after acknowledging",
)
RETENTIONS = ("limits", "interest", "workqueue")
SINKS = ("files", "delta")
BATCH = 100
CONSUMER = "revenue"


class DyingSource(DefaultSource):
    """The data source with the option ``folder``, in which the mark and the checkpoint are."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = dict(self.options)
        folder = Path(options.pop("folder"))
        return _DyingReader(Options.parse(options), schema, folder)


class _DyingReader(JetStreamConsumerReader):
    def __init__(self, options: Options, schema: StructType, folder: Path) -> None:
        super().__init__(options, schema)
        self._folder = folder
        self._watched = False

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        self._watch()
        if start["batch"]:
            self._may_die("after the commit log")
        end = super().latestOffset(start, limit)
        if end != start:
            self._may_die("after the take")
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start != end:
            self._may_die("after the offset log")
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for each in super().read(partition):
            yield each
            self._may_die("in read")
        if self._removed("after the sink, before the commit log") is not None:
            commits = self._folder / "state" / "commits"
            commits.rename(commits.with_name("kept"))
            commits.touch()  # a file, into which nothing can be written

    def _watch(self) -> None:
        acknowledge = settle._acknowledge

        async def dying(*arguments: Any) -> Sequences:
            self._may_die("after the decision, before acknowledging")
            left = await acknowledge(*arguments)
            self._may_die("after acknowledging")
            return left

        if not self._watched:
            self._watched = True
            settle._acknowledge = dying  # type: ignore[assignment]

    def _may_die(self, point: str) -> None:
        if (group := self._removed(point)) is not None:
            if group:
                os.killpg(int(group), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def _removed(self, point: str) -> str | None:
        """Remove the mark if it names the point. Returns the process group that it names."""
        mark = self._folder / "mark"
        with suppress(FileNotFoundError):
            named, _, group = mark.read_text().partition("\n")
            if named == point:
                mark.unlink()  # only one process succeeds
                return group
        return None


@dataclass(frozen=True)
class Chain:
    """A query that is killed at one point after the other.

    retention, sink:  as in RETENTIONS and SINKS.
    folder:  where its checkpoint and its output are.
    connection:  the name of its connection in the environment.
    """

    retention: str
    sink: str
    folder: Path
    connection: str

    @property
    def stream(self) -> str:
        return f"K{self.folder.name}{self.retention}{self.sink}".replace("-", "_")

    @property
    def settings(self) -> ConnectionSettings:
        return ConnectionSettings.from_environment(self.connection)

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(str(self.folder / "table"))

    def create(self) -> None:
        """Create its stream and its consumer."""

        async def create() -> None:
            async with connect(self.settings) as js:
                config = {"name": self.stream, "subjects": [f"{self.stream}.>"], "allow_direct": True}
                stream = await js.create_stream({**config, "retention": self.retention})
                consumer = {"durable_name": CONSUMER, "ack_policy": "explicit", "max_deliver": -1}
                await stream.create_consumer(
                    {**consumer, "ack_wait": timedelta(seconds=10), "max_ack_pending": 10 * BATCH}
                )

        asyncio.run(create())

    def publish(self, count: int) -> None:
        publish_all(self.settings, ((f"{self.stream}.x", b"%d" % number) for number in range(count)))

    def mark(self, point: str, group: int | None = None) -> None:
        """Let a process die at this point, or the whole process group.

        The mark appears whole."""
        new = self.folder / "new"
        new.write_text(f"{point}\n{group or ''}")
        new.rename(self.folder / "mark")

    def run(self, spark: SparkSession) -> None:
        """Process all messages that are available now."""
        spark.dataSource.register(DyingSource)
        run_to_the_end(*self._query(spark))

    def go_on(self, spark: SparkSession) -> None:
        """Process messages as they arrive, until the query fails."""
        spark.dataSource.register(DyingSource)
        begin(*self._query(spark)).awaitTermination()

    def restore(self) -> None:
        """Let the commit log be written again."""
        commits = self.folder / "state" / "commits"
        if commits.is_file():
            commits.unlink()
            commits.with_name("kept").rename(commits)

    def _query(self, spark: SparkSession) -> tuple[DataStreamWriter, str | None]:
        given = {"connection": self.connection, "stream": self.stream, "consumer": CONSUMER}
        messages = spark.readStream.format("dying").options(**given, folder=str(self.folder))
        rows = messages.option("maxOffsetsPerTrigger", str(BATCH)).load().select("stream", "sequence", "timestamp")
        writer = rows.writeStream.option("checkpointLocation", f"{self.folder}/state")
        if self.sink == "files":
            return writer.format("parquet"), f"{self.folder}/out"
        table = self.table

        def work(batch: DataFrame, _: int) -> None:
            append_batch(table, batch, batch.drop("stream"))

        return writer.foreachBatch(work), None

    def killed_in(self, spark: SparkSession, point: str) -> None:
        """Process what waits, and kill a process at this point; go on until everything is processed."""
        self.mark(point)
        for _ in range(3):
            try:
                self.run(spark)
            except Exception:
                if (self.folder / "mark").exists():
                    raise
                self.restore()
            else:
                break
        if (self.folder / "mark").exists():
            raise AssertionError(f"no process has reached the point {point!r}")

    def check(self, spark: SparkSession, count: int) -> None:
        """Check that each of so many messages is in the output once, and settled once, and that none waits."""
        if self.sink == "files":
            found = [row.sequence for row in spark.read.parquet(f"{self.folder}/out").collect()]
        else:
            import deltalake

            rows = deltalake.DeltaTable(str(self.folder / "table")).to_pyarrow_table(columns=["_sequence"])
            found = rows["_sequence"].to_pylist()
        settled, left = asyncio.run(self._settled())
        expected = Counter(range(1, count + 1))
        wrong = {"output": Counter(found), "settled": settled}
        for what, seen in wrong.items():
            lost, twice = sorted(expected - seen), sorted(seen - expected)
            if lost or twice:
                raise AssertionError(f"{what}: {len(lost)} lost {lost[:9]}, {len(twice)} too often {twice[:9]}")
        if left != ((count if self.retention == "limits" else 0), 0, 0):
            raise AssertionError(f"in the stream, pending, unacknowledged: {left}")

    async def _settled(self) -> tuple[Counter[int], tuple[int, int, int]]:
        async with connect(self.settings) as js:
            receipts = await Ledger(js, self.stream, CONSUMER).committed()
            stream = js.stream(self.stream)
            info = await stream.consumer(CONSUMER).info()
            left = int((await stream.info()).state["messages"]), info.pending, info.ack_pending
            return Counter(each for receipt in receipts for each in receipt.sequences), left
