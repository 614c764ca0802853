# SPDX-License-Identifier: Apache-2.0
"""Tables of Delta Lake, with delta-rs (the package ``deltalake``, extra ``delta``).

The compare-and-set is a transaction identifier of Delta's protocol, one for each name of a stream. delta-rs
compares only with the handle that was loaded for the look: each try loads another one and writes with it once.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import InvalidValue
from jetstream_client.times import time_text
from jetstream_tables.conditional_put import check_conditional_puts
from jetstream_tables.delta_files import DeltaFiles, check_local, files_of, of_parquet
from jetstream_tables.errors import Conflict, TableFailed, TableUnsuitable
from jetstream_tables.identity import IDENTITY, SEQUENCE, STREAM, TIMESTAMP
from jetstream_tables.s3 import Given, options_of
from jetstream_tables.secrets import in_address, masked, public, values_of
from jetstream_tables.table import FileTable, Maintained

if TYPE_CHECKING:
    import deltalake
    import pyarrow as pa
    from deltalake import CommitProperties, PostCommitHookProperties

    from jetstream_client.sequences import Sequences
    from jetstream_tables.decision import Old
    from jetstream_tables.messages import Messages
    from jetstream_tables.rows import RowsReader

log = logging.getLogger(__name__)

_HALF_AN_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(?!//)|(?:s3a?|gs|az|abfss?|hdfs|file)//")
"""Such as ``s3:/lake`` or ``s3//lake``."""

_PROPERTIES = {"delta.checkpointInterval": "10"}
"""Of tables that are created: Delta's own default. That of delta-rs is 100, and each look and each commit read all
entries of the log since the last checkpoint, so that they would take up to six times as long."""
_CLEANED = 10
"""After so many commits, delta-rs looks for entries of the log that have expired. By default it does so after each one,
and lists the whole log for it: with a thousand entries, that is a quarter of a commit's time."""


class DeltaTable(FileTable):
    """A table of Delta Lake that contains each message once. Pass it to ``claim.append_to``.

    uri:              the table's folder: a path, or an address such as ``s3://lake/orders``. The first append creates
                      the table if it does not exist.
    storage_options:  the object store with its credentials, which are in no message: an :class:`jetstream_tables.S3`,
                      options of delta-rs, or a function that returns one of them, which is called when the table is
                      used. Default None: those of the environment.

    Raises:
        InvalidValue: ``uri`` is empty, or neither a path nor an address.
    """

    extra = "delta"
    libraries = ("deltalake", "pyarrow")

    def __init__(self, uri: str, storage_options: Given = None) -> None:
        if not isinstance(uri, str | PathLike) or not str(uri).strip():
            raise InvalidValue("uri", uri, "give the table's folder, such as 's3://lake/orders'")
        if _HALF_AN_ADDRESS.match(str(uri)):  # otherwise a local folder of this name would get the rows
            remedy = "give an address with ://, such as 's3://lake/orders', or a path that begins with / or ./"
            raise InvalidValue("uri", public(str(uri)), remedy)
        self.uri = str(uri)
        self.name = public(self.uri)
        self.storage_options = dict(storage_options) if isinstance(storage_options, Mapping) else storage_options

    def target(self) -> DeltaTarget:
        """The table as :func:`jetstream_tables.append.append` uses it."""
        return self.maintainable()

    def maintainable(self) -> DeltaTarget:
        """The table as :meth:`maintain` uses it."""
        return DeltaTarget(self.name, self.uri, options_of(self.storage_options))


@dataclass(frozen=True)
class DeltaTarget:
    """The table's address, and what is read of it."""

    name: str
    uri: str = field(repr=False)
    storage_options: dict[str, str] | None = field(repr=False)

    @contextmanager
    def look(self, stream: str, first: int, last: int) -> Iterator[_Look]:
        """Load the newest version of the table, with the messages of a stream in a range of sequences."""
        from jetstream_tables.messages import Messages

        self.check()
        table = self.load()
        if table is None:
            yield _Look(self, stream, None, Messages.of([]), None)
            return
        schema = _columns(table)
        present = Messages.of([])
        if set(IDENTITY) <= set(schema.names):  # otherwise the rows do not fit, which the caller finds out
            present = self.present(table, stream, first, last)
        yield _Look(self, stream, table, present, schema, table.version())

    def maintain(self, keep: timedelta) -> Maintained:
        """Remove files that no version of the last time needs, then merge small ones."""
        from deltalake.exceptions import CommitFailedError

        self.check()
        if (table := self.load()) is None:
            return Maintained(0, 0)
        try:
            removed = table.vacuum(retention_hours=-(-keep // timedelta(hours=1)), dry_run=False)
            return Maintained(int(table.optimize.compact()["numFilesRemoved"]), len(removed))
        except CommitFailedError as error:
            raise Conflict(self.told(error)) from None
        except Exception as error:  # noqa: BLE001 - as below
            raise self.failed("could not be maintained", error) from None

    def check(self) -> None:
        """Check that commits to this object store are a compare-and-set."""
        try:
            check_conditional_puts(self.uri, self.storage_options)
        except TableUnsuitable:
            raise
        except Exception as error:  # noqa: BLE001 - delta-rs raises several that have no common class
            raise self.failed("could not be written", error) from None

    def load(self) -> deltalake.DeltaTable | None:
        """The newest version of the table; None if the table does not exist."""
        import deltalake
        from deltalake.exceptions import TableNotFoundError

        try:
            return deltalake.DeltaTable(self.uri, storage_options=self.storage_options)
        except TableNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 - as above
            raise self.failed("cannot be read", error) from None

    def present(self, table: deltalake.DeltaTable, stream: str, first: int, last: int) -> Messages:
        """The messages of a stream in a range of sequences."""
        import pyarrow as pa
        from deltalake import QueryBuilder

        from jetstream_tables.messages import Messages, pairs_of

        query = (
            f'select "{SEQUENCE}", "{TIMESTAMP}" from it '  # noqa: S608 - checked names and whole numbers
            f'where "{SEQUENCE}" between {first} and {last} and {_of(stream)}'
        )
        try:
            found = QueryBuilder().register("it", table).execute(query)
            batches = pa.RecordBatchReader.from_stream(found)
            pairs = [pairs_of(each) for each in batches]
        except Exception as error:  # noqa: BLE001 - as above
            raise self.failed("cannot be read", error) from None
        return Messages.of(pairs)

    def entry(self, version: int) -> list[dict[str, Any]]:
        """The actions of a version in the table's log; none if they cannot be read."""
        from deltalake.fs import DeltaStorageHandler

        try:
            files = DeltaStorageHandler(self.uri, self.storage_options)
            lines = files.open_input_file(f"_delta_log/{version:020}.json").read().decode().splitlines()
            return [json.loads(each) for each in lines]
        except Exception as error:  # noqa: BLE001 - as above
            log.info("table %s has no entry of version %d in its log: %s", self.name, version, self.told(error))
            return []

    def failed(self, what: str, error: Exception) -> TableFailed:
        """The error of this package for one of delta-rs, without credentials."""
        return TableFailed(f"table {self.name} {what}: {self.told(error)}")

    def told(self, error: Exception) -> str:
        """What an error of delta-rs says, without credentials."""
        return masked(str(error), [*values_of(self.storage_options), *in_address(self.uri)])


@dataclass
class _Look:
    target: DeltaTarget
    stream: str
    table: deltalake.DeltaTable | None
    present: Messages
    schema: pa.Schema | None
    version: int | None = None

    def holds(self, kind: pa.DataType) -> bool:
        from jetstream_tables.columns import holds, is_scalar

        return holds(kind, is_scalar)

    def commit(self, rows: RowsReader, new: Messages, old: Old | None) -> int | None:
        from deltalake import write_deltalake

        def write(properties: CommitProperties) -> None:
            how = partial(
                write_deltalake, data=rows.stream, commit_properties=properties, writer_properties=of_parquet()
            )
            if self.table is None:
                how(
                    self.target.uri,
                    mode="error",
                    configuration=_PROPERTIES,
                    storage_options=self.target.storage_options,
                )
            elif old is None:
                how(self.table, mode="append", post_commithook_properties=_afterwards(self.table))
            else:
                how(
                    self.table,
                    mode="overwrite",
                    predicate=_rows_of(self.stream, old),
                    post_commithook_properties=_afterwards(self.table),
                )

        return self._committed(write, new, rows)

    def files(self, schema: pa.Schema) -> DeltaFiles | None:
        return files_of(self.table, schema, self.target.name, self.target.uri, self.target.storage_options)

    def commit_files(self, files: DeltaFiles, actions: list[dict[str, Any]], new: Messages) -> int | None:
        from deltalake import Schema
        from deltalake.transaction import AddAction, create_table_with_add_actions

        check_local(files.name, files.uri, actions)
        names = ("path", "size", "partitionValues", "modificationTime", "dataChange", "stats")
        adds: list[Any] = [AddAction(*(each[name] for name in names)) for each in actions]

        def write(properties: CommitProperties) -> None:
            if self.table is None:
                create_table_with_add_actions(
                    self.target.uri,
                    Schema.from_arrow(files.schema),
                    adds,
                    configuration=_PROPERTIES,
                    storage_options=self.target.storage_options,
                    commit_properties=properties,
                )
            else:
                columns = list(files.partitions)
                self.table.create_write_transaction(
                    adds,
                    "append",
                    self.table.schema(),
                    columns,
                    commit_properties=properties,
                    post_commithook_properties=_afterwards(self.table),
                )

        return self._committed(write, new)

    def _committed(
        self, write: Callable[[CommitProperties], None], new: Messages, rows: RowsReader | None = None
    ) -> int | None:
        import pyarrow as pa
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        mark = time.time_ns()  # differs between two commits, and rises, as readers of the protocol expect
        application = f"jetstream_tables:{self.stream}"
        seen = pa.table(self.table.get_add_actions())["path"] if self.table is not None else None
        try:
            write(CommitProperties(app_transactions=[Transaction(application, mark)]))
        except CommitFailedError as error:
            raise Conflict(self.target.told(error)) from None
        except Exception as error:  # noqa: BLE001 - as above
            if rows is not None and rows.error is not None:
                raise rows.error from None
            if self.table is None and self.target.load() is not None:
                raise Conflict("another writer has created the table") from None
            raise self.target.failed("could not be written", error) from None
        # A table that was dropped in the meantime, and perhaps created again, may have accepted the commit in a place
        # of its log that nobody reads.
        if self.table is not None and self._follows(seen, application, mark):
            return self.table.version()
        after = self.target.load()
        if after is None or self._another(after) or not self._shows(after, application, mark, new):
            raise Conflict("the table does not show the rows of the commit")
        return after.version()

    def _follows(self, seen: Any, application: str, mark: int) -> bool:
        """Whether the log contains the commit, and before it the version of the look. Two entries of the log say so,
        instead of all that a reader of the table loads: the later one has the mark, and the files that the earlier one
        has added, whose names are unique, are among those that the look has ``seen``."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.table is None or self.version is None:
            return False
        added = [each["add"]["path"] for each in self.target.entry(self.version) if "add" in each]
        marks = [each["txn"] for each in self.target.entry(self.table.version()) if "txn" in each]
        known = added and pc.all(pc.is_in(pa.array(added, seen.type), value_set=seen)).as_py()
        return bool(known) and (application, mark) in [(each["appId"], each["version"]) for each in marks]

    def _shows(self, after: deltalake.DeltaTable, application: str, mark: int, new: Messages) -> bool:
        if after.transaction_version(application) == mark:
            return True
        ours = new.sequences
        present = self.target.present(after, self.stream, ours.first, ours.last)  # others have committed since
        return not ours - present.compared(new).same

    def _another(self, after: deltalake.DeltaTable) -> bool:
        return self.table is not None and after.metadata().id != self.table.metadata().id


def _afterwards(table: deltalake.DeltaTable) -> PostCommitHookProperties:
    """What delta-rs does after the next commit: a checkpoint, and the removal of expired entries of the log, both as
    the table's properties say, but the latter after some commits only."""
    from deltalake import PostCommitHookProperties

    due = table.version() % _CLEANED == _CLEANED - 2  # that of the next one ends in 9, as those of checkpoints
    return PostCommitHookProperties(cleanup_expired_logs=None if due else False)


def _of(stream: str) -> str:
    quoted = stream.replace("'", "''")
    return f"\"{STREAM}\" = '{quoted}'"


def _rows_of(stream: str, old: Old) -> str:
    """The condition of rows to remove."""
    parts = [_among(only)] if (only := old.messages.sequences - old.reused) else []
    if old.reused:
        parts.append(f"{_among(old.reused)} and \"{TIMESTAMP}\" >= '{time_text(old.since * 1_000)}'")
    return f"{_of(stream)} and (({') or ('.join(parts)}))"


def _among(sequences: Sequences) -> str:
    from jetstream_tables.messages import FEW

    if len(sequences.ranges) > FEW:
        return f'"{SEQUENCE}" in ({",".join(map(str, sequences))})'
    return "(" + " or ".join(f'"{SEQUENCE}" between {a} and {b}' for a, b in sequences.ranges) + ")"


def _columns(table: deltalake.DeltaTable) -> Any:
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())
