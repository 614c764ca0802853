"""Micro-batches with a limit, which Spark 4.2 and newer can have."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jetstream_client import ConnectionSettings
from jetstream_client.stream import Stream
from tests.pyspark_jetstream.test_stream_reader import load, publish, run, sequences, sizes


@pytest.mark.slow
async def test_no_micro_batch_is_larger_than_the_limit_and_the_backlog_is_shown(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path
) -> None:
    publish(settings, stream, 250)
    messages = load(spark, settings, stream, maxOffsetsPerTrigger="100")
    query = run(messages, tmp_path)
    assert sizes(query) == [100, 100, 50]
    source = query.recentProgress[0]["sources"][0]
    assert (json.loads(source["endOffset"])["sequence"], json.loads(source["latestOffset"])["sequence"]) == (100, 250)
    publish(settings, stream, 30)
    assert sizes(run(messages, tmp_path)) == [30]
    assert sequences(spark, tmp_path) == list(range(1, 281))
