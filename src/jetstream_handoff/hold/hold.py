# SPDX-License-Identifier: Apache-2.0
"""Hold: one attempt owns a claim while its work runs. A token names the attempt, and heartbeats renew the leases.

An attempt that continues in another process hands its hold over, and the other process resumes it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from jetstream_client.errors import InvalidValue, JetStreamError
from jetstream_client.sequences import Sequences
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.claim import KEEPER, new_token
from jetstream_handoff.durations import HAND_OFF_TIMEOUT, HEARTBEATS, LONGEST_HOLD
from jetstream_handoff.errors import AlreadyDone, HeldByAnother, HoldLost, OtherWork, Superseded
from jetstream_handoff.events import tell
from jetstream_handoff.hold import answers, settle
from jetstream_handoff.hold.completion import LEASE_ENDS, complete
from jetstream_handoff.hold.unchanged import check_unchanged, open_entry
from jetstream_handoff.ledger.changes import Changed
from jetstream_handoff.ledger.history import Attempt
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import SECOND_READ, check_value
from jetstream_handoff.ledger.work import UNKNOWN, Work
from jetstream_handoff.letters.dead_letters import DeadLetters, Holder
from jetstream_handoff.letters.letter import check_reason
from jetstream_handoff.rules import edited

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.ledger.history import Owner
    from jetstream_handoff.ledger.record import OpenEntry, Record

log = logging.getLogger(__name__)

_TO_RELEASE = 10.0  # seconds for a release at the end of the block
_NOT_OPEN = "it is no longer open in the ledger"


class Hold:
    """A held claim. Get one from :meth:`begin` or :meth:`resume`; end it with one of :meth:`settle`, :meth:`fail`,
    :meth:`skip`, :meth:`release`, :meth:`hand_over`.
    """

    again = False
    """Whether a settled claim is processed again."""
    leased = False
    """Whether the leases of the messages are known to last until the first heartbeat, after a fifth of ``ack_wait``.
    Otherwise :meth:`begin` renews them."""

    def __init__(  # noqa: PLR0917 - one value per line of the protocol
        self, ledger: Ledger, claim: Claim, token: str, ack_wait: float, longest_hold: timedelta, work: Work = UNKNOWN
    ) -> None:
        self.claim = claim
        self.work = work
        self.token = token
        self._ledger = ledger
        self._ack_wait = ack_wait
        self._longest = longest_hold.total_seconds()
        self.ended = False  # settled, failed, released or handed over
        self.lost = ""  # why the claim is no longer held; empty while it is
        self._when_lost: list[Callable[[str], None]] = []
        self._beats: asyncio.Task[None] | None = None
        self._rejected: dict[str, Sequences] = {}
        self._dead_letters: DeadLetters | None = None
        self._end: asyncio.TimerHandle | None = None
        self._entered = time.monotonic()  # at this time, the claim was already in the ledger
        self._renewed: datetime | None = None  # no heartbeat was sent after this time
        self._goes_on = False  # in another process, if this one does not end the hold
        self._taken_with: Mapping[str, Any] = {}  # what was kept of the consumer's configuration
        self._changes = ""  # what was changed in it since, as last seen; stays if it is set back

    @classmethod
    @asynccontextmanager
    async def begin(
        cls,
        js: JetStream,
        claim: Claim,
        *,
        try_number: int,
        token: str | None = None,
        longest_hold: timedelta = LONGEST_HOLD,
        holder: Owner = (),
        piece: Owner = (),
    ) -> AsyncIterator[Hold]:
        """Take over the claim from any earlier attempt of the same piece of work, and hold the claim until the end of
        the block.

        If the block does not end the hold, the claim is released without delay. But a keeper that is cancelled leaves a
        lease, because the work continues, and another keeper may hold the claim next.

        try_number:    the number of the task's try, which becomes part of the token. ``KEEPER`` means a keeper, which
                       takes a claim over only from another keeper.
        token:         the name of the attempt, if it has to be known before the claim is held
                       (:func:`~jetstream_handoff.claim.token_of`); default: ``try_number`` and a random number.
        longest_hold:  the hold is lost after this time; default: 24 hours.
        holder:        the task that holds the claim, for the claim's history; default: unknown.
        piece:         the piece of work for which it holds the claim (:mod:`.ledger.work`); default: the holder without
                       the number of its try.

        Raises:
            AlreadyDone: the claim was already settled by this piece of work; carries the recorded value. Before it is
                raised, messages that were left unacknowledged are acknowledged.
            OtherWork: another piece of work holds the claim, waits for a retry, or has settled it.
            Superseded: the claim is no longer open, or the stream or the consumer was deleted or recreated.
            HeldByAnother: an attempt holds the claim, and ``try_number`` is ``KEEPER``.
            ClaimInvalid: the claim differs from its entry in the ledger, or its acknowledgements would not go to the
                consumer that this connection finds.
            LedgerUnavailable: the ledger's buckets are missing, or this account cannot use them.
            PermissionDenied: this user is not permitted to acknowledge for this consumer, so the work must not begin.
        """
        ledger = Ledger(js, claim.stream, claim.consumer)
        await ledger.buckets.check()
        info = await check_unchanged(ledger, claim)
        token = token or new_token(try_number)
        keeps = try_number == KEEPER
        work = UNKNOWN if keeps else Work.of(holder, piece)

        def take_over(record: Record | None, info: ConsumerInfo) -> Changed[tuple[OpenEntry, ConsumerInfo]]:
            record, entry = open_entry(record, claim)
            found = entry, info
            if entry.token == token:
                return Changed(record, found)  # the claim was handed over to this attempt
            if not keeps:
                work.check_open(claim.id, entry.work, entry.attempts)
            elif not (entry.token or token).startswith(f"{KEEPER}-"):
                raise HeldByAnother(
                    f"claim {claim.id} is held by attempt {claim.id}-{entry.token}; wait until its work ends"
                )
            return Changed(record.held(claim.id, Attempt(token, info.now, holder), work.name), found)

        ack_wait = info.config["ack_wait"] / 1e9
        hold = Hold(ledger, claim, token, ack_wait, longest_hold, work)
        try:
            _, (entry, found) = await ledger.decide(take_over, claim.id, work)
        except AlreadyDone:
            await settle.acknowledge_again(ledger, claim)
            raise
        except asyncio.CancelledError:  # the token may have been written, although no attempt holds the claim
            await hold._complete_release(cancelled=True)
            raise
        hold._found(entry, found)
        async with hold._kept():
            if not cls.leased:
                await answers.negative(ledger, claim.sequences, timedelta(seconds=ack_wait))
            log.info("claim %s is held by attempt %s: %d messages", claim.id, token, claim.count)
            waited = (time_nanoseconds(info.now) - time_nanoseconds(claim.taken_at)) / 1e9
            if entry.token != token:
                tell("kept" if keeps else "held", claim, claim.count, claim=claim.id, seconds=waited)
            yield hold

    @classmethod
    @asynccontextmanager
    async def resume(
        cls,
        js: JetStream,
        claim: Claim,
        *,
        token: str,
        longest_hold: timedelta = LONGEST_HOLD,
        holder: Owner = (),
        piece: Owner = (),
    ) -> AsyncIterator[Hold]:
        """Continue an attempt's hold that was handed over, until the end of the block. Nothing is taken over.

        If the block does not end the hold, the claim is handed over again, with a lease of 15 minutes. If the hold was
        lost, the claim is released instead.

        token:         the name of the attempt.
        longest_hold:  the hold is lost after this time; default: 24 hours.
        holder, piece:  as for :meth:`begin`.

        Raises:
            HeldByAnother: another attempt holds the claim, or the claim was released.
            AlreadyDone, OtherWork, Superseded, ClaimInvalid, LedgerUnavailable, PermissionDenied: as :meth:`begin`.
        """
        ledger = Ledger(js, claim.stream, claim.consumer)
        await ledger.buckets.check()
        ack_wait = (await check_unchanged(ledger, claim)).config["ack_wait"] / 1e9

        def still_ours(record: Record | None, info: ConsumerInfo) -> Changed[tuple[OpenEntry, ConsumerInfo]]:
            record, entry = open_entry(record, claim)
            if entry.token != token:
                raise HeldByAnother(f"attempt {token} cannot continue with claim {claim.id}, because {_holder(entry)}")
            return Changed(record, (entry, info))

        work = Work.of(holder, piece)
        hold = Hold(ledger, claim, token, ack_wait, longest_hold, work)
        hold._goes_on = True
        _, found = await ledger.decide(still_ours, claim.id, work)
        hold._found(*found)
        async with hold._kept():
            await answers.negative(ledger, claim.sequences, timedelta(seconds=ack_wait))
            log.info("claim %s is held by attempt %s again: %d messages", claim.id, token, claim.count)
            yield hold

    @asynccontextmanager
    async def _kept(self) -> AsyncIterator[Self]:
        """Send heartbeats until the end of the block. Release the claim if the block did not end the hold, or hand it
        over again if the hold was resumed."""
        longest = self._longest
        self._beats = asyncio.create_task(self._keep())
        self._end = asyncio.get_running_loop().call_later(
            longest, self._lose, f"it was held for longer than longest_hold ({longest:g} s)"
        )
        cancelled = False
        try:
            yield self
        except asyncio.CancelledError:
            cancelled = True
            raise
        finally:
            if not self.ended and self._goes_on and not self.lost:
                leaving = self._quietly(self.hand_over(), f"claim {self.claim.id} was not handed over")
                await complete(leaving, _TO_RELEASE, f"handing over claim {self.claim.id}", self.until)
            elif not self.ended:
                await self._complete_release(cancelled=cancelled)

    @property
    def settings(self) -> ConnectionSettings:
        """The settings of the connection on which the claim is held."""
        return self._ledger.js.settings

    @property
    def _is_keeper(self) -> bool:
        return self.token.startswith(f"{KEEPER}-")

    @property
    def attempt_id(self) -> str:
        """The key for the output of this attempt. Two attempts that overlap never share it."""
        return f"{self.claim.id}-{self.token}"

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Call ``callback(reason)`` in the event loop when the hold is lost."""
        self._when_lost.append(callback)
        if self.lost:
            callback(self.lost)

    @property
    def rejected(self) -> Sequences:
        """The sequences rejected so far."""
        return Sequences.from_ranges(each for some in self._rejected.values() for each in some.ranges)

    async def skipped(self) -> Sequences:
        """The sequences that this attempt has skipped so far, because their messages no longer exist."""
        return await self._ledger.receipts.skipped(self.claim.id, self.token) & self.claim.sequences

    async def reject(self, sequences: Sequences, reason: str, dead_letters: str | None = None) -> None:
        """Reject messages that cannot be processed.

        Settling the claim copies them with the reason to the dead-letter stream and terminates them. Any other end of
        the hold rejects nothing. If a message is rejected several times, the first reason counts.

        dead_letters: the dead-letter stream, which is created here if it does not exist; default: ``DEAD_<stream>``.

        Raises:
            InvalidValue, DeadLettersUnsuitable, HoldLost: as :meth:`~.blocking.BlockingHold.reject`.
        """
        self._still_held()
        reason = check_reason(reason)
        if foreign := sequences - self.claim.sequences:
            remedy = f"claim {self.claim.id} does not contain them; reject only sequences of this claim"
            raise InvalidValue("sequences", str(foreign), remedy)
        if self._dead_letters is None:
            letters = DeadLetters(self._ledger.js, self.claim.stream, dead_letters)
            await letters.ensure()
            self._dead_letters = letters
        self._rejected[reason] = self._rejected.get(reason, Sequences()) | (sequences - self.rejected)

    async def fence(self) -> None:
        """Confirm, with a write to the ledger, that no newer attempt has taken the claim over.

        An attempt that looks at an output, then calls this, and then writes with a compare-and-set against the look
        never replaces what a newer attempt has written.

        Raises:
            HeldByAnother: a newer attempt holds the claim, or the claim was released.
            AlreadyDone, OtherWork, Superseded: the claim is no longer open.
            HoldLost: the hold was lost, or has already ended.
            LedgerUnavailable: the ledger cannot be written.
        """
        self._still_held()
        with self._fenced():
            await settle.confirm(self._ledger, self.claim, self.token, self.work)

    async def settle(self, value: Any = None) -> None:
        """Settle the claim after its work has succeeded. See :func:`settle.settle_done`.

        Rejected messages are first copied to the dead-letter stream. Then the ledger records the claim as done, with
        ``value``, which must be JSON. Then its messages are acknowledged.

        Raises:
            HoldLost: the hold was lost, or has already ended.
        """
        check_value(value)
        self._still_held()
        if self._dead_letters is not None:
            holder = Holder(self._ledger, self.claim, self.token)
            await self._dead_letters.copy(holder, self._rejected)  # heartbeats continue during this
            self._still_held()
        await self._stop_beats()
        with self._fenced():
            of = (self._ledger, self.claim, self.token)
            await settle.settle_done(*of, value, self.rejected, entered=self._entered, work=self.work)
        self.ended = True

    async def fail(self, reason: str = "", *, blame: bool = True) -> None:
        """Fail the claim after its last attempt: the messages are redelivered to the next take.

        The failure is counted against the messages unless ``blame`` is false (:mod:`.ledger.failures`).
        """
        self._still_held()
        await self._stop_beats()
        with self._fenced():
            of = (self._ledger, self.claim, self.token)
            await settle.settle_failed(*of, reason, blame=blame, work=self.work)
        self.ended = True

    async def release(self, delay: timedelta | None = None) -> None:
        """Release the claim for another attempt. If no attempt has held it by the end of ``delay``, its messages are
        redelivered. Without a ``delay`` they are redelivered at once."""
        await self._stop_beats()
        self.ended = True
        await settle.release(self._ledger, self.claim, self.token, delay)

    async def skip(self) -> None:
        """Release the claim, because the attempt has skipped its work: the messages are redelivered to the next take.

        The ledger remembers that the claim ended neither settled nor failed.
        """
        self._still_held()
        await self._stop_beats()
        self.ended = True
        await settle.release(self._ledger, self.claim, self.token, skipped=True)

    async def hand_over(self, lease: timedelta = HAND_OFF_TIMEOUT) -> None:
        """End the hold in this process, so that another process can :meth:`resume` it with the same token.

        In the ledger, the attempt still holds the claim. If no process has resumed the hold by the end of ``lease``,
        the messages are redelivered, and the next take supersedes the claim. If the server does not answer, the end of
        the block tries again, and does not release the claim.

        lease:  default: 15 minutes.

        Raises:
            HoldLost: the attempt no longer holds the claim, so no process can resume the hold.
        """
        self._still_held()
        self._goes_on = True  # also if the server does not answer now
        await self._stop_beats()
        if reason := await self._surely_lost():
            self._lose(reason)
            self._still_held()
        await answers.negative(self._ledger, self.claim.sequences, lease)
        self.ended = True
        log.info("claim %s is handed over with attempt %s: %d messages", self.claim.id, self.token, self.claim.count)
        tell("handed_over", self.claim, self.claim.count, claim=self.claim.id)

    async def _complete_release(self, *, cancelled: bool) -> None:
        delay = HAND_OFF_TIMEOUT if cancelled and self._is_keeper else None
        await complete(self.let_go(delay), _TO_RELEASE, f"releasing claim {self.claim.id}", self.until)

    async def let_go(self, delay: timedelta | None = None) -> None:
        """Release the claim. An error is only logged."""
        await self._quietly(self.release(delay), self.unreleased)

    async def _quietly(self, ending: Awaitable[None], failed: str) -> None:
        """End the hold. An error is only logged. If it were raised, it would hide the error that ended the work, or
        nothing would catch it.

        failed:  what an error means, in words.
        """
        try:
            await ending
        except Exception as error:
            expected = isinstance(error, JetStreamError)
            log.warning("%s: %s; %s", failed, error, self.until, exc_info=not expected)

    @property
    def unreleased(self) -> str:
        return f"claim {self.claim.id} of consumer {self.claim.consumer}, stream {self.claim.stream}, was not released"

    @property
    def until(self) -> str:
        """The consequence, in words, if the claim could not be released."""
        if self._renewed is None:
            return LEASE_ENDS
        ends = self._renewed + timedelta(seconds=self._ack_wait)
        return f"its lease ends at {ends:%Y-%m-%d %H:%M:%S} UTC at the latest, and its messages are redelivered"

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        """Report the event "lost" if this attempt cannot settle or fail the claim, because it no longer holds the
        claim. If its consumer was changed, the error says so."""
        try:
            yield
        except (AlreadyDone, OtherWork, Superseded, HeldByAnother) as error:
            tell("lost", self.claim, self.claim.count, claim=self.claim.id)
            if isinstance(error, Superseded) and self._changes and self._changes not in str(error):
                error.args = (f"{error}; {edited.said(self._changes)}",)
            raise

    def _still_held(self) -> None:
        if self.lost:
            raise HoldLost(f"claim {self.claim.id} is no longer held by attempt {self.token}: {self.lost}")
        if self.ended:
            raise HoldLost(
                f"attempt {self.token} has already ended here: claim {self.claim.id} was settled, released or handed "
                "over, or has failed"
            )

    async def _stop_beats(self) -> None:
        if self._end is not None:
            self._end.cancel()
        beats, self._beats = self._beats, None
        if beats is not None:
            beats.cancel()
            await asyncio.wait([beats])
            self._renewed = datetime.now(UTC)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._ack_wait / HEARTBEATS)
            if self.lost:
                return
            try:
                await self._beat()
                await self._look()
                if reason := await self._surely_lost():
                    self._lose(reason)
            except Exception as error:
                if self._ledger.js.connection.closed:
                    self._lose(str(error))
                else:  # try again after any error, because without heartbeats the messages go to another client
                    expected = isinstance(error, JetStreamError)
                    text = "a heartbeat of claim %s failed and is tried again: %s"
                    log.warning(text, self.claim.id, error, exc_info=not expected)

    async def _beat(self) -> None:
        await answers.in_progress(self._ledger, self.claim.sequences, self.claim.consumer_sequence)

    async def _surely_lost(self) -> str:
        """Return why the claim is no longer held, if two reads say so; else an empty string."""
        if not await self._why_lost():
            return ""
        await asyncio.sleep(SECOND_READ)
        reason = await self._why_lost()
        if reason != _NOT_OPEN:
            return reason
        await self._look()
        changes = self._changes
        with suppress(JetStreamError):
            receipt = None if changes else await self._ledger.receipts.read(self.claim.id)
            changes = receipt.changed if receipt else changes
        return f"{reason}; {edited.said(changes)}" if changes else reason

    async def _look(self) -> None:
        """Notice what was changed in the consumer. It may be set back, or be deleted, before the claim is lost."""
        with suppress(JetStreamError):  # without an answer, nothing is known
            self._notice(await self._ledger.consumer.info())

    def _found(self, entry: OpenEntry, info: ConsumerInfo) -> None:
        age = time_nanoseconds(info.now) - time_nanoseconds(entry.at)
        # A time at which the claim was already in the ledger. The server's clock may have been set back since.
        self._entered = time.monotonic() - max(0, age) / 1e9
        self._taken_with = entry.config
        self._notice(info)

    def _notice(self, info: ConsumerInfo) -> None:
        changes = edited.changed(self._taken_with, info.config)
        if changes and changes != self._changes:
            log.warning("claim %s is held, but %s", self.claim.id, edited.said(changes))
            self._changes = changes

    async def _why_lost(self) -> str:
        record, _ = await self._ledger.read()
        entry = record.open.get(self.claim.id) if record else None
        if entry is None:
            return _NOT_OPEN
        return "" if entry.token == self.token else _holder(entry)

    def _lose(self, reason: str) -> None:
        if self.lost:
            return
        log.error("claim %s is no longer held by attempt %s: %s", self.claim.id, self.token, reason)
        self.lost = reason
        if not self._is_keeper:  # any attempt may take over from a keeper, and the work continues
            tell("lost", self.claim, self.claim.count, claim=self.claim.id)
        for callback in self._when_lost:
            callback(reason)


def _holder(entry: OpenEntry) -> str:
    return f"attempt {entry.token} now holds it" if entry.token else "it was released"
