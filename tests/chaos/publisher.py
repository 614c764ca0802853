"""The publisher: each message has an id, is sent until it is acknowledged, and is then recorded."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import JetStreamError
from tests.chaos.pipelines import CONSUMER, Pipeline, key_of
from tests.chaos.record import Record

MOST_WAITING = 80
"""How many messages of a pipeline may be unsettled, because all of them must be settled in the end."""


class Publisher:
    """Publishes to one pipeline's stream, in bursts."""

    def __init__(
        self, pipeline: Pipeline, servers: list[str], credentials: str | None, folder: Path, seed: int
    ) -> None:
        self._pipeline = pipeline
        self._settings = ConnectionSettings(servers=tuple(servers), credentials=credentials, request_timeout=2)
        self._record = Record(folder / "record" / "published.jsonl")
        self._random = random.Random(f"{seed} {pipeline.name}")
        # Less for those whose runs cost the most processor time.
        self._most_waiting = MOST_WAITING // 4 if pipeline.spark or pipeline.dagster else MOST_WAITING
        self.published = 0
        self.settled = 0
        """The number of messages seen as settled, for which the publisher waits."""
        self.over = False

    async def create(self) -> None:
        """Create the stream as soon as the cluster has a leader."""
        stream = self._pipeline.stream
        config = {"name": stream, "subjects": [f"{stream}.>"], "allow_direct": True, "storage": "file"}
        while True:
            try:
                async with connect(self._settings) as js:
                    made = await js.create_stream({**config, "num_replicas": self._pipeline.replicas})
                    if self._pipeline.query:  # the others create their consumer
                        await made.create_consumer(self._consumer)
            except JetStreamError:
                await asyncio.sleep(0.5)
            else:
                return

    @property
    def _consumer(self) -> dict[str, Any]:
        config = {"durable_name": CONSUMER, "ack_policy": "explicit", "max_deliver": -1, "max_ack_pending": 1_000}
        return {**config, "ack_wait": timedelta(seconds=self._pipeline.ack_wait)}

    async def run(self) -> None:
        """Publish until the end."""
        while not self.over:
            try:
                async with connect(self._settings) as js:
                    while not self.over:
                        await asyncio.sleep(self._random.uniform(0.5, 3))
                        if self.published - self.settled > self._most_waiting:
                            continue
                        for _ in range(self._random.randint(3, 25)):
                            await self._publish(js)
            except (JetStreamError, OSError):  # OSError: closing a connection that was reset
                await asyncio.sleep(0.5)

    async def _publish(self, js: JetStream) -> None:
        stream = self._pipeline.stream
        msg_id = f"{self._pipeline.name}-{self.published}"
        # There was no answer. The next connection sends it again with the same id.
        ack = await js.publish(f"{stream}.{key_of(self.published)}", b"%d" % self.published, msg_id=msg_id)
        await asyncio.to_thread(self._record.append, {"stream": stream, "id": msg_id, "sequence": ack.seq})
        self.published += 1
