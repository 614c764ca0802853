"""Files of tables that other processes write. Here they are started by this process; Spark's are in
tests/pyspark_jetstream/test_spread.py."""

import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

from jetstream_client.stream import Stream
from jetstream_tables.errors import TableFailed
from jetstream_tables.spread import SpreadRows, Task
from tests.jetstream_handoff.steps import publish, take
from tests.jetstream_tables.formats import Iceberg, IcebergOnS3, OnS3
from tests.jetstream_tables.object_store import SECRET, ObjectStore
from tests.jetstream_tables.steps import begin, counted, once, rows, with_layout

WRITTEN = {
    "write.metadata.metrics.default": "counts",
    "write.parquet.compression-codec": "gzip",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "2",
}


@dataclass
class Processes:
    """Rows of which each of two processes has a half."""

    rows: pa.Table
    then: Callable[[], object] = lambda: None

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def run(self, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> pa.Table:
        half = len(self.rows) // 2
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:  # a Pool sometimes never ends
            answers = pa.concat_tables(pool.map(_done, [task, task], [self.rows[:half], self.rows[half:]]))
        self.then()
        return answers

    def collected(self) -> Any:
        raise AssertionError("one process gets all rows")


def _done(task: Any, part: pa.Table) -> pa.Table:
    return pa.Table.from_batches(list(task(iter(part.to_batches()))))


@pytest.mark.slow
async def test_an_iceberg_table_keeps_its_layout(stream: Stream, holds: ExitStack, tmp_path: Path) -> None:
    """Columns in another order, with other ids and of other types, partitions with characters that paths cannot have,
    metrics and compression. Before the look that decides, the partitions change, and the files are written
    again. Takes longer than 5 s: it starts processes."""
    await publish(stream, 10)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    with Iceberg(tmp_path) as iceberg:
        given, columns = with_layout(held)
        shops = pa.array([f"a b/%=ü {number % 2}" for number in range(10)])
        given = given.set_column(given.schema.get_field_index("shop"), "shop", shops)
        others = pa.schema([("gone", pa.string()), *(each for each in columns if each.name != "shop")])
        table = iceberg.catalog.create_table("lake.orders", others, properties=WRITTEN)
        with table.update_schema() as schema:
            schema.delete_column("gone")
            schema.add_column("shop", StringType())

        def change() -> None:
            with iceberg.catalog.load_table("lake.orders").update_spec() as spec:
                spec.add_field("shop", IdentityTransform(), "place")

        done = held.append_to(iceberg.table(), Processes(given, once(change)))
        assert counted(done) == (10, 0)
        table.refresh()
        assert table.properties == WRITTEN
        found = table.inspect.files().to_pylist()
        assert {each["partition"]["place"] for each in found} == {"a b/%=ü 0", "a b/%=ü 1"}
        assert len(found) == 4
        assert all(each["lower_bounds"] == [] and len(each["value_counts"]) == 5 for each in found)
        some = parquet.read_metadata(found[0]["file_path"].removeprefix("file://"))
        assert some.row_group(0).column(0).compression == "GZIP"
        odd = table.scan(row_filter="shop == 'a b/%=ü 1'").to_arrow()
        assert sorted(odd["_sequence"].to_pylist()) == [2, 4, 6, 8, 10]
        assert iceberg.sequences() == [*range(1, 11)]
        left = list(iceberg.folder.glob("lake/orders/metadata/*.avro"))
        assert len(left) == 2, left  # those of the snapshot


@pytest.mark.slow
async def test_credentials_reach_other_processes(
    stream: Stream, holds: ExitStack, object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no message has them. Takes longer than 5 s: it starts processes."""
    OnS3.store = object_store
    await publish(stream, 2)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    wrong = replace(object_store.s3, secret_access_key="planted/secret", session_token="planted/token")
    into = SpreadRows.of

    def written(spread: Any, look: Any, *of: Any) -> Any:
        files = look.files

        def with_key(schema: pa.Schema) -> Any:
            found = replace(files(schema), properties=wrong.properties())
            assert "planted" not in repr(Task(found, "S", pa.schema([]), None))
            return found

        look.files = with_key
        return into(spread, look, *of)

    with IcebergOnS3(tmp_path) as iceberg:
        with monkeypatch.context() as patched:
            patched.setattr("jetstream_tables.append.SpreadRows.of", written)
            with pytest.raises(TableFailed, match=r"files of table lake\.orders could not be written") as failed:
                held.append_to(iceberg.table(), Processes(rows(held)))
        assert "planted" not in "".join(traceback.format_exception(failed.value))
        assert iceberg.query() == []
        assert counted(held.append_to(iceberg.table(), Processes(rows(held)))) == (2, 0)
        assert iceberg.sequences() == [1, 2]
    assert SECRET not in "".join(traceback.format_exception(failed.value))
