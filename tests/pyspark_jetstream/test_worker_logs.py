"""What the driver logs about a write, as Spark 4.1 and newer show it in a table."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from jetstream_client import ConnectionSettings
from jetstream_client.stream import Stream
from tests.pyspark_jetstream.test_write import contents, write

SWITCH = "spark.sql.pyspark.worker.logging.enabled"


@pytest.fixture
def logging(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(SWITCH, "true")
    yield
    spark.conf.unset(SWITCH)


@pytest.mark.slow
@pytest.mark.usefixtures("logging")
async def test_the_driver_says_what_is_stored_and_what_stays(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream
) -> None:
    await stream.update({"max_msgs": 500, "discard": "new"})
    write(contents(spark, stream, 400), settings, stream.name)
    with pytest.raises(Exception, match="maximum messages exceeded"):
        write(contents(spark, stream, 400), settings, stream.name)
    said = [row.msg for row in spark.tvf.python_worker_logs().orderBy("ts").collect()]
    assert any(f"stream {stream.name} contains all 400 messages of the job, from 2 tasks" in line for line in said)
    assert any("the job failed" in line and f"stay in stream {stream.name}" in line for line in said)
