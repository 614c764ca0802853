"""A DataFrame of a range is a snapshot: Spark plans it once. Spark 4.0 plans it again for each action."""

import pytest
from pyspark.sql import SparkSession

from jetstream_client import ConnectionSettings
from jetstream_client.stream import Stream
from tests.pyspark_jetstream.test_read import load, publish


async def test_what_vanishes_after_planning_is_named_or_allowed(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream
) -> None:
    publish(settings, stream, 100)
    strict, lenient = (
        load(spark, settings, stream=stream.name, **{each: value}).select("sequence")
        for each, value in (("failOnDataLoss", "true"), ("missing", "skip"))
    )
    assert (strict.count(), lenient.count()) == (100, 100)  # planned now, as at every later use
    await stream.purge(sequence=41)
    with pytest.raises(Exception, match=r"MessagesMissing.*does not contain"):
        strict.collect()
    assert sorted(row.sequence for row in lenient.collect()) == list(range(41, 101))


async def test_a_temporary_view_is_a_snapshot(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream
) -> None:
    using = f"USING jetstream OPTIONS (servers '{settings.servers[0]}', stream '{stream.name}')"
    spark.sql(f"CREATE TEMPORARY VIEW orders {using}")
    try:
        publish(settings, stream, 10)
        assert [row.n for row in spark.sql("SELECT count(*) AS n FROM orders").collect()] == [10]
        publish(settings, stream, 5)
        assert [row.n for row in spark.sql("SELECT max(sequence) AS n FROM orders").collect()] == [10]
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders {using}")
        assert [row.n for row in spark.sql("SELECT count(*) AS n FROM orders").collect()] == [15]
    finally:
        spark.sql("DROP VIEW orders")
