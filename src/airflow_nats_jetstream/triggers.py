# SPDX-License-Identifier: Apache-2.0
"""The triggers of the sensors and of the Spark operator. Their class paths must not change, because Airflow's database
stores them."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_nats_jetstream.compat import tells_triggers
from airflow_nats_jetstream.errors import SparkError, event_of
from airflow_nats_jetstream.owner import owner_in_triggerer, task_of
from jetstream_client.errors import JetStreamError
from jetstream_handoff.errors import ClaimInvalid, Superseded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from airflow_nats_jetstream.spark.master import SparkMaster
    from jetstream_client.context import JetStream
    from jetstream_handoff.ledger.history import Owner
    from jetstream_handoff.take.take import Take

log = logging.getLogger(__name__)

_RELEASE_TIMEOUT = 5.0  # seconds for a release when the trigger ends
_TOO_SLOW = f"no result within {_RELEASE_TIMEOUT:g} s"  # for a log line, because the TimeoutError has no text
_KILL_TIMEOUT = 60.0  # seconds for everything that is done after a user's action; each part also has its own limit
_STATE_TIMEOUT = 15.0  # seconds for Airflow's answer about the state of a task
_RECONNECT_DELAY = 1.0  # seconds before reconnecting when the server has ended the connection


class JetStreamTrigger(BaseTrigger):
    """Base of the triggers: a shared connection, one event, and the serialization.

    nats_conn_id:  the id of the Airflow connection.
    end:           when the sensor times out, in seconds since 1970. This is a time and not a duration, because another
                   triggerer may take over the trigger.

    The payload of the event has a ``status``. Every error becomes an event of :func:`event_of`, because with
    ``soft_fail`` Airflow would turn an exception into a skip.
    """

    _fields: ClassVar[tuple[str, ...]]  # the parameters of the constructor, with which Airflow stores the trigger

    def __init__(self, nats_conn_id: str, end: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nats_conn_id = nats_conn_id
        self.end = end
        self._stack = AsyncExitStack()
        self._ending = asyncio.Lock()
        self._fired = False  # whether this trigger has ended by an event, and not because it was cancelled

    @property
    def _holder(self) -> Owner:
        """The task instance of this trigger, for the history of a claim; empty if the trigger has none."""
        ti: Any = getattr(self, "task_instance", None)
        return () if ti is None else task_of(ti)

    @property
    def left(self) -> float:
        """Seconds until the time-out; at least 1, for a last attempt."""
        return max(1.0, self.end - time.time())

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__name__}", {name: getattr(self, name) for name in self._fields}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            event = await self._event()
        except Exception as error:  # noqa: BLE001 - a missing connection, for example, is an exception of Airflow
            event = event_of(error)
        self.handed_on()
        self._fired = True
        yield TriggerEvent(event)  # type: ignore[no-untyped-call] # nothing is awaited between handing on and the event

    async def _event(self) -> dict[str, Any]:
        from airflow_nats_jetstream.hooks import JetStreamHook

        while True:
            js = await self._stack.enter_async_context(JetStreamHook(self.nats_conn_id).shared())
            try:
                async with js.connection.timeout(None):
                    return await self.wait(js)
            except JetStreamError as error:
                if not js.connection.ended:
                    raise
                log.warning("the connection to NATS has ended and will be opened again: %s", error)
            self.handed_on()
            await self._stack.aclose()
            await asyncio.sleep(_RECONNECT_DELAY)

    @property
    def _timed_out(self) -> bool:
        """Whether the time has passed after which Airflow ends the deferral."""
        end: Any = getattr(self, "timeout_after", None)
        return end is not None and (end if end.tzinfo else end.replace(tzinfo=UTC)) < datetime.now(UTC)

    async def wait(self, js: JetStream) -> dict[str, Any]:
        """Return the payload of the event. If the connection ends, this method is called again with another connection.

        js:  the shared connection.
        """
        raise NotImplementedError

    def handed_on(self) -> None:
        """Make sure that the messages and claims taken so far are not released when the trigger ends."""

    async def on_kill(self) -> None:
        """Call :meth:`killed`, and complete it despite cancellations.

        Airflow calls this after a user has cleared or marked the task, or after the trigger was passed to another
        triggerer.
        """
        await self._complete(self.killed, _KILL_TIMEOUT, "the cleanup for a cleared or marked task")

    async def cleanup(self) -> None:
        """Call :meth:`close`, and complete it despite cancellations. Airflow calls this whenever the trigger ends.

        Below Airflow 3.3 nothing calls :meth:`on_kill`. A trigger that was cancelled before its event and before the
        task's time-out therefore does what is done there, which asks Airflow for the state of the task first.
        """
        if not (tells_triggers or self._fired or self._timed_out):
            await self.on_kill()
        await self._complete(self.close, _KILL_TIMEOUT + _RELEASE_TIMEOUT, "closing a trigger")

    async def killed(self) -> None:
        """End the work of a task that was cleared or marked. The triggerer's cancellations do not interrupt this."""

    async def close(self) -> None:
        """Release the connection. A cancellation by the triggerer does not interrupt this."""
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                await self._stack.aclose()
        except (JetStreamError, TimeoutError) as error:
            log.warning("could not close the connection to NATS: %s", str(error) or _TOO_SLOW)

    async def _task_state(self) -> str | None:
        """Return the state of the task in Airflow; None if it has none, for example when it was just cleared."""
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from asgiref.sync import sync_to_async

        ti: Any = self.task_instance
        states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
            dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[ti.task_id], map_index=ti.map_index
        )
        return next(iter(states.get(ti.run_id, {}).values()), None)

    async def _release(self, claim: Mapping[str, Any], token: str | None) -> None:
        """Release a claim without waiting for the end of its lease, if it is still held by this token, or by nobody.

        claim:  the claim as JSON.
        token:  the token of the attempt; None if a keeper has held the claim and has left it.
        """
        from airflow_nats_jetstream.hooks import JetStreamHook
        from jetstream_handoff.claim import Claim
        from jetstream_handoff.hold.settle import release
        from jetstream_handoff.ledger.ledger import Ledger

        found = Claim.from_json(claim)
        async with JetStreamHook(self.nats_conn_id).shared() as js:
            await release(Ledger(js, found.stream, found.consumer), found, token)

    async def _complete(self, work: Callable[[], Awaitable[None]], within: float, what: str) -> None:
        """Complete ``work`` despite cancellations. Calls of this method are carried out one after the other.

        A lock ensures this. Without it, ``on_kill`` and ``cleanup`` could overlap: ``asyncio.wait_for`` of Python 3.11
        abandons an ``on_kill`` at the third cancellation, and the triggerer then calls ``cleanup``.
        """
        from jetstream_handoff.hold.completion import LEASE_ENDS, complete

        async def in_turn() -> None:
            async with self._ending:
                await work()

        await complete(in_turn(), within, what, LEASE_ENDS)


class JetStreamPullTrigger(JetStreamTrigger):
    """Take claims and hand them on in one event: ``{"status": "claims", "claims": […]}``, ``{"status": "timeout"}``, or
    ``{"status": "exhausted"}`` if nothing of the period is left.

    nats_conn_id:  the id of the Airflow connection.
    taking:        the JSON of a :class:`~jetstream_handoff.take.taking.Taking`. With ``start_from_trigger`` it has no
                   owner, and the owner is derived from the trigger's task instance.
    end:           when the sensor times out, in seconds since 1970. Default None: after ``timeout``.
    timeout:       the seconds until the sensor times out, for ``start_from_trigger``. Default 0.
    """

    _fields = ("nats_conn_id", "taking", "end")

    def __init__(
        self, nats_conn_id: str, taking: dict[str, Any], end: float | None = None, timeout: float = 0.0
    ) -> None:
        super().__init__(nats_conn_id, time.time() + timeout if end is None else end)
        self.taking = taking
        self._take: Take | None = None

    async def wait(self, js: JetStream) -> dict[str, Any]:
        from jetstream_handoff.take.take import Take
        from jetstream_handoff.take.taking import Taking

        if "owner" not in self.taking:
            self.taking = {**self.taking, "owner": list(owner_in_triggerer(self.task_instance))}
        self._take = take = Take(js, Taking.from_json(self.taking))
        await take.prepare()
        log.info("waiting for messages of stream %s, consumer %s", take.taking.stream, take.taking.consumer)
        claims = await take.take(self.left)
        if not claims:
            return {"status": "exhausted" if take.period.exhausted else "timeout"}
        return {"status": "claims", "claims": [claim.to_json() for claim in claims]}

    def handed_on(self) -> None:
        """Make sure that the messages and claims taken so far are not released when the trigger ends.

        Either the event contains the claims, or the connection has ended. In the second case the messages that were
        pulled on that connection are redelivered, and the next trigger or worker with the same owner hands on the
        claims that are in the ledger.
        """
        if self._take is not None:
            self._take.handed_on()

    async def close(self) -> None:
        """Release everything that was taken and not handed on, and then the connection."""
        await self.killed()
        await super().close()

    async def killed(self) -> None:
        """Release everything that was taken and not handed on."""
        if self._take is None:
            return
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                await self._take.put_back()
        except (JetStreamError, TimeoutError) as error:
            said = "could not release the taken messages (%s); they are redelivered when their lease ends"
            log.warning(said, str(error) or _TOO_SLOW)


class JetStreamLagTrigger(JetStreamTrigger):
    """Wait until a consumer's lag is within a bound: ``{"status": "lag", "lag": {…}}`` or ``{"status": "timeout"}``.

    nats_conn_id:  the id of the Airflow connection.
    bound:         the fields of a :class:`~jetstream_client.consume.lag.Bound`.
    every:         the seconds between two requests.
    end:           when the sensor times out, in seconds since 1970.
    """

    _fields = ("nats_conn_id", "bound", "every", "end")

    def __init__(self, nats_conn_id: str, bound: dict[str, Any], every: float, end: float) -> None:
        super().__init__(nats_conn_id, end)
        self.bound = bound
        self.every = every

    async def wait(self, js: JetStream) -> dict[str, Any]:
        from jetstream_client.consume.lag import Bound

        lag = await Bound(**self.bound).wait(js, self.left, self.every)
        return {"status": "timeout"} if lag is None else {"status": "lag", "lag": lag.to_json()}


class JetStreamKeyTrigger(JetStreamTrigger):
    """Watch a key until an entry fits: ``{"status": "entry", "revision": n}`` or ``{"status": "timeout"}``.

    nats_conn_id:  the id of the Airflow connection.
    awaited:       the fields of an :class:`~jetstream_client.stores.key_value.Awaited`. They name the bucket's creation
                   and no value, so that another triggerer continues with the same bucket, and Airflow's database
                   contains no value.
    end:           when the sensor times out, in seconds since 1970.
    """

    _fields = ("nats_conn_id", "awaited", "end")

    def __init__(self, nats_conn_id: str, awaited: dict[str, Any], end: float) -> None:
        super().__init__(nats_conn_id, end)
        self.awaited = awaited

    async def wait(self, js: JetStream) -> dict[str, Any]:
        from jetstream_client.stores.key_value import Awaited

        try:
            async with asyncio.timeout(self.left):
                return {"status": "entry", "revision": await Awaited(**self.awaited).wait(js)}
        except TimeoutError as late:
            if isinstance(late, JetStreamError):
                raise
            return {"status": "timeout"}


class JetStreamHoldTrigger(JetStreamTrigger):
    """Hold a claim until it has ended: ``{"status": "done"}``, ``{"status": "failed"}`` or ``{"status": "timeout"}``;
    ``{"status": "superseded", "error": text}`` if its messages belong to another claim or attempt.

    nats_conn_id:  the id of the Airflow connection.
    claim:         the claim as JSON.
    end:           when the sensor times out, in seconds since 1970.
    """

    _fields = ("nats_conn_id", "claim", "end")

    def __init__(self, nats_conn_id: str, claim: dict[str, Any], end: float) -> None:
        super().__init__(nats_conn_id, end)
        self.claim = claim

    async def wait(self, js: JetStream) -> dict[str, Any]:
        return await hold_event(js, self.claim, self.left, self._holder)


class JetStreamSparkSubmitTrigger(JetStreamTrigger):
    """Hold a claim while a Spark driver works on it: ``{"status": "ended", "state": …}`` when the driver has ended.

    If the claim ends first, the driver is killed, and the event is one of :class:`JetStreamHoldTrigger`.

    nats_conn_id:  the id of the Airflow connection to NATS.
    claim:         the claim as JSON.
    end:           when the hold is over, in seconds since 1970.
    conn_id:       the id of the Airflow connection to the Spark master.
    driver:        the id of the driver.
    every:         the seconds between two requests for the driver's state.
    """

    _fields = ("nats_conn_id", "claim", "end", "conn_id", "driver", "every")

    def __init__(  # noqa: PLR0917 - Airflow stores these fields
        self, nats_conn_id: str, claim: dict[str, Any], end: float, conn_id: str, driver: str, every: float
    ) -> None:
        super().__init__(nats_conn_id, end)
        self.claim = claim
        self.conn_id = conn_id
        self.driver = driver
        self.every = every

    async def wait(self, js: JetStream) -> dict[str, Any]:
        from jetstream_handoff.hold.completion import LEASE_ENDS, complete

        master = await self._master()
        keeping = asyncio.create_task(hold_event(js, self.claim, self.left + _STATE_TIMEOUT, self._holder))
        working = asyncio.create_task(master.ended(self.driver, self.every))
        event = {"status": "timeout"}
        try:
            await asyncio.wait((keeping, working), timeout=self.left, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return {"status": "ended", "state": working.result()}
            if keeping.done():
                event = keeping.result()  # raises the error of the keeper, if any; the job keeps running
        finally:
            await complete(
                _cancel(keeping, working), _KILL_TIMEOUT, f"ending the hold of claim {self.claim['id']}", LEASE_ENDS
            )
        await self._kill(master)
        return event

    async def killed(self) -> None:
        """Kill the job, and release its claim if the task was marked.

        Airflow also calls this after the trigger was passed to another triggerer, for example because this one was
        frozen, and sometimes after a cleared task was deferred again. In both cases the task is deferred, and the job
        is not killed.
        """
        async with asyncio.timeout(_STATE_TIMEOUT):
            state = await self._task_state()
        if state == "deferred":
            log.warning("the task is deferred with another trigger, which now watches Spark driver %s", self.driver)
            return
        await self._kill(await self._master())
        if state in ("success", "failed", "skipped"):
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                await self._release(self.claim, None)

    async def _master(self) -> SparkMaster:
        from airflow.sdk import BaseHook

        from airflow_nats_jetstream.spark.master import SparkMaster

        return SparkMaster.of(await BaseHook.aget_connection(self.conn_id))

    async def _kill(self, master: SparkMaster) -> None:
        try:
            if await master.kill(self.driver):
                log.warning("Spark driver %s was killed", self.driver)
        except SparkError as error:
            said = "Spark driver %s could not be killed (%s) and may keep running, but its output does not count"
            log.warning(said, self.driver, error)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their end. A stopped keeper leaves a lease, for the worker that gets the event."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def hold_event(js: JetStream, claim: dict[str, Any], seconds: float, holder: Owner = ()) -> dict[str, Any]:
    """Hold a claim, and return the payload of the event of :class:`JetStreamHoldTrigger`.

    js:       the connection.
    claim:    the claim as JSON.
    seconds:  the longest time to hold it.
    holder:   the task that holds it, for the claim's history. Default: unknown.
    """
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.hold.keep import keep

    try:
        return {"status": await keep(js, Claim.from_json(claim), seconds, holder) or "timeout"}
    except (ClaimInvalid, Superseded) as foreign:
        return {"status": "superseded", "error": str(foreign)}
