"""Protobuf messages whose schemas are in a registry. The messages are written by Confluent's own serializer; the
registry is a stand-in (:mod:`tests.pyspark_jetstream.registry_server`)."""

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from pyspark.sql import SparkSession

from jetstream_arrow.payload.registry import SchemaRegistryFailed
from jetstream_client.errors import InvalidValue
from pyspark_jetstream import SchemaRegistry, decoded
from tests.pyspark_jetstream.proto_source import descriptor_set, message_class
from tests.pyspark_jetstream.registry_server import RegistryServer, registry_server
from tests.slow import beyond

READER = """
syntax = "proto3"; package t;
enum Kind { NONE = 0; NEW = 1; OLD = 2; }
message Refund { int64 id = 1; }
message Line { string name = 1; }
message Order {
  int64 id = 1; string customer = 2; Kind kind = 3; repeated Line lines = 4; google.protobuf.Timestamp at = 5;
  map<string, Line> named = 6; optional int32 count = 7;
}
"""


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


def register(server: RegistryServer, source: str, subject: str = "orders-value") -> int:
    """Register the schema of a source. The registry knows both forms."""
    file = FileDescriptorSet.FromString(descriptor_set(source)).file[-1]
    server.serialized[source] = b64encode(file.SerializeToString()).decode()
    return server.register(subject, source, kind="PROTOBUF")


def written(server: RegistryServer, source: str, name: str = "t.Order", **values: Any) -> bytes:
    """A message as Confluent's serializer writes it, with the newest schema of the subject."""
    kind = message_class(descriptor_set(source), name)
    with SchemaRegistryClient({"url": server.url}) as client:
        conf = {"auto.register.schemas": False, "use.latest.version": True}
        serializer = ProtobufSerializer(kind, client, conf)
        data = serializer(kind(**values), SerializationContext("orders", MessageField.VALUE))
    assert isinstance(data, bytes)
    return data


def outcome(spark: SparkSession, server: RegistryServer, payloads: list[bytes], **changes: Any) -> list[Any]:
    """Return the row of each message, or the reason why it is malformed."""
    messages = spark.createDataFrame(list(enumerate(payloads)), "n INT, data BINARY")
    given = {"schema": descriptor_set(READER), "message": "t.Order", "registry": SchemaRegistry(server.url), **changes}
    good, malformed = decoded(messages, format="protobuf", into="row", **given)
    rows = {row.n: row.row.asDict(recursive=True) for row in good.collect()}
    reasons = {row.n: row.reason for row in malformed.collect()}
    assert not rows.keys() & reasons.keys()
    return [(rows | reasons)[number] for number in range(len(payloads))]


@pytest.mark.slow
def test_each_message_is_read_with_the_schema_that_it_names(spark: SparkSession, server: RegistryServer) -> None:
    first = register(server, READER)
    order = written(server, READER, id=1, customer="c", kind=2, lines=[{"name": "x"}], named={"k": {"name": "y"}})
    refund = written(server, READER, "t.Refund", id=1)
    nothing = written(server, READER)
    newer = READER.replace("int64 id = 1; string customer", "int32 id = 1; string extra = 9; string customer")
    second = register(server, newer)
    payloads = [
        order,
        written(server, newer, id=2, extra="e"),
        nothing,
        refund,
        order[:-1],
        order[5:],
        b"\0" + (99).to_bytes(4) + order[5:],
        order[:5],
        order[:5] + b"\1" + order[6:],
        order[:5] + b"\2\x0e" + order[6:],
        order[:5] + b"\xff\xff\xff\xff\xff" + order[6:],
        b"",
        b"\0" + server.register("a", {"type": "int"}).to_bytes(4) + b"\0" + order[6:],
    ]
    assert (order[:5], payloads[1][:5]) == (b"\0" + first.to_bytes(4), b"\0" + second.to_bytes(4))
    found = outcome(spark, server, payloads)
    assert found[0] == {
        "id": 1,
        "customer": "c",
        "kind": "OLD",
        "lines": [{"name": "x"}],
        "at": None,
        "named": {"k": {"name": "y"}},
        "count": None,
    }
    assert (found[1]["id"], found[2]["id"], found[2]["customer"]) == (2, 0, "")
    assert found[3] == f"the message is of the type t.Refund (schema id {first}), not t.Order"
    assert found[4].startswith("not a Protobuf message")
    assert found[5].startswith("does not begin with the framing of a schema registry")
    assert found[6] == "the schema registry does not know schema id 99"
    assert found[7].startswith("ends in the framing")
    assert "index" in found[8]
    assert found[9] == f"schema id {first} has no message type with the index [7]"
    assert "index" in found[10]
    assert found[11] == "empty"
    assert found[12].endswith("is of the type AVRO, not PROTOBUF")


@pytest.mark.parametrize(
    ("old", "new", "named"),
    beyond(
        3,
        [
            ("string customer = 2", "string buyer = 2", "customer: the field 2 is 'buyer'"),
            ("string customer = 2", "string customer = 8", "customer: the field has the number 8"),
            ("string customer = 2", "bytes customer = 2", "customer: the field is bytes, not string"),
            ("int64 id = 1; string", "sint64 id = 1; string", "id: the field is sint64, not int64"),
            ("optional int32 count", "int32 count", "count: the field is int32, not optional int32"),
            ("optional int32 count", "repeated int32 count", "count: the field is repeated int32"),
            ("NEW = 1; OLD = 2", "OLD = 1; NEW = 2", "kind: the symbol 1 is OLD, not NEW"),
            ("string name = 1", "string title = 1", "lines[].name: the field 1 is 'title'"),
            ("map<string, Line> named", "map<string, string> named", "named{}.value: the field is string, not message"),
        ],
    ),
)
def test_a_field_with_another_meaning_is_malformed(
    spark: SparkSession, server: RegistryServer, old: str, new: str, named: str
) -> None:
    """Without the registry, most of these messages would be rows with wrong values."""
    assert old in READER
    number = register(server, READER.replace(old, new))
    (found,) = outcome(spark, server, [written(server, READER.replace(old, new))])
    assert found.startswith(named)
    assert f"schema id {number}" in found


def test_references_are_followed(spark: SparkSession, server: RegistryServer) -> None:
    line = FileDescriptorSet.FromString(
        descriptor_set('syntax = "proto3"; package t; message Line { string name = 1; }')
    )
    server.serialized["line"] = b64encode(line.file[-1].SerializeToString()).decode()
    server.register("line", "line", kind="PROTOBUF")
    file = FileDescriptorSet.FromString(descriptor_set(READER)).file[-1]
    del file.message_type[1]
    file.dependency.append("line.proto")
    server.serialized["order"] = b64encode(file.SerializeToString()).decode()
    references = [{"name": "line.proto", "subject": "line", "version": 1}]
    number = server.register("orders-value", "order", kind="PROTOBUF", references=references)
    payload = b"\0" + number.to_bytes(4) + b"\2\2" + b"\x22\3\x0a\1x"  # the message with the index 1
    (found,) = outcome(spark, server, [payload])
    assert found["lines"] == [{"name": "x"}]


def test_a_registry_without_descriptors_rejects_nothing(spark: SparkSession, server: RegistryServer) -> None:
    number = server.register("orders-value", READER, kind="PROTOBUF")
    with pytest.raises(SchemaRegistryFailed, match=f"schema id {number} as a descriptor"):
        outcome(spark, server, [b"\0" + number.to_bytes(4) + b"\0\x08\1"])
    server.failures = [500] * 9
    with pytest.raises(SchemaRegistryFailed, match="HTTP status 500"):
        outcome(spark, server, [b"\0" + number.to_bytes(4) + b"\0\x08\1"])


@pytest.mark.parametrize("changes", [{"framing": "apicurio"}, {"registry": None, "writer_schema": "x"}])
def test_what_protobuf_cannot_use_is_named(
    spark: SparkSession, server: RegistryServer, changes: dict[str, Any]
) -> None:
    with pytest.raises(InvalidValue, match="Confluent's framing"):
        outcome(spark, server, [], **changes)
