"""The work of a pipeline whose operator knows nothing of claims, and defers in the middle of its job.

The operator writes one half of the claimed messages, defers, and writes the other half when it resumes. All processes
of a try write under the attempt's id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_nats_jetstream.hooks import JetStreamHook
from jetstream_client.sequences import Sequences
from tests.chaos import windows
from tests.chaos.work import output, parts, processed, write_part

if TYPE_CHECKING:
    from jetstream_handoff.claim import Claim


class Halves(BaseOperator):
    """An operator with one deferral. ``attempt`` and ``value`` come from templates."""

    template_fields = ("attempt", "value")

    def __init__(self, *, attempt: str, value: str, connection: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.attempt = attempt
        self.value = value
        self.connection = connection

    def execute(self, context: Any) -> None:  # noqa: ARG002
        claim, half = self._claim()
        windows.mark(windows.HAND_OFF, "leave", claim.stream, claim.id)
        write_part(JetStreamHook(self.connection).settings, claim.stream, self.attempt, half)
        self.defer(trigger=PauseTrigger(self.attempt, claim.to_json()), method_name="resume")

    def resume(self, context: Any, event: dict[str, Any]) -> int:  # noqa: ARG002
        claim, half = self._claim()
        write_part(JetStreamHook(self.connection).settings, claim.stream, self.attempt, claim.sequences - half)
        read = Sequences.of(sequence for sequence, _ in parts(output(windows.folder(), claim.stream, self.attempt)))
        processed(claim.stream, self.attempt, read)
        windows.mark(windows.WORK, "leave", claim.stream, claim.id)
        return read.count

    def _claim(self) -> tuple[Claim, Sequences]:
        from jetstream_handoff.claim import Claim

        claim = Claim.from_json(self.value)
        return claim, next(claim.sequences.windows(max(1, claim.count // 2)))


class PauseTrigger(BaseTrigger):
    """The middle of the job, which is marked and stretched."""

    def __init__(self, attempt: str, claim: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.attempt = attempt
        self.claim = claim

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.{type(self).__name__}", {"attempt": self.attempt, "claim": self.claim}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        windows.install()
        stream, key, ranges = self.claim["stream"], self.claim["id"], self.claim["ranges"]
        windows.mark(windows.WORK, "enter", stream, key, ranges=ranges, attempt=self.attempt, deferred=True)
        await asyncio.sleep(windows.pause(windows.WORK, self.attempt))
        yield TriggerEvent({})  # type: ignore[no-untyped-call]
