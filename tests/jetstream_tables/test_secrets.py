"""Credentials of tables are in no message, log or representation."""

import logging
import traceback
from contextlib import ExitStack

import pytest

from jetstream_client.stream import Stream
from jetstream_tables import DeltaTable, IcebergTable, SqlTable
from jetstream_tables.errors import TableFailed
from jetstream_tables.iceberg_files import of_store
from jetstream_tables.table import ExactTable
from tests.jetstream_handoff.steps import publish, take
from tests.jetstream_tables.steps import begin, rows

ENDPOINT = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", "max_retries": "0"}
KEYS = {"AWS_ACCESS_KEY_ID": "geheim1", "AWS_SECRET_ACCESS_KEY": "geheim2", "AWS_REGION": "us-east-1"}
TABLES = [
    DeltaTable("s3://me:geheim3@lake/orders?sig=geheim4", {**ENDPOINT, **KEYS}),
    DeltaTable("nowhere://geheim5@lake/orders?token=geheim%206"),
    IcebergTable({"type": "sql", "uri": "postgresql+psycopg2://me:geheim9@127.0.0.1:1/db", "warehouse": "x"}, "a.b"),
    IcebergTable({"type": "rest", "uri": "http://127.0.0.1:1", "token": "geheim10", "s3.access": "g"}, "a.b"),
    SqlTable("postgresql://me:geheim7@127.0.0.1:1/db?password=geheim8", "orders"),
    SqlTable("postgresql+psycopg2://me:geheim7@127.0.0.1:1/db?wrong=geheim8", "orders"),
]


@pytest.mark.parametrize("table", TABLES)
async def test_credentials_are_in_no_message(
    stream: Stream, holds: ExitStack, table: ExactTable, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(stream, 5)
    (claim,) = await take(stream)
    held = begin(holds, stream, claim)
    with caplog.at_level(logging.DEBUG), pytest.raises(TableFailed) as failed:
        held.append_to(table, rows(held))
    said = [repr(table), str(table), repr(table.target()), caplog.text, *traceback.format_exception(failed.value)]
    assert [each for each in said if "geheim" in each] == []


def test_other_processes_get_the_object_stores_credentials_only() -> None:
    of_catalog = {"uri": "postgresql://u:geheim@h/d", "token": "geheim", "credential": "geheim", "warehouse": "w"}
    logs_in = {"auth.manager": object(), "rest.signing-name": "x", "glue.access-key-id": "geheim"}
    store = {"s3.access-key-id": "k", "client.region": "r", "gcs.oauth2.token": "t", "py-io-impl": "i"}
    assert of_store({**of_catalog, **logs_in, **store}) == store
