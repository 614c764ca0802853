# SPDX-License-Identifier: Apache-2.0
"""The options and columns of writing with ``format("jetstream")``, checked before Spark runs anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_stream_name
from pyspark_jetstream.options import NO_TABLE, Place, one_of, option_name

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_OPTIONS = ("servers", "connection", "stream", "acceptDuplicates")
_OF_A_QUERY = ("checkpointLocation", "queryName")  # Spark's own options, which it also passes to data sources
_COLUMNS = {
    "subject": ("string",),
    "data": ("binary", "string"),
    "headers": ("map<string,array<string>>", "map<string,string>"),
    "msg_id": ("string",),
}
_OF_THE_SERVER = ("stream", "sequence", "timestamp")  # the columns of reading that are not columns of writing
_REQUIRED = ("subject", "data")
_MODES = (
    "messages are always added to a stream and never replace others; use mode append (in a streaming query, append or "
    "update instead of complete). To start with an empty stream, purge it first; to keep only the last message of each "
    "subject, create it with max_msgs_per_subject=1"
)


@dataclass(frozen=True)
class WriteOptions(Place):
    """The options of writing.

    servers:           addresses of the servers, without user information. Give either this or ``connection``.
    connection:        the name of a connection whose settings are in the environment.
    stream:            the name of the stream that must store all messages; required.
    acceptDuplicates:  only for batch jobs. If a task that runs again cannot find out which of its rows are stored
                       already, ``true`` lets it publish all rows that it has not found in the stream, and ``false``
                       (default) makes it fail.
    """

    accept_duplicates: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> WriteOptions:
        """Read the options, and check schema and mode.

        Raises:
            InvalidValue: an option, a column, or the mode is not allowed. The modes ``overwrite`` and ``complete`` (of
                a streaming query) would have to replace messages.
        """
        if overwrite:
            raise InvalidValue("mode", "overwrite", _MODES)
        _check_columns(schema)
        given = {option_name(name, _OPTIONS + _OF_A_QUERY): value for name, value in options.items()}
        if "stream" not in given:
            remedy = "set the option 'stream' to the name of the stream that must store the messages"
            raise InvalidValue(
                "stream", None, remedy if given else f"{remedy}. If you have used CREATE TABLE: {NO_TABLE}"
            )
        accept = one_of("acceptDuplicates", given.get("acceptDuplicates", "false"), ("true", "false"))
        stream = check_stream_name(given["stream"])
        return cls(stream, given.get("servers"), given.get("connection"), accept == "true")


def _check_columns(schema: StructType) -> None:
    """Raise InvalidValue for a column that is missing, unknown, repeated, or of the wrong type."""
    known = ", ".join(f"{name} {' or '.join(kinds)}" for name, kinds in _COLUMNS.items())
    for each in schema.fields:
        kind = each.dataType.simpleString()
        if each.name in _OF_THE_SERVER:
            remedy = (
                "the server sets this, so it cannot be written; drop this column. INSERT INTO always writes it, so "
                "publish with a DataFrame of the columns 'subject' and 'data' instead"
            )
            raise InvalidValue("schema", f"{each.name} {kind}", remedy)
        if kind not in _COLUMNS.get(each.name, ()):
            raise InvalidValue("schema", f"{each.name} {kind}", f"drop or cast this column; the columns are {known}")
    for name in _REQUIRED:
        if name not in schema.fieldNames():
            raise InvalidValue(
                "schema", schema.simpleString(), f"the column {name!r} is missing; the columns are {known}"
            )
    repeated = {name for name in schema.fieldNames() if schema.fieldNames().count(name) > 1}
    if repeated:
        raise InvalidValue("schema", ", ".join(sorted(repeated)), "give only one column of each name")
