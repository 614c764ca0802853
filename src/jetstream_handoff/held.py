"""A claim that a synchronous task holds: a portal's event loop sends the heartbeats while the task's thread works.

Loading this file loads neither nats-py nor the hold: orchestrators import it whenever they parse a task.
"""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from jetstream_client.errors import InvalidValue
from jetstream_handoff.durations import LONGEST_HOLD
from jetstream_handoff.errors import AlreadyDone, HoldLost

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from jetstream_client.read.message import StoredMessage
    from jetstream_client.sequences import Sequences
    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.hold import Hold

log = logging.getLogger(__name__)

_RELEASE_TIMEOUT = 3.0
"""Seconds that a killed task waits for its claim to be released: the orchestrator ends the process soon after."""


class HeldClaim:
    """A claim that this task holds. Get one from :meth:`begin`; end it with one of :meth:`settle`, :meth:`fail`,
    :meth:`release`.
    """

    def __init__(self, hold: Hold, portal: BlockingPortal, dead_letters: str | None = None) -> None:
        self.claim = claim = hold.claim
        self.id, self.stream, self.consumer, self.sequences = claim.id, claim.stream, claim.consumer, claim.sequences
        self.count = claim.count
        """How many messages are claimed."""
        self.bytes = claim.bytes
        """The size of their payloads."""
        self.attempt_id = hold.attempt_id
        """The key for output: write under it, and two attempts that overlap never share a place."""
        self._hold = hold
        self._portal = portal
        self._dead_letters = dead_letters
        self._when_stopped: list[Callable[[], None]] = []
        self._ending = False
        self._releasing: Future[None] | None = None
        portal.call(hold.on_lost, lambda _: self._stop_work())

    @classmethod
    @contextmanager
    def begin(
        cls,
        settings: ConnectionSettings,
        claim: Claim,
        *,
        try_number: int,
        longest_hold: timedelta = LONGEST_HOLD,
        dead_letters: str | None = None,
        reprocess: bool = False,
    ) -> Iterator[Self]:
        """Hold a claim on a separate connection until the end of the block, and release it unless the block ended it.

        longest_hold:  a hold that lasts longer is lost.
        dead_letters:  the stream for what is rejected, by default ``DEAD_<stream>``.
        reprocess:     hold a claim that is already settled once more, instead of raising AlreadyDone; raises
                       MessagesMissing when its stream does not contain all of its messages any more.
        """
        from anyio.from_thread import start_blocking_portal

        from jetstream_handoff.dead_letters import dead_letters_of

        dead_letters_of(claim.stream, dead_letters)
        holding = _hold(settings, claim, try_number, longest_hold, reprocess=reprocess)
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(holding) as hold:
            held = cls(hold, portal, dead_letters)
            try:
                yield held
            finally:
                if held._releasing is not None and wait([held._releasing], _RELEASE_TIMEOUT).not_done:
                    log.warning("%s within %g s; %s", hold.unreleased, _RELEASE_TIMEOUT, hold.until)

    def __repr__(self) -> str:
        return f"<HeldClaim {self.attempt_id}: {self.count} messages of {self.stream}>"

    @property
    def lost(self) -> str:
        """Why the claim is not held any more; empty while it is. Work that checks it can stop early."""
        return self._hold.lost

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` in a separate thread when the work has to stop, because the claim was lost or killed."""
        self._when_stopped.append(callback)

    def messages(self) -> Iterator[StoredMessage]:
        """Exactly the claimed messages, without Spark: for small claims. See
        :func:`jetstream_handoff.messages.messages`."""
        from jetstream_handoff.messages import messages

        return messages(self._hold.settings, self.claim)

    @property
    def rejected(self) -> Sequences:
        """What was rejected so far."""
        return self._hold.rejected

    def reject(self, sequences: SupportsIndex | Iterable[SupportsIndex] | Sequences, reason: str) -> None:
        """Reject messages that cannot be processed. When the work succeeds, they are copied with the reason to the
        dead-letter stream, and the rest is acknowledged; when it fails, nothing is rejected.

        sequences: one, or many.
        reason:    why, in one line.

        Raises:
            InvalidValue: a sequence that this claim does not hold, or no reason.
            DeadLettersUnsuitable: the dead-letter stream breaks a rule.
            HoldLost: the claim is not held any more.
        """
        self._portal.call(self._hold.reject, _sequences(sequences), reason, self._dead_letters)

    @property
    def ended(self) -> bool:
        """Whether the work itself settled, failed or released it. The hold knows, whenever an alarm struck."""
        return self._hold.ended and not self.killed

    @property
    def killed(self) -> bool:
        """Whether :meth:`kill` released it before it was settled."""
        return self._releasing is not None

    def settle(self, value: Any = None) -> None:
        """See :meth:`jetstream_handoff.hold.Hold.settle`."""
        self._end(self._hold.settle, value)

    def fail(self, reason: str = "", *, blame: bool = True) -> None:
        """Give the claim up: its messages are delivered again. Counted against them unless ``blame`` is off."""
        self._end(partial(self._hold.fail, reason, blame=blame))

    def release(self, delay: timedelta | None = None) -> None:
        """Release it for another attempt. Without one its messages are redelivered after ``delay``."""
        self._end(self._hold.release, delay)

    def kill(self) -> None:
        """Release it at once and stop its work; settling is refused from now on. Returns immediately.

        A claim that is being settled at this moment is settled: its work is done.
        """
        if not self._ending:
            self._ending = True
            self._releasing = self._portal.start_task_soon(self._hold.let_go)
            self._stop_work()

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
        ending.result()

    def _stop_work(self) -> None:
        # Not in this thread: it may be the event loop's, or in the middle of a call that the callback would wait for.
        for callback in self._when_stopped:
            threading.Thread(target=callback, daemon=True).start()


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


@asynccontextmanager
async def _hold(
    settings: ConnectionSettings, claim: Claim, try_number: int, longest_hold: timedelta, *, reprocess: bool
) -> AsyncIterator[Hold]:
    from jetstream_client import connect
    from jetstream_handoff.hold import Hold
    from jetstream_handoff.reprocess import Reprocess

    async with connect(settings) as js, AsyncExitStack() as stack:
        try:
            holding = Hold.begin(js, claim, try_number=try_number, longest_hold=longest_hold)
            hold = await stack.enter_async_context(holding)
        except AlreadyDone:
            if not reprocess:
                raise
            holding = Reprocess.begin(js, claim, try_number=try_number, longest_hold=longest_hold)
            hold = await stack.enter_async_context(holding)
        yield hold
