"""Why no filter is pushed down into the data source. Spark 4.0 cannot push any, and lacks the class Filter."""

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, GreaterThan, InputPartition
from pyspark.sql.types import StructType

from tests.pyspark_jetstream.test_filters import SWITCH


class Numbers(DataSource):
    """Ten numbers from a reader that lets Spark push filters into it."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "number INT"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        class Reader(DataSourceReader):
            above = -1

            def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
                for each in filters:
                    if isinstance(each, GreaterThan):
                        self.above = each.value
                    yield each

            def read(self, partition: InputPartition) -> Iterator[tuple[int]]:  # noqa: ARG002
                return ((number,) for number in range(10) if number > self.above)

        return Reader()


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(SWITCH, "true")
    yield
    spark.conf.unset(SWITCH)


@pytest.mark.slow
@pytest.mark.usefixtures("pushdown")
def test_why_no_filter_is_pushed_down(spark: SparkSession) -> None:
    """From 4.1 to 4.3.0, Spark plans a DataFrame with the filters of its first query, and keeps this plan.

    PythonScanBuilder.pushFilters stores it in the table that all of them share. Once this test fails, filters on
    sequence, time and subject can be pushed down.
    """

    def numbers(frame: DataFrame) -> list[int]:
        return sorted(row.number for row in frame.collect())

    spark.dataSource.register(Numbers)
    everything = spark.read.format("numbers").load()
    assert numbers(everything.filter("number > 6")) == [7, 8, 9]
    assert numbers(everything) == [7, 8, 9]  # wrong, and silent
