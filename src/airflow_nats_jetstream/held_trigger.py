# SPDX-License-Identifier: Apache-2.0
"""The trigger of an operator that holds a claim. Its class path must not change: Airflow's database stores it."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from datetime import timedelta
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_nats_jetstream.compat import kill
from airflow_nats_jetstream.triggers import JetStreamTrigger
from jetstream_handoff.errors import AlreadyDone, ClaimInvalid, HeldByAnother, HoldLost, OtherWork, Superseded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from jetstream_client.context import JetStream
    from jetstream_handoff.hold.hold import Hold

log = logging.getLogger(__name__)

_LOST = "jetstream_lost"  # the key of the event that says why the claim was lost
_INNER = "inner_"  # the beginning of the names under which the operator's trigger is stored
_RETRY_DELAY = 1.0  # seconds before NATS is asked again
_TO_HAND_OVER = 600.0  # seconds for which an event waits until NATS has leased the claim to the worker that resumes
_TO_CLOSE = 5.0  # the same for a trigger that ends without an event
_TO_ASK = 15.0  # seconds for Airflow's or the ledger's answer about the task
_TO_KILL = 30.0  # seconds for the operator's trigger to kill its job


class JetStreamHeldTrigger(JetStreamTrigger):
    """Run the trigger of an operator, pass its events on, and hold the claim meanwhile.

    If the claim is lost, the operator's trigger is stopped, its job is killed, and the event says why.

    nats_conn_id:  the id of the Airflow connection.
    end:           when the longest hold is over, in seconds since 1970.
    claim:         the claim as JSON.
    token:         the token of the task's try.
    classpath:     the class path of the operator's trigger.
    inner:         the parameters of the operator's trigger, each with the prefix ``inner_``. They are stored at the top
                   level, so that Airflow encodes them exactly as it would for the operator's trigger.
    """

    _fields = ("nats_conn_id", "end", "claim", "token", "classpath")

    def __init__(
        self, nats_conn_id: str, end: float, claim: dict[str, Any], token: str, classpath: str, **inner: Any
    ) -> None:
        super().__init__(nats_conn_id, end)
        self.claim = claim
        self.token = token
        self.classpath = classpath
        self.inner = inner
        self._inner: BaseTrigger | None = None
        self._running: asyncio.Task[Any] | None = None  # the triggerer's task, while the operator's trigger runs in it
        self._keeping: asyncio.Task[None] | None = None
        self._hand_over = asyncio.Event()
        self._lost = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path, fields = super().serialize()
        return path, {**fields, **self.inner}

    @classmethod
    def around(cls, trigger: BaseTrigger, **fields: Any) -> JetStreamHeldTrigger:
        """Return the trigger that runs an operator's trigger.

        trigger:  the operator's trigger.
        fields:   the other parameters of the constructor.
        """
        classpath, kwargs = trigger.serialize()
        return cls(classpath=classpath, **fields, **{f"{_INNER}{name}": value for name, value in kwargs.items()})

    async def run(self) -> AsyncIterator[TriggerEvent]:
        self._inner = inner = self._operators_trigger()
        self._running = asyncio.current_task()
        self._keeping = asyncio.create_task(self._keep())
        try:
            # The operator's trigger runs in the triggerer's task: greenback and cancel scopes belong to that task.
            async with aclosing(inner.run()) as events:  # type: ignore[type-var]
                async for event in events:
                    running, self._running = self._running, None
                    if not self._lost:
                        await self._stop_keeping(_TO_HAND_OVER)
                    if self._lost:
                        break
                    _check_event(event)
                    self._fired = True
                    yield event
                    self._running = running
        except asyncio.CancelledError:
            if not self._lost:
                raise
        finally:
            running, self._running = self._running, None
        if self._lost:
            await self._complete(self._kill, _TO_KILL, "killing the job of a lost claim")
            if running is not None and running.uncancel():
                raise asyncio.CancelledError  # the triggerer has cancelled this trigger as well
            self._fired = True
            yield TriggerEvent({_LOST: self._lost})  # type: ignore[no-untyped-call]

    def _operators_trigger(self) -> BaseTrigger:
        inner: BaseTrigger = resolve_name(":".join(self.classpath.rsplit(".", 1)))(
            **{name.removeprefix(_INNER): value for name, value in self.inner.items()}
        )
        for name in ("task_instance", "trigger_id", "triggerer_job_id", "timeout_after"):
            if (value := getattr(self, name, None)) is not None:
                setattr(inner, name, value)
        return inner

    async def _keep(self) -> None:
        """Hold the claim until it is to be handed over, or is lost. An outage of NATS is survived."""
        while True:
            try:
                if await self._held():
                    return
            except (AlreadyDone, ClaimInvalid, HeldByAnother, HoldLost, OtherWork, Superseded) as foreign:
                self._lose(str(foreign))
                return
            except Exception as error:  # noqa: BLE001 - a missing connection, for example, is an exception of Airflow
                log.warning("claim %s cannot be held at this moment: %s", self.claim.get("id"), error)
            if time.time() > self.end:
                self._lose(f"longest_hold has passed, and claim {self.claim.get('id')} could not be held at the end")
                return
            await asyncio.sleep(_RETRY_DELAY)

    async def _held(self) -> bool:
        """Hold the claim on one connection. Returns False if the connection ended."""
        from airflow_nats_jetstream.hooks import JetStreamHook
        from jetstream_handoff.claim import Claim
        from jetstream_handoff.hold.hold import Hold

        claim, longest = Claim.from_json(self.claim), timedelta(seconds=self.left)
        async with JetStreamHook(self.nats_conn_id).shared() as js, js.connection.timeout(None):
            async with Hold.resume(js, claim, token=self.token, longest_hold=longest, holder=self._holder) as hold:
                await self._asked_or_lost(hold)
                if not hold.lost:
                    await hold.hand_over()
            return self._is_over(js, hold)

    async def _asked_or_lost(self, hold: Hold) -> None:
        lost = asyncio.Event()
        hold.on_lost(lambda _: lost.set())
        waiting = [asyncio.create_task(each.wait()) for each in (self._hand_over, lost)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    def _is_over(self, js: JetStream, hold: Hold) -> bool:
        if hold.lost and js.connection.ended:
            return False
        if hold.lost:
            self._lose(f"claim {hold.claim.id} is no longer held by attempt {hold.token}: {hold.lost}")
        return True

    def _lose(self, reason: str) -> None:
        """Stop the operator's trigger, because the claim is lost."""
        log.error("the claim is lost, and its job will be killed: %s", reason)
        self._lost = reason
        if self._running is not None:
            self._running.cancel(_LOST)

    async def _stop_keeping(self, within: float) -> None:
        """Hand the claim over to the next process of this attempt."""
        if self._keeping is None:
            return
        self._hand_over.set()
        await asyncio.wait([self._keeping], timeout=within)
        if not self._keeping.done():
            self._keeping.cancel()
            await asyncio.wait([self._keeping], timeout=within)

    async def close(self) -> None:
        """Hand the claim over, and clean the operator's trigger up. Airflow calls this whenever the trigger ends."""
        await self._stop_keeping(_TO_CLOSE)
        if self._inner is not None:
            await _allow_synchronous_calls()
            await self._inner.cleanup()

    async def killed(self) -> None:
        """Kill the job and release the claim, because the task was cleared or marked.

        Airflow also calls this after the trigger was passed to another triggerer, for example because this one was
        frozen. Then the task is deferred, and the attempt still holds the claim: nothing is done.
        """
        state = await self._known_state()
        if state == "deferred" and await self._is_ours():
            log.warning("the task is deferred with another trigger, which now watches its job")
            return
        await self._stop_keeping(_TO_CLOSE)
        await self._kill()
        # A marked task never holds the claim again. But a cleared task takes it over, and a task that another triggerer
        # has resumed holds it now.
        if state not in ("success", "failed", "skipped"):
            return
        try:
            async with asyncio.timeout(_TO_ASK):
                await self._release(self.claim, self.token)
        except Exception as error:  # noqa: BLE001 - the messages are redelivered in any case
            said = "claim %s was not released (%s); its lease ends later"
            log.warning(said, self.claim.get("id"), error or "no answer")

    async def _known_state(self) -> str | None:
        """Return the state of the task. If it cannot be found out, the task counts as deferred, because killing a job
        that another trigger watches would be wrong."""
        try:
            async with asyncio.timeout(_TO_ASK):
                return await self._task_state()
        except Exception as error:  # noqa: BLE001 - whatever Airflow raises
            log.warning("the state of the task is not known: %s", error)
            return "deferred"

    async def _is_ours(self) -> bool:
        """Return whether this attempt holds the claim; True if that cannot be found out."""
        from airflow_nats_jetstream.hooks import JetStreamHook
        from jetstream_handoff.ledger.ledger import Ledger

        try:
            async with asyncio.timeout(_TO_ASK), JetStreamHook(self.nats_conn_id).shared() as js:
                record, _ = await Ledger(js, self.claim["stream"], self.claim["consumer"]).read()
        except Exception as error:  # noqa: BLE001 - whatever prevents the answer
            log.warning("the ledger cannot be read: %s", error)
            return True
        entry = record.open.get(self.claim["id"]) if record else None
        return entry is not None and entry.token == self.token

    async def _kill(self) -> None:
        """Let the operator's trigger kill its job. An error is only logged, because the claim has ended anyway."""
        if self._inner is None:
            return
        await _allow_synchronous_calls()
        try:
            async with asyncio.timeout(_TO_KILL):
                if not await kill(self._inner):
                    said = "%s cannot kill its job, which may keep running; its output does not count"
                    log.warning(said, type(self._inner).__name__)
        except Exception as error:
            log.warning("the job may keep running, but its output does not count: %s", error, exc_info=True)


def reason_of_loss(next_kwargs: Mapping[str, Any] | None) -> str:
    """Return why the claim was lost while the task was deferred; empty if it was not.

    next_kwargs:  the arguments with which Airflow resumes the task.
    """
    event = (next_kwargs or {}).get("event")
    return str(event[_LOST]) if isinstance(event, dict) and event.keys() == {_LOST} else ""


async def _allow_synchronous_calls() -> None:
    """Let the current asyncio task call Airflow synchronously, as a trigger can in the triggerer's task."""
    import greenback

    await greenback.ensure_portal()


def _check_event(event: TriggerEvent) -> None:
    """Raise TypeError for an event that would end the task without a worker, which has to settle the claim."""
    if type(event) is not TriggerEvent:
        name = type(event).__name__
        raise TypeError(
            f"the operator's trigger wants to end the task in the triggerer ({name}), where the claim cannot be "
            "settled; set the operator's end_from_trigger=False"
        )
