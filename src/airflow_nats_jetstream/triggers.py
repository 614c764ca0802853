"""The trigger that waits for messages. Its class path is stored in databases: it stays where it is."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_nats_jetstream.client.errors import JetStreamError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from airflow_nats_jetstream.handoff.take import Take

log = logging.getLogger(__name__)

_TO_GIVE_BACK = 5.0  # seconds for giving back on the way out


class JetStreamPullTrigger(BaseTrigger):
    """Take claims and hand them on in one event.

    ``{"status": "claims", "claims": […]}``, ``{"status": "timeout"}`` or ``{"status": "error", "error": text}``: every
    error is an event, because Airflow would turn an exception into a skip under ``soft_fail``.

    ``taking`` holds the fields of :class:`~airflow_nats_jetstream.handoff.take.Taking` as JSON, times in seconds;
    ``end`` is the moment (seconds since 1970) at which the sensor times out, wherever the trigger runs by then.
    """

    def __init__(self, nats_conn_id: str, taking: dict[str, Any], end: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nats_conn_id = nats_conn_id
        self.taking = taking
        self.end = end
        self._stack = AsyncExitStack()
        self._take: Take | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "airflow_nats_jetstream.triggers.JetStreamPullTrigger",
            {"nats_conn_id": self.nats_conn_id, "taking": self.taking, "end": self.end},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            event = await self._event()
        except Exception as error:  # noqa: BLE001 - a missing connection, for one, is no error of ours
            event = {"status": "error", "error": f"{type(error).__name__}: {error}"}
        if self._take is not None:
            self._take.handed_on()
        yield TriggerEvent(event)  # type: ignore[no-untyped-call] # nothing is awaited between handing on and the event

    async def _event(self) -> dict[str, Any]:
        from airflow_nats_jetstream.handoff.take import Take
        from airflow_nats_jetstream.hooks import JetStreamHook

        js = await self._stack.enter_async_context(JetStreamHook(self.nats_conn_id).context())
        self._take = take = Take(js, taking_of(self.taking))
        await take.prepare()
        log.info("waiting for messages of %s on consumer %s", take.taking.stream, take.taking.consumer)
        claims = await take.take(max(1.0, self.end - time.time()))
        if not claims:
            return {"status": "timeout"}
        return {"status": "claims", "claims": [claim.to_json() for claim in claims]}

    async def on_kill(self) -> None:
        """A user cleared or marked the task: what was taken and not handed on goes back."""
        await self._give_back()

    async def cleanup(self) -> None:
        """However the trigger ends: what was taken and not handed on goes back, and the connection is closed."""
        await self._give_back()
        try:
            await asyncio.wait_for(self._stack.aclose(), _TO_GIVE_BACK)
        except (JetStreamError, TimeoutError) as error:
            log.warning("closing the connection: %s", error)

    async def _give_back(self) -> None:
        if self._take is None:
            return
        try:
            await asyncio.wait_for(self._take.put_back(), _TO_GIVE_BACK)
        except (JetStreamError, TimeoutError) as error:
            log.warning("could not give back what was taken, it comes again when its lease ends: %s", error)


def taking_of(values: dict[str, Any]) -> Any:
    """The frozen value that a trigger's flat JSON describes."""
    from airflow_nats_jetstream.handoff.take import Taking

    times = {name: timedelta(seconds=values[name]) for name in ("gather", "hand_off_timeout")}
    return Taking(**{**values, **times, "owner": tuple(values["owner"])})
