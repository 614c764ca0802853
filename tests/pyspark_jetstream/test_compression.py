"""Compressed payloads: what is good is the whole decompressed payload, and what is malformed stays as it was."""

import gzip
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from pyspark.sql import SparkSession

from jetstream_arrow.payload.compression import LARGEST
from jetstream_client import ConnectionSettings
from jetstream_client.errors import InvalidValue
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from pyspark_jetstream import decoded
from pyspark_jetstream.compression import Packed, _batches
from tests.pyspark_jetstream.proto_source import descriptor_set
from tests.pyspark_jetstream.streaming import run_to_the_end


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


WRITERS: dict[str, Callable[[bytes], bytes]] = {"gzip": lambda data: gzip.compress(data, mtime=0), "zstd": zstd}
ONE = b'{"id": 1, "name": "one"}'
SKIPPED = bytes.fromhex("502a4d18") + (3).to_bytes(4, "little") + b"abc"  # a skippable frame of zstd


@pytest.mark.parametrize("compression", WRITERS)
def test_each_message_is_whole_or_malformed(spark: SparkSession, compression: Any) -> None:
    write = WRITERS[compression]
    whole, bad = write(ONE), f"cannot be decompressed as {compression}"
    flipped = whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:]  # in the checksum, or the length
    cases: list[tuple[bytes, Any]] = [
        (whole, (1, "one")),
        (write(ONE[:9]) + write(ONE[9:]), (1, "one")),  # members or frames that belong together
        (write(b"") + whole, (1, "one")),
        (write(ONE + ONE), "not a JSON object of the schema"),
        (whole[:-1], bad),
        (whole[:12], bad),
        (whole + b"x", bad),
        (whole + bytes(8), bad),
        (whole + whole[:6], bad),
        (flipped, bad),
        (ONE, bad),
        (write(b""), "empty"),
        (b"", "empty"),
        (write(b'{"id": 2.5}'), "id: 2.5"),
        (write(b"\xff"), "not UTF-8"),
        (write(bytes(LARGEST + 1)), "larger than 64 MiB after decompression"),
        (write(write(ONE)), "not UTF-8"),
    ]
    if compression == "zstd":
        cases.append((SKIPPED + whole, (1, "one")))
    when = datetime(2026, 11, 26, 3, 0, 0, 1, tzinfo=UTC)
    columns = "n INT NOT NULL, data BINARY, at TIMESTAMP, headers MAP<STRING, ARRAY<STRING>>"
    given = [(n, data, when, {"a": ["b", None]} if n % 2 else None) for n, (data, _) in enumerate(cases)]
    messages = spark.createDataFrame(given, columns)
    good, malformed = decoded(messages, "id INT, name STRING", compression=compression)
    assert good.columns == ["n", "at", "headers", "id", "name"]
    assert malformed.columns == ["n", "data", "at", "headers", "reason"]
    became: dict[int, Any] = {row.n: (row.id, row.name) for row in good.collect()}
    for row in malformed.collect():
        assert row.n not in became
        assert bytes(row.data) == cases[row.n][0]
        assert (row.at.astimezone(UTC), row.headers) == (when, given[row.n][3])
        became[row.n] = row.reason
    for number, (_, expected) in enumerate(cases):
        found = became[number]
        assert found == expected if isinstance(expected, tuple) else str(found).startswith(expected), (number, found)


def test_other_formats_are_compressed_too(spark: SparkSession) -> None:
    schema = descriptor_set('syntax = "proto3"; package t; message Order { int32 id = 1; }')
    messages = spark.createDataFrame(
        [(zstd(b"\x08\x05"),), (b"\x08\x05",), (zstd(b"\x08\x05\x08\x06"),)], "data BINARY"
    )
    good, malformed = decoded(messages, schema, format="protobuf", message="t.Order", compression="zstd")
    assert [row.id for row in good.collect()] == [5]
    assert sorted(row.reason[:9] for row in malformed.collect()) == ["cannot be", "id: the f"]


def test_the_compression_is_checked(spark: SparkSession) -> None:
    messages = spark.createDataFrame([], "data BINARY")
    with pytest.raises(InvalidValue, match="compression='deflate'"):
        decoded(messages, "id INT", compression="deflate")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["zstd"])  # each codec is tested above
async def test_a_compressed_stream_goes_to_two_sinks(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path, compression: Any
) -> None:
    def payload(number: int) -> bytes:
        return WRITERS[compression](b'{"id": %d}' % number)[: 9 if number % 10 == 0 else None]

    publish_all(settings, ((f"{stream.name}.a", payload(number)) for number in range(1, 51)))
    options = {"servers": settings.servers[0], "stream": stream.name, "startingOffsets": "earliest"}
    messages = spark.readStream.format("jetstream").options(**options).load()
    found = decoded(messages, "id INT", compression=compression)
    for name, rows in zip(("good", "malformed"), found, strict=True):
        writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/{name}-state")
        run_to_the_end(writer, f"{tmp_path}/{name}")
    good = [(row.sequence, row.id) for row in spark.read.parquet(f"{tmp_path}/good").orderBy("sequence").collect()]
    assert good == [(number, number) for number in range(1, 51) if number % 10]
    malformed = spark.read.parquet(f"{tmp_path}/malformed").orderBy("sequence").collect()
    assert [(row.sequence, bytes(row.data)) for row in malformed] == [(n, payload(n)) for n in range(10, 51, 10)]


@pytest.mark.slow
@pytest.mark.parametrize("compression", WRITERS)
def test_many_large_payloads_are_not_in_memory_together(compression: Any) -> None:
    """A batch of 200 payloads of 100 KB would become 6 GiB."""
    bomb = WRITERS[compression](bytes(LARGEST >> 1))
    batch = pa.RecordBatch.from_pydict({"data": pa.array([bomb] * 200, pa.binary()), "n": pa.array(range(200))})
    before, rows = pa.total_allocated_bytes(), 0
    for part in _batches(batch, compression, Packed("packed", "reason")):
        assert pa.total_allocated_bytes() - before < 3 * LARGEST
        assert part.column("n").to_pylist() == list(range(rows, rows + part.num_rows))
        rows += part.num_rows
        if rows >= 10:
            break
