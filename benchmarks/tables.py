"""Appending the rows of claims of 100,000 messages to a table that contains each message once, compared with a plain
append of the same rows by the same library. The table has grown to a million and a half rows at the end.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi
import deltalake
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks.comparison import Comparison
from demo.postgres import Postgres
from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_all
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.blocking import BlockingHold
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from jetstream_tables import DeltaTable, IcebergTable, SqlTable
from jetstream_tables.table import ExactTable

ROUNDS = 15
"""An append takes less than a tenth of a second, so single ones differ by half."""
MESSAGES = 100_000

Append = Callable[[pa.Table], object]


@contextmanager
def delta(folder: Path) -> Iterator[tuple[ExactTable, Append]]:
    yield DeltaTable(str(folder / "exact")), partial(deltalake.write_deltalake, str(folder / "plain"), mode="append")


@contextmanager
def iceberg(folder: Path) -> Iterator[tuple[ExactTable, Append]]:
    catalog = SqlCatalog("default", uri=f"sqlite:///{folder}/catalog", warehouse=f"file://{folder}")
    catalog.create_namespace("lake")

    def append(rows: pa.Table) -> None:
        catalog.create_table_if_not_exists("lake.plain", rows.schema).append(rows)

    yield IcebergTable(catalog, "lake.exact"), append


@contextmanager
def postgres(folder: Path) -> Iterator[tuple[ExactTable, Append]]:
    folder.chmod(0o711)
    server = Postgres(folder / "server", folder / "s")
    server.start()
    url = server.uri("psycopg2").replace("+psycopg2", "")

    def append(rows: pa.Table) -> None:
        with adbc_driver_postgresql.dbapi.connect(url) as database, database.cursor() as cursor:
            cursor.adbc_ingest("plain", rows, mode="create_append")
            database.commit()

    try:
        yield SqlTable(url, "exact"), append
    finally:
        server.stop()


def compare(of: Callable[[Path], Any], url: str) -> Comparison:
    settings = ConnectionSettings(servers=url)
    result = Comparison(f"append to {of.__name__}, {MESSAGES:,} rows a claim", required=0.7, aim=0.9)
    stream = pa.array(["ORDERS"] * MESSAGES)
    with tempfile.TemporaryDirectory() as name, of(Path(name)) as (table, append):
        for number, claim in enumerate(asyncio.run(claims(settings))):
            with BlockingHold.begin(settings, claim, try_number=1) as held:
                rows = _rows(held)
                plain = rows.rename_columns(["_sequence", "_timestamp", "shop", "amount"])
                plain = plain.append_column("_stream", stream)
                ways = [(result.baseline, partial(append, plain)), (result.ours, partial(held.append_to, table, rows))]
                for rates, way in ways if number % 2 else reversed(ways):
                    rates.append(MESSAGES / _seconds(way))
                held.settle()
    return result


def _rows(held: BlockingHold) -> pa.Table:
    read = [
        (message.sequence, time_nanoseconds(message.time) // 1_000, int(message.data)) for message in held.messages()
    ]
    return pa.table(
        {
            "sequence": pa.array([sequence for sequence, _, _ in read], pa.int64()),
            "timestamp": pa.array([time for _, time, _ in read], pa.timestamp("us", "UTC")),
            "shop": pa.array([("north", "south", "west")[each % 3] for each, _, _ in read]),
            "amount": pa.array([amount for _, _, amount in read], pa.int32()),
        }
    )


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


async def claims(settings: ConnectionSettings, count: int = ROUNDS, size: int = MESSAGES) -> list[Claim]:
    """Publish messages, and take them in claims."""
    async with connect(settings) as js:
        await js.create_or_update_stream({"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True})
        messages = ((f"orders.{number % 3}", b"%d" % number) for number in range(count * size))
        await asyncio.to_thread(publish_all, settings, messages)
        taking = Taking(
            stream="ORDERS",
            consumer="table",
            owner=("benchmark",),
            max_messages=count * size,
            messages_per_claim=size,
            gather=timedelta(seconds=5),
        )
        take = Take(js, taking)
        await take.prepare()
        taken = await take.take(60)
        take.handed_on()
        return taken


BENCHMARKS = tuple(partial(compare, of) for of in (delta, iceberg, postgres))
