"""The sensor's trigger, which waits between fetching and its event if the control file says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_nats_jetstream.triggers import JetStreamPullTrigger
from tests.chaos import windows


class StretchedTrigger(JetStreamPullTrigger):
    """The base class under another path, so that the triggerer imports the marks with it."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.{type(self).__name__}", super().serialize()[1]

    @property
    def _scene(self) -> tuple[str, str]:
        return self.taking["stream"], self.taking["owner"][1]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        windows.install()
        async for event in windows.handing_on(*self._scene, super().run()):
            yield event

    async def _event(self) -> dict[str, Any]:
        return await windows.event(*self._scene, super()._event)
