"""The hook: an Airflow connection as a JetStream context, and a claim held while a synchronous task works on it."""

from __future__ import annotations

import asyncio
import logging
import operator
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeGuard, TypeVar
from weakref import WeakKeyDictionary

import airflow

from jetstream_client.errors import InvalidValue
from jetstream_client.settings import ConnectionSettings, environment_name
from jetstream_handoff.errors import AlreadyDone, HoldLost

TO_LET_GO = 3.0
"""Seconds that a killed task waits for its claim to be released; Airflow ends the process soon after."""
OLDEST_AIRFLOW = (3, 3)


def check_airflow(version: str) -> None:
    """Raises ImportError for an Airflow that lacks what this package builds on."""
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_AIRFLOW:
        raise ImportError(f"airflow-provider-nats-jetstream needs Apache Airflow 3.3 or newer; this is {version}")


check_airflow(airflow.__version__)  # before the imports that an older one fails at with less helpful words

from airflow.sdk import BaseHook  # noqa: E402
from airflow.sdk.log import amask_secret, mask_secret  # noqa: E402

from airflow_nats_jetstream import instruments  # noqa: E402
from airflow_nats_jetstream.airflow_connection import check_console, masks, settings_of, tested  # noqa: E402
from airflow_nats_jetstream.tracebacks import Brief  # noqa: E402
from jetstream_handoff import events  # noqa: E402

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from anyio.from_thread import BlockingPortal
    from pyspark.sql import DataFrame, SparkSession

    from jetstream_client.context import JetStream
    from jetstream_client.sequences import Sequences
    from jetstream_client.stored import StoredMessage
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.hold import Hold
    from jetstream_handoff.record import Receipt

log = logging.getLogger(__name__)
events.listen(instruments.heard)

Result = TypeVar("Result")

LONGEST_HOLD = timedelta(hours=24)


class JetStreamHook(BaseHook):
    """JetStream through an Airflow connection of type ``nats``.

    nats_conn_id:        the connection; its fields are those of the form, see docs/reference/connection.md.
    domain, api_prefix:  instead of the connection's.
    """

    conn_name_attr = "nats_conn_id"
    default_conn_name = "nats_default"
    conn_type = "nats"
    hook_name = "NATS JetStream"

    def __init__(
        self, nats_conn_id: str = default_conn_name, *, domain: str | None = None, api_prefix: str | None = None
    ) -> None:
        super().__init__()
        self.nats_conn_id = nats_conn_id
        self._domain = domain
        self._api_prefix = api_prefix

    @property
    def settings(self) -> ConnectionSettings:
        """The connection's settings. Raises InvalidValue for fields that contradict each other."""
        connection = self.get_connection(self.nats_conn_id)
        mask_secret(masks(connection))
        return self._settings(connection)

    def get_conn(self) -> ConnectionSettings:
        """The settings: a connection belongs to an event loop, see :meth:`context` and :meth:`run`."""
        return self.settings

    @property
    def console(self) -> str:
        """The address of the page about a stream, with ``{stream}``, ``{consumer}`` and ``{claim}`` to fill in; empty
        without one. Raises InvalidValue."""
        return check_console(self.get_connection(self.nats_conn_id).extra_dejson.get("console") or None)

    @asynccontextmanager
    async def context(self) -> AsyncIterator[JetStream]:
        """A JetStream context, for asynchronous tasks and triggers. Raises ConnectionFailed."""
        from jetstream_client import connect

        async with connect(self._settings(await self._masked(self.nats_conn_id))) as js:
            yield js

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[JetStream]:
        """:meth:`context` on one connection for all triggers of a process that have the same settings. It is closed
        with its last user. Raises ConnectionFailed."""
        settings = self._settings(await _asked(self.nats_conn_id, self._masked))
        from jetstream_client.shared import share

        async with share(settings) as js:
            yield js

    def run(self, function: Callable[[JetStream], Awaitable[Result]]) -> Result:
        """``await function(js)`` from a synchronous task, on a connection of its own: ``hook.run(lambda js: …)``."""
        from anyio.from_thread import start_blocking_portal

        from jetstream_client import connect

        settings = self.settings

        async def connected() -> Result:
            async with connect(settings) as js:
                return await function(js)

        with Brief(), start_blocking_portal() as portal:
            return portal.call(connected)

    def committed(self, stream: str, consumer: str) -> list[Receipt]:
        """The attempts that were settled as done, in the order of their sequences: the output that counts.

        Each has its ``processed`` sequences, and those that it ``rejected``: they are dead letters, not output.
        """

        async def receipts(js: JetStream) -> list[Receipt]:
            from jetstream_handoff.ledger import Ledger

            return await Ledger(js, stream, consumer).committed()

        return self.run(receipts)

    def messages(self, claim: Claim | Mapping[str, Any]) -> Iterator[StoredMessage]:
        """Exactly the claimed messages, for work without Spark. Reading neither holds nor settles the claim.

        Raises:
            ClaimInvalid: at once.
            StreamRecreated, DirectGetDisabled, ConnectionLost: while reading.
            MessagesMissing: after everything else was given.
        """
        from jetstream_handoff.claim import Claim
        from jetstream_handoff.messages import messages

        return messages(self.settings, claim if isinstance(claim, Claim) else Claim.from_json(claim))

    @contextmanager
    def processing(
        self, claim: Claim | Mapping[str, Any], *, try_number: int = 1, dead_letters: str | None = None
    ) -> Iterator[HeldClaim]:
        """Hold a claim while the block works on it; settle it when the block ends, with ``held.value`` as its value.

        ``dead_letters`` names the stream for what the block rejects, by default ``DEAD_<stream>``.

        Any exception releases it without delay. In a plain ``@task`` a killed worker is only noticed by the missing
        heartbeats: prefer ``@task.jetstream``, which Airflow can kill, skip and resume.

        Raises:
            ClaimInvalid, AlreadyDone, Superseded, LedgerUnavailable: before the block begins.
            HoldLost, Taken, Superseded: after it, when the claim could not be settled.
        """
        with self.holding(claim, try_number=try_number, dead_letters=dead_letters) as held:
            yield held
            held.settle(held.value)

    @contextmanager
    def holding(
        self,
        claim: Claim | Mapping[str, Any],
        *,
        try_number: int,
        longest_hold: timedelta = LONGEST_HOLD,
        dead_letters: str | None = None,
        reprocess: bool = False,
    ) -> Iterator[HeldClaim]:
        """As :meth:`processing`, but the block itself ends the claim: settles, fails or releases it.

        longest_hold:  a hold that lasts longer is lost.
        reprocess:     a claim that is settled is processed again instead of raising AlreadyDone; raises MessagesMissing
                       when its stream does not hold all of its messages any more.
        """
        from anyio.from_thread import start_blocking_portal

        from jetstream_handoff.claim import Claim
        from jetstream_handoff.dead_letters import dead_letters_of

        with Brief():
            settings = self.settings
            claim = claim if isinstance(claim, Claim) else Claim.from_json(claim)
            dead_letters_of(claim.stream, dead_letters)
        # Spark's JVM and its local Python workers inherit it; the name makes Spark redact it.
        os.environ[environment_name(self.nats_conn_id)] = settings.to_json()
        with (
            Brief(),
            instruments.processing(claim) as carried,
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(
                _hold(settings, claim, try_number, longest_hold, reprocess=reprocess)
            ) as hold,
        ):
            held = HeldClaim(hold, portal, self.nats_conn_id, dead_letters, carried)
            try:
                yield held
            finally:
                held.wait_for_kill()

    def test_connection(self) -> tuple[bool, str]:
        """What the Test button shows, see :func:`airflow_nats_jetstream.airflow_connection.tested`."""
        try:
            return tested(self.settings)
        except InvalidValue as wrong:
            return False, str(wrong)

    @classmethod
    async def _masked(cls, conn_id: str) -> Connection:
        """What Airflow knows of a connection, after it was told what to hide in logs."""
        connection = await cls.aget_connection(conn_id)
        await amask_secret(masks(connection))
        return connection

    def _settings(self, connection: Connection) -> ConnectionSettings:
        return settings_of(connection, domain=self._domain, api_prefix=self._api_prefix)


_asking: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Task[Connection]]] = WeakKeyDictionary()


async def _asked(conn_id: str, ask: Callable[[str], Awaitable[Connection]]) -> Connection:
    """What Airflow knows of a connection. Who asks while it is being asked gets the same answer: for each question a
    triggerer's supervisor hears several messages, and it takes in one for each round of its work in the database
    (``TriggerRunnerSupervisor.run_once``), so the questions of a thousand triggers took minutes."""
    there = _asking.setdefault(asyncio.get_running_loop(), {})
    if conn_id not in there:

        async def asked() -> Connection:
            try:
                return await ask(conn_id)
            finally:
                del there[conn_id]

        there[conn_id] = asyncio.create_task(asked())
        there[conn_id].add_done_callback(lambda task: task.cancelled() or task.exception())  # they may be gone
    return await asyncio.shield(there[conn_id])


class HeldClaim:
    """A claim that this task holds: what the body of ``@task.jetstream`` gets as ``claim``.

    ``value`` is what settling records when :meth:`JetStreamHook.processing` ends.
    """

    def __init__(
        self,
        hold: Hold,
        portal: BlockingPortal,
        connection: str,
        dead_letters: str | None = None,
        trace_context: Mapping[str, str] | None = None,
    ) -> None:
        self._hold = hold
        self._portal = portal
        self._connection = connection
        self._dead_letters = dead_letters
        self._sessions: list[SparkSession] = []
        self._ending = False
        self._letting_go: Future[None] | None = None
        self.value: Any = None
        self.trace_context: dict[str, str] = dict(trace_context or {})
        """W3C's headers of the hold's span, for engines that are told of it; empty where Airflow records no traces."""
        portal.call(hold.on_lost, lambda _: self._stop_work())

    def __repr__(self) -> str:
        return f"<HeldClaim {self.attempt_id}: {self.count} messages of {self.stream}>"

    @property
    def id(self) -> str:
        return self._hold.claim.id

    @property
    def attempt_id(self) -> str:
        """The key for output: write under it, and two attempts that overlap never share a place."""
        return self._hold.attempt_id

    @property
    def stream(self) -> str:
        return self._hold.claim.stream

    @property
    def consumer(self) -> str:
        return self._hold.claim.consumer

    @property
    def sequences(self) -> Sequences:
        return self._hold.claim.sequences

    @property
    def count(self) -> int:
        """How many messages are claimed."""
        return self._hold.claim.count

    @property
    def bytes(self) -> int:
        """The size of their payloads."""
        return self._hold.claim.bytes

    @property
    def lost(self) -> str:
        """Why the claim is not ours any more; empty while it is. Work that looks at it can stop early."""
        return self._hold.lost

    def read(self, spark: SparkSession) -> DataFrame:
        """A DataFrame of exactly the claimed messages: stream, subject, sequence, timestamp, headers, data."""
        from pyspark_jetstream import read_claim

        self._sessions.append(spark)
        messages = read_claim(spark, self._hold.claim, connection=self._connection)
        log.info("claim %s is read by Spark, %s: %d messages", self.id, _application(spark), self.count)
        for name, value in self.trace_context.items():
            with suppress(Exception):  # of this thread's jobs; Spark Connect has none
                spark.sparkContext.setLocalProperty(name, value)
        return messages

    def messages(self) -> Iterator[StoredMessage]:
        """Exactly the claimed messages, without Spark: for small claims. See :meth:`JetStreamHook.messages`."""
        from jetstream_handoff.messages import messages

        return messages(self._hold.settings, self._hold.claim)

    @property
    def rejected(self) -> Sequences:
        """What was rejected so far."""
        return self._hold.rejected

    def reject(
        self, sequences: SupportsIndex | Iterable[SupportsIndex] | Sequences | DataFrame, reason: str | None = None
    ) -> None:
        """These messages cannot be processed. When the work succeeds, they are copied with the reason to the
        dead-letter stream, and the rest is acknowledged; when it fails, nothing is rejected.

        sequences: one, or many; or a DataFrame with a column ``sequence``, which is collected here.
        reason:    why, in one line. By default what a DataFrame's column ``reason`` says of each, as the malformed
                   messages of :func:`pyspark_jetstream.decoded` have it.

        Raises:
            InvalidValue: a sequence that this claim does not hold, or no reason.
            DeadLettersUnsuitable: the dead-letter stream breaks a rule.
            HoldLost: the claim is not held any more.
        """
        for why, which in _by_reason(sequences, reason):
            with Brief():
                self._portal.call(self._hold.reject, which, why, self._dead_letters)

    @property
    def ended(self) -> bool:
        """Whether it was settled, failed or released by the work itself; the hold knows, wherever an alarm struck."""
        return self._hold.ended and not self.killed

    @property
    def killed(self) -> bool:
        """Whether :meth:`kill` let it go before it was settled."""
        return self._letting_go is not None

    def settle(self, value: Any = None) -> None:
        """See :meth:`jetstream_handoff.hold.Hold.settle`."""
        self._end(self._hold.settle, value)

    def fail(self, reason: str = "", *, blame: bool = True) -> None:
        """Give the claim up: its messages are delivered again. Counted against them unless ``blame`` is off."""
        self._end(partial(self._hold.fail, reason, blame=blame))

    def release(self, delay: timedelta | None = None) -> None:
        """Let go, for another attempt; without one its messages come again after ``delay``."""
        self._end(self._hold.release, delay)

    def kill(self) -> None:
        """Let go at once and stop what Spark does for it; settling is refused from now on. Returns immediately.

        A claim that is being settled at this moment is settled: its work is done.
        """
        if not self._ending:
            self._ending = True
            self._letting_go = self._portal.start_task_soon(self._hold.release)
            self._stop_work()

    def wait_for_kill(self) -> None:
        """Return when a claim that was killed has been let go, after 3 s at most."""
        if self._letting_go is not None:
            wait([self._letting_go], TO_LET_GO)

    def _end(self, function: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """One end for one hold, in the portal's thread.

        The alarm of a task time-out strikes the main thread: it waits until the claim has ended, and is raised then.
        """
        if self.killed:
            raise HoldLost(f"claim {self.id} was released when its task was killed")
        self._ending = True
        ending = self._portal.start_task_soon(function, *arguments)
        interruption: BaseException | None = None
        while not ending.done():
            try:
                wait([ending])
            except BaseException as error:  # noqa: BLE001 - raised below
                interruption = error
        self._ending = ending.exception() is None  # otherwise it is still held, and released on the way out
        if interruption is not None:
            raise interruption
        with Brief():
            ending.result()

    def _stop_work(self) -> None:
        # In a thread of its own: this one may be the event loop's, or in the middle of a call to the same JVM.
        for spark in self._sessions:
            threading.Thread(target=_cancel_jobs, args=[spark], daemon=True).start()


def _by_reason(
    rejected: SupportsIndex | Iterable[SupportsIndex] | Sequences | DataFrame, reason: str | None
) -> list[tuple[str, Sequences]]:
    if not _is_dataframe(rejected):
        return [(reason or "", _sequences(rejected))]
    for name in ("sequence",) if reason is not None else ("sequence", "reason"):
        if name not in rejected.columns:
            raise InvalidValue("sequences", rejected.columns, f"the rejected messages need a column {name}")
    if reason is not None:
        return [(reason, _sequences([row[0] for row in rejected.select("sequence").collect()]))]
    reasons: dict[str, list[int]] = {}
    for row in rejected.select("sequence", "reason").collect():
        reasons.setdefault(row[1] or "", []).append(row[0])
    return [(why, _sequences(which)) for why, which in reasons.items()]


def _is_dataframe(value: object) -> TypeGuard[DataFrame]:
    spark = sys.modules.get("pyspark.sql")  # whoever gives a DataFrame has it
    return spark is not None and isinstance(value, spark.DataFrame)


def _sequences(value: object) -> Sequences:
    """As a set of plain numbers: what comes out of a DataFrame may be NumPy's."""
    from jetstream_client.sequences import Sequences

    if isinstance(value, Sequences):
        return value
    try:
        many: Iterable[Any] = value if isinstance(value, Iterable) else [value]
        return Sequences.of(operator.index(each) for each in many)
    except TypeError:
        remedy = "give numbers of messages, e.g. [row.sequence for row in bad.collect()]"
        raise InvalidValue("sequences", type(value).__name__, remedy) from None


def _application(spark: SparkSession) -> str:
    """What Spark's own pages and logs call this session."""
    try:
        return f"application {spark.sparkContext.applicationId}"
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and says so in its own way
        return "a Connect session"


def _cancel_jobs(spark: SparkSession) -> None:
    with suppress(Exception):  # the session may be gone, which is as good
        spark.sparkContext.cancelAllJobs()


@asynccontextmanager
async def _hold(
    settings: ConnectionSettings, claim: Claim, try_number: int, longest_hold: timedelta, *, reprocess: bool
) -> AsyncIterator[Hold]:
    from jetstream_client import connect
    from jetstream_handoff.hold import Hold
    from jetstream_handoff.reprocess import Reprocess

    async with connect(settings) as js, AsyncExitStack() as stack:
        try:
            hold = await stack.enter_async_context(
                Hold.begin(js, claim, try_number=try_number, longest_hold=longest_hold)
            )
        except AlreadyDone:
            if not reprocess:
                raise
            hold = await stack.enter_async_context(
                Reprocess.begin(js, claim, try_number=try_number, longest_hold=longest_hold)
            )
        yield hold
