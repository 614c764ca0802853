# SPDX-License-Identifier: Apache-2.0
"""Decoding payloads into columns, and separating messages whose payload is malformed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, StringType, StructField, StructType

from jetstream_client.errors import InvalidValue
from jetstream_client.read.message import MARKER_REASON
from pyspark_jetstream.compat import with_decoded
from pyspark_jetstream.exactness import EpochUnit, Exactness, Terms, check_name, literal, quoted
from pyspark_jetstream.registry import Written, asked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pyspark_jetstream.avro import Records
    from pyspark_jetstream.compression import Packed
    from pyspark_jetstream.protobuf import Messages

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

UnknownFields = Literal["ignore", "malformed"]


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
    kept = [name for name in original if name != "data"]
    _check_names(kept, decoding.fields, into)
    name = f"decoded_{_SECRET}"
    reasons = [decoding.reason(name)]
    if packed is not None:
        reasons.insert(0, quoted(packed.reason))
    if "headers" in kept:
        reasons.insert(0, _MARKED)
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
    taken = {name.lower(): name for name in kept}
    for name in kept:
        check_name("messages", name)
    if into is not None:
        if not isinstance(into, str) or not into or into.lower() in taken:
            raise InvalidValue("into", into, f"the messages have the columns {', '.join(kept)}; give another name")
        check_name("into", into)
        return
    for name in fields:
        if column := taken.get(name.lower()):
            raise InvalidValue(
                "schema",
                name,
                f"the payload's field {name!r} and the message's column {column!r} have the same name; keep both apart"
                f" with decoded(…, into='event'), or rename the message's column with"
                f" messages.withColumnRenamed({column!r}, 'message_{column}')",
            )


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
    _check_parameters(options, epoch_unit, unknown_fields)
    written = written or Written()
    if format == "protobuf":
        if epoch_unit is not None:
            raise InvalidValue("epoch_unit", epoch_unit, "a Protobuf Timestamp has its unit; leave epoch_unit out")
        return protobuf_decoding(messages, schema, message, options, unknown_fields == "malformed", written)
    if message is not None:
        raise InvalidValue("message", message, "only Protobuf has message types; leave it out for other formats")
    if format == "json":
        if written.given:
            raise InvalidValue(", ".join(written.given), "…", "a JSON payload does not name its schema; leave this out")
        _check_session(messages, options)
        given = (value for name, value in options.items() if name.lower() == "timezone")
        zone = next(given, None) or str(messages.sparkSession.conf.get("spark.sql.session.timeZone"))
        return json_decoding(schema, Terms(zone, options, epoch_unit, unknown_fields == "malformed"))
    if format != "avro":
        raise InvalidValue("format", format, "give 'json', 'avro' or 'protobuf'")
    only_json = [
        *options,
        *(["epoch_unit"] if epoch_unit else []),
        *(["unknown_fields"] * (unknown_fields != "ignore")),
    ]
    if only_json:
        raise InvalidValue("options", ", ".join(only_json), "Avro has none of these options; leave them out")
    return avro_decoding(messages, schema, written)


def _check_parameters(options: object, epoch_unit: str | None, unknown_fields: str) -> None:
    """Raise InvalidValue if one of these has a value that no format allows."""
    if not isinstance(options, Mapping):
        raise InvalidValue("options", options, "give a dict, for example {'timeZone': 'UTC'}")
    if unknown_fields not in get_args(UnknownFields):
        raise InvalidValue("unknown_fields", unknown_fields, "give 'ignore' or 'malformed'")
    if epoch_unit is not None and epoch_unit not in get_args(EpochUnit):
        raise InvalidValue("epoch_unit", epoch_unit, "give 's', 'ms', 'us' or 'ns'")


def avro_decoding(messages: DataFrame, schema: object, written: Written) -> Decoding:
    """Decode Avro with fastavro, and ask the registry for the writers' schemas."""
    try:
        from pyspark_jetstream.avro import Records
    except ModuleNotFoundError as missing:
        remedy = "Avro needs fastavro; install airflow-provider-nats-jetstream[avro] here and on every Spark executor"
        raise InvalidValue("format", "avro", remedy) from missing
    framing, given = written.checked_framing(), written.writer_schema
    writers = [given] if isinstance(given, str) else list(given or ())
    if len(writers) > 1 and framing != "single-object":
        remedy = "only with framing='single-object' the payloads say which schema they have; give one schema"
        raise InvalidValue("writer_schema", f"{len(writers)} schemas", remedy)
    records = Records(schema, framing, writers)  # before the registry is asked, so that a wrong schema is found first
    if written.registry is not None:
        records = Records(schema, framing, (), asked(messages, written.registry, str(framing)))
    return _in_python(records)


def protobuf_decoding(  # noqa: PLR0917 - as :func:`pyspark_jetstream.decoded` passes them
    messages: DataFrame,
    schema: object,
    message: str | None,
    options: Mapping[str, str],
    refuse_unknown: bool,
    written: Written,
) -> Decoding:
    """Decode Protobuf with google.protobuf, and ask the registry for the writers' schemas."""
    try:
        from pyspark_jetstream.protobuf import Messages
    except ModuleNotFoundError as missing:
        remedy = (
            "Protobuf needs the package protobuf; install airflow-provider-nats-jetstream[protobuf] here and on every"
            " Spark executor"
        )
        raise InvalidValue("format", "protobuf", remedy) from missing
    framing = written.checked_framing()
    if framing not in (None, "none", "confluent") or written.writer_schema is not None:
        given = "writer_schema" if written.writer_schema is not None else "framing"
        raise InvalidValue(given, "…", "Protobuf is read with registry=… and Confluent's framing, or with neither")
    found = Messages(schema, message, options, refuse_unknown)  # first, so that a wrong schema is found
    if written.registry is not None:
        answers = asked(messages, written.registry, str(framing), "serialized")
        found = Messages(schema, message, options, refuse_unknown, answers)
    return _in_python(found)


def _in_python(decoder: Records | Messages) -> Decoding:
    """Return the decoding by a decoder that returns a column with the fields ``value`` and ``reason``."""

    def decode(messages: DataFrame, name: str) -> DataFrame:
        return with_decoded(messages, name, decoder.decoded, f"STRUCT<value: {decoder.ddl}, reason: STRING>")

    def values(decoded: str) -> list[str]:
        return [f"{decoded}.value.{quoted(each)}" for each in decoder.fields]

    return Decoding(decoder.fields, decode, values, lambda decoded: f"{decoded}.reason")


def json_decoding(schema: StructType | str | bytes, terms: Terms) -> Decoding:
    """Decode JSON with Spark's ``from_json``.

    Used alone, ``from_json`` would lose data: it ignores everything after the first value, accepts bytes that are not
    UTF-8, and changes values that a column cannot represent (:mod:`pyspark_jetstream.exactness`). So each payload is
    parsed as the first of two elements, ``{"<mark>": [<payload>, {"<mark>": true}]}``. The mark is secret, so that no
    payload can contain it. If the second element is found in its place, the payload is exactly one JSON value.
    """
    row = _struct(schema)
    _check_options(row, terms.options)
    exactness = Exactness(row, terms)
    mark, corrupt = f"mark_{_SECRET}", f"corrupt_{_SECRET}"
    element = StructType([*exactness.wire.fields, StructField(mark, BooleanType())])
    whole = StructType([StructField(mark, ArrayType(element)), StructField(corrupt, StringType())])
    strict = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt}

    def decode(messages: DataFrame, name: str) -> DataFrame:
        # The line break ends a comment, if the option allowComments is set.
        opening, closing = literal(f'{{"{mark}":['), literal(f'\n,{{"{mark}":true}}]}}')
        wrapped = F.expr(f"concat({opening}, {_text('`data`')}, {closing})")
        parsed = F.from_json(wrapped, whole, {"allowSingleQuotes": "false", **terms.options, **strict})
        return messages.select("*", parsed.alias(name))

    def first(decoded: str) -> str:
        return f"get({decoded}.`{mark}`, 0)"

    def values(decoded: str) -> list[str]:
        return list(exactness.values(first(decoded)).values())

    def reason(decoded: str) -> str:
        elements = f"{decoded}.`{mark}`"
        one = f"size({elements}) = 2 AND get({elements}, 1).`{mark}` AND {first(decoded)} IS NOT NULL"
        given = first(decoded), f"({decoded}.{corrupt} IS NOT NULL)"
        return (
            f"CASE WHEN {one} AND {exactness.sure(*given)} THEN NULL"
            f" WHEN {one} THEN {exactness.reason(*given)}"
            " WHEN coalesce(length(`data`), 0) = 0 THEN 'empty'"
            f" WHEN {_text('`data`')} IS NULL THEN 'not UTF-8'"
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


def _text(data: str) -> str:
    """SQL of the data as a string, which is null where the data is not UTF-8."""
    return f"try_validate_utf8(CAST({data} AS STRING))"


def _struct(schema: StructType | str | bytes) -> StructType:
    try:
        parsed: object = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except Exception as error:
        raise InvalidValue("schema", str(schema)[:100], "give a struct type, or its DDL such as 'id INT'") from error
    if not isinstance(parsed, StructType) or not parsed.fields:
        raise InvalidValue("schema", str(schema)[:100], "give a struct type with fields, or its DDL such as 'id INT'")
    return parsed
