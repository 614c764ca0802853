# SPDX-License-Identifier: Apache-2.0
"""The ledger: one record per consumer and one receipt per claim in two key-value buckets (docs/handoff.md).

A record is written only by compare-and-set after a read from the stream's leader (:meth:`Ledger.change`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from jetstream_client import requirements
from jetstream_client.consume import address
from jetstream_client.consume.address import NO_MESSAGE
from jetstream_client.errors import (
    ApiError,
    ConnectionLost,
    ConsumerNotFound,
    InvalidValue,
    JetStreamError,
    JetStreamNotEnabled,
    MessageNotFound,
    NoStreamResponse,
    PermissionDenied,
    RequestTimeout,
    StreamNameInUse,
    StreamNotFound,
    WrongDomain,
    WrongLastSequence,
    promised,
)
from jetstream_client.names import check_stream_name
from jetstream_client.read import stored
from jetstream_client.read.message import RawMessage
from jetstream_client.sequences import MOST_RANGES, Sequences
from jetstream_handoff import edited, ledger_mark
from jetstream_handoff.bucket import RECEIPTS_KEPT, bucket_config, check_bucket, record_key, sent_to
from jetstream_handoff.changes import Applied, Change, Changed, Queue, Result, Waiting
from jetstream_handoff.claim import Claim, is_claim_id, new_claim_id
from jetstream_handoff.consumer import with_close_names
from jetstream_handoff.errors import (
    AlreadyDone,
    HeldByAnother,
    HoldLost,
    LedgerInvalid,
    LedgerUnavailable,
    OtherWork,
    StorageFull,
    Superseded,
    WrongLedger,
)
from jetstream_handoff.record import (
    SECOND_READ,
    DoneEntry,
    Receipt,
    Record,
    skipped_key,
    stored_receipt,
    stored_record,
    stored_skipped,
)
from jetstream_handoff.reserve import Reserve
from jetstream_handoff.storage import WAY_OUT, storage_full
from jetstream_handoff.work import UNKNOWN, Work

if TYPE_CHECKING:
    from jetstream_client.consume.address import AckAddress
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo, StreamInfo
    from jetstream_client.stream import Stream
    from jetstream_handoff.record import OpenEntry

log = logging.getLogger(__name__)

Known = tuple["Receipt | None", int]
"""A receipt as it was last seen, and its revision."""
MISSING: Known = (None, 0)
"""What is known of a receipt that was probably not written yet."""

LARGEST_RECORD = 512 << 10
"""The largest size, in bytes, that a record may have after claims were entered. If half of the server's ``max_payload``
is less, that half is the limit. Settling adds the work's return value and the rejected sequences to the record, and may
use all of ``max_payload``."""
_AROUND = 1 << 10
"""How many bytes of ``max_payload`` a record leaves free: for headers, and because the receipt of a claim also contains
the names of the stream and the consumer."""
PATIENCE = 60.0
"""Seconds for which a change is retried while the server does not answer. A failover took up to 8 s, and a restart may
take longer."""
AWAY = 0.2
"""Seconds to wait before a request is repeated after a server did not answer."""
LONGEST_PAUSE = 5.0
"""The longest pause, in seconds, after a change has failed because another client wrote first."""
TO_EXPLAIN = 2.0
"""Seconds for writing the receipts of superseded claims, at most. The take that superseded them then leases its
messages."""
MOST_NAMED = 20
"""How many of the claims that superseded a claim its receipt names, at most."""


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
        self.name = name or js.settings.ledger
        self._claims = f"{self.name}_claims"
        self._receipts = f"{self.name}_receipts"
        self.reserve = Reserve(js, self.name, partial(sent_to, js.settings))
        self._address: AckAddress | None = None
        self._record_subject = f"$KV.{self._claims}.{record_key(stream, consumer)}"

    @property
    def bucket(self) -> Stream:
        """The stream of the bucket with the records."""
        return self.js.stream(f"KV_{self._claims}")

    @property
    def buckets(self) -> tuple[str, str]:
        """The names of the buckets of records and of receipts."""
        return self._claims, self._receipts

    @property
    def subjects(self) -> tuple[str, str]:
        """The subject of the record, and a subject for a receipt that belongs to no claim."""
        settings = self.js.settings
        return sent_to(settings, self._record_subject), sent_to(settings, f"$KV.{self._receipts}.{new_claim_id()}")

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
        ledger_mark.check(*self.names, info.config, self.name)
        return info

    async def create(self) -> None:
        """Create the buckets that do not exist, on file, with the stream's number of replicas. Create or fill the
        reserve.

        Raises:
            LedgerUnavailable: a bucket cannot be used, as for :meth:`check`, or cannot be created.
        """
        replicas = (await self.stream.info(patience=PATIENCE)).config.get("num_replicas", 1)
        for name, max_age in ((self._claims, timedelta(0)), (self._receipts, RECEIPTS_KEPT)):
            try:
                await self._check(name)
                continue
            except LedgerUnavailable as error:
                if not never_used(error):
                    raise
            await self._tell_created(name)
            try:
                await self.js.create_stream(bucket_config(name, replicas, max_age))
            except StreamNameInUse:  # another sensor has created it in the meantime
                await self._check(name)
            except JetStreamError as error:
                raise _unavailable(name, error) from error
        await self.reserve.ensure(replicas)

    async def _tell_created(self, name: str) -> None:
        """Log that a bucket is created. If the other one has entries, this one has existed, too."""
        (other,) = {*self.buckets} - {name}
        entries = 0
        with suppress(JetStreamError):
            entries = await self._entries(other)
        if entries:
            text = (
                "creating the ledger's bucket %s, which must have been deleted or lost, because bucket %s has %d "
                "entries: restore it from a backup if there is one. Messages that are not acknowledged are processed "
                "again"
            )
            log.error(text, name, other, entries)
        else:
            log.info("creating the ledger's bucket %s", name)

    async def receipts(self) -> int:
        """Return the number of receipts. Raises LedgerUnavailable."""
        return await self._entries(self._receipts)

    async def _entries(self, bucket: str) -> int:
        try:
            info = await self.js.stream(f"KV_{bucket}").info(patience=PATIENCE)
            with promised("the answer to STREAM.INFO"):
                return int(info.state.get("num_subjects", 0))
        except JetStreamError as error:
            raise _unavailable(bucket, error) from error

    async def check(self) -> None:
        """Check that both buckets can be used.

        Raises:
            LedgerUnavailable: a bucket does not exist, or this account is not permitted to read it.
            LedgerUnsuitable: a bucket could lose its entries.
        """
        for name in (self._claims, self._receipts):
            await self._check(name)

    async def look(self) -> dict[str, StreamInfo | LedgerUnavailable]:
        """Return, by the name of each bucket, its stream's INFO, or the error that makes the bucket unusable."""
        found: dict[str, StreamInfo | LedgerUnavailable] = {}
        for name in self.buckets:
            try:
                found[name] = await self._check(name)
            except LedgerUnavailable as error:
                found[name] = error
        return found

    async def _check(self, name: str) -> StreamInfo:
        try:
            info = await self.js.stream(f"KV_{name}").info(patience=PATIENCE)
        except JetStreamError as error:
            raise _unavailable(name, error) from error
        check_bucket(name, info.config, expires=name == self._receipts)
        return info

    async def check_writable(self) -> None:
        """Check the permission to write, with writes that expect an impossible revision, so that nothing is stored.

        Raises:
            LedgerUnavailable: a write was refused for another reason, for example a missing permission.
        """
        for subject in (self._record_subject, f"$KV.{self._receipts}.{new_claim_id()}"):
            with suppress(WrongLastSequence):
                await self._write(subject, b"{}", NO_MESSAGE)

    async def read(self) -> tuple[Record | None, int]:
        """Return the record and its revision, read from the leader; ``(None, 0)`` if there is no record yet.

        Raises:
            LedgerUnavailable: the bucket does not exist, or this account is not permitted to read it.
            LedgerInvalid: the record cannot be read.
        """
        message = await self._last(self._claims, self._record_subject)
        if message is None:
            return None, 0
        data, revision = message
        queue = Queue.of(self.js, self._record_subject)
        if queue.read != data:  # decoding a record of 100,000 ranges takes a tenth of a second
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

    async def receipt(self, claim_id: str) -> Receipt | None:
        """Return the receipt of a claim; None if there is none. Raises LedgerUnavailable."""
        return (await self._receipt(claim_id))[0]

    async def _receipt(self, claim_id: str) -> Known:
        message = await self._last(self._receipts, f"$KV.{self._receipts}.{claim_id}")
        if message is None:
            return None, 0
        data, revision = message
        return stored_receipt(claim_id, data), revision

    async def change(self, function: Change[Result], claim_id: str = "") -> Changed[Result]:
        """Change the record by compare-and-set.

        Read the record, then the consumer's INFO, call ``function`` with both, and write the record that it returns. If
        another client has written the record in the meantime, begin again.

        ``function`` may raise an error instead. If the record is unchanged, nothing is written. A write whose answer
        got lost is recognised by its id in the record. Changes that wait at the same time on this connection are
        applied together and written once (:mod:`.changes`).

        claim_id:  a claim whose receipt the caller writes if the change ends it. All other claims that are no longer
                   open get a receipt here.

        Returns the record after this change, and the result of ``function``.

        Raises:
            WrongLedger: the consumer belongs to another ledger.
            LedgerUnavailable: the buckets do not exist, cannot be used or are full, or the server did not answer for
                ``PATIENCE`` seconds.
        """
        queue = Queue.of(self.js, self._record_subject)
        async with queue.turn(function, claim_id) as mine:
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
        while True:
            together = queue.waiting()
            began = clock()
            try:
                applied = await self._attempt(queue, together, receipted)
            except WrongLastSequence:
                lost += 1
                deadline = clock() + PATIENCE  # the client that wrote first has shown that the ledger can be written
                await asyncio.sleep(_pause(lost, clock() - began))
            except (RequestTimeout, ConnectionLost, JetStreamNotEnabled) as away:
                if clock() > deadline or self.js.connection.closed:
                    what = f"the ledger's record of consumer {self.consumer.name!r} could not be written"
                    within = "" if self.js.connection.closed else f" within {PATIENCE:g} s"
                    error = LedgerUnavailable(f"{what}{within}: {away}")
                    return queue.done((each, error) for each in together)
                await asyncio.sleep(AWAY)
            except JetStreamError as error:
                return queue.done((each, error) for each in together)
            else:
                if applied is not None:
                    return queue.done(applied.outcomes)

    async def _attempt(self, queue: Queue, together: list[Waiting], receipted: set[str]) -> Applied | None:
        """Read the record, apply the changes, and write the result. Returns None if only receipts were written, because
        after that the record that was read may be out of date.

        A done claim stays in the record until its receipt is written. The receipts of superseded claims only explain
        how these claims ended. They name the claims that the record contains now, so they are written after it.
        """
        began = asyncio.get_running_loop().time()
        old, revision = await self.read()
        info = await self.info()
        if earlier := queue.stored(old):
            await self._explain(self._forgotten(earlier))
            return earlier
        applied = queue.apply(together, old, info)
        new = applied.record
        if new is None or new == old:
            return applied
        forgotten = list(self._forgotten(applied))
        done = [each for each in forgotten if each.state == "done" and each.claim_id not in receipted]
        if done:
            await asyncio.gather(*(self.write_receipt(each, None) for each in done))
            receipted.update(each.claim_id for each in done)
            return None
        rivals = revision != queue.written
        with queue.write(applied) as write:
            new = new.written_as(write, old)
            data = _encoded(new)
            if len(data) > min(LARGEST_RECORD, self.largest_value) // 2:
                data = _encoded(new.without_attempts())
            queue.written = await self._write(self._record_subject, data, revision)
        await self._explain(forgotten)
        if rivals:
            now = asyncio.get_running_loop().time()
            queue.idle_until = now + random.uniform(0, 4 * (now - began))  # noqa: S311
        return applied

    async def _explain(self, forgotten: Iterable[Receipt]) -> None:
        """Write the receipts of superseded claims, as far as that succeeds at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TO_EXPLAIN):
                await asyncio.gather(*(self.try_receipt(each) for each in forgotten if each.state != "done"))

    async def decide(self, function: Change[Result], claim_id: str, work: Work = UNKNOWN) -> tuple[Record, Result]:
        """Make a change that hold or settle depends on, and that writes the receipt of its claim itself. A result that
        ends the attempt is confirmed by a second read.

        work: the piece of work for which the attempt holds the claim.

        Raises:
            AlreadyDone, Superseded, HeldByAnother: the claim is no longer open, or no longer held by this attempt.
            OtherWork: another piece of work has settled the claim.
            LedgerUnavailable: as :meth:`change`.
        """
        try:
            record, result = await believed(lambda: self.change(function, claim_id))
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

    async def write_receipt(self, receipt: Receipt, known: Known | None = MISSING) -> tuple[Receipt, int]:
        """Write a receipt. A done receipt is never replaced, because the claim may have been reprocessed since; it only
        gets the time of the acknowledgement. A superseded receipt does not replace any other receipt.

        known: as in :meth:`change_receipt`.
        """

        def stands(old: Receipt | None) -> Receipt:
            if old is None or (old.state != "done" and receipt.state != "superseded"):
                return receipt
            return replace(old, acknowledged=receipt.acknowledged) if receipt.acknowledged is not None else old

        return await self.change_receipt(receipt.claim_id, stands, known)

    async def try_receipt(self, receipt: Receipt, known: Known | None = MISSING) -> tuple[Receipt, int] | None:
        """Write a receipt. An error is only logged: the record already says how the claim ended, so the attempt must
        not fail. None is then returned.

        If the receipt is missing, the take that removes the done claim from the record writes it. That take fails if it
        cannot write the receipt.

        known: as in :meth:`change_receipt`.
        """
        try:
            return await self.write_receipt(receipt, known)
        except JetStreamError as error:
            text = "claim %s is %s, but its receipt could not be written: %s"
            log.error(text, receipt.claim_id, receipt.state, error)  # noqa: TRY400
            return None

    async def change_receipt(
        self, claim_id: str, function: Callable[[Receipt | None], Receipt], known: Known | None = None
    ) -> tuple[Receipt, int]:
        """Read a receipt, call ``function`` with it, and write the receipt that it returns. If another client has
        written the receipt in the meantime, begin again.

        known: what is known of the receipt, which saves the first read. Default: nothing.

        Returns the receipt as it is stored now, and its revision.

        Raises:
            LedgerUnavailable: as :meth:`change`.
        """
        subject = f"$KV.{self._receipts}.{claim_id}"
        clock = asyncio.get_running_loop().time
        deadline = clock() + PATIENCE
        sent: list[Receipt] = []
        while True:
            old, revision = known or await self._receipt(claim_id)
            known = None
            receipt = old if old is not None and old in sent else function(old)
            if receipt == old:
                return receipt, revision
            sent.append(receipt)
            try:
                return receipt, await self._write(subject, _encoded(receipt), revision)
            except (WrongLastSequence, RequestTimeout, ConnectionLost, JetStreamNotEnabled) as again:
                if clock() > deadline or self.js.connection.closed:
                    raise _unavailable(self._receipts, again) from again
                await asyncio.sleep(0 if isinstance(again, WrongLastSequence) else 0.2)

    def done_receipt(self, claim_id: str, entry: DoneEntry) -> Receipt:
        of = (claim_id, "done", *self.names, entry.sequences, entry.token)
        told = (entry.value, entry.rejected, entry.at)
        return Receipt(*of, *told, history=entry.history, work=entry.work, skipped=entry.skipped)

    async def skipped(self, claim_id: str, token: str) -> Sequences:
        """Return the messages of a claim that an attempt could not read and has skipped (:mod:`.skipped`).

        Raises:
            LedgerUnavailable: they cannot be read.
        """
        message = await self._last(self._receipts, f"$KV.{self._receipts}.{skipped_key(claim_id, token)}")
        return stored_skipped(claim_id, message[0]) if message else Sequences()

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
        receipt = await self.receipt(claim_id)
        if (receipt is None or receipt.state != "done") and entry is not None:
            receipt = self.done_receipt(claim_id, entry)
        if receipt is not None and receipt.state == "done":
            token = receipt.token or ""
            work.check_done(claim_id, receipt.work, receipt.history.attempts, token, receipt.at)
            return AlreadyDone(claim_id, token, receipt.value, receipt.at)
        became = _BECAME[receipt.state if receipt else ""]
        if receipt is not None and receipt.changed:
            became = f"is superseded: {receipt.reason}, and {edited.said(receipt.changed)}. Take the messages again"
        return Superseded(f"claim {claim_id} of consumer {self.consumer.name!r} {became}")

    async def committed(self) -> list[Receipt]:
        """Return one done receipt for each settled claim of this consumer, as long as receipts are kept.

        A claim that was processed again has the receipt of the newest attempt that settled it. Claims whose messages
        all became dead letters or were skipped are left out, because they have no output. The claims of a consumer that
        was deleted are still listed.

        Raises:
            WrongLedger: the ledger has no such claim, and the consumer belongs to another ledger.
            LedgerUnavailable: the ledger does not exist or cannot be read.
            StreamNotFound, ConsumerNotFound: the ledger has no such claim, and the stream or the consumer does not
                exist, for example because its name is wrong.
        """
        record, _ = await self.read()
        found = {
            claim_id: self.done_receipt(claim_id, entry) for claim_id, entry in (record.done.items() if record else ())
        }
        prefix = f"$KV.{self._receipts}."
        for subject, data in (await self._stored_receipts()).items():
            if is_claim_id(claim_id := subject.removeprefix(prefix)):
                receipt = stored_receipt(claim_id, data)
                if receipt.state == "done" and (receipt.stream, receipt.consumer) == self.names:
                    found[claim_id] = receipt
        await self._check_known(found)
        with_output = [receipt for receipt in found.values() if receipt.processed]
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
                yield self.done_receipt(claim_id, old.done[claim_id])
            for claim_id in old.open.keys() - new.open.keys() - new.done.keys() - {ended}:
                yield self._superseded(claim_id, old, new, applied.info)

    def _superseded(self, claim_id: str, old: Record, new: Record, info: ConsumerInfo) -> Receipt:
        entry = old.open[claim_id]
        entered = new.open.keys() - old.open.keys()
        by = sorted(each for each in entered if new.open[each].sequences & entry.sequences)
        reason = "its messages were redelivered to another take" if by else "its sensor or an operator withdrew it"
        if not by and new.life != old.life:
            reason = "its consumer was recreated, reset or rolled back"
        return Receipt(
            claim_id,
            "superseded",
            *self.names,
            entry.sequences,
            at=info.now,
            reason=reason,
            superseded_by=tuple(by[:MOST_NAMED]),
            history=entry.whole_history,
            changed=edited.changed(entry.config, info.config),
        )

    async def _stored_receipts(self) -> dict[str, bytes]:
        """Return the values of all keys of the bucket of receipts by their subjects.

        Direct get reads a thousand at a time. The replica or mirror that answers may lag behind the leader, so the
        leader is asked for the later receipts, or for all receipts if direct get is not possible or leaves keys out.
        """
        stream = self.js.stream(f"KV_{self._receipts}")
        try:
            info = await stream.info(patience=PATIENCE)
            with promised("the answer to STREAM.INFO"):
                keys = int(info.state.get("num_subjects", 0))
        except JetStreamError as error:
            raise _unavailable(self._receipts, error) from error
        found: dict[str, bytes] = {}
        reached = 0
        try:
            requirements.BATCHED_DIRECT_GET.check_answer(info.config)
            async for message in stored.pages(stream, stored.selection(1), None):
                found[message.subject], reached = message.data, message.sequence
        except JetStreamError as error:
            text = (
                "direct get from stream %s is not possible, so the messages from sequence %d on are read from its "
                "leader: %s"
            )
            log.info(text, stream.name, reached + 1, error)
        found |= await self._receipts_of_leader(reached + 1)
        return found if len(found) >= keys else await self._receipts_of_leader(1)

    async def _receipts_of_leader(self, first: int) -> dict[str, bytes]:
        """Return the values from a sequence on by their subjects, read one by one."""
        found: dict[str, bytes] = {}
        while True:
            which = {"seq": first, "next_by_subj": ">"}
            try:
                answer = await self.js.api(f"STREAM.MSG.GET.KV_{self._receipts}", which, patience=PATIENCE)
                message = RawMessage.parse(answer).decoded()
            except MessageNotFound:
                return found
            except JetStreamError as error:
                raise _unavailable(self._receipts, error) from error
            if message.sequence < first:
                raise _invalid_answer(message.subject)
            found[message.subject], first = message.data, message.sequence + 1

    async def _last(self, bucket: str, subject: str) -> tuple[bytes, int] | None:
        """Return the value of a key and its revision; None if the key does not exist."""
        try:
            answer = await self.js.api(f"STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": subject}, patience=PATIENCE)
        except MessageNotFound:
            return None
        except JetStreamError as error:
            raise _unavailable(bucket, error) from error
        try:
            message = answer["message"]
            data = base64.b64decode(message.get("data", ""))  # the marker of a deleted key has no data
            return data, int(message["seq"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _invalid_answer(subject) from None

    async def _write(self, subject: str, data: bytes, revision: int) -> int:
        """Write a value and return its revision. If storage is full, free the reserve, part by part, until it fits."""
        while True:
            try:
                return await self._publish(subject, data, revision)
            except StorageFull:
                if not await self.reserve.free():
                    raise

    async def _publish(self, subject: str, data: bytes, revision: int) -> int:
        subject = sent_to(self.js.settings, subject)
        try:
            ack = await self.js.publish(subject, data, expected_last_subject_sequence=revision, retry_attempts=0)
        except WrongLastSequence:
            raise
        except NoStreamResponse:
            raise JetStreamNotEnabled(503, 0, f"no stream listens on {subject!r}") from None
        except PermissionDenied as error:
            raise LedgerUnavailable(f"the ledger cannot be written: {error}") from error
        except WrongDomain as error:
            place = f"in domain {error.stored!r}" if error.stored else "outside any domain"
            wrong = f"the ledger's entry {subject!r} was stored {place}"
            raise LedgerUnavailable(f"{wrong}; correct the subject mappings of the servers that stored it") from error
        except ApiError as error:
            if storage_full(error):
                raise StorageFull(subject, str(error), WAY_OUT) from error
            raise LedgerUnavailable(
                f"the server refused a write to the ledger's subject {subject!r}: {error}"
            ) from error
        return ack.seq


def unusable(claim: str, problem: str) -> Superseded:
    """Return the error for a claim that can no longer be held or settled.

    claim:    the id of the claim; the names of its consumer and stream may follow.
    problem:  the reason and the remedy.
    """
    return Superseded(f"claim {claim} can no longer be held or settled, because {problem}")


async def believed(change: Callable[[], Awaitable[Result]]) -> Result:
    """Make a change. If its result ends the attempt, make it again after ``SECOND_READ`` s, and use that result."""
    with suppress(NotOpen, HeldByAnother, HoldLost, OtherWork, Superseded):
        return await change()
    await asyncio.sleep(SECOND_READ)
    return await change()


async def ledgers(js: JetStream, stream: str | None = None, consumer: str | None = None) -> list[Ledger]:
    """Return the ledgers of all consumers that have a record, or only of the consumers of one stream, or of one
    consumer, sorted by name.

    A key that the ledger did not write is ignored. Raises LedgerUnavailable.
    """
    bucket = f"{js.settings.ledger}_claims"
    found = []
    for key in await _keys(js, bucket):
        try:
            of_stream, name = map(_name, key.split("."))
        except ValueError:
            log.warning("ignoring key %r in bucket %s, because the ledger did not write it", key, bucket)
        else:
            if stream in (None, of_stream) and consumer in (None, name):
                found.append((of_stream, name))
    return [Ledger(js, *names) for names in sorted(found)]


async def _keys(js: JetStream, bucket: str) -> list[str]:
    prefix = f"$KV.{bucket}."
    subjects: list[str] = []
    while True:
        page = {"subjects_filter": f"{prefix}>", "offset": len(subjects)}
        try:
            answer = await js.api(f"STREAM.INFO.KV_{bucket}", page, patience=PATIENCE)
        except JetStreamError as error:
            raise _unavailable(bucket, error) from error
        more = answer["state"].get("subjects") or {}
        subjects += more
        if not more or len(subjects) >= answer.get("total", 0):
            return [subject.removeprefix(prefix) for subject in subjects]


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


def _name(base32: str) -> str:
    """The reverse of :func:`~jetstream_handoff.bucket.base32`. Raises ValueError if this is not the name of a stream or
    consumer in base32."""
    return check_stream_name(base64.b32decode(base32 + "=" * (-len(base32) % 8)).decode())


def _invalid_answer(subject: str) -> LedgerInvalid:
    wrong = "the server's answer is invalid"
    remedy = "Connect to the server without a proxy. If that does not help, read the server's log"
    return LedgerInvalid(f"entry {subject!r}", wrong, remedy)


def _unavailable(bucket: str, error: Exception) -> LedgerUnavailable:
    if isinstance(error, StreamNotFound):
        return LedgerUnavailable(
            f"the ledger's bucket {bucket!r} does not exist, so nothing can be settled. The first take creates it. "
            "If claims were already taken, compare this connection's account, domain and ledger with those of the "
            "connection that took them, and find out whether the bucket was deleted"
        )
    if storage_full(error):
        return StorageFull(f"KV_{bucket}", str(error), WAY_OUT)
    if isinstance(error, ConnectionLost):
        return LedgerUnavailable(f"the ledger's bucket {bucket!r} cannot be reached: {error}")
    return LedgerUnavailable(f"the ledger's bucket {bucket!r} (stream KV_{bucket}) cannot be used: {error}")


def never_used(error: LedgerUnavailable) -> bool:
    """Whether the error shows that no claim has ever been taken: the first take creates the buckets."""
    return isinstance(error.__cause__, StreamNotFound)
