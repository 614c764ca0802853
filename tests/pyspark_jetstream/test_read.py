"""Batch reading on a real Spark: exactly the messages of a claim or a range, or an error that names what is wrong."""

import asyncio
import json
import os
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from demo.nats_server import NatsServer
from demo.service import free_port, until
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import InvalidValue
from jetstream_client.names import subject_matches
from jetstream_client.publish.bulk import publish_all, publish_fast
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.wire.credential import check_credentials
from jetstream_handoff.claim import Claim
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.rules.missing import is_final
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from pyspark_jetstream import read_claim
from pyspark_jetstream.held_claim import HeldClaim
from pyspark_jetstream.options import Options
from tests.slow import beyond

ROWS = int(os.environ.get("ROWS", "150000"))
"""Of the stream whose server is killed."""


async def claimed(stream: Stream, sequences: Sequences) -> Claim:
    created = (await stream.info()).created
    return Claim(
        id="5f0c9a7be21d",
        stream=stream.name,
        stream_created=created,
        consumer="c",
        consumer_created=created,
        sequences=sequences,
        bytes=0,
        consumer_sequence=sequences.last,
        taken_at=created,
    )


def publish(settings: ConnectionSettings, stream: Stream, count: int) -> None:
    publish_all(settings, ((f"{stream.name}.{number % 3}", b"%d" % number) for number in range(1, count + 1)))


def load(spark: SparkSession, settings: ConnectionSettings, **options: str) -> DataFrame:
    return spark.read.format("jetstream").options(servers=settings.servers[0], **options).load()


async def test_a_range_with_every_column(spark: SparkSession, settings: ConnectionSettings, stream: Stream) -> None:
    before = datetime.now(UTC)
    publish_all(settings, [(f"{stream.name}.a", b"\x00\xff", {"K": ["1", "2"], "L": "3"}), (f"{stream.name}.b", b"")])
    first, second = load(spark, settings, stream=stream.name).orderBy("sequence").collect()
    assert (first.stream, first.subject, first.sequence) == (stream.name, f"{stream.name}.a", 1)
    assert (bytes(first.data), first.headers) == (b"\x00\xff", {"K": ["1", "2"], "L": ["3"]})
    assert before <= first.timestamp.astimezone(UTC) <= datetime.now(UTC)
    assert (bytes(second.data), second.headers) == (b"", None)


async def test_ends_are_inclusive_and_partitions_even(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream
) -> None:
    publish(settings, stream, 1_000)
    messages = load(spark, settings, stream=stream.name, startingOffsets="11", endingOffsets="20", minPartitions="7")
    sizes = messages.rdd.glom().map(len).collect()
    assert (len(sizes), sum(sizes)) == (7, 10)
    assert max(sizes) - min(sizes) <= 1
    row = messages.selectExpr("min(sequence)", "max(sequence)", "count(distinct sequence)").collect()[0]
    assert tuple(row) == (11, 20, 10)


async def test_a_range_by_time(spark: SparkSession, settings: ConnectionSettings, stream: Stream) -> None:
    times = []
    for _ in range(3):
        publish(settings, stream, 10)
        last = await stream.js.api(f"STREAM.MSG.GET.{stream.name}", {"last_by_subj": ">"})
        times.append(last["message"]["time"])
    whole = load(spark, settings, stream=stream.name, startingOffsets=times[0], endingOffsets=times[1])
    assert sorted(row.sequence for row in whole.collect()) == list(range(10, 21))  # both ends are inclusive
    after = load(spark, settings, stream=stream.name, startingOffsets="2100-01-01T00:00:00Z")
    assert after.count() == 0
    before = load(spark, settings, stream=stream.name, endingOffsets="2001-01-01T00:00:00Z")
    assert before.count() == 0


@pytest.mark.parametrize("subjects", ["{}.1", "{}.*.x", "{}.1,{}.2", "{}.none"])
async def test_only_some_subjects(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, subjects: str
) -> None:
    names = [f"{stream.name}.{number % 4}" + (".x" if number % 7 == 0 else "") for number in range(1, 9_001)]
    publish_all(settings, ((name, b"") for name in names))
    given = subjects.replace("{}", stream.name)
    wanted = [
        sequence
        for sequence, name in enumerate(names, 1)
        if any(subject_matches(each, name) for each in given.split(","))
    ]
    rows = load(spark, settings, stream=stream.name, subjects=given, minPartitions="3").select("sequence").collect()
    assert sorted(row.sequence for row in rows) == wanted


@pytest.mark.parametrize("mode", ["direct", "consumer"])
async def test_both_ways_of_reading_give_the_same(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, mode: str
) -> None:
    publish_all(settings, ((f"{stream.name}.{each % 3}", b"%d" % each, {"K": f"{each}"}) for each in range(1, 9_001)))
    for sequence in (1, 500, 9_000):
        await stream.js.api(f"STREAM.MSG.DELETE.{stream.name}", {"seq": sequence, "no_erase": True})
    before = datetime.now(UTC)
    rows = load(spark, settings, stream=stream.name, readMode=mode, minPartitions="3").collect()
    assert sorted(row.sequence for row in rows) == [each for each in range(2, 9_000) if each != 500]
    assert all(row.headers == {"K": [f"{row.sequence}"]} and int(row.data) == row.sequence for row in rows)
    assert all(timedelta() < before - row.timestamp.astimezone(UTC) < timedelta(minutes=1) for row in rows)
    assert (await stream.info()).state["consumer_count"] == 0


async def test_some_of_the_columns(spark: SparkSession, settings: ConnectionSettings, stream: Stream) -> None:
    publish(settings, stream, 10)
    options = {"servers": settings.servers[0], "stream": stream.name}
    read = spark.read.format("jetstream").options(**options)
    rows = read.schema("sequence BIGINT, subject STRING").load().collect()
    assert sorted(tuple(row) for row in rows) == [(each, f"{stream.name}.{each % 3}") for each in range(1, 11)]
    for unknown in ("key STRING", "data STRING"):
        with pytest.raises(
            Exception, match=f"schema='{unknown.lower()}': no column has this name and type; the columns are"
        ):
            read.schema(unknown).load().collect()


async def test_deleted_messages_are_gaps_of_a_range(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream
) -> None:
    publish(settings, stream, 100)
    for sequence in (5, 50):
        await stream.js.api(f"STREAM.MSG.DELETE.{stream.name}", {"seq": sequence, "no_erase": True})
    await stream.purge(sequence=3)
    rows = load(spark, settings, stream=stream.name).select("sequence").collect()
    assert sorted(row.sequence for row in rows) == [each for each in range(3, 101) if each not in (5, 50)]


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
async def test_streams_that_are_consumed_are_read_without_consuming(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, retention: str
) -> None:
    """Streams with limits retention can be read in both modes, as the other tests do."""
    config = {"name": f"{stream.name}C", "subjects": [f"{stream.name}C.>"], "retention": retention}
    consumed = await stream.js.create_stream({**config, "allow_direct": True})
    consumer = await consumed.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
    publish(settings, consumed, 3_000)
    for message in await consumer.fetch(2):
        await message.double_ack()
    rows = load(spark, settings, stream=consumed.name, minPartitions="2").select("sequence").collect()
    assert sorted(row.sequence for row in rows) == list(range(3, 3_001))
    info = await consumer.info()
    assert (info.pending, info.ack_pending) == (2_998, 0)
    if retention == "workqueue":
        with pytest.raises(Exception, match=f"ConsumerRefused.*{consumed.name}"):
            load(spark, settings, stream=consumed.name, readMode="consumer").count()
    await consumed.delete()


async def test_an_empty_stream_gives_no_rows(spark: SparkSession, settings: ConnectionSettings, stream: Stream) -> None:
    assert load(spark, settings, stream=stream.name).count() == 0


async def test_a_claim_gives_exactly_its_messages(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream
) -> None:
    publish(settings, stream, 5_000)
    wanted = Sequences.from_ranges([(1, 10), (20, 20), (700, 4_000)])
    messages = read_claim(spark, await claimed(stream, wanted), connection="nats_tests")
    rows = messages.selectExpr("sequence", "cast(data as string) as number").collect()
    assert sorted(row.sequence for row in rows) == list(wanted)
    assert all(int(row.number) == row.sequence for row in rows)


async def test_a_claim_is_read_over_tls_with_credentials(spark: SparkSession, secure: ConnectionSettings) -> None:
    async with connect(secure) as js:
        stream = await js.create_stream({"name": "SECURE", "subjects": ["SECURE.>"], "allow_direct": True})
        publish(secure, stream, 20_000)
        claim = await claimed(stream, Sequences.from_ranges([(1, 9_000), (9_002, 20_000)]))
    messages = read_claim(spark, claim, connection="nats_secure")
    counted = messages.selectExpr("count(*)", "count(distinct sequence)", "sum(cast(cast(data as string) as bigint))")
    assert tuple(counted.collect()[0]) == (19_999, 19_999, 20_000 * 20_001 // 2 - 9_001)
    plan = messages._jdf.queryExecution().toString()
    assert not any(secret in plan for secret in check_credentials(str(secure.credentials)))
    start = time.monotonic()
    with pytest.raises(Exception, match=r"TlsFailed.*certificate is not accepted.*set tls_ca") as refused:
        read_claim(spark, claim, connection="nats_mistrusted").count()
    assert time.monotonic() - start < 10
    assert not any(secret in str(refused.value) for secret in check_credentials(str(secure.credentials)))


async def test_purged_messages_of_a_claim_are_named(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream
) -> None:
    publish(settings, stream, 100)
    claim = await claimed(stream, Sequences.from_ranges([(1, 100)]))
    await stream.purge(sequence=4)
    with pytest.raises(Exception, match=r"MessagesMissing.*does not contain 3 .*1-3"):
        read_claim(spark, claim, connection="nats_tests").count()


@pytest.mark.slow
async def test_messages_of_a_claim_that_have_vanished_are_skipped_and_named_in_its_receipt(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream
) -> None:
    publish(settings, stream, 3_000)
    taken = Take(stream.js, Taking(stream=stream.name, consumer="c", owner=("test",), max_messages=3_000))
    await taken.prepare()
    (claim,) = await taken.take(10)
    taken.handed_on()
    gone = Sequences.of([1, 2, 1_000, 2_999])
    for sequence in gone:
        await stream.delete_message(sequence)

    def work() -> list[int]:
        with HeldClaim.begin(settings, claim, try_number=1, missing="skip") as held:
            held.connection = "nats_tests"
            rows = held.read(spark).select("sequence").collect()
            held.settle()
            return sorted(row.sequence for row in rows)

    assert await asyncio.to_thread(work) == list(claim.sequences - gone)
    (receipt,) = await Ledger(stream.js, stream.name, "c").committed()
    assert (receipt.skipped, receipt.processed) == (gone, claim.sequences - gone)
    # Only an attempt that holds the claim can name what it skips.
    attempt = f"{claim.id}-1-abcdef01"
    with pytest.raises(Exception, match=r"HoldLost.*attempt 1-abcdef01 does not hold claim") as refused:
        read_claim(spark, claim, connection="nats_tests", missing="skip", attempt=attempt).count()
    assert not is_final(refused.value)
    with pytest.raises(Exception, match=r"MessagesMissing.*set missing='skip'") as missing:
        read_claim(spark, claim, connection="nats_tests").count()
    assert is_final(missing.value)


async def test_a_recreated_stream_is_named(spark: SparkSession, settings: ConnectionSettings, stream: Stream) -> None:
    publish(settings, stream, 10)
    old = replace(await claimed(stream, Sequences.of([1])), stream_created="2020-01-01T00:00:00Z")
    with pytest.raises(Exception, match="recreated"):
        read_claim(spark, old, connection="nats_tests").count()


async def test_a_stream_without_direct_get_is_named(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream
) -> None:
    publish(settings, stream, 10)
    await stream.update({"allow_direct": False})
    with pytest.raises(Exception, match="allow_direct"):
        load(spark, settings, stream=stream.name).count()


@pytest.mark.parametrize(
    ("options", "named"),
    beyond(
        3,
        [
            ({"stream": "S"}, "servers"),
            ({"servers": "nats://127.0.0.1:4222"}, "stream"),
            ({"servers": "nats://u:hidden@127.0.0.1:4222", "stream": "S"}, "servers"),
            ({"servers": "nats://127.0.0.1:4222", "connection": "x", "stream": "S"}, "servers"),
            ({"connection": "unknown", "stream": "S"}, "JETSTREAM_SECRET_UNKNOWN"),
            ({"servers": "nats://127.0.0.1:4222", "stream": "a.b"}, "stream"),
            ({"servers": "nats://127.0.0.1:4222", "stream": "S", "password": "hidden"}, "credentials"),
            ({"servers": "nats://127.0.0.1:4222", "stream": "S", "startingOffset": "1"}, "startingOffset"),
            ({"servers": "nats://127.0.0.1:4222", "stream": "S", "startingOffsets": "0"}, "startingOffsets"),
            (
                {"servers": "nats://127.0.0.1:4222", "stream": "S", "startingOffsets": "9", "endingOffsets": "3"},
                "ending",
            ),
            ({"servers": "nats://127.0.0.1:4222", "stream": "S", "maxOffsetsPerTrigger": "3"}, "readStream"),
            ({"servers": "nats://127.0.0.1:4222", "stream": "S", "startingOffsets": "latest"}, "startingOffsets"),
            ({"servers": "nats://127.0.0.1:4222", "stream": "S", "subjects": "a.>.b"}, "subjects"),
            ({"servers": "nats://127.0.0.1:4222", "claim": "{}"}, "claim"),
            ({"servers": "nats://127.0.0.1:4222", "stream": "S", "missing": "ignore"}, "give 'error' or 'skip'"),
            (
                {"servers": "nats://127.0.0.1:4222", "stream": "S", "missing": "error", "failOnDataLoss": "false"},
                "implies",
            ),
            ({"servers": "nats://127.0.0.1:4222", "stream": "S", "attempt": "5f0c9a7be21d-1-ab"}, "attempt"),
        ],
    ),
)
def test_bad_options_are_named(spark: SparkSession, options: dict[str, str], named: str) -> None:
    with pytest.raises(Exception, match=named) as refused:
        spark.read.format("jetstream").options(**options).load().count()
    assert "hidden" not in str(refused.value)


def test_a_connection_that_the_session_does_not_know_is_refused(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JETSTREAM_SECRET_LATER", json.dumps({"token": "hidden"}))
    claim = Claim.from_json(
        {
            "v": 1,
            "id": "5f0c9a7be21d",
            "stream": "S",
            "stream_created": "2026-11-21T03:00:00Z",
            "consumer": "c",
            "consumer_created": "2026-11-21T03:00:00Z",
            "ranges": [[1, 1]],
            "count": 1,
            "bytes": 0,
            "consumer_sequence": 1,
            "ack_prefix": "$JS.ACK.S.c",
            "taken_at": "2026-11-21T03:00:00Z",
        }
    )
    with pytest.raises(Exception, match="before this connection was known") as refused:
        read_claim(spark, claim, connection="later")
    assert "hidden" not in str(refused.value)


@pytest.mark.slow
def test_a_server_killed_twice_while_spark_reads_gives_the_exact_set(spark: SparkSession, tmp_path: Path) -> None:
    monitor = free_port()
    server = NatsServer(tmp_path, f'http: "127.0.0.1:{monitor}"')
    server.start()
    settings = ConnectionSettings(servers=server.url)

    def sent() -> int:
        """Return how many messages the server has sent since it was started."""
        with urllib.request.urlopen(f"http://127.0.0.1:{monitor}/varz") as page:
            return int(json.load(page)["out_msgs"])

    async def create() -> None:
        async with connect(settings) as js:
            await js.create_stream({"name": "S", "subjects": ["s"], "allow_direct": True, "allow_batched": True})

    def strike() -> int:
        """Kill the server when it has sent enough messages. Returns their number."""
        before = sent()
        until("Spark reads", lambda: sent() > before + 10_000, seconds=240, every=0.02)
        read = sent() - before
        server.kill()
        time.sleep(0.5)
        server.start()
        return read

    try:
        asyncio.run(create())
        publish_fast(settings, (("s", b"x" * 300) for _ in range(ROWS)))
        messages = load(spark, settings, stream="S")
        with ThreadPoolExecutor() as threads:
            struck = threads.submit(lambda: (strike(), strike()))
            totals = ("count(*)", "count(distinct sequence)", "min(sequence)", "max(sequence)")
            assert tuple(messages.selectExpr(*totals).collect()[0]) == (ROWS, ROWS, 1, ROWS)
            first, second = struck.result()
        assert first > 10_000
        assert second > 10_000
        assert first + second < ROWS * 5 // 6
    finally:
        server.stop()


async def test_what_skips_messages_of_a_claim_must_be_able_to_name_them(stream: Stream) -> None:
    claim = await claimed(stream, Sequences.of([1]))
    given = {"claim": json.dumps(claim.to_json()), "missing": "skip"}
    for more, named in (
        ({"connection": "nats_tests"}, "attempt"),
        ({"connection": "nats_tests", "attempt": "6f0c9a7be21d-1-abcdef01"}, "give the attempt that holds claim"),
        ({"servers": "nats://127.0.0.1:4222", "attempt": f"{claim.id}-1-abcdef01"}, "connection"),
        ({"connection": "nats_tests", "attempt": f"{claim.id}-1-abcdef01", "failOnDataLoss": "true"}, "'missing'"),
    ):
        with pytest.raises(InvalidValue, match=named):
            Options.parse({**given, **more})
    assert Options.parse({**given, "connection": "c", "attempt": f"{claim.id}-1-abcdef01"}).token == "1-abcdef01"
    assert Options.parse({"connection": "c", "stream": "S", "failOnDataLoss": "false"}).missing == "skip"
    assert Options.parse({"connection": "c", "stream": "S", "missing": "SKIP"}).fail_on_data_loss
