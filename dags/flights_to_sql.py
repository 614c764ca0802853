"""Load departures into a database and check them with its SQL: several tasks work on one claim.

Each try loads its claim under a name that no other try uses. Then the rows are checked. Meanwhile a sensor holds the
claim, so the work may take any length of time. If the check succeeds, the claim is settled, and the settlement records
this name. Otherwise the messages are redelivered to the next run, and the settling task fails, and with it the run. A
query must read only rows whose `attempt` is the `value` of a claim that `JetStreamHook().committed` lists.

The engine is SQLite, because Python includes it. To use another engine, replace `warehouse`.

In production, a later task copies the rows that count into the table that users query, as in `orders_merged`, and
deletes the other rows.
"""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from airflow.sdk import dag, get_current_context, task, task_group

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.settle import JetStreamSettleOperator
from airflow_nats_jetstream.sensors import JetStreamHoldSensor, JetStreamPullSensor

OUT = Path(os.environ.get("FLIGHTS_TO_SQL_OUT", "out/flights_to_sql")).absolute()
AIRLINES = ("9E", "AA", "AS", "B6", "DL", "EV", "F9", "FL", "HA", "MQ", "OO", "UA", "US", "VX", "WN", "YV")


TABLES = """
create table if not exists airlines (carrier text primary key);
create table if not exists departures (attempt text, sequence integer, data text, primary key (attempt, sequence));
"""
UNKNOWN = """
select json_extract(data, '$.carrier') as carrier, count(*) from departures
where attempt = ? and (carrier is null or carrier not in (select carrier from airlines)) group by carrier
"""


@contextmanager
def warehouse() -> Iterator[sqlite3.Connection]:
    """Open the database for one transaction. Tasks that write at the same time wait for each other."""
    OUT.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(OUT / "warehouse.sqlite", timeout=600)) as database:
        database.executescript(TABLES)
        with database:
            database.executemany("insert or ignore into airlines values (?)", [(each,) for each in AIRLINES])
            yield database


@dag(
    schedule=None,
    doc_md=__doc__,
    tags=["jetstream", "sql"],
    params={"max_messages": 400_000, "messages_per_claim": 100_000},
)
def flights_to_sql() -> None:
    claims = JetStreamPullSensor(
        task_id="claims",
        stream="FLIGHTS",
        consumer="sql",
        max_messages="{{ params.max_messages }}",
        messages_per_claim="{{ params.messages_per_claim }}",
    )

    @task
    def load(claim: Mapping[str, Any]) -> str:
        """Load the claimed messages unchanged, under a name that no other attempt has, and return this name."""
        attempt = f"{claim['id']}-{get_current_context()['ti'].try_number}"
        rows = ((attempt, message.sequence, message.data.decode()) for message in JetStreamHook().messages(claim))
        with warehouse() as database:
            database.executemany("insert into departures values (?, ?, ?)", rows)
        return attempt

    @task
    def check(attempt: Any) -> Any:
        """Fail unless every departure is of a known airline."""
        with warehouse() as database:
            unknown = database.execute(UNKNOWN, [attempt]).fetchall()
        if unknown:
            raise ValueError(
                f"attempt {attempt} wrote departures of airlines that the table airlines does not contain: {unknown}"
            )
        return attempt

    @task_group
    def each(claim: Any) -> None:
        checked = check(load(claim))
        JetStreamHoldSensor(task_id="hold", claim=claim)
        JetStreamSettleOperator(task_id="settle", claim=claim, value=checked)

    each.expand(claim=claims.output)


flights_to_sql()
