"""The figures of the report for receipts and files that disagree."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.report import Counts, committed, delays, departures, distinct


def receipt(name: str, *ranges: list[int], state: str = "done") -> dict[str, object]:
    return {"id": name, "state": state, "token": "1-t", "ranges": list(ranges)}


@pytest.mark.parametrize(
    ("receipts", "twice"),
    [
        ((), 0),
        ((receipt("a", [1, 10]), receipt("b", [11, 20])), 0),
        ((receipt("a", [1, 10], [20, 30]), receipt("b", [5, 22])), 9),
        ((receipt("a", [1, 10]), receipt("b", [1, 10]), receipt("c", [10, 10])), 10),
        ((receipt("a", [1, 10]), receipt("b", [1, 10], state="failed")), 0),
    ],
)
def test_settled_twice_counts_each_sequence_once(receipts: tuple[dict[str, object], ...], twice: int) -> None:
    assert Counts(receipts=receipts).settled_twice == twice


def test_only_committed_attempts_count(tmp_path: Path) -> None:
    rows = [
        {"sequence": 1, "carrier": "UA", "dep_time": 517, "dep_delay": 2},
        {"sequence": 2, "carrier": "UA", "dep_time": None, "dep_delay": None},
        {"sequence": 3, "carrier": "HA", "dep_time": 1, "dep_delay": -4},
    ]
    for attempt in ("a-1-t", "a-0-t"):
        folder = tmp_path / f"attempt={attempt}"
        folder.mkdir()
        pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")
    found = departures(committed([receipt("a", [1, 3])], tmp_path))
    assert (found.num_rows, distinct(found)) == (3, 3)
    assert delays(found) == [
        {"carrier": "UA", "flights": 2, "cancelled": 1, "mean_dep_delay": 2.0},
        {"carrier": "HA", "flights": 1, "cancelled": 0, "mean_dep_delay": -4.0},
    ]


def test_nothing_committed_is_an_empty_table(tmp_path: Path) -> None:
    assert delays(departures(committed([], tmp_path))) == []
