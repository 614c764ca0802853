# SPDX-License-Identifier: Apache-2.0
"""Resetting a consumer: all messages from a sequence on are delivered and processed again, and none is lost.

If another client resets the consumer, attempts notice it only afterwards. :func:`reset` first makes sure that no
acknowledgement is in transit, because a late acknowledgement could count for a message of the consumer's next life
(docs/handoff.md). A reset that is killed after any step loses no message.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jetstream_client import requirements
from jetstream_client.errors import InvalidValue, promised
from jetstream_client.sequences import Sequences, check_sequence
from jetstream_client.times import seconds_between
from jetstream_handoff.errors import ResetElsewhere, ResetRefused
from jetstream_handoff.hold import answers
from jetstream_handoff.ledger.buckets import PATIENCE
from jetstream_handoff.ledger.changes import Changed
from jetstream_handoff.ledger.record import Record
from jetstream_handoff.moment import Moment
from jetstream_handoff.take.conservation import instead_of_reset
from jetstream_handoff.words import words_of

if TYPE_CHECKING:
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.ledger.ledger import Ledger

log = logging.getLogger(__name__)

QUIET = answers.CONFIRMED_WITHIN
"""Seconds to wait after a new life was written to the record. By then, every acknowledgement for the old life has
arrived, or its sender has given up."""
UNDER_WAY = 60.0
"""Seconds after which an unfinished reset is considered dead, so that another reset may begin."""
TRIES = 50
"""Number of requests for a reset, 0.1 s apart. The server writes a consumer's state about every 0.1 s."""
AT_ONCE = 0.5
"""Seconds within which the reset must follow the last check: half the age at which a claim can be settled."""


@dataclass(frozen=True, slots=True)
class Reset:
    """The effect of a reset.

    sequence:    all messages from this stream sequence on are delivered again.
    superseded:  the ids of the claims that were open. The attempts that hold them can no longer settle.
    forgotten:   settled messages above the floor. Settled messages from ``sequence`` on are processed again.
    pending:     number of messages that the consumer has to deliver after the reset.
    """

    stream: str
    consumer: str
    sequence: int
    superseded: tuple[str, ...]
    forgotten: Sequences
    pending: int


class _Settled(Exception):
    """A claim was settled after the acknowledgements were last confirmed, or may have been, because too much time has
    passed."""


async def plan(ledger: Ledger, sequence: int | None = None, *, claims: bool = True) -> Reset:
    """Return the effect that :func:`reset` would have now, or, without ``claims``, :func:`reset_unclaimed`.

    ``pending`` is the number of messages that the consumer has not delivered yet.

    Raises:
        JetStreamError: as :func:`reset`, for every reason that can be found without resetting the consumer.
    """
    if claims:
        await ledger.buckets.check()
    else:
        await _check_unclaimed(ledger)
    info = await _allowed(ledger, sequence)
    record, _ = await ledger.read() if claims else (None, 0)
    _check_reader(record, info)
    superseded, forgotten = (tuple(record.open), record.all_settled.sequences) if record else ((), Sequences())
    return Reset(*ledger.names, _position(sequence, info), superseded, forgotten, info.pending)


async def reset(ledger: Ledger, sequence: int | None = None, *, patience: float = PATIENCE) -> Reset:
    """Reset the consumer, so that all messages from ``sequence`` on are delivered again. Takes at least 5 s.

    sequence:  a stream sequence; default: the first one that is not acknowledged.
    patience:  seconds to wait for acknowledgements to be confirmed and for claims to stop being settled.

    Raises:
        InvalidValue: the reset would skip unprocessed messages, or the consumer's ``deliver_policy`` rules out this
            sequence. The consumer was not reset.
        ServerTooOld: the consumer's server is older than nats-server 2.14. The consumer was not reset.
        ResetRefused: acknowledgements stayed unconfirmed or claims were still being settled after ``patience``
            seconds, or another reset is in progress. The consumer was not reset.
        LedgerUnavailable, ConsumerNotFound, StreamNotFound: the consumer was not reset.
        ResetElsewhere: the server has reset the consumer to a later sequence.
        RequestTimeout, ConnectionLost: it is unknown whether the consumer was reset. Reset it again. Its messages are
            processed again in either case.
    """
    await ledger.buckets.check()
    await _allowed(ledger, sequence)
    clock = asyncio.get_running_loop().time
    deadline = clock() + patience
    token, superseded, forgotten = secrets.token_hex(4), set[str](), Sequences()
    while True:
        work = _Resetting(token, sequence, await _confirm(ledger, max(1.0, deadline - clock())))
        try:
            _, before = await ledger.change(work.new_life)
            superseded, forgotten = superseded | before.open.keys(), forgotten | before.all_settled.sequences
            await asyncio.sleep(QUIET)
            began = clock()
            _, (checked, late) = await ledger.change(work.last_check)
            superseded |= late
            now = await ledger.consumer.info(patience=PATIENCE)  # our own clock stands still on a paused machine
            if Moment.of(checked, began).age(Moment.of(now, clock())) < AT_ONCE:
                break
        except _Settled:
            log.info("claims may have been settled in the meantime: confirming their acknowledgements as well")
        if clock() > deadline:
            pipeline = words_of(ledger.js.settings).pipeline
            raise ResetRefused(
                f"consumer {ledger.consumer.name!r} was not reset, because its claims were still being settled, or the "
                f"server answered too slowly; pause each {pipeline} that processes the claims, and try again"
            )
    first, pending = await _request(ledger, sequence, checked)
    await ledger.change(work.ended)
    return Reset(*ledger.names, first, tuple(sorted(superseded)), forgotten, pending)


async def _request(ledger: Ledger, sequence: int | None, info: ConsumerInfo) -> tuple[int, int]:
    """Ask the server for the reset. Returns the sequence to which it has reset the consumer, and the number of messages
    that it has to deliver.

    The sequence is always named if the server accepts one: without it, the server goes to the last delivery if it has
    given deliveries up, and not to the acknowledgement floor. The request is repeated until the answer shows the new
    counters, because otherwise a restart of the server would undo the reset (docs/handoff.md, What remains).
    """
    wanted = _position(sequence, info)
    request = f"CONSUMER.RESET.{ledger.stream.name}.{ledger.consumer.name}"
    for _ in range(TRIES):
        answer = await ledger.js.api(request, {"seq": wanted} if _accepts_sequence(info) else None)
        with promised("the answer to CONSUMER.RESET"):
            first, pending = int(answer["reset_seq"]), int(answer["num_pending"])
            if not int(answer["delivered"]["consumer_seq"]):
                break
        await asyncio.sleep(0.1)
    else:
        text = (
            "the server still shows the previous counters of consumer %s, stream %s, after %d requests for its reset: "
            "if the server dies before it has written the new ones, the reset is undone; reset the consumer again then"
        )
        log.warning(text, ledger.consumer.name, ledger.stream.name, TRIES)
    if first > wanted:
        raise ResetElsewhere(*ledger.names, wanted, first)
    text = "consumer %s of stream %s is reset to sequence %d: %d messages are pending"
    log.info(text, ledger.consumer.name, ledger.stream.name, first, pending)
    return first, pending


async def reset_unclaimed(ledger: Ledger, sequence: int | None = None) -> Reset:
    """Reset a consumer that is not used for claims, by a request to the server and without the ledger.

    Raises:
        ResetRefused: the ledger knows claims of this consumer.
        InvalidValue, ServerTooOld, LedgerUnavailable, ConsumerNotFound, StreamNotFound: the consumer was not reset.
    """
    await _check_unclaimed(ledger)
    info = await _allowed(ledger, sequence)
    first, pending = await _request(ledger, sequence, info)
    return Reset(*ledger.names, first, (), Sequences(), pending)


async def _check_unclaimed(ledger: Ledger) -> None:
    if await ledger.known() is not None:
        raise ResetRefused(
            f"consumer {ledger.consumer.name!r} was not reset, because claims were taken from it, and their late "
            "acknowledgements could lose messages; reset it with claims=True"
        )


@dataclass(frozen=True)
class _Resetting:
    """The changes of the record that one reset makes. The record names the reset, so that only one runs at a time.

    token:      the name of the reset.
    sequence:   the sequence to which the consumer is to be reset; None: the first one that is not acknowledged.
    confirmed:  the messages whose acknowledgements are confirmed.
    """

    token: str
    sequence: int | None
    confirmed: Sequences

    def new_life(self, record: Record | None, info: ConsumerInfo) -> Changed[Record]:
        """Begin a new life. Returns also the record of the one before."""
        record = record or Record(info.created)
        _check_reader(record, info)
        if (other := record.resetting) and other[0] != self.token and _age(other[1], info) < UNDER_WAY:
            raise ResetRefused(
                f"the consumer was not reset, because another reset of this consumer began at {other[1]}; wait until "
                f"that reset has finished, or wait {UNDER_WAY:g} s"
            )
        if record.all_settled.sequences - self.confirmed:
            raise _Settled
        return Changed(replace(record.reborn(info), resetting=(self.token, info.now)), record)

    def last_check(self, record: Record | None, info: ConsumerInfo) -> Changed[tuple[ConsumerInfo, set[str]]]:
        """Make sure that no claim can be settled at the moment of the reset, because no open claim is old enough.
        Returns also the INFO, and the claims that were taken in the meantime and are superseded now."""
        if record is None or not record.resetting or record.resetting[0] != self.token:
            raise ResetRefused(
                "the consumer was not reset, because another reset of this consumer began in the meantime; wait "
                "until that reset has finished"
            )
        if _age(record.resetting[1], info) > UNDER_WAY / 2:
            raise _Settled
        _check_skip(self.sequence, info)
        _check_kept(info)
        if record.all_settled:
            raise _Settled
        new = self.new_life(record, info).record if record.open else record
        return Changed(new, (info, {*record.open}))

    def ended(self, record: Record | None, info: ConsumerInfo) -> Changed[None]:  # noqa: ARG002
        ours = record is not None and record.resetting is not None and record.resetting[0] == self.token
        return Changed(replace(record, resetting=None) if record and ours else record, None)


def _check_reader(record: Record | None, info: ConsumerInfo) -> None:
    """Raise ResetRefused for a consumer of a reader: its checkpoint decides what is processed, so it would not process
    again what it has just committed."""
    if record is not None and record.reader is not None:
        raise ResetRefused(
            f"consumer {info.raw['name']!r} was not reset, because it is reserved for reader {record.reader.reader} "
            "(a streaming query), whose checkpoint decides what is processed. To process messages again, start a query "
            "with a new checkpoint and a new consumer; or stop the query, end the reservation (command reader) and "
            "reset the consumer then"
        )


def _age(since: str, info: ConsumerInfo) -> float:
    """Seconds between ``since`` and the server's present time. ``since`` lies in the future if the server's clock was
    set back."""
    return abs(seconds_between(since, info.now))


async def _allowed(ledger: Ledger, sequence: int | None) -> ConsumerInfo:
    if sequence is not None:
        check_sequence(sequence)
    info = await ledger.info()
    first = info.floor + 1 if sequence is None else sequence
    requirements.RESET.check_answer(
        info.config, instead_of_reset(first)
    )  # an older server would not answer the request
    _check_kept(info)
    if sequence is None:
        return info
    _check_skip(sequence, info)
    if not _accepts_sequence(info):
        remedy = (
            f"the server resets a consumer with deliver_policy={info.config['deliver_policy']!r} only to its "
            "acknowledgement floor; leave 'sequence' out"
        )
        raise InvalidValue("sequence", sequence, remedy)
    lowest = info.config.get("opt_start_seq", 1)
    if sequence < lowest:
        raise InvalidValue(
            "sequence", sequence, f"the consumer begins at opt_start_seq={lowest}; give {lowest} or more"
        )
    return info


def _position(sequence: int | None, info: ConsumerInfo) -> int:
    """The first sequence that the consumer has to deliver after the reset."""
    return info.floor + 1 if sequence is None else sequence


def _accepts_sequence(info: ConsumerInfo) -> bool:
    """Whether the server accepts a sequence for this consumer (``resetStartingSeqLocked`` in server/consumer.go)."""
    return info.config.get("deliver_policy", "all") in ("all", "by_start_sequence", "by_start_time")


def _check_kept(info: ConsumerInfo) -> None:
    """Raise ResetRefused if the server has given up deliveries, and would go on behind them without a sequence."""
    if info.gave_up and not _accepts_sequence(info):
        policy = info.config["deliver_policy"]
        raise ResetRefused(
            f"the consumer was not reset, because the server has given up deliveries between its acknowledgement floor "
            f"{info.floor} and its last delivery {info.delivered}, and with deliver_policy={policy!r} it would "
            "reset the consumer behind them. Create another consumer with deliver_policy='by_start_sequence' and "
            f"opt_start_seq={info.floor + 1}, and take its messages instead"
        )


def _check_skip(sequence: int | None, info: ConsumerInfo) -> None:
    highest = info.floor + 1
    if sequence is not None and sequence > highest:
        raise InvalidValue("sequence", sequence, f"this would skip unprocessed messages; give {highest} or less")


async def _confirm(ledger: Ledger, patience: float) -> Sequences:
    """Acknowledge the settled messages and wait for confirmations. Returns the settled messages.

    Raises:
        ResetRefused: some acknowledgements stayed unconfirmed for ``patience`` seconds.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + patience
    while True:
        record, _ = await ledger.read()
        info = await ledger.consumer.info(patience=PATIENCE)
        if record is None or record.new_life(info):  # messages of an earlier life cannot be acknowledged
            return record.all_settled.sequences if record else Sequences()
        above = record.all_settled.above(info.floor)
        delivered = answers.Delivered.of(record, above.sequences, above.counter)
        left = await answers.acknowledge(ledger, delivered, deadline - clock()) if above else above.sequences
        if not left:
            return record.all_settled.sequences
        if clock() > deadline:
            doctor = words_of(ledger.js.settings).command("doctor")
            raise ResetRefused(
                f"consumer {ledger.consumer.name!r} was not reset, because {left.count} acknowledgements of settled "
                f"messages are unconfirmed: {left}. Run {doctor} to see whether the server answers "
                "and permits acknowledgements",
                left,
            )
