"""Tasks that append to tables, by an Airflow connection."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.sdk import Connection

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from airflow_nats_jetstream.tables import sql_table, url_of
from demo.postgres import Postgres
from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences
from jetstream_tables import DeltaTable
from pyspark_jetstream.held_claim import HeldClaim
from tests.airflow_nats_jetstream.steps import CONNECTION, CONSUMER, claim, execute
from tests.jetstream_tables.conftest import postgres
from tests.jetstream_tables.formats import Delta, Sql
from tests.jetstream_tables.steps import rows

__all__ = ["postgres"]


def append(claim: HeldClaim, table: str, where: str) -> list[int]:
    target = DeltaTable(where) if table == "delta" else sql_table("warehouse", where)
    given = rows(claim, [each for each in claim.sequences if each != 3])
    appended = claim.append_to(target, given, rejected={"bad": [3]})
    return [appended.new.count, appended.already.count]


@pytest.fixture
def warehouse(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ``warehouse``."""
    folder = postgres.uri("psycopg2").partition("host=")[2]
    there = {"conn_type": "postgres", "login": "postgres", "schema": "postgres", "extra": {"host": folder}}
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(there))
    Sql.server = postgres


@pytest.mark.parametrize("table", ["delta", "sql"])
@pytest.mark.usefixtures("warehouse")
def test_a_task_appends(hook: JetStreamHook, stream: str, tmp_path: Path, table: str) -> None:
    value = claim(hook, stream, 10)
    with Sql(tmp_path) as sql, Delta(tmp_path) as delta:
        where = delta.uri("orders") if table == "delta" else f"{sql.schema}.orders"
        task = JetStreamProcessOperator(
            task_id="work",
            nats_conn_id=CONNECTION,
            python_callable=append,
            op_kwargs={"claim": value, "table": table, "where": where},
        )
        assert execute(task) == [9, 0]
        assert (delta if table == "delta" else sql).sequences() == [1, 2, *range(4, 11)]
    (done,) = hook.committed(stream, CONSUMER)
    assert done.rejected == Sequences.of([3])


def connection(**fields: Any) -> Connection:
    return Connection(**{"conn_id": "warehouse", "conn_type": "postgres", **fields})


def test_a_connection_becomes_an_address() -> None:
    url = url_of(
        connection(
            host="2001:db8::1",
            port=5433,
            login="me@here",
            password="a/b:c@d",
            schema="my db",
            extra=json.dumps({"sslmode": "require", "cursor": "dictcursor", "connect_timeout": 3}),
        )
    )
    parts = urlsplit(url)
    assert (parts.scheme, parts.username, parts.password) == ("postgresql", "me%40here", "a%2Fb%3Ac%40d")
    assert (parts.hostname, parts.port, parts.path) == ("2001:db8::1", 5433, "/my%20db")
    assert parse_qs(parts.query) == {"sslmode": ["require"], "connect_timeout": ["3"]}
    assert url_of(connection()) == "postgresql:///"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"conn_type": "mysql"}, "connection 'warehouse' must have the type postgres"),
        ({"extra": '{"iam": true}'}, "connection 'warehouse' logs in with IAM"),
    ],
)
def test_a_connection_that_is_refused(fields: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidValue, match=told):
        url_of(connection(**fields))
