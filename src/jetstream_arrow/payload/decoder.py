# SPDX-License-Identifier: Apache-2.0
"""The decoder of a format with a schema, and the checks of what ``decoded`` was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from jetstream_arrow.payload.registry import Written
from jetstream_client.errors import InvalidValue

if TYPE_CHECKING:
    import pyarrow as pa

    from jetstream_arrow.payload.registry import Ask

UnknownFields = Literal["ignore", "malformed"]
ONLY_PROTOBUF = "only Protobuf has message types; leave it out for other formats"
NAMES_NO_SCHEMA = "a JSON payload does not name its schema; leave this out"


class Decoder(Protocol):
    """Decodes a binary Arrow column to a column with the fields ``value`` and ``reason``. For each message, exactly one
    of them is set.

    fields:  the names of the value's fields.
    ddl:     the value's type in Spark.
    type:    the type of the decoded column.
    """

    fields: list[str]
    ddl: str
    type: pa.StructType

    def decoded(self, data: pa.Array) -> pa.Array: ...


@dataclass(frozen=True)
class Stated:
    """What the caller has stated; the fields are those of :func:`jetstream_arrow.decoded`.

    epoch_unit:  only for JSON.
    """

    message: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    epoch_unit: str | None = None
    unknown_fields: UnknownFields = "ignore"
    written: Written = field(default_factory=Written)

    def __post_init__(self) -> None:
        if not isinstance(self.options, Mapping):
            raise InvalidValue("options", self.options, "give a dict, for example {'timeZone': 'UTC'}")
        if self.unknown_fields not in get_args(UnknownFields):
            raise InvalidValue("unknown_fields", self.unknown_fields, "give 'ignore' or 'malformed'")


def decoder(format: str, schema: object, stated: Stated, ask: Ask, known: str) -> Decoder:  # noqa: A002
    """Return the decoder of Avro, of Protobuf, or of JSON without Spark.

    ask:    asks the registry for each id in the messages.
    known:  the formats that the caller knows.

    Raises:
        InvalidValue: the format, the schema or an option cannot be used.
        SchemaRegistryFailed: the registry does not answer, or refuses the request.
    """
    if format == "protobuf":
        if stated.epoch_unit is not None:
            remedy = "a Protobuf Timestamp has its unit; leave epoch_unit out"
            raise InvalidValue("epoch_unit", stated.epoch_unit, remedy)
        return _protobuf(schema, stated, ask)
    if stated.message is not None:
        raise InvalidValue("message", stated.message, ONLY_PROTOBUF)
    if format == "json":
        return _json(schema, stated)
    if format != "avro":
        raise InvalidValue("format", format, f"give {known}")
    only_others = [
        *stated.options,
        *(["epoch_unit"] if stated.epoch_unit else []),
        *(["unknown_fields"] * (stated.unknown_fields != "ignore")),
    ]
    if only_others:
        raise InvalidValue("options", ", ".join(only_others), "Avro has none of these options; leave them out")
    return _avro(schema, stated.written, ask)


def _json(schema: object, stated: Stated) -> Decoder:
    from jetstream_arrow.payload.json_objects import Objects

    if stated.written.given:
        raise InvalidValue(", ".join(stated.written.given), "…", NAMES_NO_SCHEMA)
    return Objects(schema, stated.options, stated.epoch_unit, stated.unknown_fields == "malformed")


def _avro(schema: object, written: Written, ask: Ask) -> Decoder:
    """Decode Avro with fastavro, and ask the registry for the writers' schemas."""
    try:
        from jetstream_arrow.payload.avro import Records
    except ModuleNotFoundError as missing:
        remedy = (
            "Avro needs fastavro; install airflow-provider-nats-jetstream[avro] here and, with Spark, on every executor"
        )
        raise InvalidValue("format", "avro", remedy) from missing
    framing, given = written.checked_framing(), written.writer_schema
    writers = [given] if isinstance(given, str) else list(given or ())
    if len(writers) > 1 and framing != "single-object":
        remedy = "only with framing='single-object' the payloads say which schema they have; give one schema"
        raise InvalidValue("writer_schema", f"{len(writers)} schemas", remedy)
    records = Records(schema, framing, writers)  # before the registry is asked, so that a wrong schema is found first
    if written.registry is not None:
        records = Records(schema, framing, (), ask(written.registry, str(framing), None))
    return records


def _protobuf(schema: object, stated: Stated, ask: Ask) -> Decoder:
    """Decode Protobuf with google.protobuf, and ask the registry for the writers' schemas."""
    try:
        from jetstream_arrow.payload.protobuf import Messages
    except ModuleNotFoundError as missing:
        remedy = (
            "Protobuf needs the package protobuf; install airflow-provider-nats-jetstream[protobuf] here and, with "
            "Spark, on every executor"
        )
        raise InvalidValue("format", "protobuf", remedy) from missing
    written = stated.written
    framing = written.checked_framing()
    if framing not in (None, "none", "confluent") or written.writer_schema is not None:
        given = "writer_schema" if written.writer_schema is not None else "framing"
        raise InvalidValue(given, "…", "Protobuf is read with registry=… and Confluent's framing, or with neither")
    what = (schema, stated.message, stated.options, stated.unknown_fields == "malformed")
    found = Messages(*what)  # first, so that a wrong schema is found
    if written.registry is not None:
        found = Messages(*what, ask(written.registry, str(framing), "serialized"))
    return found


def check_names(kept: Sequence[str], fields: Sequence[str], into: str | None, rename: Callable[[str], str]) -> None:
    """Raise InvalidValue if a decoded column has the name of a column of the messages.

    rename:  returns how the caller renames a column.
    """
    taken = {name.lower(): name for name in kept}
    if into is not None:
        if not isinstance(into, str) or not into or into.lower() in taken:
            raise InvalidValue("into", into, f"the messages have the columns {', '.join(kept)}; give another name")
        return
    for name in fields:
        if column := taken.get(name.lower()):
            raise InvalidValue(
                "schema",
                name,
                f"the payload's field {name!r} and the message's column {column!r} have the same name; keep both apart"
                f" with decoded(…, into='event'), or rename the message's column with {rename(column)}",
            )
