"""Steps of tests of consuming."""

import asyncio

from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from jetstream_client.wire.control import Connection, Inbox


async def publish(stream: Stream, count: int, size: int = 1) -> None:
    messages = ((f"{stream.name}.{number}", b"x" * size) for number in range(count))
    await asyncio.to_thread(publish_all, stream.js.settings, messages)


async def forge(connection: Connection, inbox: Inbox, *replies: str) -> None:
    """Have messages with these reply subjects arrive in an inbox. A nats-server lets no client publish them."""
    sid, header = inbox._subscription._id, b"NATS/1.0\r\nNats-Msg-Size: 5\r\n\r\n"
    lines = (f"HMSG forged {sid} {reply} {len(header)} {len(header)}\r\n".encode() for reply in replies)
    await connection._client._ps.parse(b"".join(b"%b%b\r\n" % (line, header) for line in lines))
