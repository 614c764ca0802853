# SPDX-License-Identifier: Apache-2.0
"""The ledger: one record per consumer and one receipt per claim in two key-value buckets (docs/handoff.md).

A record is written only by compare-and-set after a read from the stream's leader (:meth:`Ledger.change`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from jetstream_client.consume import address
from jetstream_client.errors import (
    ConnectionLost,
    ConsumerNotFound,
    InvalidValue,
    JetStreamError,
    JetStreamNotEnabled,
    PermissionDenied,
    RequestTimeout,
    StreamNotFound,
    WrongLastSequence,
)
from jetstream_client.sequences import MOST_RANGES
from jetstream_handoff.claim import Claim, new_claim_id
from jetstream_handoff.errors import (
    AlreadyDone,
    CheckpointRefused,
    ConsumerReserved,
    HeldByAnother,
    HoldLost,
    LedgerUnavailable,
    OtherWork,
    Superseded,
    WrongLedger,
)
from jetstream_handoff.ledger.bucket import record_key
from jetstream_handoff.ledger.buckets import PATIENCE, Buckets, never_used
from jetstream_handoff.ledger.changes import Applied, Change, Changed, Queue, Result, Waiting
from jetstream_handoff.ledger.receipts import Receipts
from jetstream_handoff.ledger.record import (
    SECOND_READ,
    Receipt,
    Record,
    stored_record,
)
from jetstream_handoff.ledger.work import UNKNOWN, Work
from jetstream_handoff.rules import edited, ledger_mark
from jetstream_handoff.rules.consumer import with_close_names
from jetstream_handoff.words import words_of

if TYPE_CHECKING:
    from jetstream_client.consume.address import AckAddress
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.ledger.record import OpenEntry

log = logging.getLogger(__name__)

LARGEST_RECORD = 512 << 10
"""The largest size, in bytes, that a record may have after claims were entered. If half of the server's ``max_payload``
is less, that half is the limit. Settling adds the work's return value and the rejected sequences to the record, and may
use all of ``max_payload``."""
_AROUND = 1 << 10
"""How many bytes of ``max_payload`` a record leaves free: for headers, and because the receipt of a claim also contains
the names of the stream and the consumer."""
AWAY = 0.2
"""Seconds to wait before a request is repeated after a server did not answer."""
LONGEST_PAUSE = 5.0
"""The longest pause, in seconds, after a change has failed because another client wrote first."""
CLOCKS_DIFFER = timedelta(minutes=10)
"""By how much the clocks of two servers of a cluster may differ. The time of a settlement is that of the consumer's
leader, and the time at which its receipt was stored that of the bucket's."""
TO_EXPLAIN = 2.0
"""Seconds for writing the receipts of superseded claims, at most. The take that superseded them then leases its
messages."""


_BECAME = {
    "superseded": (
        "is superseded: its messages were or will be redelivered in another claim. Usually no task had begun before "
        "the lease ended, or the attempt that held the claim died. Nothing is lost, and running this task again does "
        "not help. If tasks often begin late, set a longer hand_off_timeout"
    ),
    "failed": "has failed, and its messages are redelivered to the next take",
    "": (
        "is not in the ledger. Its receipt has expired (by default after 90 days) or was never written, or the "
        "ledger's buckets were deleted. Messages that are not acknowledged are redelivered to the next take"
    ),
}
"""Maps the state in a claim's receipt to an error text: how the claim ended, and the remedy. For claims that are
neither open nor done."""


class NotOpen(Exception):
    """Raised in a change if the claim is not open. :meth:`Ledger.decide` then finds the reason."""

    def __init__(self, record: Record | None) -> None:
        self.record = record


class Ledger:
    """The record and the receipts of one consumer of one stream.

    name: the name of the ledger; default: that of the connection.
    """

    def __init__(self, js: JetStream, stream: str, consumer: str, name: str | None = None) -> None:
        if js.settings.api_prefix:
            # A plain acknowledgement also reaches a consumer of the same name in this account, and a client cannot find
            # out to which account an imported consumer belongs.
            remedy = (
                "claims cannot be acknowledged safely through an imported API; connect with the account that has the "
                "stream, or, for a JetStream domain, set 'domain' instead"
            )
            raise InvalidValue("api_prefix", js.settings.api_prefix, remedy)
        self.js = js
        self.stream = js.stream(stream)
        self.consumer = self.stream.consumer(consumer)
        self.buckets = Buckets(js, name)
        self.receipts = Receipts(self.buckets, stream, consumer)
        self._address: AckAddress | None = None
        self._subject = f"$KV.{self.buckets.claims}.{record_key(stream, consumer)}"

    @property
    def name(self) -> str:
        """The name of the ledger."""
        return self.buckets.name

    @property
    def subjects(self) -> tuple[str, str]:
        """The subject of the record, and a subject for a receipt that belongs to no claim."""
        receipt = self.receipts.subject(new_claim_id())
        return self.js.settings.sent_to(self._subject), self.js.settings.sent_to(receipt)

    async def create(self) -> None:
        """Create the buckets that do not exist, with as many replicas as the stream. As :meth:`Buckets.create`."""
        await self.buckets.create((await self.stream.info(patience=PATIENCE)).config.get("num_replicas", 1))

    async def locate(self) -> AckAddress:
        """Return the address of the consumer's acknowledgements. The servers are asked only once.

        Raises:
            AddressUnknown: the address cannot be found; nothing was acknowledged.
            PermissionDenied: this user is not permitted to acknowledge there.
            StreamNotFound: the stream does not exist.
        """
        if self._address is None:
            self._address = await address.find(self.stream, self.consumer.name, patience=PATIENCE)
        return self._address

    @property
    def address(self) -> AckAddress:
        """The address that :meth:`locate` found."""
        if self._address is None:
            raise JetStreamError(f"the address of consumer {self.consumer.name!r} is unknown; call locate() first")
        return self._address

    async def info(self) -> ConsumerInfo:
        """Return the consumer's INFO.

        Raises:
            WrongLedger: the consumer belongs to another ledger.
            ConsumerNotFound, StreamNotFound: the consumer or its stream does not exist.
        """
        info = await self.consumer.info(patience=PATIENCE)
        ledger_mark.check(*self.names, info.config, self.name, words_of(self.js.settings))
        return info

    async def check_writable(self) -> None:
        """Check the permission to write records and receipts. As :meth:`Buckets.check_writable`."""
        await self.buckets.check_writable(self._subject, self.receipts.subject(new_claim_id()))

    async def read(self) -> tuple[Record | None, int]:
        """Return the record and its revision, read from the leader; ``(None, 0)`` if there is no record yet.

        Raises:
            LedgerUnavailable: the bucket does not exist, or this account is not permitted to read it.
            LedgerInvalid: the record cannot be read.
        """
        message = await self.buckets.last(self.buckets.claims, self._subject)
        if message is None:
            return None, 0
        data, revision = message
        queue = Queue.of(self.js, self._subject)
        if queue.read != data:  # decoding a record of 1,000 claims takes some 10 ms
            what = f"record of consumer {self.consumer.name!r}, stream {self.stream.name!r},"
            queue.record = stored_record(data, what)
            queue.read = data
        return queue.record, revision

    async def known(self) -> Record | None:
        """Return the record; None if there is no record or no ledger yet. Raises LedgerUnavailable."""
        try:
            return (await self.read())[0]
        except LedgerUnavailable as error:
            if not never_used(error):
                raise
            return None

    async def change(self, function: Change[Result], claim_id: str = "", *, confirm: bool = False) -> Changed[Result]:
        """Change the record by compare-and-set.

        Read the record, then the consumer's INFO, call ``function`` with both, and write the record that it returns. If
        another client has written the record in the meantime, begin again.

        ``function`` may raise an error instead. If the record is unchanged, nothing is written. A write whose answer
        got lost is recognised by its id in the record. Changes that wait at the same time on this connection are
        applied together and written once (:mod:`.changes`).

        claim_id:  a claim whose receipt the caller writes if the change ends it. All other claims that are no longer
                   open get a receipt here.
        confirm:   whether the record is written even if it is unchanged. Then no deposed leader can have answered with
                   an old one: its write would not succeed.

        Returns the record after this change, and the result of ``function``.

        Raises:
            WrongLedger: the consumer belongs to another ledger.
            LedgerUnavailable: the buckets do not exist, cannot be used or are full, or the server did not answer for
                ``PATIENCE`` seconds.
        """
        queue = Queue.of(self.js, self._subject)
        async with queue.turn(function, claim_id, confirm=confirm) as mine:
            while mine.outcome is None:
                await self._change(queue)
        if isinstance(mine.outcome, Exception):
            raise mine.outcome
        return mine.outcome

    async def _change(self, queue: Queue) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(queue.idle_until - clock())
        deadline = clock() + PATIENCE
        receipted: set[str] = set()
        lost = 0
        decided = False
        while not decided:
            together = queue.waiting()
            began = clock()
            try:
                decided = await self._attempt(queue, together, receipted)
            except WrongLastSequence:
                lost += 1
                deadline = clock() + PATIENCE  # the client that wrote first has shown that the ledger can be written
                await asyncio.sleep(_pause(lost, clock() - began))
            except (RequestTimeout, ConnectionLost, JetStreamNotEnabled) as away:
                if clock() > deadline or self.js.connection.closed:
                    what = f"the ledger's record of consumer {self.consumer.name!r} could not be written"
                    within = "" if self.js.connection.closed else f" within {PATIENCE:g} s"
                    error = LedgerUnavailable(f"{what}{within}: {away}")
                    queue.done((each, error) for each in together)
                    return
                await asyncio.sleep(AWAY)
            except JetStreamError as error:
                queue.done((each, error) for each in together)
                return

    async def _attempt(self, queue: Queue, together: list[Waiting], receipted: set[str]) -> bool:
        """Read the record, apply the changes, write the result, and store the outcomes. Returns False if only receipts
        were written, because after that the record that was read may be out of date.

        The outcomes are stored as soon as the write is known to be stored: if this caller is cancelled after that, the
        others must not apply their changes again.

        A done claim stays in the record until its receipt is written. The receipts of superseded claims only explain
        how these claims ended. They name the claims that the record contains now, so they are written after it.
        """
        began = asyncio.get_running_loop().time()
        old, revision = await self.read()
        if earlier := queue.stored(old):
            queue.done(earlier.outcomes)
            await self._explain(self._forgotten(earlier))
            return True
        applied = queue.apply(together, old, await self.info())
        new = applied.record
        if new is None or (new == old and not applied.confirm):
            queue.done(applied.outcomes)
            return True
        forgotten = list(self._forgotten(applied))
        done = [each for each in forgotten if each.state == "done" and each.claim_id not in receipted]
        if done:
            await asyncio.gather(*(self.receipts.write(each, None) for each in done))
            receipted.update(each.claim_id for each in done)
            return False
        rivals = revision != queue.written
        with queue.write(applied) as write:
            new = new.written_as(write, old)
            data = _encoded(new)
            if len(data) > min(LARGEST_RECORD, self.largest_value) // 2:
                new = new.without_attempts()
                data = _encoded(new)
            queue.written = await self.buckets.write(self._subject, data, revision)
        queue.read, queue.record = data, new
        queue.done(applied.outcomes)
        await self._explain(forgotten)
        if rivals:
            now = asyncio.get_running_loop().time()
            queue.idle_until = now + random.uniform(0, 4 * (now - began))  # noqa: S311
        return True

    async def _explain(self, forgotten: Iterable[Receipt]) -> None:
        """Write the receipts of superseded claims, as far as that succeeds at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TO_EXPLAIN):
                await asyncio.gather(*(self.receipts.try_write(each) for each in forgotten if each.state != "done"))

    async def decide(
        self, function: Change[Result], claim_id: str, work: Work = UNKNOWN, *, confirm: bool = False
    ) -> tuple[Record, Result]:
        """Make a change that hold or settle depends on, and that writes the receipt of its claim itself. A result that
        ends the attempt is confirmed by a second read.

        work:     the piece of work for which the attempt holds the claim.
        confirm:  as for :meth:`change`.

        Raises:
            AlreadyDone, Superseded, HeldByAnother: the claim is no longer open, or no longer held by this attempt.
            OtherWork: another piece of work has settled the claim.
            LedgerUnavailable: as :meth:`change`.
        """
        try:
            record, result = await believed(lambda: self.change(function, claim_id, confirm=confirm))
        except NotOpen as bad:
            raise await self.verdict(claim_id, bad.record, work) from None
        except (ConsumerNotFound, StreamNotFound) as gone:
            raise unusable(claim_id, f"the server says {gone.description!r}; take the messages again") from gone
        if record is None:
            gone_record = f"the ledger has no record of consumer {self.consumer.name!r}"
            raise unusable(claim_id, f"{gone_record}; take the messages again")
        return record, result

    @property
    def largest_value(self) -> int:
        """The largest value of a key that the server accepts, in bytes."""
        return self.js.connection.max_payload - _AROUND

    def can_be_written(self, record: Record) -> bool:
        """Whether the server accepts a message with this record. Attempts in histories do not count, because they are
        left out of a record that is too large."""
        return len(_encoded(record.without_attempts())) <= self.largest_value

    def fits(self, record: Record, *, reserve: bool = False) -> bool:
        """Whether a record with newly entered claims is small enough. Attempts in histories do not count.

        reserve: whether the record may be half as large again, so that messages that keep the acknowledgement floor
                 from rising can be entered.
        """
        ranges = [len(entry.sequences.ranges) for entry in record.open.values()]
        if max(len(record.settled.spans), *ranges, 0) > MOST_RANGES:
            return False
        largest = min(LARGEST_RECORD, self.largest_value // 2)
        return len(_encoded(record.without_attempts())) <= largest * (1.5 if reserve else 1)

    @property
    def names(self) -> tuple[str, str]:
        """The names of stream and consumer."""
        return self.stream.name, self.consumer.name

    def claim_of(self, claim_id: str, entry: OpenEntry, stream_created: str, consumer_created: str) -> Claim:
        """Return the claim of an open entry. Call :meth:`locate` first."""
        return Claim(
            id=claim_id,
            stream=self.stream.name,
            stream_created=stream_created,
            consumer=self.consumer.name,
            consumer_created=consumer_created,
            sequences=entry.sequences,
            bytes=entry.bytes,
            consumer_sequence=entry.counter,
            taken_at=entry.at,
            domain=self.address.domain,
            account=self.address.account,
        )

    async def verdict(self, claim_id: str, record: Record | None, work: Work) -> AlreadyDone | Superseded:
        """Return an error with the reason why a claim is not open. Raises OtherWork if another piece of work has
        settled it."""
        entry = record.done.get(claim_id) if record else None
        receipt = await self.receipts.read(claim_id)
        if (receipt is None or receipt.state != "done") and entry is not None:
            receipt = self.receipts.of_done(claim_id, entry)
        if receipt is not None and receipt.state == "done":
            token = receipt.token or ""
            work.check_done(claim_id, receipt.work, receipt.history.attempts, token, receipt.at)
            return AlreadyDone(claim_id, token, receipt.value, receipt.at)
        became = _BECAME[receipt.state if receipt else ""]
        if receipt is not None and receipt.changed:
            became = f"is superseded: {receipt.reason}, and {edited.said(receipt.changed)}. Take the messages again"
        return Superseded(f"claim {claim_id} of consumer {self.consumer.name!r} {became}")

    async def committed(self, since: datetime | None = None) -> list[Receipt]:
        """Return one done receipt for each settled claim of this consumer, as long as receipts are kept.

        A claim that was processed again has the receipt of the newest attempt that settled it. Claims whose messages
        all became dead letters or were skipped are left out, because they have no output. The claims of a consumer that
        was deleted are still listed.

        since:  only the claims that were settled at this time or later, by the server's clock; default: all.

        Raises:
            InvalidValue: ``since`` has no time zone.
            WrongLedger: the ledger has no such claim, and the consumer belongs to another ledger.
            LedgerUnavailable: the ledger does not exist or cannot be read.
            ServerTooOld: ``since`` is set, and the server is older than nats-server 2.11.
            StreamNotFound, ConsumerNotFound: the ledger has no such claim, and the stream or the consumer does not
                exist, for example because its name is wrong.
        """
        if since is not None and not (isinstance(since, datetime) and since.tzinfo):
            remedy = "give a datetime with a time zone, such as datetime(2026, 11, 21, tzinfo=UTC)"
            raise InvalidValue("since", since, remedy)
        record, _ = await self.read()
        found = {
            claim_id: self.receipts.of_done(claim_id, entry)
            for claim_id, entry in (record.done.items() if record else ())
        }
        found |= await self.receipts.done(since and since - CLOCKS_DIFFER)
        await self._check_known(found or (since and await self.receipts.exist()))
        with_output = [receipt for receipt in found.values() if receipt.processed and _settled_since(receipt, since)]
        return sorted(with_output, key=lambda receipt: receipt.sequences.first)

    async def _check_known(self, committed: object) -> None:
        """Raise an error if nothing is committed because the stream, consumer or ledger is a wrong one. A list from
        a ledger that the consumer no longer belongs to is only logged."""
        stream, consumer = self.names
        try:
            await self.info()
        except (StreamNotFound, ConsumerNotFound, PermissionDenied, WrongLedger) as error:
            if committed and isinstance(error, WrongLedger):
                log.warning("the list of committed claims lacks those of another ledger: %s", error)
            if committed:
                return
            if isinstance(error, StreamNotFound):
                await with_close_names(error, stream, self.js.stream_names())
            if isinstance(error, ConsumerNotFound):
                await with_close_names(error, consumer, self.stream.consumer_names())
            raise

    def _forgotten(self, applied: Applied) -> Iterator[Receipt]:
        """The receipts of claims that the record no longer contains, except those that the callers write."""
        for (old, new), ended in zip(pairwise(applied.steps), applied.claim_ids, strict=True):
            if old is None or new is None:
                continue
            for claim_id in old.done.keys() - new.done.keys():
                yield self.receipts.of_done(claim_id, old.done[claim_id])
            for claim_id in old.open.keys() - new.open.keys() - new.done.keys() - {ended}:
                yield self.receipts.of_superseded(claim_id, old, new, applied.info)


def unusable(claim: str, problem: str) -> Superseded:
    """Return the error for a claim that can no longer be held or settled.

    claim:    the id of the claim; the names of its consumer and stream may follow.
    problem:  the reason and the remedy.
    """
    return Superseded(f"claim {claim} can no longer be held or settled, because {problem}")


async def believed(change: Callable[[], Awaitable[Result]]) -> Result:
    """Make a change. If its result ends the attempt, make it again after ``SECOND_READ`` s, and use that result."""
    with suppress(NotOpen, HeldByAnother, HoldLost, OtherWork, Superseded, ConsumerReserved, CheckpointRefused):
        return await change()
    await asyncio.sleep(SECOND_READ)
    return await change()


async def ledgers(js: JetStream, stream: str | None = None, consumer: str | None = None) -> list[Ledger]:
    """Return the ledgers of all consumers that have a record, or only of the consumers of one stream, or of one
    consumer, sorted by name. Raises LedgerUnavailable."""
    return [Ledger(js, *names) for names in await Buckets(js).consumers(stream, consumer)]


def _encoded(value: Record | Receipt) -> bytes:
    return json.dumps(value.to_json()).encode()


def _pause(lost: int, duration: float) -> float:
    """Return the seconds to wait after a change has failed ``lost`` times because another client wrote first. Its last
    try took ``duration`` seconds.

    The pause is shorter each time, so that the newest change waits longest, and no change waits forever. With 100
    competing changes, the slowest one then takes 6 times its share of the time; with growing pauses, it takes 23 times
    its share.
    """
    return random.uniform(0, min(LONGEST_PAUSE, duration * 2 ** max(1, 6 - lost)))  # noqa: S311


def _settled_since(receipt: Receipt, since: datetime | None) -> bool:
    """Whether a claim was settled at this time or later. An older release may have left the time out."""
    return since is None or not receipt.at or datetime.fromisoformat(receipt.at) >= since
