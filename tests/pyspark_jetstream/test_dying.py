"""A query that acknowledges is killed at each point of a micro-batch, on the real Spark: nothing is lost, nothing is in
the output or settled twice, nothing waits at the end. ``make streaming-kills`` does the same with whole sessions."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.pyspark_jetstream.dying import BATCH, POINTS, Chain


def test_a_query_that_is_killed_at_each_point(spark: SparkSession, hasty: str, tmp_path: Path) -> None:
    """It takes longer than 5 s, because a query takes a second to start, and is killed seven times."""
    chain = Chain("interest", "delta", tmp_path, hasty)
    chain.create()
    count = 0
    for point in POINTS:
        chain.publish(2 * BATCH + 10)
        count += 2 * BATCH + 10
        chain.killed_in(spark, point)
    chain.check(spark, count)
