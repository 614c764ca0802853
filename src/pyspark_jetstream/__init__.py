"""NATS JetStream as a Spark data source: ``spark.read.format("jetstream")``.

Spark finds this module by its name and imports it unguarded wherever pyspark runs: only pyspark and the standard
library are imported here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from jetstream_handoff.claim import Claim

__all__ = ["DefaultSource", "decoded", "read_claim", "spark_session"]

COLUMNS = {
    "stream": "string",
    "subject": "string",
    "sequence": "bigint",
    "timestamp": "timestamp",
    "headers": "map<string,array<string>>",
    "data": "binary",
}


class DefaultSource(DataSource):
    """``format("jetstream")``. Its options are described in ``options``, and those of writing in ``write_options``."""

    @classmethod
    def name(cls) -> str:
        return "jetstream"

    def schema(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_jetstream.options import Options, check_schema
        from pyspark_jetstream.reader import JetStreamReader

        check_schema(schema, COLUMNS)
        options = Options.parse(self.options)
        options.check_batch()
        return JetStreamReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_jetstream.options import Options, check_schema
        from pyspark_jetstream.stream_reader import JetStreamStreamReader

        check_schema(schema, COLUMNS)
        options = Options.parse(self.options)
        options.check_streaming()
        return JetStreamStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_jetstream.write_options import WriteOptions
        from pyspark_jetstream.writer import JetStreamWriter

        return JetStreamWriter(WriteOptions.parse(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from pyspark_jetstream.write_options import WriteOptions
        from pyspark_jetstream.writer import JetStreamStreamWriter

        return JetStreamStreamWriter(WriteOptions.parse(self.options, schema, overwrite=overwrite))


def read_claim(
    spark: SparkSession, claim: Claim, *, servers: str | None = None, connection: str | None = None
) -> DataFrame:
    """A DataFrame of exactly the messages of a claim.

    ``connection`` names an Airflow connection whose settings the task put into the environment; or give ``servers``.

    Raises:
        InvalidValue: neither or both, or a session whose JVM started before the connection was known.
    """
    from pyspark_jetstream.session import check_environment

    if connection is not None:
        check_environment(spark, connection)
    options = {"servers": servers, "connection": connection, "claim": json.dumps(claim.to_json())}
    given = {name: value for name, value in options.items() if value is not None}
    return spark.read.format("jetstream").options(**given).load()


def decoded(
    messages: DataFrame,
    schema: StructType | str,
    *,
    format: str = "json",  # noqa: A002 - as in spark.read
    options: Mapping[str, str] | None = None,
) -> tuple[DataFrame, DataFrame]:
    """The messages with their payload as columns, and the malformed ones: each message is in one of the two.

    messages:  what was read, with its column ``data``.
    schema:    of JSON a struct type or its DDL, e.g. ``"id INT, name STRING"``; of Avro the writer's schema as JSON.
    format:    ``"json"`` or ``"avro"``.
    options:   those of Spark's ``from_json``, e.g. ``{"timestampFormat": "dd.MM.yyyy HH:mm"}``.

    The first has the messages' columns, but the schema's instead of ``data``. The second has all of the messages'
    columns and ``reason``; ``claim.reject`` takes it as it is. Reading both reads the messages twice, unless they are
    persisted.

    Raises:
        InvalidValue: no ``data``, a schema that cannot be used, or one of its names that the messages have as well.
    """
    from pyspark_jetstream.payload import decoding, split

    return split(messages, decoding(format, schema, options or {}))


def spark_session(
    app_name: str = "jetstream",
    *,
    master: str | None = None,
    memory: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session that knows the connections of this task, on the driver and on executors.

    master:  default: what ``spark-submit``, ``PYSPARK_SUBMIT_ARGS``, ``SPARK_REMOTE`` or Spark's own configuration
             say, else ``local[*]``.
    memory:  of the driver, which is all of Spark in local mode, e.g. ``"4g"``.
    config:  anything else, e.g. ``{"spark.sql.shuffle.partitions": "8"}``.
    """
    from pyspark_jetstream.session import start

    return start(app_name, master, memory, config or {})
