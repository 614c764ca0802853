"""A schema without ``data``: the server sends only the headers of large messages, and the rows are the same."""

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from demo.nats_server import NatsServer
from demo.service import free_port
from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_all

COUNT = 3_000
COLUMNS = "stream STRING, subject STRING, sequence BIGINT, timestamp TIMESTAMP, headers MAP<STRING, ARRAY<STRING>>"


class Monitored:
    """A server that reports how many bytes it has sent."""

    def __init__(self, folder: Path) -> None:
        self._monitor = free_port()
        self.server = NatsServer(folder, f'http: "127.0.0.1:{self._monitor}"')

    def sent(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._monitor}/varz") as page:
            return int(json.load(page)["out_bytes"])


@pytest.fixture(scope="module")
def monitored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    monitored = Monitored(tmp_path_factory.mktemp("monitored"))
    monitored.server.start()
    yield monitored
    monitored.server.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "retention", "less"),
    [(8_000, "limits", True), (100, "limits", False), (8_000, "interest", False)],
    ids=["large", "small", "no consumer possible"],
)
def test_the_same_rows_of_fewer_bytes(
    spark: SparkSession, monitored: Monitored, size: int, retention: str, less: bool
) -> None:
    settings = ConnectionSettings(servers=monitored.server.url)
    name = f"S{size}{retention}"

    async def create() -> None:
        async with connect(settings) as js:
            await js.create_stream(
                {"name": name, "subjects": [f"{name}.>"], "allow_direct": True, "retention": retention}
            )
            if retention == "interest":
                await js.stream(name).create_consumer({"durable_name": "c", "ack_policy": "explicit"})

    asyncio.run(create())
    headers: list[dict[str, str]] = [{}, {"K": "1", "L": "x: y"}, {"Nats-Msg-Size": "7"}]
    publish_all(settings, ((f"{name}.{each % 2}", b"x" * size, headers[each % 3]) for each in range(COUNT)))

    def read(schema: str) -> tuple[list[Row], int]:
        before = monitored.sent()
        options = {"servers": settings.servers[0], "stream": name, "minPartitions": "2"}
        messages = spark.read.format("jetstream").schema(schema).options(**options).load()
        rows = messages.drop("data").orderBy("sequence").collect()
        return rows, monitored.sent() - before

    whole, whole_bytes = read(f"{COLUMNS}, data BINARY")
    rows, sent = read(COLUMNS)
    assert rows == whole
    assert len(rows) == COUNT
    assert [row.headers for row in rows[:3]] == [None, {"K": ["1"], "L": ["x: y"]}, {"Nats-Msg-Size": ["7"]}]
    assert whole_bytes > COUNT * size
    assert (sent < whole_bytes / 10) == less
