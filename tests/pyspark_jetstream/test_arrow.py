"""``claim.arrow()`` and ``decoded`` of Arrow have the columns, types and values of Spark, whatever the messages are."""

import asyncio
import gzip
import json
import secrets
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import jetstream_arrow
import pyspark_jetstream
from jetstream_arrow.columns import TYPES
from jetstream_client.stream import Stream
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import HEADER_LINE
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from pyspark_jetstream.held_claim import HeldClaim
from pyspark_jetstream.source import COLUMNS
from tests.pyspark_jetstream.avro_cases import encoded
from tests.pyspark_jetstream.proto_source import descriptor_set
from tests.pyspark_jetstream.test_avro_values import DATES, SAME, STEADY
from tests.pyspark_jetstream.test_protobuf_values import FIELDS, SOURCE
from tests.pyspark_jetstream.test_protobuf_values import PAYLOADS as WHOLE

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


def agree(spark: SparkSession, payloads: list[bytes], schema: str | bytes, **given: Any) -> int:
    """Check that both decode the same. Returns how many payloads are good."""
    headers = [None if n % 3 else [("Nats-Marker-Reason", ["x", "MaxAge"][: n % 4])] for n in range(len(payloads))]
    messages = pa.table(
        {
            "n": pa.array(range(len(payloads)), pa.int32()),
            "data": pa.array(payloads, pa.binary()),
            "headers": pa.array(headers, TYPES["headers"]),
        }
    )
    ours = [each.read_all().sort_by("n") for each in jetstream_arrow.decoded(messages, schema, **given)]
    sparks = [
        each.orderBy("n").toArrow()
        for each in pyspark_jetstream.decoded(spark.createDataFrame(messages), schema, **given)
    ]
    assert sum(each.num_rows for each in ours) == len(payloads)
    zone = pa.timestamp("us", spark.conf.get("spark.sql.session.timeZone"))
    for our, sparkly in zip(ours, sparks, strict=True):
        our.validate(full=True)
        assert our.column_names == sparkly.column_names
        types = [str(each).replace(f", tz={zone.tz}]", ", tz=UTC]") for each in sparkly.schema.types]
        assert [each.replace("<element: ", "<item: ") for each in types] == [str(each) for each in our.schema.types]
        assert repr(our.cast(sparkly.schema).to_pylist()) == repr(sparkly.to_pylist())
    good: int = ours[0].num_rows
    return good


def named(kind: Any, number: int) -> Any:
    """The type with a name that no other type has."""
    return {**kind, "name": f"T{number}"} if isinstance(kind, dict) and "name" in kind else kind


@pytest.mark.slow
def test_avro_is_decoded_as_by_spark(spark: SparkSession) -> None:
    """Each value in a record in which all other values are good."""
    cases = [(named(kind, n), values) for n, (kind, values) in enumerate([*SAME, *DATES])]
    fields = [{"name": f"v{n}", "type": kind} for n, (kind, _) in enumerate(cases)]
    plain = [encoded(kind, values[0], STEADY) for kind, values in cases]
    payloads = [
        b"".join([*plain[:n], encoded(kind, value, STEADY), *plain[n + 1 :]])
        for n, (kind, values) in enumerate(cases)
        for value in values
    ]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    assert agree(spark, [*payloads, b"", b"\xff" * 9], schema, format="avro") > 40


@pytest.mark.slow
def test_protobuf_is_decoded_as_by_spark(spark: SparkSession) -> None:
    payloads = [payload for _, _, _, values in FIELDS for _, payload, _ in values] + [each for _, each, _ in WHOLE]
    given: dict[str, Any] = {"format": "protobuf", "message": "t.Values"}
    schema = descriptor_set(SOURCE)
    assert agree(spark, payloads, schema, into="row", **given) > 50
    compressed = [gzip.compress(each) if n % 5 else each for n, each in enumerate(payloads)]
    options = {"nanoseconds.as.struct": "true"}
    assert (
        agree(spark, compressed, schema, compression="gzip", unknown_fields="malformed", options=options, **given) > 30
    )
