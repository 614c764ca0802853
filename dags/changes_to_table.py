"""A table that follows a table of another database: its changes, as Debezium publishes them, in order per row.

The stream CHANGES has a subject for each row, such as `shop.public.customers.7`. With `ordered_by`, the changes of a
row are in one claim, in their order. A task applies the changes of its claim in one transaction, which also remembers
them: each is applied once, whatever is killed, retried, cleared or reset. So at every commit, each row of the table is
as it was in the source at some time, and it never goes back to an earlier one.

The connection `warehouse` is a Postgres database. See docs/how-to/order-per-key.md.
"""

import json
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pendulum
from airflow.sdk import Connection, dag, task

from airflow_nats_jetstream.sensors import JetStreamPullSensor

if TYPE_CHECKING:
    from jetstream_client.read.message import StoredMessage

TABLE = """
create table if not exists customers (
    id bigint primary key, name text not null, points bigint not null, lsn bigint not null
)
"""
UPSERT = """
insert into customers (id, name, points, lsn) values (%(id)s, %(name)s, %(points)s, %(lsn)s)
on conflict (id) do update set name = excluded.name, points = excluded.points, lsn = excluded.lsn
"""
DELETE = "delete from customers where id = %(id)s"


def warehouse() -> Any:
    """A connection to the database, without autocommit."""
    import psycopg2  # here, so that Airflow can parse this file without it

    return psycopg2.connect(Connection.get("warehouse").get_uri())


def applying(message: "StoredMessage") -> tuple[str, dict[str, Any]]:
    """Return the statement that applies a change, and its parameters."""
    if not message.data:  # a tombstone: all that it says is which row is gone
        return DELETE, {"id": int(message.subject.rpartition(".")[2])}
    change = json.loads(message.data)
    match change.get("op"):
        case "c" | "u" | "r":  # created, updated, or read by a snapshot
            return UPSERT, {**change["after"], "lsn": change["source"]["lsn"]}
        case "d":
            return DELETE, change["before"]
        case op:
            raise ValueError(f"message {message.sequence}: {op!r} is no change of a row; only c, u, r and d are")


@dag(
    schedule=timedelta(minutes=1),
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["jetstream", "sql"],
)
def changes_to_table() -> None:
    claims = JetStreamPullSensor(
        task_id="claims",
        stream="CHANGES",
        consumer="customers",
        consumer_config={"filter_subject": "shop.public.customers.*"},
        ordered_by="subject",
        claims=4,
        max_messages=20_000,
        timeout=60,
        soft_fail=True,
    )

    @task(retries=3)
    def create() -> None:
        with closing(warehouse()) as database, database, database.cursor() as cursor:
            cursor.execute(TABLE)

    @task.jetstream(retries=3, retry_delay=timedelta(seconds=30))
    def apply(claim: Any) -> int:
        # a marker of the server is no tombstone
        changes = [each for each in claim.messages() if not each.marker]
        with closing(warehouse()) as db, claim.transaction(db, "customers") as tx:
            for change in changes:
                if change.sequence in tx.new:
                    tx.execute(*applying(change))
        return int(tx.new.count)

    create() >> claims
    apply.expand(claim=claims.output)


changes_to_table()
