# SPDX-License-Identifier: Apache-2.0
"""Tables of Apache Iceberg, with pyiceberg (extra ``iceberg``).

The compare-and-set is that of the catalog: the branch must still be at the snapshot of the look. By default pyiceberg
repeats an append that has lost this race on top of the newer snapshot, without a look: that is turned off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import InvalidValue
from jetstream_tables.errors import Conflict, TableFailed, TableUnsuitable
from jetstream_tables.iceberg_files import IcebergFiles, appended, check_local
from jetstream_tables.iceberg_snapshots import expire, merge, prepare, small_files
from jetstream_tables.identity import IDENTITY, SEQUENCE, STREAM, TIMESTAMP
from jetstream_tables.s3 import S3
from jetstream_tables.secrets import in_properties, masked
from jetstream_tables.table import FileTable, Maintained

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from jetstream_client.sequences import Sequences
    from jetstream_tables.decision import Old
    from jetstream_tables.messages import Messages
    from jetstream_tables.rows import RowsReader

_MERGES = "commit.manifest-merge.enabled"
_PROPERTIES = {
    _MERGES: "true",
    "commit.manifest.min-count-to-merge": "10",
    "commit.manifest.target-size-bytes": str(256 * 2**10),
    "write.metadata.delete-after-commit.enabled": "true",
}
"""Of tables that are created. Each look reads all manifests, so they are merged; merging writes a manifest again, so
they stay small. Each commit writes all snapshots into another metadata file: without deleting those before the last
hundred, a thousand claims leave 300 MB."""


class IcebergTable(FileTable):
    """A table of Apache Iceberg that contains each message once. Pass it to ``claim.append_to``.

    The first append creates the table if it does not exist, in a namespace that exists. Rows of a partitioned table are
    all in memory while they are written, because pyiceberg cannot write them as a stream.

    catalog:  a catalog of pyiceberg; the name of one in pyiceberg's configuration; or the properties of one, which are
              in no message.
    name:     the table with its namespace: ``sales.orders``.
    s3:       the object store of the table's files with its credentials, which are in no message, for a catalog that is
              given by its name or its properties; or a function that returns it, which is called when the table is
              used. Default None: that of the catalog's properties.
    """

    extra = "iceberg"
    libraries = ("pyiceberg", "pyarrow")

    def __init__(
        self, catalog: Catalog | str | Mapping[str, str], name: str, s3: S3 | Callable[[], S3] | None = None
    ) -> None:
        if not name.strip(".") or "." not in name.strip("."):
            raise InvalidValue("name", name, "give the table with its namespace, such as 'sales.orders'")
        if s3 is not None and not isinstance(catalog, str | Mapping):
            remedy = "a catalog that was loaded has its object store already; give the catalog's name or its properties"
            raise InvalidValue("s3", "…", remedy)
        self.catalog = catalog
        self.name = name
        self.s3 = s3

    def target(self) -> IcebergTarget:
        """The table as :func:`jetstream_tables.append.append` uses it."""
        return self.maintainable()

    def maintainable(self) -> IcebergTarget:
        """The table as :meth:`maintain` uses it."""
        s3 = self.s3() if callable(self.s3) else self.s3
        return IcebergTarget(self.name, self.catalog, s3.properties() if s3 is not None else {})


@dataclass(frozen=True)
class IcebergTarget:
    """The table's address, and what is read of it."""

    name: str
    catalog: Catalog | str | Mapping[str, str] = field(repr=False)
    store: Mapping[str, str] = field(repr=False)

    @contextmanager
    def look(self, stream: str, first: int, last: int) -> Iterator[_Look]:
        """Load the newest snapshot of the table, with the messages of a stream in a range of sequences."""
        from pyiceberg.exceptions import NoSuchTableError

        from jetstream_tables.messages import Messages

        with ExitStack() as stack:
            with self.errors("cannot be read"):
                catalog = stack.enter_context(self.opened())
                try:
                    table = catalog.load_table(self.name)
                except NoSuchTableError:
                    table = None
                pairs = _present(table, stream, first, last) if table is not None else []
            schema = table.schema().as_arrow() if table is not None else None
            version = _version(table) if table is not None else None
            yield _Look(self, stream, catalog, table, Messages.of(pairs), schema, version)

    def maintain(self, keep: timedelta) -> Maintained:
        """Let old snapshots expire, then merge small files."""
        from pyiceberg.exceptions import NoSuchTableError

        with self.errors("could not be maintained"), self.opened() as catalog:
            try:
                removed = expire(catalog.load_table(self.name), keep)
            except NoSuchTableError:
                return Maintained(0, 0)
            merged = 0
            while files := small_files(table := catalog.load_table(self.name)):
                prepare(table)
                merge(table, files)
                merged += len(files)
        return Maintained(merged, removed)

    @contextmanager
    def opened(self) -> Iterator[Catalog]:
        """The catalog. One that the user has not made is closed at the end, with its connections."""
        from pyiceberg.catalog import Catalog, load_catalog

        if isinstance(self.catalog, Catalog):
            yield self.catalog
            return
        named = {"name": self.catalog} if isinstance(self.catalog, str) else {"name": "default", **self.catalog}
        with load_catalog(**{**named, **self.store}) as catalog:
            yield catalog

    @contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Raise the errors of pyiceberg, the catalog and the object store as those of this package, without
        credentials."""
        from pyiceberg.exceptions import CommitFailedException

        try:
            yield
        except CommitFailedException as error:
            raise Conflict(masked(str(error), self._secrets())) from None
        except (Conflict, TableFailed, TableUnsuitable):
            raise
        except Exception as error:  # noqa: BLE001 - those of catalogs and object stores have no common class
            raise TableFailed(f"table {self.name} {what}: {masked(str(error), self._secrets())}") from None

    def _secrets(self) -> list[str]:
        given: Any = self.catalog
        if isinstance(given, str):
            from pyiceberg.utils.config import Config

            given = Config().get_catalog_config(given) or {}
        return in_properties(dict(given if isinstance(given, Mapping) else given.properties) | dict(self.store))


@dataclass
class _Look:
    target: IcebergTarget
    stream: str
    catalog: Catalog
    table: Table | None
    present: Messages
    schema: pa.Schema | None
    version: int | None

    def holds(self, kind: pa.DataType) -> bool:
        from jetstream_tables.columns import holds, is_scalar

        return holds(kind, lambda one: is_scalar(one) or str(one) == "time64[us]")

    def commit(self, rows: RowsReader, new: Messages, old: Old | None) -> int | None:  # noqa: ARG002
        try:
            with self.target.errors("could not be written"):
                table = self.table if self.table is not None else self._created(rows.stream.schema)
                prepare(table)
                with table.transaction() as transaction:
                    if old is not None:  # two snapshots, of which the branch gets both at once
                        transaction.delete(_rows_of(self.stream, old))
                    transaction.append(appended(table, rows))
                return _version(table)
        except TableFailed:
            if rows.error is not None:
                raise rows.error from None
            raise

    def files(self, schema: pa.Schema) -> IcebergFiles | None:
        """How files are written; None if this process has to write them. A table that does not exist is created: its
        catalog decides where its files are."""
        with self.target.errors("cannot be written"):
            return IcebergFiles.of(self.table if self.table is not None else self._created(schema), self.target.name)

    def commit_files(self, files: IcebergFiles, written: list[DataFile], new: Messages) -> int | None:  # noqa: ARG002
        with self.target.errors("could not be written"):
            if self.table is None:
                raise Conflict("the table was dropped")
            check_local(files.name, self.table, written)
            prepare(self.table)
            merges = self.table.metadata.properties.get(_MERGES, "false").lower() == "true"
            with self.table.transaction() as transaction:
                update = transaction.update_snapshot()
                with update.merge_append() if merges else update.fast_append() as snapshot:
                    for each in written:
                        snapshot.append_data_file(each)
            return _version(self.table)

    def _created(self, schema: pa.Schema) -> Table:
        from pyiceberg.exceptions import NoSuchNamespaceError, TableAlreadyExistsError

        try:
            return self.catalog.create_table(self.target.name, schema, properties=_PROPERTIES)
        except TableAlreadyExistsError:
            raise Conflict("another writer has created the table") from None
        except NoSuchNamespaceError:
            namespace = self.target.name.rpartition(".")[0]
            raise TableUnsuitable(
                f"table {self.target.name} cannot be created, because the catalog has no namespace {namespace}; create "
                "it, or correct the name"
            ) from None


def _version(table: Table) -> int | None:
    snapshot = table.current_snapshot()
    return snapshot.snapshot_id if snapshot is not None else None


def _present(table: Table, stream: str, first: int, last: int) -> list[pa.Table]:
    """The messages of a stream in a range of sequences."""
    from pyiceberg import expressions

    from jetstream_tables.messages import pairs_of

    if not set(IDENTITY) <= set(table.schema().column_names):
        return []  # the rows do not fit, which the caller finds out
    by: Any = expressions  # their types do not know the constructors that pyiceberg's documentation uses
    within = by.And(_between(first, last), by.EqualTo(STREAM, stream))
    scan = table.scan(row_filter=within, selected_fields=(SEQUENCE, TIMESTAMP))
    return [pairs_of(each) for each in scan.to_arrow_batch_reader()]


def _rows_of(stream: str, old: Old) -> Any:
    """The condition of rows to remove."""
    import pyarrow as pa
    from pyiceberg import expressions

    from jetstream_tables.messages import TIME

    by: Any = expressions
    parts = [_among(only)] if (only := old.messages.sequences - old.reused) else []
    if old.reused:
        since = pa.scalar(old.since, TIME).as_py().isoformat()
        parts.append(by.And(_among(old.reused), by.GreaterThanOrEqual(TIMESTAMP, since)))
    return by.And(by.EqualTo(STREAM, stream), _either(parts))


def _among(sequences: Sequences) -> Any:
    from pyiceberg import expressions

    from jetstream_tables.messages import FEW

    by: Any = expressions
    if len(sequences.ranges) > FEW:
        return by.In(SEQUENCE, set(sequences))
    return _either([_between(*each) for each in sequences.ranges])


def _between(first: int, last: int) -> Any:
    from pyiceberg import expressions

    by: Any = expressions
    return by.And(by.GreaterThanOrEqual(SEQUENCE, first), by.LessThanOrEqual(SEQUENCE, last))


def _either(conditions: list[Any]) -> Any:
    from pyiceberg.expressions import Or

    return reduce(Or, conditions)
