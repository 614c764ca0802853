"""Bytes that a column cannot contain are counted in the log of the task that reads them, and rows without a payload can
be told apart. The data source reads as Spark reads it, without Spark.
"""

import logging
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from jetstream_client.stream import Stream
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import HEADER_LINE
from pyspark_jetstream.options import Options
from pyspark_jetstream.reader import JetStreamReader
from pyspark_jetstream.source import COLUMNS
from tests.jetstream_client.until import until


def store(stream: Stream, *messages: tuple[bytes, bytes]) -> None:
    """Publish a subject and header lines as bytes, without the client's checks."""
    with Wire.open(stream.js.settings) as wire:
        for subject, lines in messages:
            inbox = wire.new_inbox()
            sid = wire.subscribe(inbox)
            block = HEADER_LINE + b"\r\n" + lines + b"\r\n"
            line = b"%b.%b %b" % (stream.name.encode(), subject, inbox.encode())
            wire.send(b"HPUB %b %d %d\r\n%b\r\n" % (line, len(block), len(block), block))
            assert b'"seq"' in wire.receive(5)[0].data
            wire.unsubscribe(sid)


def rows(stream: Stream, *columns: str, **options: str) -> list[dict[str, Any]]:
    """What a batch reads, with the given columns or all of them."""
    given = {"servers": stream.js.settings.servers[0], "stream": stream.name, "minPartitions": "1", **options}
    schema = StructType()
    for name in columns or COLUMNS:
        schema = schema.add(name, StringType())  # a reader uses only the names
    reader = JetStreamReader(Options.parse(given), schema)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    found: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
    return found


@pytest.mark.parametrize("mode", ["direct", "consumer"])
async def test_what_is_not_utf_8_is_counted_and_named(
    stream: Stream, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """It was replaced without a word, so that nobody could tell it from U+FFFD in a value."""
    store(
        stream,
        (b"a", "Name: Zürich\r\n".encode()),
        (b"a", b"Name: Z\xfcrich\r\n"),
        (b"a", "Name: \ufffd\r\n".encode()),
        (b"a\xff", b"Name: x\r\n"),
        (b"a", b"Na\xfcme: x\r\n"),
    )
    with caplog.at_level(logging.WARNING):
        found = rows(stream, readMode=mode)
    names = [dict(row["headers"]).get("Name") for row in found]
    assert names[:4] == [["Zürich"], ["Z\ufffdrich"], ["\ufffd"], ["x"]]
    assert found[3]["subject"] == f"{stream.name}.a\ufffd"
    (said,) = caplog.messages
    assert said.startswith(f"3 messages of stream {stream.name} have a subject or headers that are not UTF-8")
    assert said.endswith("sequences 2, 4-5")


async def test_only_columns_that_are_read_are_checked(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    store(stream, (b"a", b"Name: Z\xfcrich\r\n"), (b"a\xff", b"Name: x\r\n"))
    with caplog.at_level(logging.WARNING):
        rows(stream, "sequence", "data")
        assert caplog.messages == []
        rows(stream, "subject")
        assert [each.split()[-1] for each in caplog.messages] == ["2"]


async def test_rows_without_a_payload_can_be_told_apart(stream: Stream) -> None:
    markers = {"allow_msg_ttl": True, "subject_delete_marker_ttl": 3600 * 10**9, "allow_rollup_hdrs": True}
    await stream.update({**markers, "max_age": 10**8, "duplicate_window": 10**8})
    await stream.js.publish(f"{stream.name}.a", b"1")

    async def marked() -> bool:
        return bool((await stream.info()).state["first_seq"] == 2)

    await until(marked)
    await stream.update({"max_age": 0})
    await stream.js.publish(f"{stream.name}.b", b"")
    await stream.js.publish(f"{stream.name}.c", b"", headers={"KV-Operation": "DEL"})
    await stream.js.publish(f"{stream.name}.d", b"null")
    found = rows(stream, "subject", "headers", "data")
    assert [(row["subject"][-1], row["data"]) for row in found] == [("a", b""), ("b", b""), ("c", b""), ("d", b"null")]
    first, second, third, _ = (None if row["headers"] is None else dict(row["headers"]) for row in found)
    assert first is not None
    assert first["Nats-Marker-Reason"] == ["MaxAge"]
    assert (second, third) == (None, {"KV-Operation": ["DEL"]})
