"""Triggers to compare with ours. The triggerer imports them from here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import nats
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.triggers import JetStreamPullTrigger


class ConnectedTrigger(JetStreamPullTrigger):
    """Our trigger, on a separate connection."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.ConnectedTrigger", super().serialize()[1]

    async def _event(self) -> dict[str, Any]:
        return await self.wait(await self._stack.enter_async_context(JetStreamHook(self.nats_conn_id).context()))


class PlainTrigger(BaseTrigger):
    """A trigger as one writes it with nats-py: connect, fetch and acknowledge one message, without claim or ledger."""

    def __init__(self, server: str, stream: str, consumer: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.server = server
        self.stream = stream
        self.consumer = consumer

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.PlainTrigger", {"server": self.server, "stream": self.stream, "consumer": self.consumer}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        connection = await nats.connect(self.server)
        try:
            subscription = await connection.jetstream().pull_subscribe_bind(self.consumer, stream=self.stream)
            messages: list[Any] = []
            while not messages:
                try:
                    messages = await subscription.fetch(1, timeout=30)
                except nats.errors.TimeoutError:
                    continue
            await messages[0].ack()
            yield TriggerEvent(  # type: ignore[no-untyped-call]
                {"sequence": messages[0].metadata.sequence.stream, "at": time.time()}
            )
        finally:
            await connection.close()


class SleepingTrigger(BaseTrigger):
    """Sleeps until a time, in seconds since 1970. This shows what Airflow alone needs."""

    def __init__(self, until: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.until = until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.SleepingTrigger", {"until": self.until}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(self.until - time.time())
        yield TriggerEvent({"at": time.time()})  # type: ignore[no-untyped-call]
