"""What is special about Delta Lake: the layout of a table, and other writers."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyarrow import parquet

from jetstream_client.stream import Stream
from jetstream_tables.delta_files import files_of
from jetstream_tables.rows import kept_rows
from tests.jetstream_handoff.steps import publish, take
from tests.jetstream_tables.formats import Delta
from tests.jetstream_tables.steps import COLUMNS, Dying, begin, counted, once, rows, with_layout


@pytest.fixture
def delta(tmp_path: Path) -> Iterator[Delta]:
    with Delta(tmp_path) as made:
        yield made


async def test_a_table_keeps_its_layout(stream: Stream, delta: Delta, holds: ExitStack) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    given, schema = with_layout(held)
    deltalake.DeltaTable.create(delta.uri("orders"), schema, partition_by=["shop"])
    assert counted(held.append_to(delta.table(), given)) == (10, 0)
    files = deltalake.DeltaTable(delta.uri("orders")).file_uris()
    assert sorted(Path(each).parent.name for each in files) == ["shop=north", "shop=south"]
    assert delta.sequences() == [*range(1, 11)]
    again = begin(holds, stream, claim, 2)
    moved = given.set_column(given.schema.get_field_index("shop"), "shop", pa.array(["north"] * 10))
    assert counted(again.replace_in(delta.table(), moved)) == (10, 10)
    files = deltalake.DeltaTable(delta.uri("orders")).file_uris()
    assert {Path(each).parent.name for each in files} == {"shop=north"}
    assert delta.sequences() == [*range(1, 11)]
    for version in range(1, deltalake.DeltaTable(delta.uri("orders")).version() + 1):
        table = deltalake.DeltaTable(delta.uri("orders"), version=version)
        assert table.to_pyarrow_table().num_rows == 10  # a reader finds all rows at each version


async def test_files_are_compressed_and_have_no_dictionary_of_values_that_differ(
    stream: Stream, delta: Delta, holds: ExitStack
) -> None:
    """Those of each way to write: of a new table, appended, replaced, and by another process, also if another writer
    has set a compression, which delta-rs ignores in a table and refuses in a new one."""
    await publish(stream, 3)
    one, two, three = await take(stream, messages_per_claim=1)
    for claim in (one, two):
        held = begin(holds, stream, claim)
        held.append_to(delta.table(), rows(held))
    again = begin(holds, stream, two, 2)
    again.replace_in(delta.table(), rows(again))
    compress(delta, "zstd")
    table = deltalake.DeltaTable(delta.uri("orders"))
    given = rows(begin(holds, stream, three))
    schema = pa.schema(table.schema().to_arrow())
    written = files_of(table, schema, "orders", delta.uri("orders"), None)
    assert written is not None
    with kept_rows(given, stream.name) as kept:
        written.write(kept.reader(kept.messages.sequences, schema))
    files = columns_of_files(delta)
    assert len(files) == 4
    for columns in files:
        assert {column["compression"] for column in columns} == {"SNAPPY"}
        whole = {column["path_in_schema"] for column in columns if not column["has_dictionary_page"]}
        assert whole == {"_sequence", "_timestamp"}


def columns_of_files(delta: Delta) -> list[list[dict[str, Any]]]:
    files = Path(delta.uri("orders")).rglob("*.parquet")
    return [parquet.read_metadata(each).row_group(0).to_dict()["columns"] for each in files]


def compress(delta: Delta, codec: str) -> None:
    """Set the property of a table as Spark does; delta-rs refuses to."""
    table = deltalake.DeltaTable(delta.uri("orders"))
    log = Path(delta.uri("orders")) / "_delta_log"
    lines = (log / f"{0:020}.json").read_text().splitlines()
    (found,) = (each for line in lines if "metaData" in (each := json.loads(line)))
    found["metaData"]["configuration"]["delta.parquet.compression.codec"] = codec
    (log / f"{table.version() + 1:020}.json").write_text(json.dumps(found))


async def test_the_log_of_a_new_table_is_not_read_from_its_beginning(
    stream: Stream, delta: Delta, holds: ExitStack
) -> None:
    await publish(stream, 11)
    for claim in await take(stream, messages_per_claim=1):
        held = begin(holds, stream, claim)
        held.append_to(delta.table(), rows(held))
    assert checkpoints(delta) == 1


async def test_expired_entries_of_the_log_are_removed_after_each_ten_commits(
    stream: Stream, delta: Delta, holds: ExitStack
) -> None:
    properties = {"delta.checkpointInterval": "2", "delta.logRetentionDuration": "interval 0 days"}
    await publish(stream, 10)
    claims = [begin(holds, stream, claim) for claim in await take(stream, messages_per_claim=1)]
    deltalake.DeltaTable.create(delta.uri("orders"), COLUMNS, configuration=properties)
    for held in claims[:8]:
        held.append_to(delta.table(), rows(held))
    assert entries(delta) == 9  # delta-rs looks for expired ones after each commit, unless told otherwise
    claims[8].append_to(delta.table(), rows(claims[8]))
    assert entries(delta) < 9
    claims[9].append_to(delta.table(), rows(claims[9]))
    assert delta.sequences() == [*range(1, 11)]


async def test_a_table_that_another_one_has_replaced_between_look_and_commit(
    stream: Stream, delta: Delta, holds: ExitStack
) -> None:
    """The commit is the next version of both: the rows are in the new table without a look at it."""
    await publish(stream, 20)
    first, second = (begin(holds, stream, claim) for claim in await take(stream, messages_per_claim=10))
    first.append_to(delta.table(), rows(first))

    def replace() -> None:
        delta.drop()
        again = begin(holds, stream, first.claim, 2)
        again.append_to(delta.table(), rows(again))

    looked_twice = (0, 10)
    assert counted(second.append_to(Dying(delta.table(), before=once(replace)), rows(second))) == looked_twice
    assert delta.sequences() == [*range(1, 21)]


def entries(delta: Delta) -> int:
    return len(list(Path(delta.uri("orders"), "_delta_log").glob("*.json")))


def checkpoints(delta: Delta) -> int:
    return len(list(Path(delta.uri("orders"), "_delta_log").glob("*.checkpoint.parquet")))


async def test_other_writers_do_not_conflict(stream: Stream, delta: Delta, holds: ExitStack) -> None:
    """Another stream, a plain append and a compaction between the look and the commit."""
    await publish(stream, 20)
    first, second = (begin(holds, stream, claim) for claim in await take(stream, messages_per_claim=10))
    first.append_to(delta.table(), rows(first))

    def meanwhile() -> None:
        other = rows(first).rename_columns(["_sequence", "_timestamp", "amount"])
        delta.append(other.add_column(0, "_stream", pa.array(["another"] * 10)))
        delta.maintain()

    looks: list[int] = []

    def before() -> None:
        looks.append(1)
        meanwhile()

    assert counted(second.append_to(Dying(delta.table(), before=before), rows(second))) == (10, 0)
    assert looks == [1]
    assert delta.sequences() == sorted([*range(1, 11), *range(1, 21)])


async def test_a_row_that_is_deleted_between_look_and_commit(stream: Stream, delta: Delta, holds: ExitStack) -> None:
    """Deleting rewrites files, with which an append conflicts or not: either way, the table is right."""
    await publish(stream, 20)
    first, second = (begin(holds, stream, claim) for claim in await take(stream, messages_per_claim=10))
    first.append_to(delta.table(), rows(first))
    table = Dying(delta.table(), before=once(lambda: delta.delete(3)))
    assert counted(second.append_to(table, rows(second))) == (10, 0)
    assert delta.sequences() == [each for each in range(1, 21) if each != 3]
