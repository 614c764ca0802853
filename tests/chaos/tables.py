"""The tables to which pipelines append, each message once, and a plain reader of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.chaos import windows

if TYPE_CHECKING:
    from jetstream_tables.table import ExactTable
    from tests.chaos.pipelines import Pipeline

POSTGRES = "CHAOS_POSTGRES"
"""The environment variable with the address of Airflow's database, which also has the table and Iceberg's catalog."""
NAMESPACE = "chaos"


def create(folder: Path, postgres: str) -> None:
    """Create what the first append needs."""
    _catalog(folder, postgres).create_namespace(NAMESPACE)


def appending(pipeline: Pipeline, claim: Any) -> Callable[[], None] | None:
    """What a pipeline's work does at its end, if it has a table."""
    return partial(_append, pipeline, claim) if pipeline.table else None


def _append(pipeline: Pipeline, claim: Any) -> None:
    """Append the claim's messages, and stay between the commit and the settlement for a while."""
    claim.append_to(_table(pipeline, windows.folder()), claim.arrow(["sequence", "timestamp", "data"]))
    time.sleep(windows.pause(windows.WORK, f"{claim.attempt_id} appended"))


def _table(pipeline: Pipeline, folder: Path) -> ExactTable:
    import jetstream_tables as tables

    if pipeline.table == "delta":
        return tables.DeltaTable(str(_delta(pipeline, folder)))
    if pipeline.table == "iceberg":
        return tables.IcebergTable(_catalog(folder, os.environ[POSTGRES]), f"{NAMESPACE}.{pipeline.name}")
    return tables.SqlTable(os.environ[POSTGRES], pipeline.name)


def rows(pipeline: Pipeline, folder: Path, postgres: str) -> list[tuple[int, bytes]]:
    """Return sequence and data of each row, read as anybody reads such a table."""
    if pipeline.table == "sql":
        import adbc_driver_postgresql.dbapi

        with adbc_driver_postgresql.dbapi.connect(_plain(postgres)) as database, database.cursor() as cursor:
            cursor.execute(f"select _sequence, data from {pipeline.name}")
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
