"""Avro messages whose schemas are in a registry. The messages are written by Confluent's own serializer; the registry
is a stand-in (:mod:`tests.pyspark_jetstream.registry_server`)."""

import asyncio
import copy
import json
import logging
import pickle
import re
import ssl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from airflow.sdk import DAG
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.sql import DataFrame, SparkSession

from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from jetstream_arrow.payload.avro import Records
from jetstream_arrow.payload.avro_schema import crc_64
from jetstream_arrow.payload.registry import MOST_IDS, SchemaRegistryFailed, answers
from jetstream_client import ConnectionSettings
from jetstream_client.errors import InvalidValue
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.letters.selection import Selection, select
from pyspark_jetstream import SchemaRegistry, decoded
from tests.airflow_nats_jetstream.steps import execute
from tests.jetstream_client.servers import Authority
from tests.jetstream_handoff.steps import take
from tests.pyspark_jetstream.avro_cases import encoded, number
from tests.pyspark_jetstream.registry_server import RegistryServer, registry_server

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "schema-registry.md"
Outcome = dict[int, Any]

OLD = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["OLD", "NEW"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
NEW = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD", "GONE"]}},
        {"name": "note", "type": "string", "default": ""},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "id", "type": "long"},
    ],
}
READER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["OLD", "NEW"]}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "paid", "type": "boolean", "default": False},
        ],
    }
)
NOBODY = "http://localhost:1"


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


def written(server: RegistryServer, subject: str, value: Any) -> bytes:
    """A message as Confluent's serializer writes it, with the newest schema of the subject."""
    with SchemaRegistryClient({"url": server.url}) as client:
        serializer = AvroSerializer(client, conf={"auto.register.schemas": False, "use.latest.version": True})
        data = serializer(value, SerializationContext(subject.removesuffix("-value"), MessageField.VALUE))
    assert isinstance(data, bytes)
    return data


def frame(spark: SparkSession, payloads: list[bytes]) -> DataFrame:
    return spark.createDataFrame(list(enumerate(payloads)), "n INT, data BINARY")


def outcome(good: DataFrame, malformed: DataFrame) -> Outcome:
    """Each message's row or reason; it is in exactly one of the two DataFrames."""
    rows = {row.n: tuple(row)[1:] for row in good.collect()}
    reasons = {row.n: row.reason for row in malformed.collect()}
    assert not rows.keys() & reasons.keys()
    return rows | reasons


def test_several_schemas_in_one_batch(spark: SparkSession, server: RegistryServer) -> None:
    first = server.register("a-value", OLD)
    order = written(server, "a-value", {"id": 1, "kind": "NEW", "at": 1763694000123})
    second = server.register("a-value", NEW, number=300_000)
    payloads = [
        order,
        written(server, "a-value", {"id": 2, "kind": "NEW", "note": "x", "at": 1763694000123000}),
        written(server, "a-value", {"id": 3, "kind": "GONE", "note": "x", "at": 1}),
        b"\0" + (99).to_bytes(4, "big") + order[5:],
        order[5:],
        b"",
        bytes(5) + order[5:],
        order[:-1],
        b"\0" + server.register("j", "{}", kind="JSON").to_bytes(4, "big") + b"{}",
        b"\0" + server.register("i", {"type": "int"}).to_bytes(4, "big") + b"\2",
        b"\0" + server.register("b", "no schema").to_bytes(4, "big") + b"\2",
        b"\0" + server.register("o", {**OLD, "name": "Other"}).to_bytes(4, "big") + order[5:],
        b"\0\0",
    ]
    assert payloads[1][:5] == b"\0" + second.to_bytes(4, "big")
    found = outcome(*decoded(frame(spark, payloads), READER, format="avro", registry=SchemaRegistry(server.url)))
    assert [(found[n][0], found[n][1], found[n][3]) for n in (0, 1)] == [(1, "NEW", False), (2, "NEW", False)]
    assert found[0][2] == found[1][2]
    assert {n: found[n] for n in range(2, len(payloads))} == {
        2: "kind: the schema does not have the symbol GONE, and no default",
        3: "the schema registry does not know schema id 99",
        4: "does not begin with the framing of a schema registry (0x00 and an id of 4 bytes)",
        5: "empty",
        6: "schema id 0, which no registry has; if the ids have 8 bytes, give framing='apicurio'",
        7: "does not match the Avro schema",
        8: "schema id 300001 is of the type JSON, not AVRO",
        9: "schema id 300002 is not the schema of a record",
        10: "data of schema id 300003 cannot be read with the given schema: JSONDecodeError: Expecting value: line 1"
        " column 1 (char 0)",
        11: "data of schema id 300004 cannot be read with the given schema: shop.Order: the payload's record shop.Other"
        " is not shop.Order; give it as an alias in the schema",
        12: "does not begin with the framing of a schema registry (0x00 and an id of 4 bytes)",
    }
    asked = sorted(path for path in server.requests if path.startswith("/schemas/ids/"))
    assert {f"/schemas/ids/{number}" for number in (first, second, 99)} <= set(asked)


def test_an_id_that_becomes_known_between_two_jobs(spark: SparkSession, server: RegistryServer) -> None:
    """Spark computes the two DataFrames at different times. If each asked the registry, the message would be in neither
    of them, and be acknowledged without work."""
    server.register("a-value", OLD)
    messages = frame(spark, [b"\0\0\0\0\2" + written(server, "a-value", {"id": 1, "kind": "NEW", "at": 1})[5:]])
    registry = SchemaRegistry(server.url)
    good, malformed = decoded(messages, READER, format="avro", registry=registry)
    assert good.count() == 0
    server.register("a-value", NEW)
    assert [row.reason for row in malformed.collect()] == ["the schema registry does not know schema id 2"]
    server.register("b-value", OLD, number=2)
    good, malformed = decoded(messages, READER, format="avro", registry=registry)
    assert (good.count(), malformed.count()) == (1, 0)  # the answer "unknown" is not kept


def test_a_schema_refers_to_others(spark: SparkSession, server: RegistryServer) -> None:
    money = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}
    price = {"type": "record", "name": "shop.Price", "fields": [{"name": "net", "type": "shop.Money"}]}
    item = {
        "type": "record",
        "name": "shop.Item",
        "fields": [{"name": "price", "type": "shop.Price"}, {"name": "fee", "type": ["null", "shop.Money"]}],
    }
    server.register("money/a", money)
    server.register("money/a", money)
    cents = [{"name": "shop.Money", "subject": "money/a", "version": 2}]
    server.register("price", price, references=cents)
    item_references = [{"name": "shop.Price", "subject": "price", "version": 1}, *cents]
    server.register("item-value", item, references=item_references)
    value = {"price": {"net": {"cents": 5}}, "fee": {"cents": 7}}
    reader = json.dumps(
        {**item, "fields": [{"name": "price", "type": price | {"fields": [{"name": "net", "type": money}]}}]}
    )
    messages = frame(spark, [written(server, "item-value", value)])
    good, malformed = decoded(messages, reader, format="avro", registry=SchemaRegistry(server.url))
    assert [row.price.asDict(recursive=True) for row in good.collect()] == [value["price"]]
    assert malformed.count() == 0


def test_schemas_are_asked_for_once(spark: SparkSession, server: RegistryServer) -> None:
    server.register("a-value", OLD)
    data = written(server, "a-value", {"id": 1, "kind": "NEW", "at": 1})
    registry = SchemaRegistry(server.url)
    server.requests.clear()
    for _ in range(2):
        good, _malformed = decoded(frame(spark, [data] * 20), READER, format="avro", registry=registry)
        assert good.count() == 20
    assert server.requests == ["/schemas/ids/1"]


def test_what_is_kept_is_bounded(server: RegistryServer) -> None:
    ids = range(1, MOST_IDS + 10)
    for each in ids:
        server.register("s", "{}", number=each)
    registry = SchemaRegistry(server.url)
    assert all(registry.schema(each) for each in ids)
    assert len(registry._known) < MOST_IDS
    assert registry.schema(1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"user": "me:right"}, "401"),
        ({"failures": [500] * 9}, "500"),
        ({"failures": [403]}, "403"),
        ({"failures": [404]}, "404"),  # as a proxy answers, or a registry with another path
        ({"failures": [302]}, "302"),
    ],
)
def test_a_registry_that_does_not_answer_rejects_nothing(
    server: RegistryServer, change: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.register("a-value", OLD)
    vars(server).update(change)
    registry = SchemaRegistry(server.url, username="me", password="geheim-7d2")
    with caplog.at_level(logging.DEBUG), pytest.raises(SchemaRegistryFailed, match=named) as failed:
        answers(registry, [1], "confluent")
    assert "schema id 1" in str(failed.value)
    assert server.url in str(failed.value)
    for text in (str(failed.value), repr(failed.value), caplog.text, repr(registry)):
        assert "geheim" not in text
        assert "bWU6Z2VoZWlt" not in text  # me:geheim, as HTTP encodes it
    assert str(pickle.loads(pickle.dumps(failed.value))) == str(failed.value)


def test_a_registry_that_recovers(spark: SparkSession, server: RegistryServer) -> None:
    server.register("a-value", OLD)
    messages = frame(spark, [written(server, "a-value", {"id": 1, "kind": "NEW", "at": 1})])
    server.failures = [401]
    with pytest.raises(SchemaRegistryFailed, match="401"):
        decoded(messages, READER, format="avro", registry=SchemaRegistry(server.url))
    server.failures = [503, 500]
    good, malformed = decoded(messages, READER, format="avro", registry=SchemaRegistry(server.url))
    assert (good.count(), malformed.count()) == (1, 0)


def test_no_registry_at_the_address() -> None:
    with pytest.raises(
        SchemaRegistryFailed, match=r"localhost:1 did not answer for schema id 7.*no message was rejected"
    ):
        SchemaRegistry(NOBODY, timeout=0.5).schema(7)


@pytest.mark.parametrize("way", ["password", "token", "files"])
def test_authentication_and_tls(server: RegistryServer, tmp_path: Path, way: str) -> None:
    authority = Authority(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca))
    tls.load_cert_chain(authority.certificate, authority.private_key)
    tls.verify_mode = ssl.CERT_REQUIRED
    certificate, key = map(str, authority.issue("client"))
    secret = tmp_path / "secret"
    secret.write_text("from-a-file\n")
    with registry_server(tls) as secure:
        given: dict[str, Any] = {"username": "me", "password": "pa:ss wörd"}
        secure.user = "me:pa:ss wörd"
        if way == "token":
            given, secure.user, secure.token = {"token": "abc.def"}, None, "abc.def"
        if way == "files":
            given["password"], secure.user = secret.as_uri(), "me:from-a-file"
        secure.register("s", "{}")
        own: dict[str, Any] = {"ca": str(authority.ca), "certificate": certificate, "private_key": key}
        assert SchemaRegistry(secure.url, **given, **own).schema(1)
        with pytest.raises(SchemaRegistryFailed, match="CERTIFICATE_VERIFY_FAILED"):
            SchemaRegistry(secure.url, **given, timeout=0.5).schema(1)
        with pytest.raises(InvalidValue, match="private_key"):
            SchemaRegistry(secure.url, certificate=certificate)
        with pytest.raises(InvalidValue, match="check ca, certificate"):
            SchemaRegistry(secure.url, ca=str(tmp_path / "none.pem")).schema(1)


def test_the_secret_stays_on_the_driver(spark: SparkSession, server: RegistryServer) -> None:
    server.user = "me:geheim-7d2"
    server.register("s", OLD)
    registry = SchemaRegistry(server.url, username="me", password="geheim-7d2")
    messages = frame(spark, [b"\0\0\0\0\1"])
    good, malformed = decoded(messages, READER, format="avro", registry=registry)
    for part in (good, malformed):
        plan = part._jdf.queryExecution().toString()
        assert "geheim" not in plan
    with pytest.raises(InvalidValue, match="cannot be pickled") as refused:
        pickle.dumps(registry)
    assert "geheim" not in str(refused.value)
    assert copy.deepcopy(registry) is copy.copy(registry) is registry
    assert "geheim" not in repr(registry)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"url": "https://me:geheim@registry"}, "url"),
        ({"url": "registry:8081"}, "url"),
        ({"url": "https://registry?token=geheim"}, "url"),
        ({"url": NOBODY, "username": "me"}, "password"),
        ({"url": NOBODY, "password": "geheim"}, "username"),
        ({"url": NOBODY, "username": "me", "password": "geheim", "token": "geheim"}, "token"),
        ({"url": NOBODY, "username": "a:b", "password": "geheim"}, "colon"),
        ({"url": NOBODY, "timeout": 0}, "timeout"),
    ],
)
def test_a_wrong_registry_is_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidValue, match=named) as refused:
        SchemaRegistry(**given)
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"framing": "confluent"}, "give registry"),
        ({"framing": "apicurio"}, "give registry"),
        ({"framing": "avro"}, "'single-object'"),
        ({"framing": "none", "registry": SchemaRegistry(NOBODY)}, "'apicurio'"),
        ({"framing": "single-object", "registry": SchemaRegistry(NOBODY)}, "'apicurio'"),
        ({"writer_schema": READER, "registry": SchemaRegistry(NOBODY)}, "leave it out"),
        ({"writer_schema": [READER, READER]}, "single-object"),
        ({"writer_schema": "int"}, "writer_schema"),
        ({"writer_schema": json.dumps({**OLD, "name": "Other"})}, "alias"),
        ({"registry": NOBODY}, "SchemaRegistry"),
        ({"format": "json", "registry": SchemaRegistry(NOBODY)}, "registry"),
        ({"format": "json", "framing": "none"}, "framing"),
    ],
)
def test_parameters_that_contradict_each_other(spark: SparkSession, given: dict[str, Any], named: str) -> None:
    schema = "id INT" if given.get("format") == "json" else READER
    with pytest.raises(InvalidValue, match=named):
        decoded(frame(spark, [b"x"]), schema, **{"format": "avro", **given})


def test_messages_that_have_changed_fail_the_job(server: RegistryServer) -> None:
    server.register("s", OLD)
    asked = answers(SchemaRegistry(server.url), [1], "confluent")
    records = Records(READER, "confluent", (), asked)
    with pytest.raises(SchemaRegistryFailed, match="schema id 2 was not in the messages"):
        records.decoded(pa.array([b"\0\0\0\0\2x"], pa.binary()))


def test_many_ids(spark: SparkSession, server: RegistryServer, caplog: pytest.LogCaptureFixture) -> None:
    """A publisher can name any number of ids, but the driver does not ask for all of them."""
    server.register("s", OLD)
    known = b"\0\0\0\0\1" + b"\x02\0\x02"
    payloads = [b"\0" + number.to_bytes(4, "big") + b"x" for number in range(2, MOST_IDS + 50)] + [known, known]
    good, malformed = decoded(frame(spark, payloads), READER, format="avro", registry=SchemaRegistry(server.url))
    assert good.count() == 2
    reasons = [row.reason for row in malformed.collect()]
    assert sum("does not know" in reason for reason in reasons) == MOST_IDS - 1
    assert sum("most frequent" in reason for reason in reasons) == len(payloads) - 2 - (MOST_IDS - 1)
    assert "more than 1000 schema ids" in caplog.text


def test_eight_bytes_of_apicurio(spark: SparkSession, server: RegistryServer) -> None:
    large = server.register("s-value", OLD, number=2**33)
    server.register("t-value", OLD, number=5)
    data = written(server, "t-value", {"id": 1, "kind": "NEW", "at": 1})[5:]
    payloads = [b"\0" + large.to_bytes(8, "big") + data, b"\0\0\0\0\5" + data * 2, b"\0" + b"\xff" * 8 + data]
    registry = SchemaRegistry(server.url)
    found = outcome(*decoded(frame(spark, payloads), READER, format="avro", registry=registry, framing="apicurio"))
    assert found[0][0] == 1
    assert "if the ids have 4 bytes" in found[1]
    assert "does not know schema id 18446744073709551615" in found[2]


@pytest.mark.slow
async def test_a_stream_is_decoded_in_each_batch(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, server: RegistryServer, tmp_path: Path
) -> None:
    """A stream is refused, and its batches are decoded in foreachBatch, on real messages."""
    server.register("a-value", OLD)
    data = written(server, "a-value", {"id": 1, "kind": "NEW", "at": 1})
    publish_all(settings, ((f"{stream.name}.a", each) for each in (data, b"\0\0\0\0\7x", data)))
    options = {"servers": settings.servers[0], "stream": stream.name, "startingOffsets": "earliest"}
    messages = spark.readStream.format("jetstream").options(**options).load()
    registry = SchemaRegistry(server.url)
    with pytest.raises(InvalidValue, match="foreachBatch"):
        decoded(messages, READER, format="avro", registry=registry)
    found: list[tuple[int, int]] = []

    def split(batch: DataFrame, _: int) -> None:
        good, malformed = decoded(batch.persist(), READER, format="avro", registry=registry)
        found.append((good.count(), malformed.count()))

    writer = messages.writeStream.foreachBatch(split).option("checkpointLocation", f"{tmp_path}/state")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert found == [(2, 1)]


def test_single_object_encoding(spark: SparkSession) -> None:
    def single(schema: dict[str, Any], value: Any) -> bytes:
        return b"\xc3\x01" + crc_64(json.dumps(schema)) + encoded(schema, value, Random(0))

    assert crc_64('"int"').hex() == "8f5c393f1ad57572"  # as in the specification's test data, little-endian
    payloads = [
        single(OLD, {"id": 1, "kind": "NEW", "at": 1}),
        single(NEW, {"id": 2, "kind": "OLD", "note": "x", "at": 1000}),
        single({**OLD, "name": "Other"}, {"id": 3, "kind": "NEW", "at": 1}),
        number(1),
    ]
    writers = [json.dumps(OLD), json.dumps(NEW)]
    parts = decoded(frame(spark, payloads), READER, format="avro", framing="single-object", writer_schema=writers)
    found = outcome(*parts)
    assert (found[0][:2], found[1][:2]) == ((1, "NEW"), (2, "OLD"))
    assert found[0][2] == found[1][2]
    assert "of another schema; give this schema as writer_schema" in found[2]
    assert found[3].startswith("does not begin with the mark")


@pytest.fixture
def airflow_connections(settings: ConnectionSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    nats = {"conn_type": "nats", "extra": {"servers": settings.servers[0]}}
    monkeypatch.setenv("AIRFLOW_CONN_NATS_TESTS", json.dumps(nats))
    monkeypatch.setenv("AIRFLOW_CONN_REGISTRY", '{"conn_type": "http", "login": "me", "password": "geheim-7d2"}')


@pytest.mark.slow
@pytest.mark.usefixtures("airflow_connections")
async def test_the_page_decodes_a_claim(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, server: RegistryServer, tmp_path: Path
) -> None:
    """A task of Airflow whose connection has the registry's password."""
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    code = block.replace("https://registry:8081", server.url).replace("/data/orders", str(tmp_path))
    assert code.count(server.url) == code.count(str(tmp_path)) == 1
    page: dict[str, Any] = {}
    exec(code, page)
    server.register("a-value", json.loads(page["ORDER"]))
    data = written(server, "a-value", {"id": 1, "customer": None, "ordered_at": 1763694000123})
    server.user = "me:geheim-7d2"
    publish_all(settings, ((f"{stream.name}.a", each) for each in (data, b"\0\0\0\0\2" + data[5:], data)))
    config = {"ack_wait": timedelta(minutes=1)}
    (claim,) = await take(stream, wait=30, max_messages=3, consumer_config=config)
    with DAG("dag", schedule=None):
        given = {"claim": claim.to_json()}
        body = page["orders"].function
        work = JetStreamProcessOperator(
            task_id="orders", python_callable=body, op_kwargs=given, nats_conn_id="nats_tests"
        )
    assert await asyncio.to_thread(execute, work) == 2
    assert [row.sequence for row in spark.read.parquet(f"{tmp_path}/attempt=*").orderBy("sequence").collect()] == [1, 3]
    found = select(DeadLetters(stream.js, stream.name), Selection(everything=True))
    reasons = [each.head.reason async for each in found if each.head]
    assert reasons == ["the schema registry does not know schema id 2"]
    await stream.js.stream(f"DEAD_{stream.name}").delete()
