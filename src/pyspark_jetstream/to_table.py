# SPDX-License-Identifier: Apache-2.0
"""The messages of a claim into a table, without a function of the user and without Spark. The packages of the
orchestrators only say what to do; this module does it.

Importing it loads neither pyspark nor pyarrow, because orchestrators import it to parse a file.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from jetstream_arrow.payload.ddl import columns_of
from jetstream_client.errors import InvalidValue
from jetstream_client.stores.reference import MAX_SIZE, Objects
from jetstream_tables.described import table_of
from jetstream_tables.errors import TooManyMalformed
from jetstream_tables.identity import IDENTITY, OF_ROWS

if TYPE_CHECKING:
    import pyarrow as pa

    from jetstream_arrow import SchemaRegistry
    from jetstream_handoff.hold.table import Appended
    from jetstream_tables.table import ExactTable
    from pyspark_jetstream.held_claim import HeldClaim

log = logging.getLogger(__name__)

NewColumns = Literal["error", "add"]
FORMATS = ("json", "avro", "protobuf")
DECODING = (
    "compression", "epoch_unit", "framing", "message", "options", "registry", "unknown_fields", "writer_schema"
)  # fmt: skip
"""The parameters of :func:`jetstream_arrow.decoded` that may be given, besides ``schema`` and ``format``."""
OF_MESSAGES = ("stream", "subject", "headers", "data")
"""The columns of messages that a table may get; it always gets the sequence and the timestamp."""
_PAYLOAD = "payload"
_REASONS = 3
"""The largest number of reasons that a log line names."""
_EMPTY = (
    "claim %s: null in all %d rows: %s. If the schema has another name for a field than the payloads, correct it; "
    "NOT NULL, or decoding={'unknown_fields': 'malformed'}, makes such messages malformed"
)


@dataclass(frozen=True)
class Stored:
    """What became of the messages of a claim.

    table:      the name of the table.
    rows:       the number of messages whose rows this call has written; each message has one row.
    duplicates: the number of messages that were in the table already.
    malformed:  the number of messages that become dead letters.
    version:    the version of the table, if it has one.
    """

    table: str
    rows: int
    duplicates: int
    malformed: int
    version: int | None

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ToTable:
    """How messages become rows of a table.

    table:           the table, or its description for :func:`~jetstream_tables.described.table_of`.
    schema:          the schema of the payloads, as for :func:`jetstream_arrow.decoded`. Default None: payloads are not
                     decoded, and the table gets ``message_columns`` only.
    format:          ``"json"`` (default), ``"avro"`` or ``"protobuf"``.
    decoding:        further parameters of :func:`jetstream_arrow.decoded`, by their names; ``registry`` may also be a
                     mapping of the fields of a :class:`~jetstream_arrow.SchemaRegistry`. Default: none.
    columns:         the fields of the payload that become columns: a list of names, or a mapping of names of columns to
                     fields, in which ``customer.id`` is a field inside another. Default None: all fields.
    message_columns: those of ``stream``, ``subject``, ``headers`` and ``data`` that the table gets, too. ``data`` only
                     without a schema. Default: none.
    new_columns:     ``"error"`` (default), or ``"add"``: columns that the table does not have are added to it.
    max_malformed:   a claim with more malformed messages fails, so that a wrong schema does not make dead letters of
                     all messages. Default None: any number of them become dead letters.
    objects:         the name of the object store with the payloads of messages that refer to an object. A message whose
                     object cannot be read is malformed. Default None: the payload of such a message is the sentence
                     that was published in its place.
    max_object_size: the largest object that is read, in bytes. Default None: 64 MiB.

    Raises:
        InvalidValue: a value is missing or invalid.
    """

    table: ExactTable | Mapping[str, Any]
    schema: Any = None
    format: str = "json"
    decoding: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[str] | Mapping[str, str] | None = None
    message_columns: Sequence[str] = ()
    new_columns: NewColumns | str = "error"
    max_malformed: int | None = None
    objects: str | None = None
    max_object_size: int | None = None

    def __post_init__(self) -> None:
        table_of(self.table)
        if self.new_columns not in get_args(NewColumns):
            raise InvalidValue("new_columns", self.new_columns, "give 'error' or 'add'")
        if self.format not in FORMATS:
            raise InvalidValue("format", self.format, f"give one of {', '.join(map(repr, FORMATS))}")
        most = self.max_malformed
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 0):
            raise InvalidValue("max_malformed", most, "give a whole number, 0 or more, or None for any number")
        self._check_message_columns()
        self._check_objects()
        self._check_decoding()
        if self.schema is not None:
            self._check_columns()

    def _check_message_columns(self) -> None:
        given = self.message_columns
        if isinstance(given, str) or not set(given) <= {*OF_MESSAGES} or len(set(given)) < len(given):
            remedy = f"give a list of names, each once, of {', '.join(OF_MESSAGES)}"
            raise InvalidValue("message_columns", given, remedy)
        if self.schema is None:
            for name, value in (("columns", self.columns), ("decoding", self.decoding)):
                if value:
                    raise InvalidValue(name, value, "without a schema, payloads are not decoded; give schema, too")
            if not given:
                remedy = "give the schema of the payloads, or message_columns=['subject', 'data'] to keep them as bytes"
                raise InvalidValue("schema", None, remedy)
        elif "data" in given:
            remedy = "with a schema, the payload becomes columns; leave 'data' out, or leave the schema out"
            raise InvalidValue("message_columns", given, remedy)

    def _check_objects(self) -> None:
        if self.objects is None:
            if self.max_object_size is not None:
                raise InvalidValue("max_object_size", self.max_object_size, "it belongs to objects; leave it out")
            return
        Objects(self.objects, MAX_SIZE if self.max_object_size is None else self.max_object_size)
        if self.schema is None and "data" not in self.message_columns:
            remedy = "without a schema, objects are read into the column 'data'; add it to message_columns"
            raise InvalidValue("objects", self.objects, remedy)

    @property
    def _objects(self) -> dict[str, Any]:
        """The parameters of ``claim.arrow`` that are given."""
        given = {"objects": self.objects, "max_object_size": self.max_object_size}
        return {name: value for name, value in given.items() if value is not None}

    def _check_decoding(self) -> None:
        if not isinstance(self.decoding, Mapping):
            raise InvalidValue("decoding", type(self.decoding), "give a mapping, such as {'compression': 'gzip'}")
        for name in self.decoding:
            if name not in DECODING:
                raise InvalidValue("decoding", name, f"give only {', '.join(DECODING)}")
        self._registry()

    def _registry(self) -> SchemaRegistry | None:
        given = self.decoding.get("registry")
        if not isinstance(given, Mapping):
            return given
        from jetstream_arrow import SchemaRegistry

        try:
            return SchemaRegistry(**given)
        except TypeError as error:  # whose message has the name of a parameter, and no value
            raise InvalidValue("registry", sorted(map(str, given)), f"these are its fields; {error}") from None

    def _check_columns(self) -> None:
        """Check what is known without reading a schema of Avro, Protobuf or Arrow."""
        known = columns_of(self.schema) if self.format == "json" and isinstance(self.schema, str | Mapping) else None
        chosen = self._chosen([each.name for each in known] if known is not None else [])
        if known is not None:
            for source in chosen.values():
                if source not in {each.name for each in known} and source.partition(".")[0] not in {
                    each.name for each in known if each.type.fields
                }:
                    raise _unknown(source, [each.name for each in known])
        self._check_names(chosen)

    def _check_names(self, names: Iterable[str]) -> None:
        taken = {name.lower() for name in (*OF_ROWS, *IDENTITY, *self.message_columns)}
        for name in names:
            if name.lower() in taken:
                remedy = "the table gets this column from the message itself; give the field another name with columns="
                example = {f"payload_{name.strip('_')}": name}
                raise InvalidValue("columns", name, f"{remedy}{example!r} and all other fields that the table gets")

    def _chosen(self, fields: Sequence[str]) -> dict[str, str]:
        """The fields of the payload by the names of their columns."""
        given = self.columns
        if given is None:
            return {name: name for name in fields}
        names = list(given.items()) if isinstance(given, Mapping) else [(name, name) for name in given]
        if (
            isinstance(given, str)
            or not names
            or not all(isinstance(each, str) and each for pair in names for each in pair)
        ):
            raise InvalidValue("columns", given, "give a list of names, or a mapping of names of columns to fields")
        if len(found := dict(names)) < len(names):
            raise InvalidValue("columns", given, "a name occurs twice; give each column once")
        return found

    def store(self, claim: HeldClaim) -> Stored:
        """Append the messages of a claim to the table. What cannot be decoded is rejected. Blocking.

        Raises:
            InvalidValue: the schema cannot be used, or lacks a column.
            TooManyMalformed: more messages are malformed than allowed.
            RowsInvalid, OtherMessage, TableUnsuitable, TableFailed: as ``claim.append_to``.
            SchemaRegistryFailed: the registry does not answer.
            MessagesMissing, HoldLost: the claim cannot be read.
        """
        table = table_of(self.table)
        rows, malformed = self._read(claim) if self.schema is None else self._decoded(claim)
        if self.new_columns == "add":
            from jetstream_tables.new_columns import add_new_columns

            add_new_columns(table, rows.schema, claim.stream)
        before = claim.rejected.count
        appended = claim.append_to(table, rows, rejected=malformed)
        return _said(claim, table, appended, claim.rejected.count - before)

    def _read(self, claim: HeldClaim) -> tuple[pa.RecordBatchReader, pa.RecordBatchReader | None]:
        """The messages as they are, and those whose objects cannot be read."""
        messages = claim.arrow([*OF_ROWS, *self.message_columns], **self._objects)
        if self.objects is None:
            return messages, None
        from jetstream_arrow.decoding import readable

        rows, unread = readable(messages)
        return rows, self._counted(claim, unread)

    def _decoded(self, claim: HeldClaim) -> tuple[pa.RecordBatchReader, pa.RecordBatchReader]:
        """The chosen columns of the messages that can be decoded, and the malformed messages."""
        import pyarrow as pa

        from jetstream_arrow import decoded

        kept = [*OF_ROWS, *self.message_columns]
        messages = claim.arrow([*kept, *(["headers"] if "headers" not in kept else []), "data"], **self._objects)
        decoding = {**self.decoding, **({"registry": self._registry()} if "registry" in self.decoding else {})}
        good, malformed = decoded(messages, self.schema, format=self.format, into=_PAYLOAD, **decoding)
        payload = good.schema.field(_PAYLOAD).type
        sources = self._chosen([each.name for each in payload])
        self._check_names(sources)
        paths = {name: _path(payload, source) for name, source in sources.items()}
        found = [good.schema.field(name) for name in kept]
        fields = [_field(payload, path).with_name(name) for name, path in paths.items()]
        schema = pa.schema([*found, *fields])

        def batches() -> Iterator[pa.RecordBatch]:
            import pyarrow.compute as pc

            count, empty = 0, set(paths)
            for batch in good:
                value = batch.column(_PAYLOAD)
                parts = {name: pc.struct_field(value, path) for name, path in paths.items()}
                count, empty = count + len(value), {name for name in empty if parts[name].null_count == len(value)}
                yield pa.RecordBatch.from_arrays([*map(batch.column, kept), *parts.values()], schema=schema)
            if empty and count > 1:
                log.warning(_EMPTY, claim.id, count, ", ".join(name for name in paths if name in empty))

        return pa.RecordBatchReader.from_batches(schema, batches()), self._counted(claim, malformed)

    def _counted(self, claim: HeldClaim, malformed: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """The malformed messages, which are said, and checked against the limit, when all of them were read."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(malformed.schema, self._counting(claim, malformed))

    def _counting(self, claim: HeldClaim, malformed: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        reasons: Counter[str] = Counter()
        first: dict[str, int] = {}
        for batch in malformed:
            pairs = zip(batch.column("reason").to_pylist(), batch.column("sequence").to_pylist(), strict=True)
            for reason, sequence in pairs:
                reasons[reason] += 1
                first.setdefault(reason, sequence)
            yield batch
        if not reasons:
            return
        count, most = reasons.total(), self.max_malformed
        often = reasons.most_common(_REASONS)
        shown = "; ".join(f"{reason} ({number}, first sequence {first[reason]})" for reason, number in often)
        shown += f"; and {others} other reasons" if (others := len(reasons) - len(often)) else ""
        if most is not None and count > most:
            raise TooManyMalformed(
                f"{count} of {claim.count} messages of claim {claim.id} are malformed, but max_malformed is {most}: "
                f"{shown}. Correct the schema, or raise max_malformed; nothing was written or rejected"
            )
        text = "claim %s: %d of %d messages are malformed and become dead letters: %s"
        log.warning(text, claim.id, count, claim.count, shown)
        if count == claim.count > 1:
            log.warning("claim %s: no message could be decoded; is this the schema of its messages?", claim.id)


def _said(claim: HeldClaim, table: ExactTable, appended: Appended, malformed: int) -> Stored:
    stored = Stored(table.name, appended.new.count, appended.already.count, malformed, appended.version)
    text = "claim %s: table %s: %d rows written, %d duplicates left out, %d dead letters, %d messages"
    log.info(text, claim.id, table.name, stored.rows, stored.duplicates, malformed, claim.count)
    return stored


def _path(payload: pa.StructType, source: str) -> list[str]:
    """The names that lead to a field. Raises InvalidValue."""
    if payload.get_field_index(source) >= 0:
        return [source]
    path, kind = source.split("."), payload
    for name in path:
        if not hasattr(kind, "get_field_index") or kind.get_field_index(name) < 0:
            raise _unknown(source, [each.name for each in payload])
        kind = kind.field(name).type
    return path


def _field(payload: pa.StructType, path: list[str]) -> pa.Field:
    """A field, which may be null if one around it may be."""
    kind, nullable = payload, False
    for name in path:
        found = kind.field(name)
        kind, nullable = found.type, nullable or found.nullable
    return found.with_nullable(nullable)


def _unknown(source: str, known: Sequence[str]) -> InvalidValue:
    return InvalidValue("columns", source, f"the schema does not contain this field; it has {', '.join(known)}")
