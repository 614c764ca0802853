"""The only configured server of a task leaves while the task holds a claim."""

from dataclasses import replace

from demo.nats_server import NatsServer
from jetstream_client import connect
from jetstream_client.stream import Stream
from jetstream_handoff.hold.hold import Hold
from tests.jetstream_client.proxy import Proxy
from tests.jetstream_client.until import until
from tests.jetstream_handoff.steps import floor, publish, take

COUNT = 2_500  # several windows of acknowledgements


async def test_it_settles_over_the_other_servers(stream: Stream, nats_server: NatsServer) -> None:
    await take(stream, "before", wait=0.1, max_messages=COUNT)
    await publish(stream, COUNT)
    (claim,) = await take(stream, max_messages=COUNT, min_messages=COUNT, wait=60)
    with Proxy.leaving(nats_server.port) as proxy:
        leaving = connect(replace(stream.js.settings, servers=proxy.url))
        async with leaving as js, Hold.begin(js, claim, try_number=1) as hold:
            proxy.__exit__()
            await until(lambda: js.connection.reconnects == 1)
            await hold.settle()
    assert await floor(stream) == COUNT
