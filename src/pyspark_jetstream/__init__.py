# SPDX-License-Identifier: Apache-2.0
"""NATS JetStream as a Spark data source: ``spark.read.format("jetstream")``.

Spark finds this module by its name and imports it wherever pyspark runs, without handling an ImportError. Orchestrators
import it to parse a task. This module therefore imports only the standard library.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from jetstream_arrow.payload.compression import Compression
    from jetstream_arrow.payload.decoder import UnknownFields
    from jetstream_arrow.payload.registry import Framing, SchemaRegistry
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.hold.table import Appended, Table
    from jetstream_handoff.rules.missing import Missing
    from pyspark_jetstream.exact_json.scalars import EpochUnit
    from pyspark_jetstream.source import DefaultSource

__all__ = ["DefaultSource", "SchemaRegistry", "append_batch", "decoded", "in_order", "read_claim", "spark_session"]


def __getattr__(name: str) -> Any:
    """Import these classes when they are used: one needs pyspark, the other the client of schema registries."""
    if name == "DefaultSource":
        from pyspark_jetstream.source import DefaultSource

        return DefaultSource
    if name == "SchemaRegistry":
        from jetstream_arrow.payload.registry import SchemaRegistry

        return SchemaRegistry
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def read_claim(
    spark: SparkSession,
    claim: Claim,
    *,
    servers: str | None = None,
    connection: str | None = None,
    missing: Missing = "error",
    attempt: str | None = None,
    objects: str | None = None,
    max_object_size: int | None = None,
) -> DataFrame:
    """Return a DataFrame of exactly the messages of a claim.

    Give either ``servers`` or ``connection``.

    spark:       the Spark session.
    claim:       the claim to read.
    servers:     addresses of the servers, separated by commas.
    connection:  the name of a connection whose settings are in the environment of this task, or in the
                 environment of the Spark Connect server.
    missing:     what to do with messages that no longer exist: ``"error"`` (default) fails; ``"skip"`` reads the
                 others, and the claim's receipt names the missing ones. ``"skip"`` needs ``attempt`` and
                 ``connection``.
    attempt:     the name of the attempt that holds the claim (``attempt_id``). Default None: unknown.
    objects:     the name of the object store with the payloads of messages that refer to an object. The column
                 ``object_error`` then says why an object cannot be read. Default None: these messages are read as they
                 are.
    max_object_size: the largest object that is read, in bytes. Default None: 64 MiB.

    Raises:
        SettingsMissing: the Spark Connect server does not find the settings of the connection.
        InvalidValue: neither or both of ``servers`` and ``connection`` are given, or the session's JVM was started
            without the settings of the connection, or ``missing`` lacks what it needs.
    """
    from jetstream_handoff.rules.missing import check_missing
    from pyspark_jetstream.session import check_environment, check_server

    if connection is not None:
        check_environment(spark, connection)
    options = {
        "servers": servers,
        "connection": connection,
        "claim": json.dumps(claim.to_json()),
        "missing": check_missing(missing),
        "attempt": attempt,
        "objects": objects,
        "maxObjectSize": None if max_object_size is None else str(max_object_size),
    }
    given = {name: value for name, value in options.items() if value is not None}
    messages = spark.read.format("jetstream").options(**given).load()
    if connection is not None:
        check_server(messages, connection)
    return messages


def append_batch(
    table: Table, batch: DataFrame, rows: DataFrame | None = None, *, every_message: bool = True
) -> Appended:
    """Append the rows of a micro-batch to a table that contains each message once, in ``foreachBatch`` of a query with
    the option ``consumer``: exactly once from the stream to the table, whatever is killed.

    The rows of messages that are in the table are left out. The rows of all others are appended in one commit, as with
    ``claim.append_to``. An empty micro-batch changes nothing.

    table:  the table, such as :class:`jetstream_tables.DeltaTable`. It is created if it does not exist.
    batch:  the DataFrame that ``foreachBatch`` gets, of one stream.
    rows:   the rows to append, made of ``batch``. They need its columns ``sequence`` and ``timestamp``. Default: those
            of ``batch``. The driver collects them. ``batch`` is persisted while both are read.
    every_message:  whether it is an error if a message has no row. Default True. Give False where malformed messages
            are split off and go to another table.

    Returns: which messages were written, which were in the table already, and the table's version.

    Raises:
        RowsInvalid: the rows do not belong to this micro-batch, do not fit the table, or are not complete. Nothing was
            written.
        OtherMessage: a sequence is in the table with a later time, of another stream of this name. Nothing was
            written.
        TableUnsuitable: the table does not allow that each message is in it once.
        TableFailed: the table cannot be read or written, or the outcome is unknown. The query fails, and its next
            start repeats the micro-batch.
        InvalidValue: ``batch`` lacks a column of the data source, or has messages of several streams.
    """
    from pyspark_jetstream.micro_batch import append

    return append(table, batch, rows, every_message=every_message)


def in_order(messages: DataFrame, *key: str | Column) -> DataFrame:
    """Return a DataFrame in which the rows of each key are in one partition, in ascending order of ``sequence``.

    A DataFrame has no order: Spark reads a claim in several partitions at the same time. What works on the result
    partition by partition, such as ``foreachPartition``, ``mapInArrow`` or ``mapInPandas``, gets the messages of a key
    in the order of the stream. A later shuffle, such as a join, ends this order, so call this function last. The rows
    are shuffled and sorted once.

    messages:  a DataFrame of messages of one stream, with the column ``sequence``.
    key:       columns whose values together are the key: their names, or expressions such as
               ``split("subject", "[.]")[1]``.

    Raises:
        InvalidValue: no key is given, or the DataFrame has no column ``sequence``.
    """
    from jetstream_client.errors import InvalidValue

    if not key:
        raise InvalidValue("key", key, "give at least one column whose values are the key, such as 'subject'")
    if "sequence" not in messages.columns:
        raise InvalidValue("messages", messages.columns, "the column 'sequence' is missing; keep it when you select")
    return messages.repartition(*key).sortWithinPartitions(*key, "sequence")


def decoded(
    messages: DataFrame,
    schema: StructType | str | bytes,
    *,
    format: str = "json",  # noqa: A002 - as in spark.read
    message: str | None = None,
    compression: Compression | None = None,
    options: Mapping[str, str] | None = None,
    into: str | None = None,
    epoch_unit: EpochUnit | None = None,
    unknown_fields: UnknownFields = "ignore",
    registry: SchemaRegistry | None = None,
    framing: Framing | None = None,
    writer_schema: str | Sequence[str] | None = None,
) -> tuple[DataFrame, DataFrame]:
    """Decode payloads into columns. Returns two DataFrames: the decoded messages and the malformed ones.

    Each message is in exactly one of them. The decoded messages have the columns of ``messages``, with the columns of
    the schema in place of ``data``. The malformed messages have all columns of ``messages`` and the column ``reason``,
    and can be passed to ``claim.reject``. A JSON payload is malformed if a column cannot represent its value exactly,
    if a field that is NOT NULL is null or missing, or if it shares no field with the schema; the reason names the
    field. Delete markers, which have no payload, are malformed, with a reason that begins with ``delete marker``. If
    you use both DataFrames, Spark reads the messages twice, unless you call ``messages.persist()`` first.

    messages:  a DataFrame of messages, with the column ``data``.
    schema:    for JSON a struct type or its DDL, for example ``"id INT, name STRING"``; for Avro the reader's schema as
               JSON; for Protobuf a descriptor set as bytes.
    format:    ``"json"`` (default), ``"avro"`` or ``"protobuf"``.
    message:   the full name of the message type, for example ``"orders.v1.Order"``. Only for Protobuf, and required
               there.
    compression: ``"gzip"`` or ``"zstd"``: each payload is compressed. Default None: none is. A payload that cannot be
               decompressed, or that has more than 64 MiB afterwards, is malformed; the malformed messages keep their
               ``data`` as it was published.
    options:   for JSON options of Spark's ``from_json``, for example ``{"timestampFormat": "dd.MM.yyyy HH:mm"}``; for
               Protobuf ``{"nanoseconds.as.struct": "true"}``, which reads the types Timestamp and Duration as structs
               of seconds and nanoseconds.
    into:      the name of a column that gets the fields as a struct, for example ``"event"``. Default None: each field
               gets its own column, and none may have the name of a column of ``messages``.
    epoch_unit: the unit of numbers in TIMESTAMP fields, since 1970-01-01 UTC: ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``.
               Default None: such numbers are malformed. Only for JSON.
    unknown_fields: ``"ignore"`` (default), or ``"malformed"`` for payloads with a field that the schema does not
               contain, at any depth. Not for Avro.
    registry:  the schema registry that has the schemas with which the messages were written. It is asked here, with a
               job that reads the ids from the messages. Default None: no registry. Not for JSON.
    framing:   what payloads begin with: ``"none"``, ``"confluent"`` (0x00 and an id of 4 bytes), ``"apicurio"`` (0x00
               and an id of 8 bytes) or ``"single-object"`` (0xC3 0x01 and the schema's fingerprint). Default None:
               ``"confluent"`` with a registry; otherwise no framing, but a payload that begins like one is malformed,
               unless it is single-object encoding with the fingerprint of a given schema. Not for JSON. Protobuf has
               ``"confluent"`` with a registry and ``"none"`` without one.
    writer_schema: the schema with which the messages were written, if ``schema`` is another one; with
               ``framing="single-object"`` several of them. Default None: ``schema``. Only for Avro.

    Raises:
        InvalidValue: ``messages`` has no column ``data``, the schema or an option cannot be used, or a field of the
            schema has the same name as a column of ``messages``; or ``messages`` is a stream and there is a registry.
        SchemaRegistryFailed: the registry does not answer, or refuses the request.
    """
    from jetstream_arrow.payload.registry import Written
    from pyspark_jetstream.payload import check_data, decoding, split

    written = Written(registry, framing, writer_schema)
    check_data(messages)
    packed = None
    if compression is not None:
        from pyspark_jetstream.compression import unpacked

        messages, packed = unpacked(messages, compression)
    found = decoding(messages, format, schema, options or {}, epoch_unit, unknown_fields, written, message)
    return split(messages, found, into, packed)


def spark_session(
    app_name: str = "jetstream",
    *,
    master: str | None = None,
    memory: str | None = None,
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the Spark session of this process, and start one if there is none. Its driver and its executors find the
    settings of the connections that are in the environment.

    If the environment variable ``SPARK_REMOTE`` names a running Spark Connect server, for example
    ``sc://localhost:15002``, the session is on that server. The server must have the settings of the connections in its
    own environment (docs/how-to/warm-spark.md). The session ends with this process.

    If this process starts Java, Java optimises code later than by default, because most jobs are short. Options in
    ``SPARK_SUBMIT_OPTS`` and in Spark's configuration take precedence.

    app_name:  the name of the application.
    master:    the master URL; default: the URL that ``spark-submit``, ``PYSPARK_SUBMIT_ARGS`` or Spark's configuration
               sets, otherwise ``local[*]``. Leave it out for a Spark Connect server, which has its own master.
    memory:    memory of the driver, for example ``"4g"``. In local mode, all of Spark shares this memory. A Spark
               Connect server ignores it.
    config:    other Spark properties, for example ``{"spark.sql.shuffle.partitions": "8"}``. A Spark Connect server
               ignores properties that cannot be changed while it runs.

    Raises:
        InvalidValue: the Spark Connect server does not answer within half a minute, its address is invalid, none is
            named although only Spark's client (pyspark-client) is installed, or ``master`` is given although the
            session is on a Spark Connect server.
    """
    from pyspark_jetstream.session import start

    return start(app_name, master, memory, config or {})
