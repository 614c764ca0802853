"""The options and columns of writing with ``format("jetstream")``, checked before Spark runs anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_stream_name
from pyspark_jetstream.options import Place, one_of, option_name

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_OPTIONS = ("servers", "connection", "stream", "acceptDuplicates")
_OF_A_QUERY = ("checkpointLocation", "queryName")  # Spark's own, which it hands on
_COLUMNS = {
    "subject": ("string",),
    "data": ("binary", "string"),
    "headers": ("map<string,array<string>>", "map<string,string>"),
    "msg_id": ("string",),
}
_REQUIRED = ("subject", "data")
_MODES = (
    "messages are added to a stream and replace nothing: use mode append; to start anew, purge the stream first, or "
    "create it with max_msgs_per_subject=1 where the last message of a subject is the one that counts"
)


@dataclass(frozen=True)
class WriteOptions(Place):
    """Where to write.

    servers, connection:  as :class:`~pyspark_jetstream.options.Options` has them.
    stream:            the stream that must store every message; required.
    acceptDuplicates:  ``true``: a task that runs again sends, too, when it cannot be found out what it stored before.
                       Default ``false``: it fails then.
    """

    accept_duplicates: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> WriteOptions:
        """Raises InvalidValue: which option, its value, and what to do; or for a column, or a mode that replaces:
        ``overwrite``, and a stream's ``complete``."""
        if overwrite:
            raise InvalidValue("mode", "overwrite", _MODES)
        _check_columns(schema)
        given = {option_name(name, _OPTIONS + _OF_A_QUERY): value for name, value in options.items()}
        if "stream" not in given:
            raise InvalidValue("stream", None, "name the stream that must store the messages")
        accept = one_of("acceptDuplicates", given.get("acceptDuplicates", "false"), ("true", "false"))
        stream = check_stream_name(given["stream"])
        return cls(stream, given.get("servers"), given.get("connection"), accept == "true")


def _check_columns(schema: StructType) -> None:
    """Raises InvalidValue for a column that is missing, unknown, or of another type."""
    known = ", ".join(f"{name} {' or '.join(kinds)}" for name, kinds in _COLUMNS.items())
    for each in schema.fields:
        kind = each.dataType.simpleString()
        if kind not in _COLUMNS.get(each.name, ()):
            raise InvalidValue("schema", f"{each.name} {kind}", f"the columns are {known}: select or cast them")
    for name in _REQUIRED:
        if name not in schema.fieldNames():
            raise InvalidValue(
                "schema", schema.simpleString(), f"the column {name} is missing; the columns are {known}"
            )
    repeated = {name for name in schema.fieldNames() if schema.fieldNames().count(name) > 1}
    if repeated:
        raise InvalidValue("schema", ", ".join(sorted(repeated)), "a column is given once")
