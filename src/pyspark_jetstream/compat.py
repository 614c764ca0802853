# SPDX-License-Identifier: Apache-2.0
"""Everything that differs between Spark 4.0 and 4.3, and between pyspark and pyspark-client. Each difference is found
by what can be imported, because vendors add features of later versions to their own builds of Spark. Types are those of
Spark 4.3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamReader, DataSourceStreamWriter, InputPartition

from jetstream_client.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # 4.0

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """Receives Arrow batches, because Spark 4.0 passes them to each writer that is a DataSourceArrowWriter."""

    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxRows,
            ReadMinRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:  # 4.0 and 4.1

        class ReadLimit:
            pass

        class ReadAllAvailable(ReadLimit):
            pass

        @dataclass
        class ReadMaxRows(ReadLimit):
            max_rows: int

        @dataclass
        class ReadMinRows(ReadLimit):
            min_rows: int

        class SupportsTriggerAvailableNow:
            pass


ADMISSION_CONTROL = ReadLimit.__module__ != __name__
"""Whether Spark tells a streaming source where the next micro-batch starts, and how large it may be."""

__all__ = [
    "ADMISSION_CONTROL",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "check_consumer",
    "check_limits",
    "mixed",
    "only_a_client",
    "stream_reader",
    "with_decoded",
]


def check_limits(limits: Mapping[str, int]) -> None:
    """Raise InvalidValue if micro-batches should be limited, and this version of Spark cannot limit them.

    limits:  the options that limit them, and their values.
    """
    for name, value in () if ADMISSION_CONTROL else limits.items():
        instead = {
            "minOffsetsPerTrigger": "or give the query a trigger with a longer processingTime",
            "maxOffsetsPerTrigger": "or read ranges with spark.read, startingOffsets and endingOffsets",
        }
        remedy = (
            f"Spark {pyspark.__version__} cannot limit the micro-batches of a data source in Python, which needs Spark "
            f"4.2; leave this option out, {instead[name]}"
        )
        raise InvalidValue(name, value, remedy)


def check_consumer(consumer: str) -> None:
    """Raise InvalidValue if this version of Spark does not say which micro-batch is committed.

    Spark 4.2 and newer ask for the next offset with the offset where the last committed micro-batch ends. Spark 4.0 and
    4.1 ask without it, also while a micro-batch is not committed.

    consumer:  the value of the option.
    """
    if not ADMISSION_CONTROL:
        remedy = (
            f"Spark {pyspark.__version__} does not tell a data source in Python which micro-batch is committed, so its "
            "messages could not be acknowledged safely. This needs Spark 4.2; leave this option out, or read claims"
        )
        raise InvalidValue("consumer", consumer, remedy)


def only_a_client() -> bool:
    """Return whether this environment has pyspark-client, which only talks to a Spark Connect server, in place of
    pyspark."""
    from pyspark.util import is_remote_only

    return is_remote_only()


def mixed() -> str | None:
    """Return what is wrong if pyspark and pyspark-client are installed with different versions, otherwise None. They
    contain files of the same names, and each replaces those of the one that was installed before."""
    found = {}
    for package in ("pyspark", "pyspark-client"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            return None
    if len({*found.values()}) == 1:
        return None
    both = " and ".join(f"{package} {number}" for package, number in found.items())
    return (
        f"{both} are installed in one environment, and each has replaced files of the other; uninstall both, and "
        "install one of them: pyspark to start Spark, or pyspark-client for a Spark Connect server"
    )


def stream_reader(reader: Any) -> DataSourceStreamReader:
    """Return the reader in the form that this version of Spark can call."""
    return reader if ADMISSION_CONTROL else _Unlimited(reader)


class _Unlimited(DataSourceStreamReader):
    """A reader for Spark 4.0 and 4.1, which ask for the latest offset without saying where the next micro-batch starts.

    It starts where the last planned one ends. When a query is started again, Spark first plans an empty micro-batch at
    the end of the last one (``PythonMicroBatchStream.setLatestSeenOffset``).
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._planned: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return self._reader.initialOffset()  # type: ignore[no-any-return]

    def latestOffset(self, *_: Any) -> dict[str, Any]:
        start = self._planned or self._reader.initialOffset()
        return self._reader.latestOffset(start, ReadAllAvailable())  # type: ignore[no-any-return]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        partitions: Sequence[InputPartition] = self._reader.partitions(start, end)
        self._planned = end
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)  # type: ignore[no-any-return]


def with_decoded(messages: DataFrame, name: str, decode: Callable[[pa.Array], pa.Array], ddl: str) -> DataFrame:
    """Return the messages with another column, which contains what ``decode`` makes of the column ``data``.

    name:    the column's name.
    decode:  takes and returns an Arrow array; it is called in Spark's Python workers.
    ddl:     the column's type.
    """
    try:
        from pyspark.sql.pandas.functions import arrow_udf
    except ImportError:  # 4.0; a pandas_udf would change integers next to nulls, and nanoseconds
        return _with_appended(messages, name, decode, ddl)
    # A Spark Connect server may be older than its client: 4.0 cannot plan such a function (INTERNAL_ERROR).
    if messages.sparkSession.version.startswith("4.0."):
        return _with_appended(messages, name, decode, ddl)
    import pyarrow as pa
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    def decoded(data: pa.Array) -> pa.Array:
        return decode(data)

    # Spark reads the annotations, which must be classes, to choose how it calls the function.
    decoded.__annotations__ = {"data": pa.Array, "return": pa.Array}
    column = arrow_udf(decoded, returnType=ddl)  # type: ignore[call-overload] # stubs: plain types only
    return messages.select("*", column(F.expr("`data`")).alias(name))


def _with_appended(messages: DataFrame, name: str, decode: Callable[[pa.Array], pa.Array], ddl: str) -> DataFrame:
    from pyspark.sql.types import StructType

    added: Any = StructType.fromDDL(f"{name} {ddl}")
    schema = StructType([*messages.schema.fields, *added.fields])

    def appended(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.append_column(name, decode(batch.column("data")))

    return messages.mapInArrow(appended, schema)
