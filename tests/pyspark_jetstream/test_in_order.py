"""The rows of a key in the order of the stream, in one partition, on a real Spark."""

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import split

from jetstream_client import ConnectionSettings
from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from pyspark_jetstream import in_order, read_claim
from tests.pyspark_jetstream.test_read import claimed, publish


async def scattered(spark: SparkSession, settings: ConnectionSettings, stream: Stream) -> DataFrame:
    publish(settings, stream, 3_000)
    claim = await claimed(stream, Sequences.of(number for number in range(1, 3_001) if number % 3))
    messages = read_claim(spark, claim, servers=settings.servers[0])
    return messages.select("subject", "sequence").repartition(4, "sequence").persist()  # as a shuffle may leave it


def partitions(messages: DataFrame) -> list[list[tuple[str, int]]]:
    return [[(row.subject, row.sequence) for row in rows] for rows in messages.rdd.glom().collect()]


@pytest.mark.parametrize("expression", [False, True], ids=["a column", "an expression"])
async def test_the_rows_of_a_key_are_in_one_partition_in_order(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, expression: bool
) -> None:
    messages = await scattered(spark, settings, stream)
    found = partitions(in_order(messages, split("subject", "[.]")[1] if expression else "subject"))
    messages.unpersist()
    for remainder in (1, 2):
        subject = f"{stream.name}.{remainder}"
        (there,) = [[sequence for each, sequence in rows if each == subject] for rows in found if subject in dict(rows)]
        assert there == list(range(remainder, 3_001, 3))
    assert sum(map(len, found)) == 2_000


async def test_what_has_no_order_is_refused(spark: SparkSession, settings: ConnectionSettings, stream: Stream) -> None:
    messages = await scattered(spark, settings, stream)
    with pytest.raises(InvalidValue, match="at least one column"):
        in_order(messages)
    with pytest.raises(InvalidValue, match="'sequence' is missing"):
        in_order(messages.select("subject"), "subject")
