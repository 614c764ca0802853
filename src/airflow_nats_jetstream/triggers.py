"""The triggers that wait for a sensor. Their class paths are stored in databases: they stay where they are."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_nats_jetstream.errors import SparkError
from airflow_nats_jetstream.owner import owner_in_triggerer
from jetstream_client.errors import JetStreamError
from jetstream_handoff.errors import ClaimInvalid, Superseded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from airflow_nats_jetstream.spark_master import SparkMaster
    from jetstream_client.context import JetStream
    from jetstream_handoff.take import Take

log = logging.getLogger(__name__)

_RELEASE_TIMEOUT = 5.0  # seconds for releasing what is held on the way out
_KILL_TIMEOUT = 60.0  # seconds for everything that a user's action entails; each part of it has its own limit
_STATE_TIMEOUT = 15.0  # seconds for Airflow's answer about the state of a task
_RECONNECT_DELAY = 1.0  # seconds before reconnecting when the server has ended the connection


class JetStreamTrigger(BaseTrigger):
    """What the triggers share: a connection, one event, and how they are stored.

    The event's payload has a ``status``; ``{"status": "error", "error": text}`` for every error, because Airflow would
    turn an exception into a skip under ``soft_fail``.
    """

    _fields: ClassVar[tuple[str, ...]]  # parameters of the constructor, under which Airflow stores them

    def __init__(self, nats_conn_id: str, end: float) -> None:
        """``end``: when the sensor times out, in seconds since 1970, wherever the trigger runs by then."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.nats_conn_id = nats_conn_id
        self.end = end
        self._stack = AsyncExitStack()
        self._ending = asyncio.Lock()

    @property
    def left(self) -> float:
        """Seconds until the time-out, at least one for a last attempt."""
        return max(1.0, self.end - time.time())

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__name__}", {name: getattr(self, name) for name in self._fields}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            event = await self._event()
        except Exception as error:  # noqa: BLE001 - a missing connection, for one, is no error of ours
            event = {"status": "error", "error": f"{type(error).__name__}: {error}"}
        self.handed_on()
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
                log.warning("connecting again: %s", error)
            self.handed_on()
            await self._stack.aclose()
            await asyncio.sleep(_RECONNECT_DELAY)

    async def wait(self, js: JetStream) -> dict[str, Any]:
        """Return the event. May be called again, on another connection."""
        raise NotImplementedError

    def handed_on(self) -> None:
        """Nothing of this wait is to be given back."""

    async def on_kill(self) -> None:
        """A user cleared or marked the task, or Airflow has given the trigger to another triggerer."""
        await self._complete(self.killed, _KILL_TIMEOUT, "what is done when a task is cleared or marked")

    async def cleanup(self) -> None:
        """However the trigger ends."""
        await self._complete(self.close, _KILL_TIMEOUT + _RELEASE_TIMEOUT, "closing a trigger")

    async def killed(self) -> None:
        """What :meth:`on_kill` does, however often the triggerer cancels meanwhile."""

    async def close(self) -> None:
        """What :meth:`cleanup` does, likewise: the connection is released."""
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                await self._stack.aclose()
        except (JetStreamError, TimeoutError) as error:
            log.warning("closing the connection: %s", error)

    async def _complete(self, work: Callable[[], Awaitable[None]], within: float, what: str) -> None:
        """One after the other: ``asyncio.wait_for`` of Python 3.11 leaves an ``on_kill`` behind at the third
        cancellation, and the triggerer goes on to clean up."""
        from jetstream_handoff.completion import LEASE_ENDS, complete

        async def in_turn() -> None:
            async with self._ending:
                await work()

        await complete(in_turn(), within, what, LEASE_ENDS)


class JetStreamPullTrigger(JetStreamTrigger):
    """Take claims and hand them on in one event: ``{"status": "claims", "claims": […]}`` or ``{"status": "timeout"}``.

    ``taking`` is the JSON of a :class:`~jetstream_handoff.taking.Taking`. Where
    no worker came before (``start_from_trigger``), it has no owner, which is the trigger's own task instance then; and
    ``timeout`` seconds take the place of ``end``.
    """

    _fields = ("nats_conn_id", "taking", "end")

    def __init__(
        self, nats_conn_id: str, taking: dict[str, Any], end: float | None = None, timeout: float = 0.0
    ) -> None:
        super().__init__(nats_conn_id, time.time() + timeout if end is None else end)
        self.taking = taking
        self._take: Take | None = None

    async def wait(self, js: JetStream) -> dict[str, Any]:
        from jetstream_handoff.take import Take
        from jetstream_handoff.taking import Taking

        if "owner" not in self.taking:
            self.taking = {**self.taking, "owner": list(owner_in_triggerer(self.task_instance))}
        self._take = take = Take(js, Taking.from_json(self.taking))
        await take.prepare()
        log.info("waiting for messages of %s on consumer %s", take.taking.stream, take.taking.consumer)
        claims = await take.take(self.left)
        if not claims:
            return {"status": "timeout"}
        return {"status": "claims", "claims": [claim.to_json() for claim in claims]}

    def handed_on(self) -> None:
        """The claims are the event's. Or the connection ended: what was pulled on it is redelivered, and what was
        entered is handed on by the next trigger or worker with the same owner."""
        if self._take is not None:
            self._take.handed_on()

    async def close(self) -> None:
        """Give back what was taken and not handed on, and release the connection."""
        await self.killed()
        await super().close()

    async def killed(self) -> None:
        """Give back what was taken and not handed on."""
        if self._take is None:
            return
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                await self._take.put_back()
        except (JetStreamError, TimeoutError) as error:
            log.warning("could not give back what was taken, it is redelivered when its lease ends: %s", error)


class JetStreamLagTrigger(JetStreamTrigger):
    """Wait until a consumer's lag is within its bound: ``{"status": "lag", "lag": {…}}`` or ``{"status": "timeout"}``.

    ``bound`` holds the fields of :class:`~jetstream_client.consume.lag.Bound`, ``every`` is in seconds.
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


class JetStreamHoldTrigger(JetStreamTrigger):
    """Keep a claim until it is settled: ``{"status": "done"}``, ``{"status": "failed"}`` or ``{"status": "timeout"}``;
    ``{"status": "superseded", "error": text}`` when its messages belong to somebody else."""

    _fields = ("nats_conn_id", "claim", "end")

    def __init__(self, nats_conn_id: str, claim: dict[str, Any], end: float) -> None:
        super().__init__(nats_conn_id, end)
        self.claim = claim

    async def wait(self, js: JetStream) -> dict[str, Any]:
        return await hold_event(js, self.claim, self.left)


class JetStreamSparkSubmitTrigger(JetStreamTrigger):
    """Keep a claim while a Spark driver works on it: ``{"status": "ended", "state": …}`` when it has ended. The events
    of :class:`JetStreamHoldTrigger` when the claim came to its end first: the driver is killed then.

    ``every`` is in seconds.
    """

    _fields = ("nats_conn_id", "claim", "end", "conn_id", "driver", "every")

    def __init__(  # noqa: PLR0917 - as Airflow stores it
        self, nats_conn_id: str, claim: dict[str, Any], end: float, conn_id: str, driver: str, every: float
    ) -> None:
        super().__init__(nats_conn_id, end)
        self.claim = claim
        self.conn_id = conn_id
        self.driver = driver
        self.every = every

    async def wait(self, js: JetStream) -> dict[str, Any]:
        from jetstream_handoff.completion import LEASE_ENDS, complete

        master = await self._master()
        keeping = asyncio.create_task(hold_event(js, self.claim, self.left + _STATE_TIMEOUT))
        working = asyncio.create_task(master.ended(self.driver, self.every))
        event = {"status": "timeout"}
        try:
            await asyncio.wait((keeping, working), timeout=self.left, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return {"status": "ended", "state": working.result()}
            if keeping.done():
                event = keeping.result()  # or its error, and the job runs on: a retry holds the claim again
        finally:
            await complete(_cancel(keeping, working), _KILL_TIMEOUT, f"keeping claim {self.claim['id']}", LEASE_ENDS)
        await self._kill(master)
        return event

    async def killed(self) -> None:
        """Kill the job; if the task was marked, release its claim, too.

        Airflow also calls it when it has given the trigger to another triggerer, as after a freeze of this one, and it
        may come when a cleared task has already deferred again: in both cases the task is deferred.
        """
        async with asyncio.timeout(_STATE_TIMEOUT):
            state = await self._task_state()
        if state == "deferred":
            log.warning("another trigger watches the task's job now, and not this one Spark driver %s", self.driver)
            return
        await self._kill(await self._master())
        if state in ("success", "failed", "skipped"):
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                await self._release()

    async def _task_state(self) -> str | None:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
        from asgiref.sync import sync_to_async

        ti: Any = self.task_instance
        states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
            dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[ti.task_id], map_index=ti.map_index
        )
        return next(iter(states.get(ti.run_id, {}).values()), None)

    async def _release(self) -> None:
        """Of the lease that the keeper left, at once."""
        from airflow_nats_jetstream.hooks import JetStreamHook
        from jetstream_handoff.claim import Claim
        from jetstream_handoff.ledger import Ledger
        from jetstream_handoff.settle import release

        claim = Claim.from_json(self.claim)
        async with JetStreamHook(self.nats_conn_id).shared() as js:
            await release(Ledger(js, claim.stream, claim.consumer), claim, None)

    async def _master(self) -> SparkMaster:
        from airflow.sdk import BaseHook

        from airflow_nats_jetstream.spark_master import SparkMaster

        return SparkMaster.of(await BaseHook.aget_connection(self.conn_id))

    async def _kill(self, master: SparkMaster) -> None:
        try:
            if await master.kill(self.driver):
                log.warning("Spark driver %s is killed", self.driver)
        except SparkError as error:
            log.warning("Spark driver %s may run on, for nothing: %s", self.driver, error)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """A keeper that is stopped leaves a lease, for the worker that hears of the event."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def hold_event(js: JetStream, claim: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The event of :class:`JetStreamHoldTrigger`."""
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.keep import keep

    try:
        return {"status": await keep(js, Claim.from_json(claim), seconds) or "timeout"}
    except (ClaimInvalid, Superseded) as foreign:
        return {"status": "superseded", "error": str(foreign)}
