"""The figures of the report for receipts that disagree, and for a table."""

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from demo.report import Counts, Departures


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


def test_a_table_is_read_by_plain_selects(tmp_path: Path) -> None:
    rows = [
        {"_sequence": 1, "carrier": "UA", "dep_time": 517, "dep_delay": 2},
        {"_sequence": 2, "carrier": "UA", "dep_time": None, "dep_delay": None},
        {"_sequence": 3, "carrier": "HA", "dep_time": 1, "dep_delay": -4},
    ]
    for some in (rows, rows[2:]):
        deltalake.write_deltalake(tmp_path / "departures", pa.Table.from_pylist(some), mode="append")
    found = Departures(tmp_path)
    assert found.check == (4, 3)  # a row too many is found
    assert len(found.files) == 2
    assert found.delays() == [
        {"carrier": "HA", "flights": 2, "cancelled": 0, "mean_dep_delay": -4.0},
        {"carrier": "UA", "flights": 2, "cancelled": 1, "mean_dep_delay": 2.0},
    ]


def test_no_table_has_no_rows(tmp_path: Path) -> None:
    found = Departures(tmp_path)
    assert (found.check, found.files, found.delays()) == ((0, 0), [], [])
