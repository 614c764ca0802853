"""Tasks that append to tables, by an Airflow connection."""

import json
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.sdk import Connection

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from airflow_nats_jetstream.tables import delta_table, described_table, iceberg_table, s3_of, sql_table, url_of
from demo.postgres import Postgres
from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences
from jetstream_tables import S3, DeltaTable
from jetstream_tables.errors import TableFailed
from jetstream_tables.table import ExactTable
from pyspark_jetstream.held_claim import HeldClaim
from tests.airflow_nats_jetstream.steps import CONNECTION, CONSUMER, claim, execute, record
from tests.jetstream_tables.conftest import object_store, postgres
from tests.jetstream_tables.formats import Delta, DeltaOnS3, IcebergOnS3, OnS3, Sql
from tests.jetstream_tables.object_store import KEY, SECRET, ObjectStore
from tests.jetstream_tables.steps import rows

__all__ = ["object_store", "postgres"]


def append(claim: HeldClaim, table: str, where: str) -> list[int]:
    tables: dict[str, Callable[[], ExactTable]] = {
        "delta": lambda: DeltaTable(where),
        "delta on s3": lambda: delta_table("lake", where),
        "iceberg on s3": lambda: iceberg_table("lake", json.loads(where), "lake.orders"),
        "sql": lambda: sql_table("warehouse", where),
    }
    target = tables[table]()
    given = rows(claim, [each for each in claim.sequences if each != 3])
    appended = claim.append_to(target, given, rejected={"bad": [3]})
    return [appended.new.count, appended.already.count]


def appending(value: Any, table: str, where: str) -> JetStreamProcessOperator:
    return JetStreamProcessOperator(
        task_id="work",
        nats_conn_id=CONNECTION,
        python_callable=append,
        op_kwargs={"claim": value, "table": table, "where": where},
    )


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
        task = appending(value, table, where)
        assert execute(task) == [9, 0]
        assert (delta if table == "delta" else sql).sequences() == [1, 2, *range(4, 11)]
    (done,) = hook.committed(stream, CONSUMER)
    assert done.rejected == Sequences.of([3])


@pytest.fixture
def lake(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The connection ``lake``."""
    extra = {"region_name": "us-east-1", "service_config": {"s3": {"endpoint_url": object_store.s3.endpoint}}}
    there = {"conn_type": "aws", "login": KEY, "password": SECRET, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(there))
    OnS3.store = object_store
    return there


def where(made: DeltaOnS3 | IcebergOnS3) -> tuple[str, str]:
    if isinstance(made, DeltaOnS3):
        return "delta on s3", made.uri("orders")
    properties = {name: value for name, value in made.properties.items() if not name.startswith("s3.")}
    return "iceberg on s3", json.dumps({"type": "sql", **properties})


@pytest.mark.parametrize("kind", [DeltaOnS3, IcebergOnS3])
@pytest.mark.usefixtures("lake")
def test_a_task_appends_in_s3(hook: JetStreamHook, stream: str, tmp_path: Path, kind: Any) -> None:
    value = claim(hook, stream, 10)
    with kind(tmp_path) as made:
        task = appending(value, *where(made))
        assert execute(task) == [9, 0]
        assert made.sequences() == [1, 2, *range(4, 11)]


@pytest.mark.parametrize("kind", [DeltaOnS3, IcebergOnS3])
def test_credentials_of_a_connection_are_in_no_message(
    hook: JetStreamHook, stream: str, kind: Any, lake: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """Neither in the log, nor in the error, nor in the consumer's ledger, which the page shows."""
    caplog, tmp_path = request.getfixturevalue("caplog"), request.getfixturevalue("tmp_path")
    monkeypatch = request.getfixturevalue("monkeypatch")
    lake["extra"]["aws_session_token"] = "planted/token"
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({**lake, "password": "planted/secret", "login": "planted-id"}))
    value = claim(hook, stream, 10)
    with kind(tmp_path) as made:
        task = appending(value, *where(made))
        with caplog.at_level(logging.DEBUG), pytest.raises(TableFailed) as failed:
            execute(task)
    said = [
        caplog.text,
        *traceback.format_exception(failed.value),
        repr(vars(task)),
        repr(record(hook, stream)),
    ]
    assert [each for each in said if "planted" in each] == []


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
        ({"extra": '{"options": {"x": 1}}'}, "options=.*connection 'warehouse': a parameter of Postgres is a text"),
    ],
)
def test_a_connection_that_is_refused(fields: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidValue, match=told):
        url_of(connection(**fields))


def aws(**fields: Any) -> Connection:
    return Connection(**{"conn_id": "lake", "conn_type": "aws", **fields})


def test_a_connection_becomes_an_object_store() -> None:
    extra = {"aws_session_token": "t", "region_name": "eu-central-1", "endpoint_url": "https://s3.example.com"}
    found = s3_of(aws(login="id", password="secret", extra=json.dumps({**extra, "service_config": {"sqs": {}}})))
    assert found == S3("id", "secret", "t", "eu-central-1", "https://s3.example.com")
    in_extra = {"aws_access_key_id": "id", "aws_secret_access_key": "secret", "service_config": {}}
    assert s3_of(aws(extra=json.dumps(in_extra))) == S3("id", "secret")
    assert s3_of(aws()) == S3()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"conn_type": "postgres"}, "connection 'lake' must have the type aws"),
        ({"extra": '{"role_arn": "arn:aws:iam::1:role/x"}'}, "role_arn.* connection 'lake' needs Airflow's hook"),
        ({"extra": '{"verify": false}'}, "verify.* connection 'lake' needs Airflow's hook"),
        (
            {"extra": '{"service_config": "planted"}'},
            "service_config.* connection 'lake' needs an object here, such as",
        ),
        ({"extra": '{"service_config": {"s3": ["planted"]}}'}, "service_config.* connection 'lake' needs an object"),
        ({"login": "id"}, r"connection 'lake' lacks a secret access key \(password\)"),
        ({"password": "planted"}, r"connection 'lake' lacks an access key \(login\)"),
    ],
)
def test_a_connection_of_an_object_store_that_is_refused(fields: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidValue, match=told) as raised:
        s3_of(aws(**fields))
    assert "planted" not in str(raised.value)


@pytest.mark.usefixtures("lake")
def test_a_description_has_a_connection() -> None:
    delta = described_table({"type": "delta", "uri": "s3://lake/orders", "conn_id": "lake"})
    assert delta.target().storage_options["AWS_SECRET_ACCESS_KEY"] == SECRET
    iceberg = described_table({"type": "iceberg", "catalog": "it", "name": "a.b", "conn_id": "lake"})
    assert iceberg.target().store["s3.secret-access-key"] == SECRET


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            {"storage_options": {"AWS_SECRET_ACCESS_KEY": "planted"}},
            "AWS_SECRET_ACCESS_KEY.*conn_id",
        ),
        ({"conn_id": "lake", "storage_options": {"AWS_REGION": "x"}}, "conn_id and storage_options"),
    ],
)
def test_a_description_with_credentials_is_refused(more: dict[str, Any], told: str) -> None:
    """Airflow shows it as a template field."""
    with pytest.raises(InvalidValue, match=told) as raised:
        described_table({"type": "delta", "uri": "s3://lake/orders", **more})
    assert "planted" not in str(raised.value)
