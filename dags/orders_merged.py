"""Orders in a table: Spark writes them as Parquet, and a merge reads only the output of settled attempts.

Each attempt writes to a folder that no other attempt uses. Attempts that failed or lost their claim also leave folders,
so the merge asks the ledger which attempts were settled: `JetStreamHook().committed`. It merges the attempts that it
has not merged yet, whichever run processed them. When a message was processed again, the newest settled output wins.
Therefore the merge can be retried and cleared at any time.

The orders are published by the DAG `orders`. In production, the table is in your warehouse, and the folders are in an
object store that every worker reaches: replace `warehouse` and `OUT`. See docs/how-to/read-results.md.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import dag, task

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.sensors import JetStreamPullSensor
from jetstream_client.sequences import Sequences

if TYPE_CHECKING:
    from jetstream_handoff.ledger.record import Receipt

OUT = Path(os.environ.get("ORDERS_MERGED_OUT", "out/orders_merged")).absolute()

TABLES = """
create table if not exists orders (
    stream_created text, sequence integer, stored integer, shop text, amount integer,
    attempt text, settled_at text,
    primary key (stream_created, sequence, stored)
);
create table if not exists merged (attempt text primary key);
"""
MERGE = """
insert into orders (stream_created, sequence, stored, shop, amount, attempt, settled_at)
values (:stream_created, :sequence, :stored, :shop, :amount, :attempt, :settled_at)
on conflict (stream_created, sequence, stored) do update
set shop = excluded.shop, amount = excluded.amount,
    attempt = excluded.attempt, settled_at = excluded.settled_at
where excluded.settled_at > orders.settled_at
"""


@contextmanager
def warehouse() -> Iterator[sqlite3.Connection]:
    """Open the database for one transaction: a merge is stored as a whole, or not at all."""
    OUT.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(OUT / "warehouse.sqlite", timeout=600)) as database:
        database.executescript(TABLES)
        with database:
            database.execute("begin immediate")
            yield database


def rows(attempt: "Receipt") -> list[dict[str, Any]]:
    """Return the orders that an attempt processed, one for each message."""
    import pyarrow.parquet as pq

    name = attempt.attempt_id
    written = pq.read_table(OUT / f"attempt={name}").to_pylist()
    if lost := attempt.processed - Sequences.of(row["sequence"] for row in written):
        raise ValueError(f"the output of attempt {name} lacks the sequences {lost}")
    settled_at = datetime.fromisoformat(attempt.at).isoformat(timespec="microseconds")
    labels = {"attempt": name, "settled_at": settled_at}
    return [row | labels for row in written if row["sequence"] in attempt.processed]


@dag(schedule=None, doc_md=__doc__, tags=["jetstream", "spark", "sql"])
def orders_merged() -> None:
    claims = JetStreamPullSensor(
        task_id="claims",
        stream="ORDERS",
        consumer="merged",
        max_messages=10_000,
        messages_per_claim=500,
    )

    @task.jetstream(retries=2, max_active_tis_per_dag=1)
    def write(claim: Any) -> int:
        from pyspark.sql.functions import expr, lit

        from pyspark_jetstream import decoded, spark_session

        messages = claim.read(spark_session())
        good, malformed = decoded(messages, "shop STRING, amount INT")
        claim.reject(malformed)
        created = lit(claim.claim.stream_created).alias("stream_created")
        stored = expr("unix_micros(timestamp)").alias("stored")
        orders = good.select(created, "sequence", stored, "shop", "amount")
        orders.write.parquet(str(OUT / f"attempt={claim.attempt_id}"))
        return int(claim.count - claim.rejected.count)

    @task(retries=2)
    def merge() -> int:
        """Merge the settled attempts that are not merged yet. Return their number."""
        settled = JetStreamHook().committed("ORDERS", "merged")
        with warehouse() as database:
            merged = {name for (name,) in database.execute("select * from merged")}
            new = [each for each in settled if each.attempt_id not in merged]
            for attempt in new:
                database.executemany(MERGE, rows(attempt))
                database.execute("insert into merged values (?)", [attempt.attempt_id])
        return len(new)

    write.expand(claim=claims.output) >> merge()


orders_merged()
