"""Filters of a query on the columns, with Spark's switch for pushing them down on and off."""

from collections.abc import Callable, Iterator
from functools import reduce

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from jetstream_client import ConnectionSettings
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream

SWITCH = "spark.sql.python.filterPushdown.enabled"
COUNT = 200


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """Sets Spark's switch, until the test ends."""
    yield lambda value: spark.conf.set(SWITCH, value)
    spark.conf.unset(SWITCH)


async def test_every_filter_gives_what_it_selects(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, pushdown: Callable[[str], None]
) -> None:
    for half in (range(1, 101), range(101, COUNT + 1)):
        publish_all(settings, ((f"{stream.name}.{number % 3}", b"%d" % number) for number in half))
    options = {"servers": settings.servers[0], "stream": stream.name, "minPartitions": "1"}
    messages = spark.read.format("jetstream").options(**options).load()
    everything = messages.orderBy("sequence").collect()
    assert len(everything) == COUNT
    moment = everything[120].timestamp
    local = f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}'"  # in Python's form and the session's time zone
    one = f"{stream.name}.1"
    selections: dict[str, Callable[[Row], bool]] = {
        "sequence <> 5": lambda row: row.sequence != 5,
        f"timestamp >= {local}": lambda row: row.timestamp >= moment,
        f"subject IN ('{one}', 'other') AND sequence < 9": lambda row: row.subject == one and row.sequence < 9,
        # If filters were pushed down, the plan of this last query would be used for all of them: see below.
        "sequence > 50 AND sequence <= 60": lambda row: 50 < row.sequence <= 60,
    }
    for switch in ("true", "false"):
        pushdown(switch)
        messages = spark.read.format("jetstream").options(**options).load()
        found = [messages.filter(each).selectExpr(f"{n} AS selection", "sequence") for n, each in enumerate(selections)]
        rows = reduce(DataFrame.union, found).collect()
        for number, (condition, selects) in enumerate(selections.items()):
            selected = sorted(row.sequence for row in rows if row.selection == number)
            assert selected == [row.sequence for row in everything if selects(row)], (condition, switch)
        assert messages.count() == COUNT  # after any other filters
