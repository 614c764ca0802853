"""Small files are merged and old versions removed, while claims are appended. The rows stay the same."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyiceberg.table import Table

import jetstream_tables.iceberg as of_iceberg
from jetstream_client.errors import InvalidValue
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.blocking import BlockingHold
from jetstream_tables import DeltaTable, IcebergTable
from jetstream_tables.iceberg_snapshots import merge
from jetstream_tables.table import FileTable, Maintained
from tests.jetstream_handoff.steps import publish, take
from tests.jetstream_tables.formats import Delta, Format, Iceberg
from tests.jetstream_tables.steps import COLUMNS, Dying, begin, counted, once, rows, with_layout

NOTHING = timedelta()
IDENTITY = '"_stream", "_sequence", "_timestamp", amount'


@pytest.fixture(params=[Delta, Iceberg])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Format]:
    with request.param(tmp_path) as made:
        yield made


@pytest.fixture
def iceberg(tmp_path: Path) -> Iterator[Iceberg]:
    with Iceberg(tmp_path) as made:
        yield made


def table(lake: Format) -> FileTable:
    made = lake.table()
    assert isinstance(made, FileTable)
    if isinstance(lake, Delta) and deltalake.DeltaTable.is_deltatable(lake.uri("orders")):
        lake.load().alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
    return made


def file_count(lake: Format) -> int:
    if isinstance(lake, Delta):
        return len(lake.load().file_uris())
    assert isinstance(lake, Iceberg)
    return len([*loaded(lake).scan().plan_files()])


def loaded(iceberg: Iceberg) -> Table:
    return iceberg.catalog.load_table("lake.orders")


async def appended(
    stream: Stream, lake: Format, holds: ExitStack, count: int = 10, *, more: int = 0
) -> tuple[list[Claim], list[BlockingHold]]:
    """Append as many claims of ten messages. Returns them, and ``more`` claims that are held and not appended."""
    await publish(stream, 10 * (count + more))
    claims = await take(stream, messages_per_claim=10)
    for claim in claims[:count]:
        held = begin(holds, stream, claim)
        held.append_to(lake.table(), rows(held))
    return claims[:count], [begin(holds, stream, claim) for claim in claims[count:]]


async def test_small_files_become_one(stream: Stream, files: Format, holds: ExitStack) -> None:
    claims, _ = await appended(stream, files, holds)
    before = sorted(files.query(IDENTITY))
    assert (len(before), file_count(files)) == (100, 10)
    assert table(files).maintain(NOTHING).merged == 10
    assert file_count(files) == 1
    assert sorted(files.query(IDENTITY)) == before
    again = begin(holds, stream, claims[3], 2)
    assert counted(again.append_to(files.table(), rows(again))) == (0, 10)
    removed = table(files).maintain(NOTHING)
    assert (removed.merged, removed.removed > 1) == (0, True)  # what was merged is old by now
    assert sorted(files.query(IDENTITY)) == before


async def test_a_table_is_maintained_between_look_and_commit(stream: Stream, files: Format, holds: ExitStack) -> None:
    """The commit conflicts, or not: each message is there once."""
    _, (first, second) = await appended(stream, files, holds, more=2)
    merged: list[Maintained] = []
    while_appending = Dying(files.table(), before=once(lambda: merged.append(table(files).maintain(NOTHING))))
    assert counted(first.append_to(while_appending, rows(first))) == (10, 0)
    assert merged[0].merged == 10
    assert counted(second.append_to(files.table(), rows(second))) == (10, 0)
    assert files.sequences() == [*range(1, 121)]


async def test_a_claim_that_is_appended_while_files_are_merged(
    stream: Stream, iceberg: Iceberg, holds: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merging begins again: its commit is a compare-and-set, too."""
    _, (held,) = await appended(stream, iceberg, holds, more=1)
    appends = once(lambda: held.append_to(iceberg.table(), rows(held)))

    def overtaken(*of: Any) -> None:
        appends()
        merge(*of)

    monkeypatch.setattr(of_iceberg, "merge", overtaken)
    assert table(iceberg).maintain(NOTHING).merged == 11
    assert iceberg.sequences() == [*range(1, 111)]


async def test_partitions_tags_and_deleted_rows_stay(stream: Stream, iceberg: Iceberg, holds: ExitStack) -> None:
    await publish(stream, 110)
    claims = await take(stream, messages_per_claim=10)
    held = begin(holds, stream, claims[0])
    given, columns = with_layout(held)
    made = iceberg.catalog.create_table("lake.orders", columns)
    with made.update_spec() as spec:
        spec.add_identity("shop")
    held.append_to(iceberg.table(), given)
    first = loaded(iceberg).current_snapshot()
    assert first is not None
    loaded(iceberg).manage_snapshots().create_tag(first.snapshot_id, "first").commit()
    for claim in claims[1:]:
        held = begin(holds, stream, claim)
        held.append_to(iceberg.table(), with_layout(held)[0])
    iceberg.delete(7)
    before = sorted(iceberg.query(f"{IDENTITY}, shop"))
    done = table(iceberg).maintain(NOTHING)
    assert done == Maintained(22, 10)  # all snapshots but the tag's and the newest
    assert {each.file.partition[0] for each in loaded(iceberg).scan().plan_files()} == {"north", "south"}
    assert file_count(iceberg) == 2
    assert sorted(iceberg.query(f"{IDENTITY}, shop")) == before
    assert len(before) == 109
    assert loaded(iceberg).scan(snapshot_id=first.snapshot_id).to_arrow().num_rows == 10


async def test_partitions_with_few_files_are_not_written_again(
    stream: Stream, iceberg: Iceberg, holds: ExitStack
) -> None:
    with iceberg.catalog.create_table("lake.orders", COLUMNS).update_spec() as spec:
        spec.add_identity("amount")
    await appended(stream, iceberg, holds, 1)
    assert file_count(iceberg) == 10
    assert table(iceberg).maintain(timedelta(days=7)) == Maintained(0, 0)


async def test_few_files_and_none(files: Format, stream: Stream, holds: ExitStack) -> None:
    assert table(files).maintain(timedelta(days=7)) == Maintained(0, 0)  # there is no table
    assert not files.query()
    await appended(stream, files, holds, 1)
    assert table(files).maintain(timedelta(days=7)) == Maintained(0, 0)


async def test_old_metadata_is_deleted(stream: Stream, iceberg: Iceberg, holds: ExitStack) -> None:
    """Each commit writes all snapshots into another file."""
    properties = {
        "write.metadata.previous-versions-max": "2",
        "write.metadata.delete-after-commit.enabled": "true",
    }
    iceberg.catalog.create_table("lake.orders", COLUMNS, properties=properties)
    await appended(stream, iceberg, holds, 6)
    assert len(list(iceberg.folder.glob("lake/orders/metadata/*.metadata.json"))) == 3


def test_what_to_keep(tmp_path: Path) -> None:
    for each in (timedelta(days=-1), 7):
        with pytest.raises(InvalidValue, match="keep"):
            DeltaTable(str(tmp_path)).maintain(each)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="keep"):
        IcebergTable("nowhere", "lake.orders").maintain(timedelta(days=-1))
