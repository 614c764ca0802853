# SPDX-License-Identifier: Apache-2.0
"""Data files of a table of Delta Lake that another process writes, and this one commits.

The other process writes a small table with the same columns, partitions and properties into a folder of the table, so
that delta-rs decides there as here about files, statistics and partitions. Its data files are those that the commit
adds to the table; its log is deleted.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from jetstream_tables.errors import TableFailed, elsewhere
from jetstream_tables.identity import SEQUENCE, TIMESTAMP
from jetstream_tables.secrets import in_address, masked, values_of

if TYPE_CHECKING:
    import deltalake
    import pyarrow as pa

    from jetstream_tables.rows import RowsReader

OF_FILES = (
    "delta.dataSkippingNumIndexedCols",
    "delta.dataSkippingStatsColumns",
    "delta.targetFileSize",
)
"""The properties of a table that its files depend on."""
_FEATURES = {"appendOnly", "deletionVectors", "invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""What a table may require of writers, besides version 2 of the protocol, so that any process can write its files."""
_CHECKED = ("delta.invariants", "delta.generationExpression", "delta.identity.start", "delta.columnMapping.id")
_LOG = f"_delta_log/{0:020}.json"


def of_parquet() -> deltalake.WriterProperties:
    """How delta-rs writes data files. Without a dictionary of values that are all different, a claim is written in
    three quarters of the time, and its file is smaller. Snappy is what delta-rs writes by default, whatever the table's
    property says; with other properties it would not compress."""
    from deltalake import ColumnProperties, WriterProperties

    different = {each: ColumnProperties(dictionary_enabled=False) for each in (SEQUENCE, TIMESTAMP)}
    return WriterProperties(compression="SNAPPY", column_properties=different)


@dataclass(frozen=True)
class DeltaFiles:
    """How files of a table are written. ``table_id`` and the others after it are those of the table."""

    name: str
    uri: str = field(repr=False)
    options: dict[str, str] | None = field(repr=False, compare=False)
    table_id: str
    schema: pa.Schema
    partitions: tuple[str, ...]
    properties: Mapping[str, str]

    def write(self, rows: RowsReader) -> list[dict[str, Any]]:
        """Write files, and return the actions of Delta's protocol that add them."""
        import deltalake
        from deltalake.fs import DeltaStorageHandler

        folder = f"jetstream-{secrets.token_hex(8)}"
        uri = f"{self.uri.rstrip('/')}/{folder}"
        try:
            deltalake.write_deltalake(
                uri,
                rows.stream,
                mode="error",
                partition_by=list(self.partitions),
                configuration=dict(self.properties),
                storage_options=self.options,
                writer_properties=of_parquet(),
            )
            files = DeltaStorageHandler(uri, self.options)
            actions = [json.loads(line) for line in files.open_input_file(_LOG).read().decode().splitlines()]
            files.delete_file(_LOG)
        except Exception as error:  # noqa: BLE001 - delta-rs raises several that have no common class
            if rows.error is not None:
                raise rows.error from None
            told = masked(str(error), [*values_of(self.options), *in_address(self.uri)])
            raise TableFailed(f"files of table {self.name} could not be written: {told}") from None
        added = [action["add"] for action in actions if "add" in action]
        return [{**each, "path": f"{folder}/{unquote(each['path'])}"} for each in added]


def files_of(
    table: deltalake.DeltaTable | None, schema: pa.Schema, name: str, uri: str, options: dict[str, str] | None
) -> DeltaFiles | None:
    """How files of a table are written; None if it requires more of writers, such as constraints or column mapping.

    table:   None if it does not exist yet.
    schema:  the columns that it gets then.
    """
    import pyarrow as pa

    place = str(Path(uri).absolute()) if "://" not in uri else uri  # other processes work in other folders
    if table is None:
        return DeltaFiles(name, place, options, "", schema, (), {})
    protocol, metadata = table.protocol(), table.metadata()
    features = set(protocol.writer_features or ())
    if protocol.min_writer_version > 2 and (protocol.min_writer_version < 7 or features - _FEATURES):
        return None
    if any(key in each.metadata for each in table.schema().fields for key in _CHECKED):
        return None
    properties = {each: metadata.configuration[each] for each in OF_FILES if each in metadata.configuration}
    columns = pa.schema(table.schema().to_arrow())
    return DeltaFiles(name, place, options, str(metadata.id), columns, tuple(metadata.partition_columns), properties)


def check_local(name: str, uri: str, actions: list[dict[str, Any]]) -> None:
    """Check that the files of a table in a local folder are here.

    Raises:
        TableUnsuitable: another machine has written them into its own folder of the same name.
    """
    parts = urlsplit(uri)
    if parts.scheme not in {"", "file"}:
        return
    folder = Path(unquote(parts.path) if parts.scheme else uri)
    for each in actions:
        if not (folder / each["path"]).is_file():
            raise elsewhere(name)
