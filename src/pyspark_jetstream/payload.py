# SPDX-License-Identifier: Apache-2.0
"""Decoding payloads into columns, and separating messages whose payload is malformed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, get_args

from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.types import BinaryType, BooleanType, StringType, StructField, StructType

from jetstream_arrow.columns import OBJECT_ERROR
from jetstream_arrow.payload.decoder import NAMES_NO_SCHEMA, ONLY_PROTOBUF, Stated, check_names, decoder
from jetstream_arrow.payload.registry import Written
from jetstream_client.errors import InvalidValue
from jetstream_client.read.message import MARKER_REASON
from pyspark_jetstream.compat import with_decoded
from pyspark_jetstream.exact_json.exactness import Exactness
from pyspark_jetstream.exact_json.scalars import EpochUnit, Terms
from pyspark_jetstream.exact_json.sql import PAYLOAD, check_name, literal, quoted
from pyspark_jetstream.schema_ids import asked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jetstream_arrow.payload.decoder import Decoder, UnknownFields
    from pyspark_jetstream.compression import Packed

_SWITCHES = {
    name.lower(): name
    for name in (
        "allowBackslashEscapingAnyCharacter",
        "allowComments",
        "allowNonNumericNumbers",
        "allowNumericLeadingZeros",
        "allowSingleQuotes",
        "allowUnquotedControlChars",
        "allowUnquotedFieldNames",
    )
}
_FORMATS = {name.lower(): name for name in ("dateFormat", "timestampFormat", "timestampNTZFormat")}
_OPTIONS = {
    **_SWITCHES,
    **_FORMATS,
    **{name.lower(): name for name in ("locale", "maxNestingDepth", "maxNumLen", "maxStringLen", "timeZone")},
}
"""The options of from_json that have an effect on how a payload with a schema is read."""
_RESERVED = ("mode", "columnnameofcorruptrecord", "enabledatetimeparsingfallback")


@dataclass(frozen=True)
class Decoding:
    """How to decode one format.

    fields:  the names of the schema's columns.
    decode:  takes messages and a name, and returns the messages with the decoded column of this name.
    values:  takes the name of the decoded column, and returns SQL of each field's value, in the order of ``fields``.
    reason:  takes the name of the decoded column, and returns SQL of a string: why the payload is malformed, or null if
             it is valid. It may use the column ``data``.
    """

    fields: list[str]
    decode: Callable[[DataFrame, str], DataFrame]
    values: Callable[[str], list[str]]
    reason: Callable[[str], str]


def split(
    messages: DataFrame, decoding: Decoding, into: str | None = None, packed: Packed | None = None
) -> tuple[DataFrame, DataFrame]:
    """Return the decoded messages and the malformed ones, as :func:`pyspark_jetstream.decoded` describes.

    packed:  the columns that decompression has added. Default None: the payloads were not compressed.
    """
    original = [name for name in messages.columns if packed is None or name not in (packed.data, packed.reason)]
    original = [name for name in original if name != OBJECT_ERROR]
    kept = [name for name in original if name != "data"]
    _check_names(kept, decoding.fields, into)
    name = f"decoded_{_SECRET}"
    reasons = [decoding.reason(name)]
    if packed is not None:
        reasons.insert(0, quoted(packed.reason))
    if "headers" in kept:
        reasons.insert(0, _MARKED)
    if OBJECT_ERROR in messages.columns:
        reasons.insert(0, quoted(OBJECT_ERROR))
    # Spark decodes a payload once, because the next step uses the result more than once. That step makes the values and
    # the reason together, so that Spark evaluates once what they have in common. SQL is built with one request to Spark
    # for each step, where functions of columns would need hundreds.
    decoded = decoding.decode(messages, name)
    pairs = zip(decoding.values(name), decoding.fields, strict=True)
    row = ", ".join(f"{value} AS {quoted(field)}" for value, field in pairs)
    both = f"struct(struct({row}) AS value, coalesce({', '.join([*reasons, 'NULL'])}) AS reason) AS {name}"
    found = decoded.selectExpr(*map(quoted, messages.columns), both)
    # Rows are selected by inline and explode, which yield none for null. A filter would be moved below the decoding, so
    # that each payload would be decoded once for the filter and again for the columns.
    valid = f"CASE WHEN {name}.reason IS NULL THEN array({name}.value) END"
    shown = f"inline({valid})" if into is None else f"explode({valid}) AS {quoted(into)}"
    rest = [quoted(each) for each in original]
    if packed is not None:
        rest[original.index("data")] = f"{quoted(packed.data)} AS `data`"
    malformed = f"explode(CASE WHEN {name}.reason IS NOT NULL THEN array({name}.reason) END) AS reason"
    return found.selectExpr(*map(quoted, kept), shown), found.selectExpr(*rest, malformed)


def check_data(messages: DataFrame) -> None:
    """Raise InvalidValue if the messages have no payloads."""
    if not any(each.name == "data" and each.dataType == BinaryType() for each in messages.schema.fields):
        raise InvalidValue(
            "messages", messages.columns, "the DataFrame has these columns; it needs a binary column named 'data'"
        )


def _check_names(kept: list[str], fields: list[str], into: str | None) -> None:
    """Raise InvalidValue if a decoded column has the name of a column of the messages, or a name cannot be used."""
    for name in kept:
        check_name("messages", name)
    check_names(kept, fields, into, lambda name: f"messages.withColumnRenamed({name!r}, 'message_{name}')")
    if into is not None:
        check_name("into", into)


def decoding(  # noqa: PLR0917 - as :func:`pyspark_jetstream.decoded` passes them
    messages: DataFrame,
    format: str,  # noqa: A002
    schema: StructType | str | bytes,
    options: Mapping[str, str],
    epoch_unit: EpochUnit | None = None,
    unknown_fields: UnknownFields = "ignore",
    written: Written | None = None,
    message: str | None = None,
) -> Decoding:
    """Return the decoding of a format with a schema. Raises InvalidValue."""
    check_data(messages)
    _check_parser(messages)
    written = written or Written()
    stated = Stated(message, options, epoch_unit, unknown_fields, written)
    if epoch_unit is not None and epoch_unit not in get_args(EpochUnit):
        raise InvalidValue("epoch_unit", epoch_unit, "give 's', 'ms', 'us' or 'ns'")
    if format == "json":
        if message is not None:
            raise InvalidValue("message", message, ONLY_PROTOBUF)
        if written.given:
            raise InvalidValue(", ".join(written.given), "…", NAMES_NO_SCHEMA)
        _check_session(messages, options)
        given = (value for name, value in options.items() if name.lower() == "timezone")
        zone = next(given, None) or str(messages.sparkSession.conf.get("spark.sql.session.timeZone"))
        return json_decoding(schema, Terms(zone, options, epoch_unit, unknown_fields == "malformed"))
    return _in_python(decoder(format, schema, stated, partial(asked, messages), "'json', 'avro' or 'protobuf'"))


def _in_python(decoder: Decoder) -> Decoding:
    """Return the decoding by a decoder that returns a column with the fields ``value`` and ``reason``."""

    def decode(messages: DataFrame, name: str) -> DataFrame:
        return with_decoded(messages, name, decoder.decoded, f"STRUCT<value: {decoder.ddl}, reason: STRING>")

    def values(decoded: str) -> list[str]:
        return [f"{decoded}.value.{quoted(each)}" for each in decoder.fields]

    return Decoding(decoder.fields, decode, values, lambda decoded: f"{decoded}.reason")


def json_decoding(schema: StructType | str | bytes, terms: Terms) -> Decoding:
    """Decode JSON with Spark's ``from_json``.

    Used alone, ``from_json`` would lose data: it ignores everything after the first value, accepts bytes that are not
    UTF-8, and changes values that a column cannot represent (:mod:`pyspark_jetstream.exact_json`). So the brace at the
    end of each payload is replaced by ``,"<mark>":true}``. The mark is secret, so that no payload can contain it. If it
    is found in the object that ``from_json`` has read, this object ends where the payload ends.
    """
    row = _struct(schema)
    _check_options(row, terms.options)
    exactness = Exactness(row, terms)
    mark, corrupt = _SECRET, f"corrupt_{_SECRET}"
    wire = StructType([*exactness.wire.fields, StructField(mark, BooleanType()), StructField(corrupt, StringType())])
    strict = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt}

    def decode(messages: DataFrame, name: str) -> DataFrame:
        parsed = F.from_json(F.expr(_marked(mark)), wire, {"allowSingleQuotes": "false", **terms.options, **strict})
        return messages.select("*", parsed.alias(name))

    def values(decoded: str) -> list[str]:
        return list(exactness.values(decoded).values())

    def reason(decoded: str) -> str:
        whole = f"{decoded}.`{mark}`"
        given = decoded, f"({decoded}.{corrupt} IS NOT NULL)"
        return (
            f"CASE WHEN {whole} AND {exactness.sure(*given)} THEN NULL"
            f" WHEN {whole} THEN {exactness.reason(*given)}"
            " WHEN coalesce(length(`data`), 0) = 0 THEN 'empty'"
            f" WHEN try_validate_utf8({PAYLOAD}) IS NULL THEN 'not UTF-8'"
            " ELSE 'not a JSON object of the schema' END"
        )

    return Decoding(exactness.names, decode, values, reason)


def _check_options(row: StructType, options: Mapping[str, str]) -> None:
    """Raise InvalidValue if an option of from_json would lose part of a value."""
    lowered = {name.lower(): name for name in options}
    for name in _RESERVED:
        if name in lowered:
            remedy = "leave this option out; it is already set, to separate malformed messages"
            raise InvalidValue("options", lowered[name], remedy)
    for lower, name in lowered.items():
        if lower not in _OPTIONS:
            raise InvalidValue("options", name, f"it has no effect here; leave it out, or give one of {_known()}")
        if lower in _SWITCHES and str(options[name]).lower() not in {"true", "false"}:
            raise InvalidValue(f"options[{name!r}]", options[name], "give 'true' or 'false'")
    for name in _FORMATS:
        if name in lowered and "SSSSSSS" in options[lowered[name]]:
            remedy = "a timestamp has at most microseconds; give at most six S, or leave this option out for ISO 8601"
            raise InvalidValue(f"options[{lowered[name]!r}]", options[lowered[name]], remedy)
    if "locale" in lowered and "timestampformat" in lowered and "timestamp" in row.simpleString():
        remedy = "timestampFormat is used without a locale; read the field as STRING or TIMESTAMP_NTZ"
        raise InvalidValue("options", lowered["locale"], remedy)


def _known() -> str:
    return ", ".join(sorted(_OPTIONS.values()))


def _check_parser(messages: DataFrame) -> None:
    """Raise InvalidValue if the session reads quoted names as something else."""
    name = "spark.sql.parser.quotedRegexColumnNames"
    if str(messages.sparkSession.conf.get(name)).lower() == "true":
        raise InvalidValue(name, "true", "Spark would read a name as a regular expression; set it to false")


def _check_session(messages: DataFrame, options: Mapping[str, str]) -> None:
    """Raise InvalidValue if the session's configuration would change what a stated format reads."""
    stated = next((name for name in options if name.lower() in _FORMATS), None)
    conf = messages.sparkSession.conf
    for name, lossy, standard in (
        ("spark.sql.legacy.timeParserPolicy", "LEGACY", "CORRECTED"),
        ("spark.sql.timestampType", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"),
    ):
        if stated is not None and str(conf.get(name)).upper() == lossy:
            remedy = (
                f"with it, Spark reads wrong dates and times in a stated format; set it to {standard}, or leave out"
            )
            raise InvalidValue(name, lossy, f"{remedy} options[{stated!r}]")


_SECRET = secrets.token_hex(8)
"""Unknown to those who write payloads. Each call has the same, so that Spark finds the code that it has compiled for
this schema; with other names in a plan, it would write and compile it again."""

_MARKED = f"concat('delete marker: ', try_element_at(`headers`[{literal(MARKER_REASON)}], -1))"
"""SQL of a string: that the message is a delete marker, with its reason; null for any other message."""


def _marked(mark: str) -> str:
    """SQL of a payload in which a mark stands before the brace at its end; null if there is none, or it is not UTF-8.

    No line break is added: it would end a comment (option allowComments) that contains the brace.
    """
    usual, end = f"endswith({PAYLOAD}, '}}') AND NOT endswith({PAYLOAD}, '{{}}')", f'"{mark}":true}}'
    inside = "CAST(substring(`data`, 1, length(`data`) - 1) AS STRING)"
    trimmed = f"trim(TRAILING ' \t\r\n' FROM try_validate_utf8({PAYLOAD}))"
    shorter = f"left({trimmed}, length({trimmed}) - 1)"
    return (
        f"CASE WHEN {usual} THEN concat(try_validate_utf8({inside}), {literal(',' + end)})"
        f" WHEN endswith({trimmed}, '{{}}') THEN concat({shorter}, {literal(end)})"
        f" WHEN endswith({trimmed}, '}}') THEN concat({shorter}, {literal(',' + end)}) END"
    )


def _struct(schema: StructType | str | bytes) -> StructType:
    try:
        parsed: object = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except Exception as error:
        raise InvalidValue("schema", str(schema)[:100], "give a struct type, or its DDL such as 'id INT'") from error
    if not isinstance(parsed, StructType) or not parsed.fields:
        raise InvalidValue("schema", str(schema)[:100], "give a struct type with fields, or its DDL such as 'id INT'")
    return parsed
