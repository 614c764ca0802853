# SPDX-License-Identifier: Apache-2.0
"""A claim that a synchronous task holds: a portal's event loop sends the heartbeats while the task's thread works.

Importing this module does not load :mod:`.hold`, because orchestrators import it to parse a task.
"""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self, SupportsIndex

from jetstream_client.errors import InvalidValue
from jetstream_client.stores.reference import MAX_SIZE, Objects
from jetstream_handoff.durations import HAND_OFF_TIMEOUT, LONGEST_HOLD
from jetstream_handoff.errors import AlreadyDone, HoldLost
from jetstream_handoff.rules.missing import Missing, check_missing

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from jetstream_client.read.message import RawMessages, StoredMessage
    from jetstream_client.sequences import Sequences
    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.hold.hold import Hold
    from jetstream_handoff.hold.table import Appended, Table
    from jetstream_handoff.ledger.history import Owner

log = logging.getLogger(__name__)

_RELEASE_TIMEOUT = 3.0
"""Seconds that a killed task waits for the release of its claim: only a few, because the orchestrator soon ends the
task's process."""


class BlockingHold:
    """A claim that this task holds. Get one from :meth:`begin`; end it with one of :meth:`settle`, :meth:`fail`,
    :meth:`skip`, :meth:`release`, :meth:`hand_over`.
    """

    def __init__(
        self, hold: Hold, portal: BlockingPortal, dead_letters: str | None = None, missing: Missing = "error"
    ) -> None:
        self.claim = claim = hold.claim
        self.id = claim.id
        """Id of the claim."""
        self.stream = claim.stream
        """Name of the stream that the messages are in."""
        self.consumer = claim.consumer
        """Name of the consumer that delivered the messages."""
        self.sequences = claim.sequences
        """Stream sequences of the claimed messages."""
        self.count = claim.count
        """Number of claimed messages."""
        self.bytes = claim.bytes
        """Sum of the messages' sizes, in bytes."""
        self.attempt_id = hold.attempt_id
        """The name under which the work writes its output, so that two attempts that overlap never write to the same
        place."""
        self.missing = missing
        """What reading the claim does with messages that no longer exist: ``"error"`` or ``"skip"``."""
        self.appended: dict[str, Sequences] = {}
        """The sequences of messages whose rows :meth:`append_to` was called with, by the name of the table."""
        self.stored: dict[str, Sequences] = {}
        """The sequences of messages of this claim that :meth:`append_to` has found in a table or written to it, by the
        name of the table."""
        self._hold = hold
        self._portal = portal
        self._dead_letters = dead_letters
        self._when_stopped: list[Callable[[], None]] = []
        self._when_ended: list[Callable[[], None]] = []
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
        token: str | None = None,
        resume: bool = False,
        longest_hold: timedelta = LONGEST_HOLD,
        dead_letters: str | None = None,
        reprocess: bool = False,
        missing: Missing = "error",
        holder: Owner = (),
        piece: Owner = (),
    ) -> Iterator[Self]:
        """Hold a claim on a separate connection until the end of the block. Release it if the block did not end the
        hold.

        try_number:    the number of the task's try, from 1, which becomes part of the token.
        token:         the name of the attempt, if it has to be known before the claim is held
                       (:func:`~jetstream_handoff.claim.token_of`); default: ``try_number`` and a random number.
        resume:        whether to continue the hold of the attempt ``token``, which was handed over, instead of taking
                       the claim over; default: False. See :meth:`~jetstream_handoff.hold.hold.Hold.resume`.
        longest_hold:  the hold is lost after this time; default: 24 hours.
        dead_letters:  the dead-letter stream for rejected messages; default: ``DEAD_<stream>``.
        reprocess:     whether to reprocess a claim that is already settled, instead of raising AlreadyDone.
                       MessagesMissing is then raised if the stream no longer contains all messages of the claim, except
                       those that became dead letters.
        missing:       what reading the claim does with messages that no longer exist: ``"error"`` (default) fails;
                       ``"skip"`` reads the others, and the receipt names the missing ones.
        holder:        the task that holds the claim, for the claim's history; default: unknown.
        piece:         the piece of work for which it holds the claim: what is the same over retries, clears and re-runs
                       (:mod:`~jetstream_handoff.ledger.work`); default: the holder without the number of its try.
        """
        from anyio.from_thread import start_blocking_portal

        from jetstream_client.quantities import check_count
        from jetstream_handoff.letters.dead_letters import dead_letters_of

        check_count("try_number", try_number)  # 0 names a keeper
        missing = check_missing(missing)
        dead_letters_of(claim.stream, dead_letters)
        options = {"token": token, "longest_hold": longest_hold, "holder": holder, "piece": piece}
        if resume:
            holding = _resumed(settings, claim, options)
        else:
            holding = _hold(
                settings, claim, {"try_number": try_number, **options}, reprocess=reprocess, missing=missing
            )
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(holding) as hold:
            held = cls(hold, portal, dead_letters, missing)
            try:
                yield held
            finally:
                for callback in held._when_ended:
                    try:
                        callback()
                    except Exception:  # an error of a callback does not change how the claim ended
                        log.exception("claim %s: a callback passed to on_end() failed", claim.id)
                if held._releasing is not None and wait([held._releasing], _RELEASE_TIMEOUT).not_done:
                    log.warning("%s within %g s; %s", hold.unreleased, _RELEASE_TIMEOUT, hold.until)

    def __repr__(self) -> str:
        return f"<BlockingHold {self.attempt_id}: {self.count} messages of {self.stream}>"

    @property
    def lost(self) -> str:
        """Why the hold was lost; empty if it was not. Work that checks this can stop early."""
        return self._hold.lost

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` in a separate thread when the work has to stop because the claim was lost or the task
        was killed.

        Raises:
            HoldLost: the claim is already lost, or the task was already killed.
        """
        self._when_stopped.append(callback)
        self.check_held()

    def check_held(self) -> None:
        """Check that the work may go on.

        Raises:
            HoldLost: the claim was lost, or the task was killed.
        """
        if self.lost or self.killed:
            reason = f"is no longer held: {self.lost}" if self.lost else "was released when its task was killed"
            raise HoldLost(f"claim {self.id} {reason}")

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` at the end of the block, in the block's thread, whether the claim was settled or not."""
        self._when_ended.append(callback)

    def messages(self, *, objects: str | None = None, max_object_size: int = MAX_SIZE) -> Iterator[StoredMessage]:
        """Read exactly the claimed messages without Spark, which suits small claims. See
        :func:`jetstream_handoff.hold.messages.messages`.

        objects:          the name of the object store with the payloads of messages that refer to an object. Default
                          None: these messages are read as they are.
        max_object_size:  the largest object that is read, in bytes. Default 64 MiB.

        Raises:
            ReferencesUnresolved: the objects of some messages cannot be read. Raised by the iterator after all other
                messages. Its attribute ``reasons`` contains the reasons, with which :meth:`reject` can be called.
            BucketNotFound: the object store does not exist.
            MessagesMissing: some messages no longer exist, and :attr:`missing` is ``"error"``. Raised by the iterator
                after all other messages.
            HoldLost: messages were to be skipped, and the claim is no longer held.
        """
        from jetstream_handoff.hold.messages import messages
        from jetstream_handoff.ledger.skipped import report

        settings = self._hold.settings
        skip = partial(report, settings, self.claim, self._hold.token)
        wanted = None if objects is None else Objects(objects, max_object_size)
        return messages(settings, self.claim, missing=self.missing, skip=skip, objects=wanted)

    def stored_messages(self, sequences: Sequences) -> Iterator[RawMessages]:
        """Read some of the claimed messages as the stream has them, undecoded. Those that no longer exist are left out,
        and nothing is recorded about them.

        sequences:  which messages.
        """
        from jetstream_client.read.direct import read
        from jetstream_handoff.rules.missing import reading

        batches = read(self._hold.settings, self.stream, sequences, self.claim.stream_created)
        return reading(batches, "skip", lambda _: None)

    @property
    def rejected(self) -> Sequences:
        """The sequences rejected so far."""
        return self._hold.rejected

    def reject(self, sequences: SupportsIndex | Iterable[SupportsIndex] | Sequences, reason: str) -> None:
        """Reject messages that cannot be processed.

        When the claim is settled, they are copied with the reason to the dead-letter stream and terminated, and all
        others are acknowledged. If the work fails, nothing is rejected.

        sequences: one stream sequence, or several.
        reason:    why they cannot be processed, in one line.

        Raises:
            InvalidValue: a sequence is not in the claim, the reason is empty, or the claim is being reprocessed.
            DeadLettersUnsuitable: the dead-letter stream breaks a rule.
            HoldLost: the claim is no longer held.
        """
        rejected = _sequences(sequences)
        for table, stored in self.stored.items():
            if late := rejected & stored:
                remedy = f"these messages are already in table {table}; delete their rows first"
                raise InvalidValue("sequences", str(late), remedy)
        self._portal.call(self._hold.reject, rejected, reason, self._dead_letters)

    def append_to(
        self,
        table: Table,
        rows: Any,
        *,
        rejected: Mapping[str, Any] | None = None,
        every_message: bool = True,
    ) -> Appended:
        """Append rows to a table that contains each message once, whatever happens to this attempt or to others. See
        :meth:`pyspark_jetstream.held_claim.HeldClaim.append_to`.

        table:          the table, such as :class:`jetstream_tables.DeltaTable`.
        rows:           anything with ``__arrow_c_stream__``.
        rejected:       sequences by reason, which :meth:`reject` gets before the commit. Default None.
        every_message:  whether it is an error if a message has neither a row, nor is rejected. Default True.
        """
        return self._write(table, rows, lambda: rejected or {}, every_message=every_message)

    def replace_in(
        self,
        table: Table,
        rows: Any,
        *,
        rejected: Mapping[str, Any] | None = None,
        every_message: bool = True,
    ) -> Appended:
        """Replace the rows of the claim's messages in a table that contains each message once. See
        :meth:`pyspark_jetstream.held_claim.HeldClaim.replace_in`.

        table, rows, rejected:  as for :meth:`append_to`.
        every_message:          as for :meth:`append_to`. The earlier rows of messages without a row are removed.
        """
        return self._write(table, rows, lambda: rejected or {}, every_message=every_message, replace=True)

    def _write(
        self,
        table: Table,
        rows: Any,
        rejected: Callable[[], Mapping[str, Any]],
        *,
        every_message: bool,
        replace: bool = False,
    ) -> Appended:
        def by_reason() -> dict[str, Sequences]:
            return {reason: _sequences(some) for reason, some in rejected().items()}

        appended = table.append(self, rows, rejected=by_reason, every_message=every_message, replace=replace)
        if self._hold.again and appended.already and not replace:
            text = (
                "claim %s is processed again, and %d of its messages were in table %s already: their rows stay, which "
                "replace_in would have replaced"
            )
            log.warning(text, self.id, appended.already.count, table.name)
        return appended

    def fence(self) -> None:
        """Confirm, with a write to the ledger, that no newer attempt has taken the claim over. See
        :meth:`jetstream_handoff.hold.hold.Hold.fence`."""
        self._portal.call(self._hold.fence)

    def skipped(self) -> Sequences:
        """The sequences of messages that reading the claim has skipped so far, because they no longer exist."""
        return self._portal.call(self._hold.skipped)

    @property
    def ended(self) -> bool:
        """Whether the work itself settled, failed, released or handed over the claim. This is True even if a time-out
        of the task interrupted the call."""
        return self._hold.ended and not self.killed

    @property
    def killed(self) -> bool:
        """Whether :meth:`kill` released the claim before it was settled."""
        return self._releasing is not None

    def settle(self, value: Any = None) -> None:
        """Record the claim as done with a JSON value, then acknowledge its messages. See
        :meth:`jetstream_handoff.hold.hold.Hold.settle`.

        value:  the JSON value. Default None.
        """
        self._end(self._hold.settle, value)

    def fail(self, reason: str = "", *, blame: bool = True) -> None:
        """Fail the claim: its messages are redelivered.

        reason:  why the work failed. For a claim of one message, the message's dead letter contains the reason.
        blame:   whether the failure counts against the messages. Default True.
        """
        self._end(partial(self._hold.fail, reason, blame=blame))

    def skip(self) -> None:
        """Release the claim, because its work was skipped: its messages are redelivered to the next take. The ledger
        remembers that the claim ended neither settled nor failed."""
        self._end(self._hold.skip)

    def release(self, delay: timedelta | None = None) -> None:
        """Release the claim for another attempt. If no attempt has held it by the end of ``delay``, its messages are
        redelivered. Without a ``delay`` they are redelivered at once."""
        self._end(self._hold.release, delay)

    def hand_over(self, lease: timedelta = HAND_OFF_TIMEOUT) -> None:
        """End the hold in this process, so that another process can continue the attempt. See
        :meth:`jetstream_handoff.hold.hold.Hold.hand_over`.

        lease:  how long the messages wait for that process. Default 15 minutes.
        """
        self._end(self._hold.hand_over, lease)

    def kill(self) -> None:
        """Release the claim at once and stop its work. From now on settling is refused. Returns immediately.

        If the claim is being settled at that moment, it is still settled, because its work is done.
        """
        if not self._ending:
            self._ending = True
            self._releasing = self._portal.start_task_soon(self._hold.let_go)
            self._stop_work()

    def _end(self, function: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """End the hold in the portal's thread, once.

        A time-out of the task interrupts the main thread, but is raised only when the hold has ended.
        """
        if self.killed:
            raise HoldLost(f"claim {self.id} was already released when its task was killed")
        self._ending = True
        done: Future[None] = Future()
        begun: list[bool] = []

        async def end() -> None:
            if begun:
                return  # a time-out interrupted the first call of start_task_soon() when it had already taken effect
            begun.append(True)
            try:
                await function(*arguments)
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)
                raise

        started = False
        interruption: BaseException | None = None
        while not done.done():
            try:
                if not started:
                    self._portal.start_task_soon(end)
                    started = True
                wait([done])
            except BaseException as error:  # noqa: BLE001 - raised below
                interruption = error
        self._ending = done.exception() is None  # after an error, the claim is held until the end of the block
        if interruption is not None:
            raise interruption
        done.result()

    def _stop_work(self) -> None:
        # Use other threads: the current thread may run the event loop, or a call that the callback would wait for.
        for callback in self._when_stopped:
            threading.Thread(target=callback, daemon=True).start()


def _sequences(value: object) -> Sequences:
    """Return the sequences as plain integers, because a DataFrame may contain integers of NumPy."""
    from jetstream_client.sequences import Sequences

    if isinstance(value, Sequences):
        return value
    try:
        many: Iterable[Any] = value if isinstance(value, Iterable) else [value]
        return Sequences.of(operator.index(each) for each in many)
    except TypeError:
        remedy = (
            "this value does not consist of whole numbers; give stream sequences, for example [row.sequence for row "
            "in bad.collect()]"
        )
        raise InvalidValue("sequences", type(value), remedy) from None


@asynccontextmanager
async def _hold(
    settings: ConnectionSettings, claim: Claim, options: Mapping[str, Any], *, reprocess: bool, missing: Missing
) -> AsyncIterator[Hold]:
    from jetstream_client import connect
    from jetstream_handoff.hold.hold import Hold
    from jetstream_handoff.hold.reprocess import Reprocess

    async with connect(settings) as js, AsyncExitStack() as stack:
        try:
            hold = await stack.enter_async_context(Hold.begin(js, claim, **options))
        except AlreadyDone:
            if not reprocess:
                raise
            hold = await stack.enter_async_context(Reprocess.begin(js, claim, missing=missing, **options))
        yield hold


@asynccontextmanager
async def _resumed(settings: ConnectionSettings, claim: Claim, options: Mapping[str, Any]) -> AsyncIterator[Hold]:
    from jetstream_client import connect
    from jetstream_handoff.hold.hold import Hold

    async with connect(settings) as js, Hold.resume(js, claim, **options) as hold:
        yield hold
