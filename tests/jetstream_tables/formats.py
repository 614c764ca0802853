"""The formats of tables, each with a reader that knows nothing of this package."""

import secrets
import shutil
from abc import ABC, abstractmethod
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, Self

import adbc_driver_postgresql.dbapi
import deltalake
import duckdb
import psycopg2
import pyarrow as pa
import pytest
from pyarrow.dataset import dataset
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

from demo.postgres import Postgres
from jetstream_tables import DeltaTable, IcebergTable, SqlTable
from jetstream_tables.messages import Messages
from jetstream_tables.table import ExactTable
from tests.jetstream_tables.object_store import BUCKET, ObjectStore

Row = tuple[Any, ...]


class Format(ABC):
    """An empty place for tables of one format."""

    remembers = False  # whether messages whose rows were deleted stay known

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027 - most formats start nothing
        """Stop what was started."""

    @abstractmethod
    def table(self, name: str = "orders") -> ExactTable:
        """What `append_to` gets: another object for each attempt, as in another process."""

    @abstractmethod
    def query(self, columns: str = '"_stream", "_sequence", amount', name: str = "orders") -> list[Row]:
        """Read all rows; none if there is no table."""

    @abstractmethod
    def append(self, rows: pa.Table, name: str = "orders") -> None:
        """Append rows as any other writer does."""

    @abstractmethod
    def drop(self, name: str = "orders") -> None: ...

    @abstractmethod
    def maintain(self, name: str = "orders") -> None:
        """Compact the table, and remove what its history needs."""

    @abstractmethod
    def delete(self, sequence: int, name: str = "orders") -> None:
        """Delete the rows of a message."""

    def sequences(self, name: str = "orders") -> list[int]:
        return sorted(sequence for (sequence,) in self.query('"_sequence"', name))


class Delta(Format):
    options: dict[str, str] | None = None

    def uri(self, name: str) -> str:
        return str(self.folder / name)

    def table(self, name: str = "orders") -> DeltaTable:
        return DeltaTable(self.uri(name), self.options)

    def load(self, name: str = "orders") -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.uri(name), storage_options=self.options)

    def query(self, columns: str = '"_stream", "_sequence", amount', name: str = "orders") -> list[Row]:
        if not deltalake.DeltaTable.is_deltatable(self.uri(name), storage_options=self.options):
            return []
        return self.read(columns, self.load(name).file_uris())

    def read(self, columns: str, files: list[str]) -> list[Row]:
        paths = [each.removeprefix("file://") for each in files]
        with duckdb.connect() as database:
            everything = f"select {columns} from read_parquet(?, union_by_name = true)"
            return database.execute(everything, [paths]).fetchall() if paths else []

    def append(self, rows: pa.Table, name: str = "orders") -> None:
        deltalake.write_deltalake(self.uri(name), rows, mode="append", storage_options=self.options)

    def drop(self, name: str = "orders") -> None:
        shutil.rmtree(self.uri(name))

    def maintain(self, name: str = "orders") -> None:
        table = self.load(name)
        table.optimize.compact()
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        table.create_checkpoint()
        table.cleanup_metadata()

    def delete(self, sequence: int, name: str = "orders") -> None:
        self.load(name).delete(f"_sequence = {sequence}")


class Sql(Format):
    """A database, in which each test has a schema."""

    remembers = True
    server: ClassVar[Postgres]

    def __enter__(self) -> Self:
        self.schema = f"s{secrets.token_hex(4)}"
        self.execute(f"create schema {self.schema}")
        return self

    def __exit__(self, *_: object) -> None:
        self.execute(f"drop schema {self.schema} cascade")

    @property
    def url(self) -> str:
        return self.server.uri("psycopg2")

    def connect(self) -> Any:
        return psycopg2.connect(self.url.replace("+psycopg2", ""))

    def table(self, name: str = "orders") -> SqlTable:
        return SqlTable(self.url, f"{self.schema}.{name}")

    def query(self, columns: str = '"_stream", "_sequence", amount', name: str = "orders") -> list[Row]:
        if self.execute(f"select to_regclass('{self.schema}.{name}')") == [(None,)]:
            return []
        return self.execute(f"select {columns} from {self.schema}.{name}")

    def append(self, rows: pa.Table, name: str = "orders") -> None:
        uri = self.url.replace("+psycopg2", "")
        with adbc_driver_postgresql.dbapi.connect(uri) as database, database.cursor() as cursor:
            cursor.adbc_ingest(name, rows, mode="create_append", db_schema_name=self.schema)
            database.commit()

    def drop(self, name: str = "orders") -> None:
        self.execute(f"drop table {self.schema}.{name}")

    def maintain(self, name: str = "orders") -> None:
        self.execute(f"vacuum full {self.schema}.{name}", autocommit=True)

    def delete(self, sequence: int, name: str = "orders") -> None:
        self.execute(f"delete from {self.schema}.{name} where _sequence = {sequence}")

    def remembered(self) -> list[int]:
        """The sequences in the memory next to the tables."""
        rows = self.execute("select messages from {schema}.jetstream_messages")
        found = [Messages.unpacked(bytes(packed)).table["sequence"].to_pylist() for (packed,) in rows]
        return sorted(sequence for each in found for sequence in each)

    def execute(self, statement: str, autocommit: bool = False) -> list[Row]:
        with closing(self.connect()) as database:
            database.autocommit = autocommit
            with database.cursor() as cursor:
                cursor.execute(statement.replace("{schema}", self.schema))
                rows = cursor.fetchall() if cursor.description else []
            database.commit()
            return rows


class Iceberg(Format):
    def __enter__(self) -> Self:
        self.catalog = self.load()
        self.catalog.create_namespace("lake")
        return self

    def __exit__(self, *_: object) -> None:
        self.catalog.close()

    def load(self) -> Catalog:
        return SqlCatalog("default", **self.properties)

    @property
    def properties(self) -> dict[str, str]:
        return {"uri": f"sqlite:///{self.folder}/catalog.sqlite", "warehouse": f"file://{self.folder}"}

    def table(self, name: str = "orders") -> IcebergTable:
        return IcebergTable({"type": "sql", **self.properties}, f"lake.{name}")

    def query(self, columns: str = '"_stream", "_sequence", amount', name: str = "orders") -> list[Row]:
        if not self.catalog.table_exists(f"lake.{name}"):
            return []
        everything = self.catalog.load_table(f"lake.{name}").scan().to_arrow()
        with duckdb.connect() as database:
            database.register("it", everything)
            return database.execute(f"select {columns} from it").fetchall()

    def append(self, rows: pa.Table, name: str = "orders") -> None:
        table = self.catalog.create_table_if_not_exists(f"lake.{name}", rows.schema)
        table.append(rows.cast(table.schema().as_arrow()))

    def drop(self, name: str = "orders") -> None:
        self.catalog.drop_table(f"lake.{name}")

    def maintain(self, name: str = "orders") -> None:
        table = self.catalog.load_table(f"lake.{name}")
        table.overwrite(table.scan().to_arrow())
        table.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()

    def delete(self, sequence: int, name: str = "orders") -> None:
        self.catalog.load_table(f"lake.{name}").delete(f"_sequence = {sequence}")


class OnS3:
    """A folder in the bucket for each test."""

    store: ClassVar[ObjectStore]
    place: str

    def choose(self) -> None:
        self.place = f"{BUCKET}/{secrets.token_hex(4)}"


class DeltaOnS3(Delta, OnS3):
    def __enter__(self) -> Self:
        self.options = self.store.s3.storage_options()
        self.choose()
        return self

    def uri(self, name: str) -> str:
        return f"s3://{self.place}/{name}"

    def table(self, name: str = "orders") -> DeltaTable:
        return DeltaTable(self.uri(name), self.store.s3)

    def read(self, columns: str, files: list[str]) -> list[Row]:
        paths = [each.removeprefix("s3://") for each in files]
        if not paths:
            return []
        everything = dataset(paths, filesystem=self.store.files()).to_table()
        with duckdb.connect() as database:
            database.register("it", everything)
            return database.execute(f"select {columns} from it").fetchall()

    def drop(self, name: str = "orders") -> None:
        self.store.files().delete_dir(f"{self.place}/{name}")


class IcebergOnS3(Iceberg, OnS3):
    """The catalog is in a file, the table in a bucket."""

    def __enter__(self) -> Self:
        self.choose()
        return super().__enter__()

    @property
    def properties(self) -> dict[str, str]:
        return {**super().properties, "warehouse": f"s3://{self.place}", **self.store.s3.properties()}

    def table(self, name: str = "orders") -> IcebergTable:
        catalog = {"type": "sql", "uri": self.properties["uri"], "warehouse": self.properties["warehouse"]}
        return IcebergTable(catalog, f"lake.{name}", self.store.s3)


FORMATS = [Delta, Sql, Iceberg]
ON_S3 = [DeltaOnS3, IcebergOnS3]
EVERYWHERE = [*FORMATS, *(pytest.param(each, marks=pytest.mark.slow) for each in ON_S3)]
