"""Our own reset: everything from a sequence on is delivered and processed again, and nothing late swallows it.

A reset by anybody else is only noticed afterwards. This one first makes sure that nothing is on its way which the
consumer's next life would mistake for its own (docs/handoff.md). Each step is safe when nothing follows it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences, check_sequence
from jetstream_client.times import time_nanoseconds
from jetstream_handoff import answers
from jetstream_handoff.errors import ResetRefused
from jetstream_handoff.ledger import PATIENCE
from jetstream_handoff.moment import Moment
from jetstream_handoff.record import Record

if TYPE_CHECKING:
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.ledger import Ledger

log = logging.getLogger(__name__)

QUIET = answers.CONFIRMED_WITHIN
"""Seconds after which an acknowledgement that was tested before the new life has arrived, or been given up."""
UNDER_WAY = 60.0
"""Seconds after which a reset that did not end is taken for dead, so that another may begin."""
AT_ONCE = 0.5
"""Seconds within which the reset follows the last check: half of what a claim must be old before it can be settled."""


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset did, or would do.

    sequence:    the stream sequence from which on everything is delivered again.
    superseded:  claims that were open: whoever holds them is fenced.
    forgotten:   messages above the floor that were settled: those from the sequence on are processed again.
    pending:     how many messages the consumer now has to deliver.
    """

    stream: str
    consumer: str
    sequence: int
    superseded: tuple[str, ...]
    forgotten: Sequences
    pending: int


class _Settled(Exception):
    """A claim was settled since acknowledgements were last confirmed."""


async def plan(ledger: Ledger, sequence: int | None = None, *, claims: bool = True) -> Reset:
    """What :func:`reset` would do at this moment; ``pending`` is what the consumer has not delivered yet. Without
    ``claims`` what :func:`reset_unclaimed` would do.

    Raises:
        as :func:`reset`, for what can be known without doing it.
    """
    if claims:
        await ledger.check()
    else:
        await _check_unclaimed(ledger)
    info = await _allowed(ledger, sequence)
    record, _ = await ledger.read() if claims else (None, 0)
    superseded, forgotten = (tuple(record.open), record.all_settled.sequences) if record else ((), Sequences())
    return Reset(*ledger.names, sequence or info.floor + 1, superseded, forgotten, info.pending)


async def reset(ledger: Ledger, sequence: int | None = None, *, patience: float = PATIENCE) -> Reset:
    """Deliver everything from ``sequence`` on again; without one, everything that is not acknowledged or comes after
    something that is not. Takes 5 s at least.

    Raises:
        InvalidValue: a sequence past messages that nobody processed, or one that the consumer's ``deliver_policy``
            rules out; nothing was done.
        ResetRefused: acknowledgements stay unconfirmed, or claims go on being settled, for ``patience`` seconds, or
            another reset is under way; the consumer was not reset.
        LedgerUnavailable, ConsumerNotFound, StreamNotFound: the consumer was not reset.
        RequestTimeout, ConnectionLost: it is unknown whether it was. Run it again: whatever was, is processed again.
    """
    await ledger.check()
    await _allowed(ledger, sequence)
    clock = asyncio.get_running_loop().time
    deadline = clock() + patience
    work = _Resetting(secrets.token_hex(4), sequence)
    while True:
        work.confirmed = await _confirm(ledger, max(1.0, deadline - clock()))
        try:
            await ledger.change(work.new_life)
            await asyncio.sleep(QUIET)
            began = clock()
            _, checked = await ledger.change(work.last_check)
            now = await ledger.consumer.info(patience=PATIENCE)  # our own clock stands still on a paused machine
            if Moment.of(checked, began).age(Moment.of(now, clock())) < AT_ONCE:
                break
        except _Settled:
            log.info("claims were settled in the meantime: confirming their acknowledgements, too")
        if clock() > deadline:
            raise ResetRefused(
                f"consumer {ledger.consumer.name!r} is not reset: its claims go on being settled; pause the DAGs that "
                "process them and try again"
            )
    request = f"CONSUMER.RESET.{ledger.stream.name}.{ledger.consumer.name}"
    answer = await ledger.js.api(request, None if sequence is None else {"seq": sequence})
    log.info("consumer %s of %s is reset to %d", ledger.consumer.name, ledger.stream.name, answer["reset_seq"])
    await ledger.change(work.ended)
    superseded, pending = tuple(sorted(work.superseded)), int(answer["num_pending"])
    return Reset(*ledger.names, int(answer["reset_seq"]), superseded, work.forgotten, pending)


async def reset_unclaimed(ledger: Ledger, sequence: int | None = None) -> Reset:
    """The same for a consumer that no claims are taken from, by the server alone.

    Raises:
        ResetRefused: the ledger knows claims of this consumer.
        InvalidValue, LedgerUnavailable, ConsumerNotFound, StreamNotFound: the consumer was not reset.
    """
    await _check_unclaimed(ledger)
    await _allowed(ledger, sequence)
    first = await ledger.consumer.reset(sequence)
    info = await ledger.consumer.info()
    return Reset(*ledger.names, first, (), Sequences(), info.pending)


async def _check_unclaimed(ledger: Ledger) -> None:
    if await ledger.known() is not None:
        raise ResetRefused(
            f"consumer {ledger.consumer.name!r} is not reset without its ledger, which knows claims of it: late "
            "acknowledgements could swallow messages; reset it with claims=True"
        )


class _Resetting:
    """The changes of the record that one reset makes. One reset at a time: the record names it."""

    def __init__(self, token: str, sequence: int | None) -> None:
        self._token = token
        self._sequence = sequence
        self.confirmed = Sequences()
        self.superseded: set[str] = set()
        self.forgotten = Sequences()

    def new_life(self, record: Record | None, info: ConsumerInfo) -> Record:
        record = record or Record(info.created)
        if (other := record.resetting) and other[0] != self._token and _age(other[1], info) < UNDER_WAY:
            raise ResetRefused(f"another reset of this consumer has been under way since {other[1]}: wait for it")
        settled = record.all_settled.sequences
        if settled - self.confirmed:
            raise _Settled
        self.superseded.update(record.open)
        self.forgotten |= settled
        return replace(record.reborn(info), resetting=(self._token, info.now))

    def last_check(self, record: Record | None, info: ConsumerInfo) -> Record:
        """Nothing may be settled at the moment of the reset: no claim is open that is old enough for it."""
        if record is None or not record.resetting or record.resetting[0] != self._token:
            raise ResetRefused("another reset of this consumer has begun meanwhile: wait for it")
        if _age(record.resetting[1], info) > UNDER_WAY / 2:
            raise _Settled
        _check_skip(self._sequence, info)
        self.confirmed = Sequences()
        return self.new_life(record, info) if record.open or record.all_settled else record

    def ended(self, record: Record | None, info: ConsumerInfo) -> Record | None:  # noqa: ARG002
        ours = record is not None and record.resetting is not None and record.resetting[0] == self._token
        return replace(record, resetting=None) if record and ours else record


def _age(since: str, info: ConsumerInfo) -> float:
    """Seconds since then. A moment of the future is as old as it is far: the server's clock was set back."""
    return abs(time_nanoseconds(info.now) - time_nanoseconds(since)) / 1e9


async def _allowed(ledger: Ledger, sequence: int | None) -> ConsumerInfo:
    if sequence is not None:
        check_sequence(sequence)
    info = await ledger.consumer.info(patience=PATIENCE)
    if sequence is None:
        return info
    _check_skip(sequence, info)
    policy = info.config.get("deliver_policy", "all")
    if policy not in ("all", "by_start_sequence", "by_start_time"):  # server/consumer.go: resetStartingSeqLocked
        remedy = f"the server resets a consumer with deliver_policy={policy!r} to its floor only: leave it out"
        raise InvalidValue("sequence", sequence, remedy)
    lowest = info.config.get("opt_start_seq", 1)
    if sequence < lowest:
        raise InvalidValue("sequence", sequence, f"the consumer begins at opt_start_seq={lowest}: give no less")
    return info


def _check_skip(sequence: int | None, info: ConsumerInfo) -> None:
    highest = info.floor + 1
    if sequence is not None and sequence > highest:
        raise InvalidValue("sequence", sequence, f"would skip messages that nobody processed: give {highest} at most")


async def _confirm(ledger: Ledger, patience: float) -> Sequences:
    """Acknowledge, confirmed, what claims that are done may have left; what is done. Raises ResetRefused."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + patience
    while True:
        record, _ = await ledger.read()
        info = await ledger.consumer.info(patience=PATIENCE)
        if record is None or record.new_life(info):  # of an earlier life there is nothing to acknowledge any more
            return record.all_settled.sequences if record else Sequences()
        above = record.all_settled.above(info.floor)
        delivered = answers.Delivered.of(record, above.sequences, above.counter)
        left = await answers.acknowledge(ledger, delivered, deadline - clock()) if above else above.sequences
        if not left:
            return record.all_settled.sequences
        if clock() > deadline:
            raise ResetRefused(
                f"consumer {ledger.consumer.name!r} is not reset: {left.count} acknowledgements of what is done are "
                f"unconfirmed: {left}; see that server and permissions let them through",
                left,
            )
