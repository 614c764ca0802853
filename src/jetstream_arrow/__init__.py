# SPDX-License-Identifier: Apache-2.0
"""Stored messages as Arrow record batches, without Spark and without Java.

Importing this module loads only the standard library, because orchestrators import it to parse a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import pyarrow as pa

    from jetstream_arrow.payload.compression import Compression
    from jetstream_arrow.payload.decoder import UnknownFields
    from jetstream_arrow.payload.json_values import EpochUnit
    from jetstream_arrow.payload.registry import Framing, SchemaRegistry

__all__ = ["SchemaRegistry", "decoded"]


def __getattr__(name: str) -> Any:
    """Import this class when it is used."""
    if name == "SchemaRegistry":
        from jetstream_arrow.payload.registry import SchemaRegistry

        return SchemaRegistry
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def decoded(
    messages: Any,
    schema: str | bytes | Mapping[str, str] | pa.Schema,
    *,
    format: str = "json",  # noqa: A002 - as in pyspark_jetstream.decoded
    message: str | None = None,
    compression: Compression | None = None,
    options: Mapping[str, str] | None = None,
    epoch_unit: EpochUnit | None = None,
    into: str | None = None,
    unknown_fields: UnknownFields = "ignore",
    registry: SchemaRegistry | None = None,
    framing: Framing | None = None,
    writer_schema: str | Sequence[str] | None = None,
) -> tuple[pa.RecordBatchReader, pa.RecordBatchReader]:
    """Decode payloads into columns, exactly. Returns two readers: of the decoded messages and of the malformed ones.

    Each message is in exactly one of them. The decoded messages have the columns of ``messages``, with the columns of
    the schema in place of ``data``. The malformed messages have all columns of ``messages`` and the column ``reason``,
    and can be passed to ``claim.reject``. The messages are read once, as either reader asks for them; what the other
    reader has not asked for yet is kept in memory, and above 64 MiB in a temporary file. So read the decoded messages
    first.

    Avro and Protobuf are decoded with the code of :func:`pyspark_jetstream.decoded`. JSON is decoded with Python's
    parser: a message that Spark decodes gets the same values, except for the rules in docs/reference/json-values.md.

    messages:  a stream of messages, such as ``claim.arrow()``, with the column ``data``; or a table, or anything else
               with ``__arrow_c_stream__``.
    schema:    for JSON the columns in Spark's DDL, such as ``"id INT NOT NULL, customer STRUCT<name: STRING>"``, or a
               mapping of their names to types, or a schema of Arrow; for Avro the reader's schema as JSON; for Protobuf
               a descriptor set as bytes.
    format:    ``"json"`` (default), ``"avro"`` or ``"protobuf"``.
    message:   the full name of the message type, for example ``"orders.v1.Order"``. Only for Protobuf, and required
               there.
    compression: ``"gzip"`` or ``"zstd"``: each payload is compressed. Default None: none is. A payload that cannot be
               decompressed, or that has more than 64 MiB afterwards, is malformed; the malformed messages keep their
               ``data`` as it was published.
    options:   for JSON ``{"timeZone": "Europe/Berlin"}``: the time zone of times without an offset, which are otherwise
               malformed in a TIMESTAMP; for Protobuf ``{"nanoseconds.as.struct": "true"}``, which reads the types
               Timestamp and Duration as structs of seconds and nanoseconds. Default None: no options.
    epoch_unit: ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``: what a number in a TIMESTAMP column counts, since 1970. Default
               None: such a number is malformed. Only for JSON.
    into:      the name of a column that gets the fields as a struct, for example ``"event"``. Default None: each field
               gets its own column, and none may have the name of a column of ``messages``.
    unknown_fields: ``"ignore"`` (default), or ``"malformed"`` for payloads with a field that the schema does not
               contain, at any depth. Not for Avro.
    registry:  the schema registry that has the schemas with which the messages were written. It is asked here for the
               ids in the messages, which are all read into memory for this. Default None: no registry.
    framing:   what payloads begin with, as in :func:`pyspark_jetstream.decoded`.
    writer_schema: the schema with which the messages were written, if ``schema`` is another one; with
               ``framing="single-object"`` several of them. Default None: ``schema``. Only for Avro.

    Raises:
        InvalidValue: ``messages`` has no column ``data``, the schema or an option cannot be used, or a field of the
            schema has the same name as a column of ``messages``.
        SchemaRegistryFailed: the registry does not answer, or refuses the request.
    """
    from jetstream_arrow.decoding import split
    from jetstream_arrow.payload.decoder import Stated
    from jetstream_arrow.payload.registry import Written

    written = Written(registry, framing, writer_schema)
    stated = Stated(message, options or {}, epoch_unit, unknown_fields, written)
    return split(messages, format, schema, stated, into=into, compression=compression)
