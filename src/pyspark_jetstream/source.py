# SPDX-License-Identifier: Apache-2.0
"""The data source: what Spark calls to read and write with ``format("jetstream")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_jetstream.compat import DataSourceStreamArrowWriter

COLUMNS = {
    "stream": "string",
    "subject": "string",
    "sequence": "bigint",
    "timestamp": "timestamp",
    "headers": "map<string,array<string>>",
    "data": "binary",
}


OBJECT_ERROR = "object_error"
"""The column in addition to these if objects are read (``OBJECT_ERROR`` of :mod:`jetstream_arrow.columns`)."""


class DefaultSource(DataSource):
    """The data source ``format("jetstream")``, for reading and writing, in batches and streams.

    Reading takes the options of :class:`~pyspark_jetstream.options.Options`, and writing takes the options of
    :class:`~pyspark_jetstream.write_options.WriteOptions`.
    """

    @classmethod
    def name(cls) -> str:
        return "jetstream"

    def schema(self) -> str:
        """Return the columns as DDL. Spark calls this method before any other, so missing settings of a connection, and
        a table, raise an error here."""
        if {"provider", "owner"} <= {name.lower() for name in self.options}:  # properties of CREATE TABLE
            from jetstream_client.errors import InvalidValue
            from pyspark_jetstream.options import NO_TABLE

            raise InvalidValue("USING", "jetstream", NO_TABLE)
        connection = self.options.get("connection")
        if connection and "servers" not in self.options:
            from jetstream_client.wire.settings import ConnectionSettings

            ConnectionSettings.from_environment(connection)
        return ", ".join(f"{name} {kind}" for name, kind in self._columns.items())

    @property
    def _columns(self) -> dict[str, str]:
        return {**COLUMNS, OBJECT_ERROR: "string"} if self.options.get("objects") is not None else COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_jetstream.options import Options, check_schema
        from pyspark_jetstream.reader import JetStreamReader

        options = Options.parse(self.options)
        check_schema(schema, self._columns, objects=options.objects is not None)
        options.check_batch()
        return JetStreamReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_jetstream.compat import check_consumer, check_limits, stream_reader
        from pyspark_jetstream.options import Options, check_schema
        from pyspark_jetstream.stream_reader import JetStreamStreamReader

        options = Options.parse(self.options)
        check_schema(schema, self._columns, objects=options.objects is not None)
        options.check_streaming()
        if options.consumer is not None:
            from pyspark_jetstream.consumer_reader import JetStreamConsumerReader

            check_consumer(options.consumer)
            return JetStreamConsumerReader(options, schema)
        check_limits(options.limits)
        return stream_reader(JetStreamStreamReader(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_jetstream.write_options import WriteOptions
        from pyspark_jetstream.writer import JetStreamWriter

        return JetStreamWriter(WriteOptions.parse(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from pyspark_jetstream.write_options import WriteOptions
        from pyspark_jetstream.writer import JetStreamStreamWriter

        return JetStreamStreamWriter(WriteOptions.parse(self.options, schema, overwrite=overwrite))
