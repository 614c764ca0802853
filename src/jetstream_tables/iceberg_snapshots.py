# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a table of Apache Iceberg: how a transaction adds one to many, and how they become fewer again."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from jetstream_tables.errors import TableFailed, TableUnsuitable

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.typedef import Record

_RETRIES = "commit.retry.num-retries"
_SMALL = 32 * 2**20  # bytes
_TOGETHER = 64 * 2**20  # bytes of files whose rows are in memory at once
_MANY = 10


def prepare(table: Table) -> None:
    """Let a transaction of this table fail when it has lost the race, and not take longer with each snapshot. Both is
    changed in memory only: a transaction sends its changes to the catalog, and not this metadata.

    Raises:
        TableUnsuitable: this release of pyiceberg does not allow that.
    """
    head = table.current_snapshot()
    # A transaction copies all snapshots twenty times, which a thousand of them turn into seconds. Of the earlier
    # metadata files, it deletes the oldest ones.
    log = table.metadata.metadata_log[:2]
    less = {"snapshots": [head] if head is not None else [], "snapshot_log": [], "metadata_log": log}
    table.metadata = table.metadata.model_copy(update=less)
    table.metadata.properties[_RETRIES] = "0"
    if table.transaction().table_metadata.properties.get(_RETRIES) != "0":
        raise TableUnsuitable(
            "pyiceberg would repeat commits without a look at the table; install another release of it"
        )


def expire(table: Table, keep: timedelta) -> int:
    """Let snapshots expire that are older than a duration, without those of branches and tags. Returns their number.
    Their files stay, because a reader may still use them."""
    before = datetime.now(UTC) - keep
    heads = {each.snapshot_id for each in table.refs().values()}
    old = {each.snapshot_id for each in table.snapshots() if each.timestamp_ms < before.timestamp() * 1_000} - heads
    if old:
        table.maintenance.expire_snapshots().older_than(before).commit()
    return len(old)


def small_files(table: Table) -> list[FileScanTask]:
    """Small files of one partition that are worth merging; none if there are too few, or if merging would change what
    the table knows of its rows: files with deleted rows, and all of version 3 of the format, which numbers rows."""
    if table.format_version > 2:
        return []
    groups: dict[tuple[int, Record], list[FileScanTask]] = defaultdict(list)
    for each in table.scan().plan_files():
        if each.file.file_size_in_bytes < _SMALL and not each.delete_files:
            groups[each.file.spec_id, each.file.partition].append(each)
    for (spec, _), files in groups.items():
        if spec == table.spec().spec_id and len(files) >= _MANY:
            return _first(files)
    return []


def _first(files: list[FileScanTask]) -> list[FileScanTask]:
    """The first ones of many files, two at least, whose rows are in memory together."""
    size = 0
    for number, each in enumerate(files):
        size += each.file.file_size_in_bytes
        if number > 1 and size > _TOGETHER:
            return files[:number]
    return files


def merge(table: Table, files: list[FileScanTask]) -> None:
    """Write the rows of files into another one, in one commit. The transaction has two snapshots, without the rows and
    with them, of which the branch only gets the second one."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(files)
    if (counted := sum(each.file.record_count for each in files)) != len(rows):
        raise TableFailed(f"{len(files)} files have {len(rows)} rows instead of {counted}, and were not merged")
    with table.transaction() as transaction:
        with transaction.update_snapshot().overwrite() as snapshot:
            for each in files:
                snapshot.delete_data_file(each.file)
        transaction.append(rows.cast(table.schema().as_arrow()))
