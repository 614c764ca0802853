"""DataFrames in tables that contain each message once."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jetstream_client import ConnectionSettings
from jetstream_client.publish.bulk import publish_all
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from jetstream_tables import DeltaTable
from jetstream_tables.errors import RowsInvalid
from pyspark_jetstream import decoded
from pyspark_jetstream.held_claim import HeldClaim
from tests.jetstream_tables.formats import Delta


async def test_a_data_frame_is_appended(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path
) -> None:
    """Good rows and malformed messages in one call, by two attempts. Without the gone message, which is skipped, each
    message of the claim is accounted for."""
    payloads = [b"?" if number == 7 else b'{"shop": "north", "amount": %d}' % number for number in range(1, 301)]
    publish_all(settings, ((f"{stream.name}.a", payload) for payload in payloads))
    take = Take(stream.js, Taking(stream=stream.name, consumer="c", owner=("test",), max_messages=300))
    await take.prepare()
    (claim,) = await take.take(10)
    take.handed_on()
    await stream.delete_message(9)
    expected = [each for each in range(1, 301) if each not in {7, 9}]
    table = DeltaTable(str(tmp_path / "orders"))
    for number, new in ((1, expected), (2, [])):
        with HeldClaim.begin(settings, claim, try_number=number, missing="skip") as held:
            held.connection = "nats_tests"
            good, malformed = decoded(held.read(spark), "shop STRING, amount INT")
            rows = good.select("sequence", "timestamp", "shop", "amount")
            with pytest.raises(RowsInvalid, match=f"messages 7 of claim {claim.id} have no row; reject them"):
                held.append_to(table, rows)
            appended = held.append_to(table, rows, rejected=malformed)
            assert appended.new == Sequences.of(new)
            assert appended.new | appended.already == Sequences.of(expected)
            assert held.rejected == Sequences.of([7])
    lake = Delta(tmp_path)
    assert sorted(lake.query('"_sequence", shop, amount')) == [(each, "north", each) for each in expected]
