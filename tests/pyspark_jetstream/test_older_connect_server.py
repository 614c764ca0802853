"""A client of Spark Connect that is newer than its server. The cell spark-4.0 of `make matrix` runs the rest on 4.0."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from pyspark_jetstream.compat import with_decoded


def lengths(data: pa.Array) -> pa.Array:
    return pc.binary_length(data).cast(pa.int32())


@pytest.mark.slow
def test_spark_4_0_gets_no_function_of_arrow_arrays(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server answered INTERNAL_ERROR, although the client has such functions."""
    messages = spark.createDataFrame([(b"ab", 1), (None, 2)], "data BINARY, n INT")
    for version, plan in (("4.1.0", "ArrowEvalPython"), ("4.0.5", "MapInArrow")):
        monkeypatch.setattr(SparkSession, "version", version)
        monkeypatch.setitem(vars(messages.sparkSession), "version", version)  # where it is after it was asked for
        found = with_decoded(messages, "length", lengths, "INT")
        assert plan in found._jdf.queryExecution().toString()
        rows = [tuple(row) for row in found.orderBy("n").collect()]
        assert [(bytes(data) if data is not None else None, n, length) for data, n, length in rows] == [
            (b"ab", 1, 2),
            (None, 2, None),
        ]
