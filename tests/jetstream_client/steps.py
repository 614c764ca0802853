"""Steps of tests of consuming."""

import asyncio

from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from jetstream_client.wire.control import Connection, Inbox
from jetstream_client.wire.run import Run


async def publish(stream: Stream, count: int, size: int = 1) -> None:
    messages = ((f"{stream.name}.{number}", b"x" * size) for number in range(count))
    await asyncio.to_thread(publish_all, stream.js.settings, messages)


async def forge(connection: Connection, inbox: Inbox, *replies: str) -> None:
    """Have messages with these reply subjects arrive in an inbox. A nats-server lets no client publish them."""
    sid, header = inbox._sid, b"NATS/1.0\r\nNats-Msg-Size: 5\r\n\r\n"
    lines = (f"HMSG forged {sid} {reply} {len(header)} {len(header)}\r\n".encode() for reply in replies)
    connection._session.link.data_received(b"".join(b"%b%b\r\n" % (line, header) for line in lines))


class Traffic:
    """How many messages a connection has sent and received since this was made."""

    def __init__(self, connection: Connection) -> None:
        self.sent = self.received = 0
        link = connection._session.link
        write, arrived = link.write, link._arrived

        def sending(command: bytes) -> None:
            self.sent += command.startswith((b"PUB ", b"HPUB "))
            write(command)

        def receiving(run: Run) -> None:
            self.received += len(run)
            arrived(run)

        link.write, link._arrived = sending, receiving  # type: ignore[method-assign]
