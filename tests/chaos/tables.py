"""The tables to which pipelines append, each message once, and a plain reader of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg2

from tests.chaos import windows
from tests.chaos.pipelines import PIPELINES

if TYPE_CHECKING:
    from jetstream_tables.table import ExactTable
    from tests.chaos.pipelines import Pipeline

POSTGRES = "CHAOS_POSTGRES"
"""The environment variable with the address of Airflow's database, which also has the table and Iceberg's catalog."""
NAMESPACE = "chaos"


def create(folder: Path, postgres: str) -> None:
    """Create what the first append and the first transaction need."""
    _catalog(folder, postgres).create_namespace(NAMESPACE)
    with closing(psycopg2.connect(_plain(postgres))) as database, database, database.cursor() as cursor:
        for each in PIPELINES:
            if each.ordered:
                cursor.execute(f"create table {each.name} (n bigserial primary key, _sequence bigint, data bytea)")


def appending(pipeline: Pipeline, claim: Any) -> Callable[[], None] | None:
    """What a pipeline's work does at its end, if it has a table."""
    return partial(_append, pipeline, claim) if pipeline.table else None


def _append(pipeline: Pipeline, claim: Any) -> None:
    """Append the claim's messages, and stay between the commit and the settlement for a while."""
    if pipeline.ordered:
        _insert(pipeline, claim)
    else:
        claim.append_to(described(pipeline, windows.folder()), claim.arrow(["sequence", "timestamp", "data"]))
    time.sleep(windows.pause(windows.WORK, f"{claim.attempt_id} appended"))


def _insert(pipeline: Pipeline, claim: Any) -> None:
    """Insert the claim's messages in their order, and stay in the transaction for a while."""
    messages = [*claim.messages()]
    insert = f"insert into {pipeline.name} (_sequence, data) values (%s, %s)"
    connecting = closing(psycopg2.connect(_plain(os.environ[POSTGRES])))
    with connecting as database, claim.transaction(database, pipeline.name) as tx:
        for message in messages:
            if message.sequence in tx.new:
                tx.execute(insert, (message.sequence, message.data))
        time.sleep(windows.pause(windows.WORK, f"{claim.attempt_id} inserted") / 4)


def described(pipeline: Pipeline, folder: Path) -> ExactTable:
    """The table of a pipeline, to append to."""
    import jetstream_tables as tables

    if pipeline.table == "delta":
        return tables.DeltaTable(str(_delta(pipeline, folder)))
    if pipeline.table == "iceberg":
        return tables.IcebergTable(_catalog(folder, os.environ[POSTGRES]), f"{NAMESPACE}.{pipeline.name}")
    return tables.SqlTable(os.environ[POSTGRES], pipeline.name)


def rows(pipeline: Pipeline, folder: Path, postgres: str) -> list[tuple[int, bytes]]:
    """Return sequence and data of each row, read as anybody reads such a table; of an ordered pipeline, in the order in
    which they were inserted."""
    if pipeline.table == "sql":
        import adbc_driver_postgresql.dbapi

        with adbc_driver_postgresql.dbapi.connect(_plain(postgres)) as database, database.cursor() as cursor:
            cursor.execute(f"select _sequence, data from {pipeline.name} {'order by n' if pipeline.ordered else ''}")
            return [(sequence, data) for sequence, data in cursor.fetchall()]
    if pipeline.table == "delta":
        import deltalake

        read = deltalake.DeltaTable(str(_delta(pipeline, folder))).to_pyarrow_table()
    else:
        read = _catalog(folder, postgres).load_table(f"{NAMESPACE}.{pipeline.name}").scan().to_arrow()
    return list(zip(read["_sequence"].to_pylist(), read["data"].to_pylist(), strict=True))


def _delta(pipeline: Pipeline, folder: Path) -> Path:
    return folder / "tables" / pipeline.name


def _catalog(folder: Path, postgres: str) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    return SqlCatalog("chaos", uri=postgres, warehouse=f"file://{folder}/tables")


def _plain(address: str) -> str:
    return address.replace("+psycopg2", "")
