"""Steps with which several tests of consuming begin."""

import asyncio

from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream


async def publish(stream: Stream, count: int, size: int = 1) -> None:
    messages = ((f"{stream.name}.{number}", b"x" * size) for number in range(count))
    await asyncio.to_thread(publish_all, stream.js.settings, messages)
