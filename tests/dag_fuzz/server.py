"""The server and the ledger, asked without our own code, and the acknowledgements that it gets."""

import asyncio
import json
import re
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.airflow_system.judge import Judge

Answer = TypeVar("Answer")
_ACK = re.compile(r"\$JS\.ACK\.([^.]+)\.work\.\d+\.(\d+)\.")


class Server:
    """One connection for all DAGs, in a thread that listens to acknowledgements."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._client = Client()
        self._acked: dict[str, set[int]] = defaultdict(set)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._connect)
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._client.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _connect(self) -> None:
        async def listen(message: Msg) -> None:
            found = _ACK.match(message.subject)
            if found and (message.data[:4] in (b"+ACK", b"+TER") or not message.data):
                self._acked[found[1]].add(int(found[2]))

        self._client = await nats.connect(self._judge.url)
        await self._client.subscribe("$JS.ACK.>", cb=listen)
        await self._client.flush()

    def publish(self, stream: str, count: int, *, create: bool = False) -> None:
        """Publish this many messages, each confirmed."""

        async def publish() -> None:
            js = self._client.jetstream()
            if create:
                await js.add_stream(name=stream, subjects=[f"{stream}.>"], allow_direct=True)
            for number in range(count):
                await js.publish(f"{stream}.{number % 3}", b"%d" % number)

        self._call(publish)

    def acked(self, stream: str) -> set[int]:
        """The sequences of the stream that were acknowledged or terminated."""
        self._call(self._client.flush)
        return set(self._acked[stream])

    def counts(self, stream: str) -> tuple[int, int]:
        """How many messages the stream got, and how many of them wait: undelivered or unacknowledged."""

        async def ask() -> tuple[int, int]:
            state = await self._api(f"STREAM.INFO.{stream}")
            info = await self._api(f"CONSUMER.INFO.{stream}.work")
            published = int(state["state"]["last_seq"])
            return published, published if "error" in info else int(info["num_pending"]) + int(info["num_ack_pending"])

        return self._call(ask)

    def done(self, stream: str) -> dict[str, list[int]]:
        """The claims that are done in the ledger, in receipts or in the record, each with its sequences."""
        return {
            claim: [each for first, last in entry["ranges"] for each in range(first, last + 1)]
            for claim, entry in self._judge.done(stream).items()
        }

    async def _api(self, request: str) -> dict[str, Any]:
        return dict(json.loads((await self._client.request(f"$JS.API.{request}", timeout=5)).data))

    def _call(self, function: Callable[[], Awaitable[Answer]]) -> Answer:
        async def call() -> Answer:
            return await function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(60)
