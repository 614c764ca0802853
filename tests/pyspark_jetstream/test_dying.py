"""A query that acknowledges is killed at points of a micro-batch, on the real Spark: nothing is lost, nothing is in the
output or settled twice, nothing waits at the end. ``make streaming-kills`` does the same with whole sessions."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pyspark_jetstream.dying import BATCH, POINTS, Chain


@pytest.mark.slow  # test_consumer_reader.py lets batches fail, at less cost
@pytest.mark.parametrize("points", [POINTS[1::2], POINTS[::2]], ids=len)
def test_a_query_that_is_killed(spark: SparkSession, hasty: str, tmp_path: Path, points: Sequence[str]) -> None:
    chain = Chain("interest", "delta", tmp_path, hasty)
    chain.create()
    count = 0
    for point in points:
        chain.publish(2 * BATCH + 10)
        count += 2 * BATCH + 10
        chain.killed_in(spark, point)
    chain.check(spark, count)
