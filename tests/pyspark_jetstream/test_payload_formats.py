"""The blocks of docs/how-to/payload-formats.md, on messages of a stream."""

import gzip
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import zstandard
from pyspark.sql import DataFrame, SparkSession

from jetstream_client import ConnectionSettings
from jetstream_client.stream import Stream
from tests.pyspark_jetstream.proto_source import descriptor_set, message_class

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "payload-formats.md"
PROTO = """
syntax = "proto3"; package orders.v1;
message Order { int32 id = 1; string customer = 2; google.protobuf.Timestamp at = 3; }
"""
Published = tuple[bytes, dict[str, str]]
Load = Callable[[list[Published]], Any]


def blocks(section: str) -> list[str]:
    """Return the Python blocks of a section, and of those below it."""
    level = section.split(" ", maxsplit=1)[0]
    text = PAGE.read_text().split(f"\n{section}\n")[1]
    return re.findall(r"```python\n(.*?)```", re.split(rf"\n#{{2,{len(level)}}} ", text)[0], re.DOTALL)


def result(good: DataFrame, malformed: DataFrame) -> tuple[dict[int, Any], dict[int, str]]:
    return (
        {row.sequence: row.asDict(recursive=True) for row in good.collect()},
        {row.sequence: row.reason for row in malformed.collect()},
    )


@pytest.fixture
def page(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """What the blocks of the page find, except the messages."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.binpb").write_bytes(descriptor_set(PROTO))
    options = {"servers": settings.servers[0], "stream": stream.name, "minPartitions": "1"}
    page: dict[str, Any] = {"messages": spark.read.format("jetstream").options(**options).load()}
    exec("from pyspark_jetstream import decoded", page)
    return page


async def publish(stream: Stream, published: list[Published]) -> None:
    for data, headers in published:
        await stream.js.publish(f"{stream.name}.a", data, headers=headers)


@pytest.mark.slow
async def test_protobuf(stream: Stream, page: dict[str, Any]) -> None:
    order = message_class(descriptor_set(PROTO), "orders.v1.Order")(id=5, customer="c")
    order.at.FromDatetime(datetime(2026, 11, 26, 3, tzinfo=UTC))
    data = order.SerializeToString()
    await publish(stream, [(data, {}), (data[:-1], {}), (b'{"id": 5}', {})])
    (block,) = blocks("## Protobuf")
    exec(block, page)
    good, malformed = result(page["good"], page["malformed"])
    found = good[1]["order"]
    assert (found["id"], found["customer"]) == (5, "c")
    assert found["at"].astimezone(UTC) == datetime(2026, 11, 26, 3, tzinfo=UTC)
    assert sorted(malformed) == [2, 3]


@pytest.mark.slow
async def test_compression(stream: Stream, page: dict[str, Any]) -> None:
    one, zstd = b'{"id": 1, "customer": "c"}', zstandard.compress
    await publish(
        stream,
        [
            (zstd(one), {"Content-Encoding": "zstd"}),
            (one, {}),
            (gzip.compress(one), {"Content-Encoding": "gzip"}),
            (one, {"Content-Encoding": "gzip"}),
            (one, {"Content-Encoding": "br"}),
            (one, {"Other": "x"}),
            (b"{", {}),
        ],
    )
    first, second = blocks("## gzip and zstd")
    exec(first, page)
    good, malformed = result(page["good"], page["malformed"])
    assert [(number, row["id"]) for number, row in good.items()] == [(1, 1)]
    assert sorted(malformed) == [2, 3, 4, 5, 6, 7]

    page["schema"] = "id INT, customer STRING"
    exec(second, page)
    good, malformed = result(page["good"], page["malformed"])
    assert {number: row["id"] for number, row in good.items()} == {1: 1, 2: 1, 3: 1, 6: 1}
    assert malformed.keys() == {4, 5, 7}
    assert malformed[4].startswith("cannot be decompressed as gzip")
    assert malformed[5] == "unknown Content-Encoding: br"


EVENT = {
    "specversion": "1.0",
    "id": "Euro € 😀",
    "source": "/shop",
    "type": "order.created",
    "time": "2026-11-26T03:00:00Z",
    "datacontenttype": "application/json",
}
DATA = {"order": 7, "amount": 12.34}
HEADERS = {
    "ce-specversion": "1.0",
    "ce-type": "order.created",
    "ce-id": "Euro%20%E2%82%AC%20%F0%9F%98%80",
    "ce-source": "/shop",
    "ce-time": "2026-11-26T03:00:00Z",
    "ce-note": "1+1",
}
STRUCTURED = {"Content-Type": "application/cloudevents+json; charset=utf-8"}


@pytest.mark.slow
async def test_cloud_events(stream: Stream, page: dict[str, Any]) -> None:
    def event(**changes: Any) -> bytes:
        return json.dumps({name: value for name, value in (EVENT | changes).items() if value is not None}).encode()

    data = json.dumps(DATA).encode()
    await publish(
        stream,
        [
            (event(data=DATA), STRUCTURED),
            (event(data=DATA), {"content-type": "Application/CloudEvents+json"}),
            (event(data_base64="/w=="), STRUCTURED),
            (event(data=DATA, id=None), STRUCTURED),
            (event(data={"order": 7.5}), STRUCTURED),
            (b"[" + event(data=DATA) + b"]", STRUCTURED),
            (data, HEADERS),
            (data, HEADERS | {"Content-Type": "application/json", "CE-Note": "x"}),
            (data, {name: value for name, value in HEADERS.items() if name != "ce-id"}),
            (data, HEADERS | {"ce-id": "%C0%A0"}),
            (data, HEADERS | {"ce-id": '"a \\"quoted\\" id"'}),
            (b"{}", HEADERS),
            (data, {}),
        ],
    )
    split, structured, binary = blocks("## CloudEvents")
    exec(split, page)
    exec(structured, page)
    good, malformed = result(page["good"], page["malformed"])
    assert good.keys() == {1, 2, 3}
    assert good[1]["event"]["id"] == EVENT["id"]
    assert good[2]["event"]["data"] == {"order": 7, "amount": Decimal("12.34")}
    assert (good[3]["event"]["data"], good[3]["event"]["data_base64"]) == (None, b"\xff")
    assert malformed.keys() == {4, 5, 6}
    assert malformed[4].startswith("id: null or missing")
    assert malformed[5].startswith("data.order: 7.5")

    exec(binary, page)
    good, malformed = result(page["good"], page["malformed"])
    _, no_event = result(page["good"].limit(0), page["no_event"])
    assert good.keys() == {7, 11}
    assert good[7]["event"] == {
        "specversion": "1.0",
        "type": "order.created",
        "id": "Euro € 😀",
        "source": "/shop",
        "time": "2026-11-26T03:00:00Z",
        "note": "1+1",
    }
    assert good[7]["data"] == {"order": 7, "amount": Decimal("12.34")}
    assert good[11]["event"]["id"] == 'a "quoted" id'
    assert malformed == {12: "shares no field with the schema"}
    assert {sequence: reason.replace("CE-Note", "ce-note") for sequence, reason in no_event.items()} == {
        8: "ce-note: the header occurs twice",
        9: "ce-id: the header is missing",
        10: "ce-id: %C0%A0 is not percent-encoded UTF-8",
        13: "ce-specversion: the header is missing",
    }
