"""Streaming queries on streams that were restored from an older copy, which uses sequences again, on a real server.

Except in the last test, the source is asked as Spark asks it, without Spark.
"""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

import pyspark_jetstream.stream_reader as module
from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings
from jetstream_client.errors import MessagesMissing, StreamRecreated
from jetstream_client.publish.bulk import publish_all
from jetstream_client.sequences import Sequences
from jetstream_client.wire.blocking import Wire
from pyspark_jetstream.compat import ReadAllAvailable, ReadLimit, ReadMaxRows, _Unlimited
from pyspark_jetstream.options import Options
from pyspark_jetstream.stream_reader import JetStreamStreamReader
from tests.pyspark_jetstream.streaming import run_to_the_end

EVERYTHING = ReadAllAvailable()


class Restorable:
    """A server with one stream, which can be put back to an older copy."""

    def __init__(self, folder: Path) -> None:
        self.server = NatsServer(folder / "server")
        self.server.start()
        self.settings = ConnectionSettings(servers=self.server.url)
        self._copy = folder / "copy"
        self.api("STREAM.CREATE.S", name="S", subjects=["s.>"], storage="file", allow_direct=True)

    def api(self, request: str, **body: Any) -> Any:
        with Wire.open(replace(self.settings, connect_timeout=30)) as wire:
            return wire.api(request, body)

    def publish(self, count: int, subject: str = "s.a") -> None:
        publish_all(self.settings, ((subject, b"x") for _ in range(count)))

    def back_up(self) -> None:
        self.server.stop()
        shutil.copytree(self.server.store, self._copy)
        self.server.start()

    def restore(self) -> None:
        self.server.stop()
        shutil.rmtree(self.server.store)
        shutil.copytree(self._copy, self.server.store)
        self.server.start()

    def query(self, **options: str) -> JetStreamStreamReader:
        """The source of a query. A query that is started again has a new one."""
        given = {"servers": self.server.url, "stream": "S", "startingOffsets": "earliest", **options}
        return JetStreamStreamReader(Options.parse(given), StructType())


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Restorable]:
    made = Restorable(tmp_path)
    yield made
    made.server.stop()


def read(query: DataSourceStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    parts: list[Any] = list(query.partitions(start, end))
    return [sequence for part in parts for sequence in part.value.sequences]


def goes_on(stream: Restorable, start: dict[str, Any], limit: ReadLimit = EVERYTHING) -> list[int]:
    """What a query reads next with failOnDataLoss=false."""
    query = stream.query(failOnDataLoss="false")
    return read(query, start, query.latestOffset(start, limit))


@pytest.mark.parametrize("again", [20, 30, 50], ids=["fewer", "as many", "more"])
def test_messages_that_use_sequences_again_are_not_skipped(stream: Restorable, again: int) -> None:
    """Without the time, the query skipped 30 of them without a word if there were 30 or more."""
    stream.publish(50)
    stream.back_up()
    stream.publish(30)
    query = stream.query()
    end = query.latestOffset(query.initialOffset(), EVERYTHING)
    assert end["sequence"] == 80
    stream.restore()
    stream.publish(again)
    with pytest.raises(StreamRecreated, match=r"'S' .*it was restored from an older copy"):
        stream.query().latestOffset(end, EVERYTHING)
    assert goes_on(stream, end) == list(range(51, 51 + again))


def test_a_restore_is_noticed_although_the_last_message_has_vanished(
    stream: Restorable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CLOCKS", 0)
    stream.publish(50)
    stream.back_up()
    stream.publish(30)
    query = stream.query()
    end = query.latestOffset(query.initialOffset(), EVERYTHING)
    stream.restore()
    stream.publish(50)
    stream.api("STREAM.MSG.DELETE.S", seq=80, no_erase=True)
    with pytest.raises(StreamRecreated, match="has message 51, which is newer than the message 80"):
        stream.query().latestOffset(end, EVERYTHING)
    assert goes_on(stream, end) == [each for each in range(51, 101) if each != 80]


def test_a_batch_that_was_planned_before_the_restore_is_not_read_from_other_messages(stream: Restorable) -> None:
    stream.publish(50)
    query = stream.query()
    start = query.latestOffset(query.initialOffset(), EVERYTHING)
    stream.publish(10)
    stream.back_up()
    stream.publish(20)
    end = query.latestOffset(start, EVERYTHING)
    assert read(query, start, end) == list(range(51, 81))
    stream.restore()
    stream.publish(20)
    with pytest.raises(StreamRecreated, match="has message 80 with time"):
        stream.query().partitions(start, end)
    assert read(stream.query(failOnDataLoss="false"), start, end) == list(range(51, 81))


def test_an_unchanged_stream_is_never_called_restored(stream: Restorable) -> None:
    """Restarts, gaps, deletions of the last message, a purge, and offsets that end in a gap."""
    stream.publish(50)
    for sequence in (10, 20, 21, 50):
        stream.api("STREAM.MSG.DELETE.S", seq=sequence, no_erase=True)
    query = stream.query()
    offset, seen = query.initialOffset(), []
    while (end := query.latestOffset(offset, ReadMaxRows(10))) != offset:
        seen += read(query, offset, end)
        assert end["time"]
        assert query.latestOffset(end, EVERYTHING)["sequence"] == 50
        offset = end
    assert seen == list(Sequences.from_ranges([(1, 49)]) - Sequences.of([10, 20, 21]))
    stream.server.stop()
    stream.server.start()
    assert stream.query().latestOffset(offset, EVERYTHING) == offset
    stream.api("STREAM.PURGE.S")
    assert stream.query().latestOffset(offset, EVERYTHING) == offset
    stream.publish(3)
    stream.api("STREAM.MSG.DELETE.S", seq=52, no_erase=True)
    assert read(stream.query(), offset, stream.query().latestOffset(offset, EVERYTHING)) == [51, 53]


def test_offsets_without_a_time_are_accepted_and_get_one_with_the_next_batch(stream: Restorable) -> None:
    stream.publish(50)
    query = stream.query()
    old = {name: value for name, value in query.reportLatestOffset().items() if name != "time"}
    assert query.latestOffset(old, EVERYTHING) == old  # no batch, because nothing is new
    stream.publish(5)
    end = query.latestOffset(old, EVERYTHING)
    assert (end["sequence"], "time" in end) == (55, True)
    assert read(query, old, end) == [51, 52, 53, 54, 55]


def test_a_stream_that_begins_later_and_is_empty_has_no_time(stream: Restorable) -> None:
    stream.api("STREAM.CREATE.LATER", name="LATER", subjects=["l.>"], allow_direct=True, first_seq=1000)
    query = JetStreamStreamReader(Options.parse({"servers": stream.server.url, "stream": "LATER"}), StructType())
    offset = query.initialOffset()
    assert (offset["sequence"], "time" in offset) == (999, False)
    publish_all(stream.settings, [("l.a", b"x")])
    assert read(query, offset, query.latestOffset(offset, EVERYTHING)) == [1000]


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
@pytest.mark.parametrize("again", [20, 30, 50, None], ids=["fewer", "as many", "more", "recreated"])
def test_without_admission_control_it_is_noticed_when_the_batch_is_planned(
    stream: Restorable, again: int | None, told: bool
) -> None:
    """Spark 4.0 and 4.1 do not say where a batch starts when they ask where it ends. If they tell the source of a query
    that is started again where it has been, by planning an empty batch, that is an error, too."""
    stream.publish(50)
    stream.back_up()
    stream.publish(30)
    query = _Unlimited(stream.query())
    start = query.latestOffset()
    assert read(query, query.initialOffset(), start) == list(range(1, 81))
    assert query.latestOffset() == start  # no batch, because nothing is new
    if again is None:
        stream.api("STREAM.DELETE.S")
        stream.api("STREAM.CREATE.S", name="S", subjects=["s.>"], allow_direct=True)
        stream.publish(80)
    else:
        stream.restore()
        stream.publish(again)

    def next_batch(**options: str) -> list[int]:
        restarted = _Unlimited(stream.query(**options))
        if told:
            restarted.partitions(start, start)
        return read(restarted, start, restarted.latestOffset())

    with pytest.raises(StreamRecreated, match=r"'S' .*(was restored from an older copy|was recreated)"):
        next_batch()
    assert next_batch(failOnDataLoss="false") == list(range(51, 51 + again) if again else range(1, 81))


def test_without_admission_control_a_first_batch_that_is_repeated_begins_where_it_began(stream: Restorable) -> None:
    stream.publish(50)
    end = _Unlimited(stream.query()).latestOffset()
    stream.api("STREAM.PURGE.S", seq=21)
    query = _Unlimited(stream.query())
    with pytest.raises(MessagesMissing, match="sequences 1-20"):
        query.partitions(query.initialOffset(), end)


@pytest.mark.slow
def test_a_query_of_spark_ends_with_the_error(spark: SparkSession, stream: Restorable, tmp_path: Path) -> None:
    def run(**options: str) -> list[int]:
        given = {"servers": stream.server.url, "stream": "S", "startingOffsets": "earliest", **options}
        messages = spark.readStream.format("jetstream").options(**given).load().select("sequence", "timestamp")
        writer = messages.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/state")
        run_to_the_end(writer, f"{tmp_path}/out")
        return sorted(row.sequence for row in spark.read.parquet(f"{tmp_path}/out").collect())

    stream.publish(5)
    stream.back_up()
    stream.publish(3)
    assert run() == [1, 2, 3, 4, 5, 6, 7, 8]
    stream.restore()
    stream.publish(4)
    with pytest.raises(Exception, match=r"StreamRecreated.*message 8 with time .* restored from an older copy"):
        run()
    assert run(failOnDataLoss="false") == sorted([1, 2, 3, 4, 5, 6, 7, 8, 6, 7, 8, 9])
