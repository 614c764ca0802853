"""``claim.arrow()`` has the columns, types and values of ``claim.read()``, whatever the messages contain."""

import asyncio
import gzip
import secrets

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jetstream_arrow.columns import TYPES
from jetstream_client.stream import Stream
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import HEADER_LINE
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from pyspark_jetstream.held_claim import HeldClaim
from pyspark_jetstream.source import COLUMNS

HEADERS = (
    b"",
    b"Name: Z\xc3\xbcrich\r\n",
    b"Name: Z\xfcrich\r\n",
    b"N\xfcme: x\r\n",
    b"Name: 1\r\nOther:2\r\nName: 3\r\n",
    b"name: 1\r\nName: 2\r\n",
    b"Name:   \r\n",
    b"Name: a:b: c\r\n",
    b"no colon\r\n",
    b"\r\nAfter: an empty line\r\n",
    b": without a name\r\n",
    b"Open: without an end",
    b"Nats-Marker-Reason: MaxAge\r\n",
    b"Nul: \x00\r\n",
    b"Long: " + b"x" * 3_000 + b"\r\n",
)
PAYLOADS = (b"", b"x", b"\x00\xff", gzip.compress(b'{"shop": "a"}'), "ä€😀".encode(), b"x" * 200_000)


def store(stream: Stream) -> int:
    """Publish each header block with each payload, as bytes, without the client's checks."""
    count = 0
    with Wire.open(stream.js.settings) as wire:
        for lines in HEADERS:
            for payload in PAYLOADS:
                inbox = wire.new_inbox()
                sid = wire.subscribe(inbox)
                block = HEADER_LINE + b"\r\n" + lines + b"\r\n" if lines else b""
                subject = stream.name.encode() + (b".\xff" if count % 7 == 3 else b".s%d" % (count % 5))
                verb, sizes = (b"HPUB", b"%d " % len(block)) if lines else (b"PUB", b"")
                head = b"%b %b %b %b%d\r\n" % (verb, subject, inbox.encode(), sizes, len(block) + len(payload))
                wire.send(head + block + payload + b"\r\n")
                assert b'"seq"' in wire.receive(5)[0].data
                wire.unsubscribe(sid)
                count += 1
    return count


@pytest.mark.parametrize("small", [True, False], ids=["direct get", "consumer"])
async def test_both_read_the_same(spark: SparkSession, stream: Stream, small: bool) -> None:
    count = store(stream)
    while not small and count < 1_200:  # enough for a consumer
        count += store(stream)
    work = Take(
        stream.js,
        Taking(stream=stream.name, consumer="c", owner=("dag", secrets.token_hex(3), "s", -1, 1), max_messages=count),
    )
    await work.prepare()
    (claim,) = await work.take(10)
    work.handed_on()
    assert claim.count == count

    def read() -> tuple[pa.Table, pa.Table]:
        with HeldClaim.begin(stream.js.settings, claim, try_number=1) as held:
            held.connection = "nats_tests"
            return held.arrow().read_all(), held.read(spark).orderBy("sequence").toArrow()

    ours, sparks = await asyncio.to_thread(read)
    assert ours.num_rows == count
    assert ours.column_names == sparks.column_names == list(TYPES) == list(COLUMNS)
    zone = sparks.schema.field("timestamp").type.tz  # Spark shows times in the session's time zone
    for name, kind in TYPES.items():
        found = sparks.schema.field(name).type
        assert found == (pa.timestamp("us", zone) if name == "timestamp" else kind), name
        assert ours[name].cast(found).to_pylist() == sparks[name].to_pylist(), name
