"""Reply subjects of eleven tokens, with domain and account, which servers may use from 2.14 on (``js_ack_fc_v2``)."""

from datetime import timedelta

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.consume.pull_window import Pulling
from jetstream_client.errors import NoMessages
from tests.jetstream_client.servers import Serve


@pytest.mark.server("2.14")
@pytest.mark.parametrize("domain", ["", "hub"])
async def test_everything_is_delivered_and_answered_by_them(serve: Serve, domain: str) -> None:
    jetstream = f"jetstream {{ domain: {domain} }}" if domain else ""
    server = serve(f"{jetstream}\nfeature_flags {{ js_ack_fc_v2: true }}")
    async with connect(ConnectionSettings(servers=server.url, domain=domain or None)) as js:
        stream = await js.create_stream({"name": "S", "subjects": ["s"]})
        for _ in range(6):
            await js.publish("s")
        consumer = await stream.create_consumer({"durable_name": "c", "ack_policy": "explicit"})
        first, second, third, fourth = await consumer.fetch(4, max_wait=30)
        assert (first.metadata.tokens, first.metadata.domain) == (11, domain)
        assert (third.metadata.sequence, third.metadata.pending) == (3, 3)
        await first.double_ack()
        await second.term("no use")
        await third.in_progress()
        await third.nak(timedelta(minutes=5))
        fifth = await consumer.ack_next(fourth, max_wait=30)
        await fifth.double_ack()
        raw = await js.api("CONSUMER.INFO.S.c")
        assert (raw["num_ack_pending"], raw["ack_floor"]["stream_seq"], raw["num_pending"]) == (1, 2, 1)
        async with consumer.messages(Pulling(max_messages=1)) as messages:
            await (await anext(messages)).double_ack()
        with pytest.raises(NoMessages):
            await consumer.next(max_wait=0.2)
        for push in (False, True):
            async with stream.ordered_consumer(push=push).messages() as messages:
                assert [(await anext(messages)).metadata.sequence for _ in range(6)] == [1, 2, 3, 4, 5, 6]
