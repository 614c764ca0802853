# SPDX-License-Identifier: Apache-2.0
"""Decoding payloads into columns, and separating messages whose payload is malformed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, DataType, StringType, StructField, StructType

from jetstream_client.errors import InvalidValue
from jetstream_client.read.message import MARKER_REASON

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_RESERVED = ("mode", "columnnameofcorruptrecord")


@dataclass(frozen=True)
class Decoding:
    """How to decode one format.

    fields:  the names of the schema's columns.
    decode:  takes ``data``, and returns the decoded column, which ``value`` and ``reason`` take.
    value:   takes the decoded column, and returns a struct of the fields.
    reason:  takes the decoded column and ``data``, and returns a string column: why the payload is malformed, or null
             if it is valid.
    """

    fields: list[str]
    decode: Callable[[Column], Column]
    value: Callable[[Column], Column]
    reason: Callable[[Column, Column], Column]


def split(messages: DataFrame, decoding: Decoding) -> tuple[DataFrame, DataFrame]:
    """Return the decoded messages and the malformed ones, as :func:`pyspark_jetstream.decoded` describes."""
    if not any(each.name == "data" and each.dataType == BinaryType() for each in messages.schema.fields):
        raise InvalidValue(
            "messages", messages.columns, "the DataFrame has these columns; it needs a binary column named 'data'"
        )
    kept = [name for name in messages.columns if name != "data"]
    taken = {name.lower() for name in kept}
    for name in decoding.fields:
        if name.lower() in taken:
            remedy = f"the messages already have a column of this name; rename it with withColumnRenamed({name!r}, …)"
            raise InvalidValue("schema", name, remedy)
    # explode(array(…)) does not change the value, but keeps Spark from moving a filter or a field access below the
    # decoding. Without it, each payload would be decoded once for the filter and again for the columns.
    name = f"decoded_{secrets.token_hex(8)}"
    decoded = messages.select("*", F.explode(F.array(decoding.decode(messages["data"]))).alias(name))
    value, reason = decoding.value(decoded[name]), decoding.reason(decoded[name], decoded["data"])
    if "headers" in kept:
        reason = F.coalesce(_marker(decoded["headers"]), reason)
    fields = [value.getField(each).alias(each) for each in decoding.fields]
    good = decoded.filter(reason.isNull()).select(*(decoded[each] for each in kept), *fields)
    columns = (decoded[each] for each in messages.columns)
    return good, decoded.filter(reason.isNotNull()).select(*columns, reason.alias("reason"))


def decoding(format: str, schema: StructType | str, options: Mapping[str, str]) -> Decoding:  # noqa: A002
    """Return the decoding of a format with a schema. Raises InvalidValue."""
    if format == "json":
        return json_decoding(schema, options)
    if format != "avro":
        raise InvalidValue("format", format, "give 'json' or 'avro'")
    if options:
        raise InvalidValue("options", ", ".join(options), "these options are only for JSON; leave them out for Avro")
    try:
        from pyspark_jetstream.avro import avro_decoder
    except ModuleNotFoundError as missing:
        remedy = "Avro needs fastavro; install airflow-provider-nats-jetstream[avro] here and on every Spark executor"
        raise InvalidValue("format", "avro", remedy) from missing
    fields, decode = avro_decoder(schema)
    return Decoding(
        fields, decode, lambda decoded: decoded.getField("value"), lambda decoded, _: decoded.getField("reason")
    )


def json_decoding(schema: StructType | str, options: Mapping[str, str]) -> Decoding:
    """Decode JSON with Spark's ``from_json``.

    Used alone, ``from_json`` would lose data: it ignores everything after the first value, and accepts bytes that are
    not UTF-8. So each payload is parsed as the first of two elements, ``{"<mark>": [<payload>, {"<mark>": true}]}``.
    The mark is random, so that no payload can contain it. If the second element is found in its place, the payload is
    exactly one JSON value.
    """
    row = _struct(schema)
    for name in options:
        if name.lower() in _RESERVED:
            remedy = "leave this option out; it is already set, to separate malformed messages"
            raise InvalidValue("options", name, remedy)
    mark, corrupt = secrets.token_hex(8), f"corrupt_{secrets.token_hex(8)}"
    element = StructType([*row.fields, StructField(mark, BooleanType())])
    whole = StructType([StructField(mark, ArrayType(element)), StructField(corrupt, StringType())])

    def decode(data: Column) -> Column:
        # The line break ends a comment, if the option allowComments is set.
        wrapped = F.concat(F.lit(f'{{"{mark}":['), _text(data), F.lit(f'\n,{{"{mark}":true}}]}}'))
        return F.from_json(wrapped, whole, {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt})

    def value(decoded: Column) -> Column:
        return F.get(decoded.getField(mark), 0)

    def reason(decoded: Column, data: Column) -> Column:
        elements = decoded.getField(mark)
        one = F.coalesce(
            (F.size(elements) == 2) & F.get(elements, 1).getField(mark) & F.get(elements, 0).isNotNull(), F.lit(False)
        )
        return (
            F.when(one & decoded.getField(corrupt).isNull(), F.lit(None).cast("string"))
            .when(one, "a JSON object that does not match the schema")
            .when(F.length(data) == 0, "empty")
            .when(_text(data).isNull(), "not UTF-8")
            .otherwise("not a JSON object of the schema")
        )

    return Decoding(row.fieldNames(), decode, value, reason)


def _marker(headers: Column) -> Column:
    """Return a string column: that the message is a delete marker, with its reason; null for any other message."""
    return F.concat(F.lit("delete marker: "), F.element_at(headers.getItem(MARKER_REASON), -1))


def _text(data: Column) -> Column:
    """Return the data as a string column, which is null where the data is not UTF-8."""
    return F.try_validate_utf8(data.cast("string"))


def _struct(schema: StructType | str) -> StructType:
    try:
        parsed: DataType = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except Exception as error:
        raise InvalidValue("schema", str(schema)[:100], "give a struct type, or its DDL such as 'id INT'") from error
    if not isinstance(parsed, StructType) or not parsed.fields:
        raise InvalidValue("schema", str(schema)[:100], "give a struct type with fields, or its DDL such as 'id INT'")
    return parsed
