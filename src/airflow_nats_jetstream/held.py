"""A claim held while a synchronous task works on it: the hold's asynchronous calls, through a portal."""

from __future__ import annotations

import logging
import operator
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeGuard

from airflow_nats_jetstream.tracebacks import Brief
from jetstream_client.errors import InvalidValue
from jetstream_handoff.errors import AlreadyDone, HoldLost

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from pyspark.sql import DataFrame, SparkSession

    from jetstream_client.read.stored import StoredMessage
    from jetstream_client.sequences import Sequences
    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.hold import Hold

log = logging.getLogger(__name__)

TO_LET_GO = 3.0
"""Seconds that a killed task waits for its claim to be released; Airflow ends the process soon after."""


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
async def begun(
    settings: ConnectionSettings, claim: Claim, try_number: int, longest_hold: timedelta, *, reprocess: bool
) -> AsyncIterator[Hold]:
    """A hold on a connection of its own. With ``reprocess`` a claim that is settled is held once more."""
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
