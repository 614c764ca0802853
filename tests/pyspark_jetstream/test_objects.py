"""Objects are read by Spark's executors, and ``decoded`` calls a message malformed whose object cannot be read."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from jetstream_client.publish.bulk import publish_all
from jetstream_client.stores.objects import referring
from jetstream_client.stores.reference import Reference
from jetstream_client.stream import Stream
from pyspark_jetstream import decoded
from pyspark_jetstream.source import COLUMNS
from tests.jetstream_handoff.steps import object_store

LARGE = json.dumps({"text": "x" * (1 << 20)}).encode()


@pytest.fixture
async def bucket(stream: Stream) -> AsyncIterator[str]:
    async with object_store(stream.js) as name:
        yield name


async def test_executors_read_objects(spark: SparkSession, stream: Stream, bucket: str) -> None:
    settings = stream.js.settings
    messages = [(f"{stream.name}.a", LARGE if number % 2 else b'{"text": "small"}') for number in range(6)]
    gone = Reference.of(bucket, "gone", LARGE)

    def run() -> None:
        some = referring(settings, messages, bucket, stream=stream.name, scope="s")
        publish_all(settings, [*some, (f"{stream.name}.a", gone.payload, gone.headers)])

    await asyncio.to_thread(run)

    def read(**options: str) -> DataFrame:
        given = {"servers": settings.servers[0], "stream": stream.name, "minPartitions": "3", **options}
        return spark.read.format("jetstream").options(**given).load()

    frame = read(objects=bucket)
    assert frame.columns == [*COLUMNS, "object_error"]
    rows = sorted(frame.selectExpr("sequence", "length(data) AS size", "object_error AS why").collect())
    assert [row.size for row in rows[:6]] == [len(data) for _, data in messages]
    assert [row.why is None for row in rows] == [True] * 6 + [False]
    assert "does not exist" in rows[6].why
    good, malformed = decoded(frame, "text STRING")
    assert good.columns == ["stream", "subject", "sequence", "timestamp", "headers", "text"]
    assert sorted(len(row.text) for row in good.collect()) == [5] * 3 + [1 << 20] * 3
    assert malformed.columns == [*COLUMNS, "reason"]
    assert [(row.sequence, row.reason) for row in malformed.collect()] == [(7, rows[6].why)]
    limited = read(objects=bucket, maxObjectSize="1000").where("object_error LIKE '%at most 1000%'")
    assert limited.count() == 4
    assert "object_error" not in read().columns
    for wrong, says in (({"objects": "a.b"}, "objects="), ({"maxObjectSize": "5"}, "maxObjectSize=")):
        with pytest.raises(Exception, match=says):
            read(**wrong).count()
