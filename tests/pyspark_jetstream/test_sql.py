"""SQL on a stream: what is a view and what is refused, with the reason."""

import pytest
from pyspark.sql import SparkSession

from jetstream_client import ConnectionSettings
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream

WHY = "Spark passes no options of a table to a data source in Python.*use CREATE TEMPORARY VIEW"
WHY_NOT = "(?s)the server sets this.*publish with a DataFrame|Cannot find data for the output column"
"""Spark 4.0 refuses an INSERT of some columns without asking the data source."""


def publish(stream: Stream, count: int) -> None:
    publish_all(stream.js.settings, ((f"{stream.name}.a", b"%d" % number) for number in range(count)))


@pytest.fixture
def using(settings: ConnectionSettings, stream: Stream) -> str:
    return f"USING jetstream OPTIONS (servers '{settings.servers[0]}', stream '{stream.name}')"


async def test_a_table_is_refused_when_it_is_created(spark: SparkSession, using: str) -> None:
    """It was created, and each SELECT failed."""
    for statement in (
        f"CREATE TABLE orders {using}",
        f"CREATE TABLE orders {using} AS SELECT 'a' AS subject, X'01' AS data",
        "CREATE TABLE orders USING jetstream LOCATION '/nowhere'",
    ):
        with pytest.raises(Exception, match=f"(?s){WHY}"):
            spark.sql(statement)
        assert not spark.catalog.tableExists("orders")


async def test_a_table_whose_columns_are_given_says_why_it_cannot_be_read(spark: SparkSession, using: str) -> None:
    """Spark does not ask the data source when such a table is created."""
    spark.sql(f"CREATE TABLE orders (subject STRING, data BINARY) {using}")
    try:
        with pytest.raises(Exception, match=f"(?s){WHY}"):
            spark.sql("SELECT * FROM orders").collect()
        with pytest.raises(Exception, match=f"(?s){WHY}"):
            spark.sql("INSERT INTO orders VALUES ('a', X'01')")
    finally:
        spark.sql("DROP TABLE orders")


async def test_a_row_cannot_be_inserted_into_a_temporary_view(spark: SparkSession, stream: Stream, using: str) -> None:
    spark.sql(f"CREATE TEMPORARY VIEW orders {using}")
    try:
        for columns, values in (("", "SELECT * FROM orders"), (" (subject, data)", "VALUES ('a', X'01')")):
            with pytest.raises(Exception, match=WHY_NOT):
                spark.sql(f"INSERT INTO orders{columns} {values}")
    finally:
        spark.sql("DROP VIEW orders")
    assert (await stream.info()).state["messages"] == 0
