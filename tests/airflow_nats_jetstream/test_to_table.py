"""The operator that writes claims to a table, on a real server, with tables that plain readers count."""

import gzip
import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from airflow.sdk import DAG

from airflow_nats_jetstream.compat import AirflowFailException
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.to_table import JetStreamToTableOperator
from jetstream_client.context import JetStream
from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences
from jetstream_handoff.hold import answers
from jetstream_tables import DeltaTable, IcebergTable
from jetstream_tables.errors import RowsInvalid, TableFailed, TooManyMalformed
from jetstream_tables.table import ExactTable
from tests.airflow_nats_jetstream.steps import (
    CONNECTION,
    CONSUMER,
    Supervisor,
    execute,
    info,
    publish,
    rendered,
    sensor,
    whole,
)
from tests.airflow_nats_jetstream.test_lineage import extracted
from tests.airflow_nats_jetstream.test_missing import vanish
from tests.airflow_nats_jetstream.test_tables import warehouse
from tests.jetstream_tables.conftest import postgres
from tests.jetstream_tables.formats import Delta, Iceberg, Sql
from tests.jetstream_tables.steps import Dying, Killed, die
from tests.pyspark_jetstream.proto_source import descriptor_set
from tests.pyspark_jetstream.registry_server import registry_server

__all__ = ["postgres", "warehouse"]

SCHEMA = "shop STRING NOT NULL, amount INT"


@pytest.fixture
def delta(tmp_path: Path) -> Iterator[Delta]:
    with Delta(tmp_path) as made:
        yield made


def orders(hook: JetStreamHook, stream: str, payloads: list[Any], **changes: Any) -> list[dict[str, Any]]:
    """Publish messages, and let a sensor claim all of them, however busy the machine is."""
    data = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in payloads]

    async def messages(js: JetStream) -> None:
        for each in data:
            await js.publish(f"{stream}.a", each)

    hook.run(messages)
    of_all = {"min_messages": len(data), "consumer_config": {"ack_wait": timedelta(minutes=1)}}
    return [dict(each) for each in execute(sensor(stream, **of_all, **changes))]


def ten(hook: JetStreamHook, stream: str, **changes: Any) -> list[dict[str, Any]]:
    """Ten messages, of which the third is malformed."""
    return orders(hook, stream, [{"shop": "a", "amount": "x" if n == 3 else n} for n in range(1, 11)], **changes)


def to_table(claim: Any, table: Any, **changes: Any) -> JetStreamToTableOperator:
    given = {"task_id": "work", "nats_conn_id": CONNECTION, "schema": SCHEMA, **changes}
    return JetStreamToTableOperator(claim=claim, table=table, **given)


class Flaky(ExactTable):
    """A table whose process dies, or which answers with an error, around a commit."""

    def __init__(self, table: ExactTable, **when: Any) -> None:
        self.name, self._target = table.name, Dying(table, **when)

    def target(self) -> Any:
        return self._target


@pytest.mark.parametrize("kind", [Delta, Sql, Iceberg])
@pytest.mark.usefixtures("warehouse")
def test_a_claim_is_written_and_settled(
    hook: JetStreamHook, stream: str, tmp_path: Path, kind: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    (claim,) = ten(hook, stream)
    caplog.set_level(logging.INFO)
    with kind(tmp_path) as lake:
        tables: dict[type[Any], Any] = {
            Delta: lambda: {"type": "delta", "uri": lake.uri("orders")},
            Sql: lambda: {"type": "sql", "conn_id": "warehouse", "name": f"{lake.schema}.orders"},
            Iceberg: lambda: IcebergTable({"type": "sql", **lake.properties}, "lake.orders"),
        }
        value = execute(to_table(claim, tables[kind](), message_columns=["subject"]))
        assert {**value, "version": None} | {"table": ""} == {
            "table": "", "rows": 9, "duplicates": 0, "malformed": 1, "version": None,
        }  # fmt: skip
        assert sorted(lake.query("shop, amount, subject")) == [("a", n, f"{stream}.a") for n in range(1, 11) if n != 3]
    (done,) = hook.committed(stream, CONSUMER)
    assert (done.rejected, done.value) == (Sequences.of([3]), value)
    assert info(hook, stream).floor == 10
    assert "9 rows written, 0 duplicates left out, 1 dead letters, 10 messages" in caplog.text
    assert 'amount: "x" cannot be represented exactly as INT (1, first sequence 3)' in caplog.text
    letters = hook.run(lambda js: js.stream(f"DEAD_{stream}").info())
    assert letters.state["messages"] == 1


@pytest.mark.parametrize("point", ["before the commit", "after the commit", "after the settlement", "before the ack"])
def test_a_kill_and_a_retry(
    hook: JetStreamHook, stream: str, delta: Delta, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (claim,) = ten(hook, stream)
    if point.endswith("commit"):
        table = Flaky(delta.table(), **{"before" if "before" in point else "after": die})
        with pytest.raises(Killed):
            execute(to_table(claim, table), max_tries=1)
    else:
        with monkeypatch.context() as patched:
            if "ack" in point:
                patched.setattr(answers, "acknowledge", _unconfirmed)
            execute(to_table(claim, delta.table()), max_tries=1)
    again = execute(to_table(claim, delta.table()), try_number=2, max_tries=1)
    assert (again["rows"], again["duplicates"]) == ((0, 9) if point == "after the commit" else (9, 0))
    assert delta.sequences() == [1, 2, *range(4, 11)]
    (done,) = hook.committed(stream, CONSUMER)
    assert done.rejected == Sequences.of([3])


async def _unconfirmed(*_: object, **__: object) -> Sequences:
    return Sequences()


def test_an_error_of_the_table_is_retried(hook: JetStreamHook, stream: str, delta: Delta) -> None:
    (claim,) = ten(hook, stream)

    def fail() -> None:
        raise TableFailed("no space is left")

    with pytest.raises(TableFailed, match="no space is left"):
        execute(to_table(claim, Flaky(delta.table(), before=fail)), max_tries=1)
    assert hook.committed(stream, CONSUMER) == []
    assert execute(to_table(claim, delta.table()), try_number=2, max_tries=1)["rows"] == 9
    assert delta.sequences() == [1, 2, *range(4, 11)]


def test_a_cleared_task_returns_what_it_has_recorded(hook: JetStreamHook, stream: str, delta: Delta) -> None:
    (claim,) = ten(hook, stream)
    value = execute(to_table(claim, delta.table()))
    assert execute(to_table(claim, delta.table()), try_number=2) == value
    assert delta.sequences() == [1, 2, *range(4, 11)]
    with pytest.raises(AirflowFailException, match="this task has on_settled='fail'"):
        execute(to_table(claim, delta.table(), on_settled="fail"), try_number=3)


def test_a_cleared_task_whose_table_was_edited(hook: JetStreamHook, stream: str, delta: Delta) -> None:
    """It does not say that all is well: the new table has none of the rows."""
    (claim,) = ten(hook, stream)
    value = execute(to_table(claim, delta.table()))
    told = r"was written to table .*orders by an earlier run.*nothing was written to table .*parcels\. Name the earlier"
    with pytest.raises(AirflowFailException, match=told):
        execute(to_table(claim, delta.table("parcels")), try_number=2)
    assert delta.query(name="parcels") == []
    assert execute(to_table(claim, {"type": "delta", "uri": f"{delta.uri('orders')}/"}), try_number=3) == value


def test_a_killed_task_gives_its_claim_back(hook: JetStreamHook, stream: str, delta: Delta) -> None:
    """on_kill comes while the rows are written: the older attempt cannot settle, and the retry finds its rows."""
    (claim,) = ten(hook, stream)

    def kill() -> None:
        task.on_kill()

    task = to_table(claim, Flaky(delta.table(), after=kill))
    with pytest.raises(Exception, match="was already released when its task was killed"):
        execute(task, max_tries=1)
    again = execute(to_table(claim, delta.table()), try_number=2, max_tries=1)
    assert (again["rows"], again["duplicates"]) == (0, 9)
    assert delta.sequences() == [1, 2, *range(4, 11)]


def test_two_attempts_at_once(hook: JetStreamHook, stream: str, delta: Delta) -> None:
    """The second attempt writes and settles between the look and the commit of the first one."""
    (claim,) = ten(hook, stream)
    left = [1]

    def overtake() -> None:
        if left:
            left.pop()
            assert execute(to_table(claim, delta.table()), try_number=2, max_tries=2)["rows"] == 9

    with pytest.raises(AirflowFailException):
        execute(to_table(claim, Flaky(delta.table(), before=overtake)), max_tries=2)
    assert delta.sequences() == [1, 2, *range(4, 11)]
    (done,) = hook.committed(stream, CONSUMER)
    assert done.rejected == Sequences.of([3])


def test_mapped_over_claims_with_templates(hook: JetStreamHook, stream: str, delta: Delta) -> None:
    claims = ten(hook, stream, messages_per_claim=4)
    with DAG("dag", params={"name": "orders", "most": 5}):
        mapped = JetStreamToTableOperator.partial(
            task_id="work",
            table={"type": "delta", "uri": f"{delta.folder}/{{{{ params.name }}}}"},
            schema={"shop": "STRING", "amount": "{{ 'INT' }}"},
            max_malformed="{{ params.most }}",
            nats_conn_id=CONNECTION,
        ).expand(claim=claims)
    values = []
    for number in range(3):
        task = rendered(mapped, {"name": "orders", "most": 5}, number)
        values.append(execute(task, map_index=number))
    assert sum(value["rows"] for value in values) == 9
    assert delta.sequences() == [1, 2, *range(4, 11)]
    assert {value["table"] for value in values} == {delta.uri("orders")}


def test_the_xcom_is_pushed_before_the_claim_is_settled(hook: JetStreamHook, stream: str, delta: Delta) -> None:
    (claim,) = ten(hook, stream)

    def refuse(_: Any) -> None:
        raise RuntimeError("no XCom")

    with pytest.raises(RuntimeError):
        whole(to_table(claim, delta.table()), Supervisor(refuse), max_tries=1)
    assert hook.committed(stream, CONSUMER) == []
    used = whole(to_table(claim, delta.table()), try_number=2, max_tries=1)
    assert used.xcoms["return_value"]["duplicates"] == 9
    assert delta.sequences() == [1, 2, *range(4, 11)]


def test_new_columns(hook: JetStreamHook, stream: str, delta: Delta) -> None:
    first, second = orders(hook, stream, [{"shop": "a"}, {"shop": "b", "amount": 1}], messages_per_claim=1)
    execute(to_table(first, delta.table(), schema="shop STRING"))
    with pytest.raises(RowsInvalid, match="has no columns amount; add them to the table, or leave them out"):
        execute(to_table(second, delta.table()), max_tries=1)
    execute(to_table(second, delta.table(), new_columns="add", schema="shop STRING, amount INT"), try_number=2)
    assert sorted(delta.query("shop, amount")) == [("a", None), ("b", 1)]


def test_messages_that_no_longer_exist(hook: JetStreamHook, stream: str, delta: Delta) -> None:
    """By default the task fails without retry, because reading cannot succeed; or the others are written."""
    first, second = ten(hook, stream, messages_per_claim=5)
    vanish(hook, stream, 2, 7)
    with pytest.raises(AirflowFailException, match=r"sequences 2.*retry does not help.*set missing='skip'"):
        execute(to_table(first, delta.table()), max_tries=3)
    assert delta.sequences() == []
    value = execute(to_table(second, delta.table(), missing="skip"))
    assert (value["rows"], value["malformed"]) == (4, 0)
    assert delta.sequences() == [6, 8, 9, 10]
    (done,) = hook.committed(stream, CONSUMER)
    assert done.skipped == Sequences.of([7])


def test_protobuf_that_is_compressed(hook: JetStreamHook, stream: str, delta: Delta) -> None:
    schema = descriptor_set("message Order { optional string shop = 1; optional int64 amount = 2; }")
    payloads = [gzip.compress(b"\x0a\x01a\x10" + bytes([amount])) for amount in (5, 6)]
    (claim,) = orders(hook, stream, [*payloads, b"no gzip"])
    decoding = {"message": "Order", "compression": "gzip"}
    value = execute(to_table(claim, delta.table(), schema=schema, format="protobuf", decoding=decoding))
    assert (value["rows"], value["malformed"]) == (2, 1)
    assert sorted(delta.query("shop, amount")) == [("a", 5), ("a", 6)]


def test_a_wrong_schema_is_stopped(hook: JetStreamHook, stream: str, delta: Delta) -> None:
    (claim,) = ten(hook, stream)
    with pytest.raises(TooManyMalformed, match="10 of 10 messages"):
        execute(to_table(claim, delta.table(), schema="other INT", max_malformed=5), max_tries=1)
    assert execute(to_table(claim, delta.table()), try_number=2)["rows"] == 9


def test_avro_from_a_registry(hook: JetStreamHook, stream: str, delta: Delta, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "long"}]})
    with registry_server() as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        there = {"conn_type": "http", "schema": "http", "host": host, "port": int(port)}
        monkeypatch.setenv("AIRFLOW_CONN_REGISTRY", json.dumps(there))
        framed = b"\0" + server.register("orders-value", schema).to_bytes(4)
        (claim,) = orders(hook, stream, [framed + avro(schema, each) for each in (5, 6)] + [b"\0\0\0\0\x63x"])
        value = execute(to_table(claim, delta.table(), schema=schema, format="avro", registry_conn_id="registry"))
    assert (value["rows"], value["malformed"]) == (2, 1)
    assert sorted(delta.query("amount")) == [(5,), (6,)]


def avro(schema: str, amount: int) -> bytes:
    import io

    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), {"amount": amount})
    return out.getvalue()


def test_what_is_not_decoded(hook: JetStreamHook, stream: str, delta: Delta) -> None:
    publish(hook, stream, 3)
    (claim,) = execute(sensor(stream))
    execute(to_table(claim, delta.table(), schema=None, message_columns=["subject", "data"]))
    assert sorted(delta.query("subject, data::varchar")) == [(f"{stream}.{n}", "x" * 10) for n in range(3)]


def test_lineage(hook: JetStreamHook, stream: str, delta: Delta) -> None:
    (claim,) = ten(hook, stream)
    task = to_table(claim, delta.table())
    execute(task)
    inputs, outputs = extracted(task)
    assert [name for _, name, _ in inputs] == [stream]
    assert outputs == [("file", delta.uri("orders"), {"rowCount": 9})]
    _, outputs = extracted(to_table(claim, DeltaTable("s3://lake/sales/orders?x=secret")))
    assert outputs == [("s3://lake", "sales/orders", {})]


GOOD: dict[str, Any] = {"claim": {}, "table": DeltaTable("/lake/orders"), "schema": SCHEMA}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"schema": "shop STRNG"}, "at 'STRNG': this is not a type"),
        ({"schema": pa.schema([("shop", pa.string())])}, "give the columns as a string or a mapping"),
        ({"schema": None, "message_columns": []}, "give the schema of the payloads"),
        ({"table": {"type": "sql", "url": "postgresql://u:secret@h/d", "name": "x"}}, "give conn_id"),
        ({"table": {"type": "sql", "name": "x"}}, "needs 'conn_id' and 'name'"),
        ({"table": {"type": "sql", "conn_id": "w", "name": "x", "ur": 1}}, "has only conn_id and name"),
        ({"table": {"type": "delta", "uri": "/x", "storage_options": {"AWS_SECRET": "secret"}}}, "give conn_id"),
        ({"table": {"type": "iceberg", "catalog": {"uri": "p://u:secret@h"}, "name": "a.b"}}, "give conn_id"),
        ({"table": "orders"}, "give a DeltaTable"),
        ({"table": DeltaTable("s3://{{ var.value.lake }}/x")}, "renders no template in DeltaTable; give a mapping"),
        ({"table": IcebergTable("{{ params.catalog }}", "a.b")}, "renders no template in IcebergTable"),
        ({"table": {"type": "delta", "uri": "s3:/lake/orders"}}, "uri='s3:/lake/orders'.*an address with ://"),
        ({"table": {"type": "delta", "uri": "None"}}, "without uri"),
        ({"columns": []}, "give a list of names"),
        ({"decoding": {"registry": 1}}, "give registry_conn_id"),
        ({"columns": ["size"]}, "does not contain this field; it has shop, amount"),
        ({"on_settled": "reprocess"}, "give one of 'return', 'fail'"),
        ({"missing": "ignore"}, "missing"),
        ({"max_malformed": "many"}, "give a whole number"),
        ({"new_columns": "merge"}, "give 'error' or 'add'"),
        ({"longest_hold": 5}, "timedelta"),
        ({"dead_letters": "a.b"}, "dead_letters"),
    ],
)
def test_what_is_refused_when_the_dag_is_parsed(changes: dict[str, Any], told: str) -> None:
    given = {"task_id": "work", **GOOD, **changes}
    with pytest.raises(InvalidValue, match=told) as refused:
        JetStreamToTableOperator(**given)
    assert "secret@" not in str(refused.value)
    assert "'secret'" not in str(refused.value)
    if not changes.keys() & {"longest_hold"} and changes.get("schema", "") is not None:  # which may be mapped over
        given.pop("claim")
        with DAG("dag"), pytest.raises(InvalidValue, match=told):
            JetStreamToTableOperator.partial(**given)
