"""What is special about Iceberg: its catalogs, and what a table says of its own layout."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from demo.postgres import Postgres
from jetstream_client.errors import InvalidValue
from jetstream_client.stream import Stream
from jetstream_tables import IcebergTable
from jetstream_tables.errors import TableUnsuitable
from tests.jetstream_handoff.steps import publish, take
from tests.jetstream_tables.formats import Iceberg, Sql
from tests.jetstream_tables.steps import Dying, begin, counted, once, rows, with_layout


@pytest.fixture
def iceberg(tmp_path: Path) -> Iterator[Iceberg]:
    with Iceberg(tmp_path) as made:
        yield made


@pytest.mark.killed
async def test_a_catalog_in_a_database(stream: Stream, postgres: Postgres, tmp_path: Path, holds: ExitStack) -> None:
    """Two attempts at once, and two first uses of a catalog at once."""
    Sql.server = postgres
    with Sql(tmp_path) as sql:
        path = f"{sql.url}&options=-csearch_path%3D{sql.schema}"
        properties = {"type": "sql", "uri": path, "warehouse": f"file://{tmp_path}"}
        with SqlCatalog("default", **properties) as catalog:
            catalog.create_namespace("lake")
        await publish(stream, 20)
        (claim,) = await take(stream)
        first, second = begin(holds, stream, claim), begin(holds, stream, claim, 2)
        table, given = IcebergTable(properties, "lake.orders"), rows(first)
        first.append_to(table, given.slice(0, 1), every_message=False)
        overtake = Dying(table, before=once(lambda: second.append_to(table, given)))
        assert counted(first.append_to(overtake, given.slice(1))) == (0, 19)
        with SqlCatalog("default", **properties) as catalog:
            found = catalog.load_table("lake.orders").scan().to_arrow()
        assert sorted(found["_sequence"].to_pylist()) == [*range(1, 21)]


async def test_a_table_keeps_its_layout(stream: Stream, iceberg: Iceberg, holds: ExitStack) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    given, schema = with_layout(held)
    table = iceberg.catalog.create_table("lake.orders", schema, properties={"commit.retry.num-retries": "7"})
    with table.update_spec() as spec:
        spec.add_identity("shop")
    assert counted(held.append_to(IcebergTable(iceberg.catalog, "lake.orders"), given)) == (10, 0)
    table = iceberg.catalog.load_table("lake.orders")
    assert len([*table.scan().plan_files()]) == 2
    assert table.properties["commit.retry.num-retries"] == "7"  # turned off in memory only
    assert iceberg.sequences() == [*range(1, 11)]
    again = begin(holds, stream, claim, 2)
    moved = given.set_column(given.schema.get_field_index("shop"), "shop", pa.array(["north"] * 10))
    done = again.replace_in(IcebergTable(iceberg.catalog, "lake.orders"), moved)
    assert counted(done) == (10, 10)
    (file,) = iceberg.catalog.load_table("lake.orders").scan().plan_files()
    assert (file.file.partition[0], file.file.record_count) == ("north", 10)
    snapshot = iceberg.catalog.load_table("lake.orders").current_snapshot()
    assert snapshot is not None
    assert done.version == snapshot.snapshot_id
    assert iceberg.sequences() == [*range(1, 11)]


async def test_a_namespace_that_does_not_exist(stream: Stream, iceberg: Iceberg, holds: ExitStack) -> None:
    await publish(stream, 5)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    with pytest.raises(TableUnsuitable, match="the catalog has no namespace sales; create it, or correct the name"):
        held.append_to(IcebergTable(iceberg.catalog, "sales.orders"), rows(held))


@pytest.mark.parametrize("name", ["", "orders", ".orders", "orders."])
def test_a_name_without_a_namespace(name: str) -> None:
    with pytest.raises(InvalidValue, match="give the table with its namespace"):
        IcebergTable("default", name)
