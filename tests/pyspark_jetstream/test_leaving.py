"""The only configured server leaves after Spark has planned: executors know the servers that it has named."""

import asyncio
import pickle
import secrets
from collections.abc import Iterator

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from demo.nats_server import NatsServer
from jetstream_arrow.reading import Part
from jetstream_client import ConnectionSettings, connect
from jetstream_client.publish.bulk import publish_all
from jetstream_client.wire.blocking import Wire
from pyspark_jetstream.options import Options
from pyspark_jetstream.reader import JetStreamReader
from pyspark_jetstream.stream_reader import JetStreamStreamReader
from pyspark_jetstream.write_options import WriteOptions
from pyspark_jetstream.writer import JetStreamWriter
from tests.jetstream_client.proxy import Proxy

SCHEMA = StructType([StructField("subject", StringType())])
COUNT = 100


@pytest.fixture
def stream(nats_server: NatsServer) -> Iterator[str]:
    async def of(name: str, *, made: bool) -> None:
        async with connect(ConnectionSettings(servers=nats_server.url)) as js:
            if made:
                await js.create_stream({"name": name, "subjects": [name], "allow_direct": True})
            else:
                await js.stream(name).delete()

    name = f"S{secrets.token_hex(4)}"
    asyncio.run(of(name, made=True))
    publish_all(ConnectionSettings(servers=nats_server.url), [(name, b"")] * COUNT)
    yield name
    asyncio.run(of(name, made=False))


def test_what_is_sent_to_executors_names_the_other_servers(stream: str, nats_server: NatsServer) -> None:
    with Proxy.leaving(nats_server.port) as proxy:
        place = {"servers": proxy.url, "stream": stream}
        batch = JetStreamReader(Options.parse(place | {"minPartitions": "2"}), SCHEMA)
        query = JetStreamStreamReader(Options.parse(place | {"startingOffsets": "earliest"}), SCHEMA)
        early = pickle.dumps(query)  # a streaming query sends itself before it plans
        planned = [*batch.partitions(), *query.partitions(query.initialOffset(), query.reportLatestOffset())]
        writer = JetStreamWriter(WriteOptions(stream=stream, servers=proxy.url, connection=None))
        sent = pickle.dumps((batch, early, planned, writer))
    batch, early, planned, writer = pickle.loads(sent)
    readers = [batch] * 2 + [pickle.loads(early)] * (len(planned) - 2)
    rows = 0
    for reader, partition in zip(readers, planned, strict=True):
        assert isinstance(partition.value, Part)
        rows += sum(found.num_rows for found in reader.read(partition))
    assert rows == 2 * COUNT
    assert query.reportLatestOffset()["sequence"] == COUNT
    with Wire.open(writer._options.settings()) as wire:
        assert wire.server["port"] == nats_server.port
