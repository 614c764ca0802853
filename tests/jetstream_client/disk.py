"""What a killed server finds again when it is restarted: it writes to its files a moment after it has answered."""

import asyncio
from pathlib import Path

from demo.nats_server import NatsServer
from demo.service import until
from jetstream_client import connect
from jetstream_client.wire.settings import ConnectionSettings


def wait_for_messages(server: NatsServer, stream: str) -> None:
    """Wait until all messages of the stream are in its files. Not for an event loop."""

    async def size() -> int:
        async with connect(ConnectionSettings(servers=server.url)) as js:
            return int((await js.stream(stream).info()).state["bytes"])

    files, stored = _folder(server, stream) / "msgs", asyncio.run(size())
    until(f"{stream}'s messages on disk", lambda: _size(files) >= stored, 120, every=0.05)


def wait_for_text(server: NatsServer, stream: str, text: str) -> None:
    """Wait until a message that contains the text is in the stream's files."""
    files = _folder(server, stream) / "msgs"

    def written() -> bool:
        return any(text.encode() in block.read_bytes() for block in files.glob("*.blk"))

    until(f"{text} on disk", written, 120, every=0.05)


def wait_for_deliveries(server: NatsServer, stream: str, consumer: str, sequence: int) -> None:
    """Wait until the consumer's file has the delivery with this consumer sequence."""
    file = _folder(server, stream) / "obs" / consumer / "o.dat"
    until(f"{consumer}'s deliveries on disk", lambda: _delivered(file) >= sequence, 120, every=0.05)


def _folder(server: NatsServer, stream: str) -> Path:
    return server.store / "jetstream" / "$G" / "streams" / stream


def _size(files: Path) -> int:
    return sum(block.stat().st_size for block in files.glob("*.blk"))


def _delivered(file: Path) -> int:
    """The newest consumer sequence in a consumer's state (server/store.go, encodeConsumerState): after two bytes come
    the acknowledgement floor and what is delivered, each as consumer and stream sequence in unsigned LEB128."""
    data = file.read_bytes()[2:] if file.exists() else b""
    numbers, number, shift = [], 0, 0
    for byte in data[:40]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    return numbers[2] if len(numbers) > 2 else 0
