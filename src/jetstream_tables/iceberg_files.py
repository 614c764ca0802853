# SPDX-License-Identifier: Apache-2.0
"""Data files of a table of Apache Iceberg that another process writes, and this one commits.

The other process gets the metadata of the table without its snapshots, and appends its rows in a transaction that it
never commits, so that pyiceberg decides there as here about files, partitions and metrics. The entries of its manifest
are those that the commit adds to the table; the manifest is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jetstream_tables.errors import TableFailed, elsewhere
from jetstream_tables.secrets import in_properties, masked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from jetstream_tables.rows import RowsReader

_LAYOUT = {
    "table_uuid", "location", "schemas", "current_schema_id", "partition_specs", "default_spec_id", "sort_orders",
    "default_sort_order_id", "properties", "format_version",
}  # fmt: skip
"""The parts of a table's metadata that its files depend on."""


_OF_CATALOGS = ("auth.", "dynamodb.", "glue.", "header.", "hive.", "rest.")
_SIGNER = "s3.signer"


@dataclass(frozen=True)
class IcebergFiles:
    """How files of a table are written.

    layout:      what the files depend on, as JSON.
    metadata:    the metadata of the table without its snapshots, as JSON.
    properties:  those of the object store, with its credentials, and without those of the catalog.
    """

    name: str
    layout: str
    schema: pa.Schema
    metadata: str = field(repr=False, compare=False)
    properties: Mapping[str, str] = field(repr=False, compare=False)

    @classmethod
    def of(cls, table: Table, name: str) -> IcebergFiles | None:
        """How files of a table are written; None if the catalog signs each request, for which it wants its own
        credentials."""
        if table.io.properties.get(_SIGNER):
            return None
        no_snapshots: dict[str, Any] = {
            each: [] for each in ("snapshots", "snapshot_log", "metadata_log", "statistics")
        }
        metadata = table.metadata.model_copy(update={**no_snapshots, "refs": {}, "current_snapshot_id": None})
        layout = metadata.model_dump_json(include=_LAYOUT)
        return cls(name, layout, table.schema().as_arrow(), metadata.model_dump_json(), of_store(table.io.properties))

    def write(self, rows: RowsReader) -> list[DataFile]:
        """Write files, and return the entries of manifests that add them."""
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.io import load_file_io
        from pyiceberg.table import Table
        from pyiceberg.table.metadata import TableMetadataUtil

        try:
            metadata = TableMetadataUtil.parse_raw(self.metadata)
            store = load_file_io(dict(self.properties), metadata.location)
            table = Table(tuple(self.name.split(".")), metadata, metadata.location, store, NoopCatalog("none"))
            transaction = table.transaction()
            transaction.append(appended(table, rows))
            found = []
            for snapshot in transaction.table_metadata.snapshots:  # the only one is that of the transaction
                for manifest in snapshot.manifests(store):
                    found += [entry.data_file for entry in manifest.fetch_manifest_entry(store)]
                    store.delete(manifest.manifest_path)
                store.delete(snapshot.manifest_list)
        except Exception as error:  # noqa: BLE001 - those of object stores have no common class
            if rows.error is not None:
                raise rows.error from None
            told = masked(str(error), in_properties(self.properties))
            raise TableFailed(f"files of table {self.name} could not be written: {told}") from None
        return found


def of_store(properties: Mapping[str, Any]) -> dict[str, str]:
    """Those of the properties that the object store needs. A catalog gives it its own ones too: the address of its
    database, its credentials, and an object that logs in to it."""
    return {
        name: value
        for name, value in properties.items()
        if isinstance(value, str) and (name == "py-io-impl" or ("." in name and not name.startswith(_OF_CATALOGS)))
    }


def appended(table: Table, rows: RowsReader) -> pa.RecordBatchReader | pa.Table:
    """Rows as pyiceberg appends them: it cannot write those of a partitioned table as a stream."""
    return rows.stream if table.spec().is_unpartitioned() else rows.stream.read_all()


def check_local(name: str, table: Table, files: Iterable[DataFile]) -> None:
    """Check that the files of a table in a local folder are here.

    Raises:
        TableUnsuitable: another machine has written them into its own folder of the same name.
    """
    for each in files:
        scheme, _, rest = each.file_path.partition("://")
        if (not rest or scheme == "file") and not table.io.new_input(each.file_path).exists():
            raise elsewhere(name)
