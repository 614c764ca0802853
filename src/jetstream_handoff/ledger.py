"""The ledger: one record per consumer and one receipt per claim in two key-value buckets (docs/handoff.md).

The record is only ever written by compare-and-set on a read of the stream's leader (:meth:`Ledger.change`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

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
)
from jetstream_client.names import check_stream_name
from jetstream_client.sequences import MOST_RANGES
from jetstream_handoff.bucket import RECEIPTS_KEPT, bucket_config, check_bucket
from jetstream_handoff.changes import Applied, Change, Queue, Waiting
from jetstream_handoff.claim import Claim, is_claim_id, new_claim_id
from jetstream_handoff.errors import AlreadyDone, HeldByAnother, HoldLost, LedgerInvalid, LedgerUnavailable, Superseded
from jetstream_handoff.record import DoneEntry, Receipt, Record

if TYPE_CHECKING:
    from jetstream_client.consume.address import AckAddress
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo, StreamInfo
    from jetstream_client.stream import Stream
    from jetstream_handoff.record import OpenEntry

log = logging.getLogger(__name__)
Result = TypeVar("Result")

LARGEST_RECORD = 512 << 10
"""Bytes of a record that claims are entered into, where the server takes twice as much in a message (``max_payload``):
settling adds what the work returned, and what it rejected."""
_AROUND = 1 << 10
"""Bytes of a written record beside its value: its header. A receipt holds no more than the record, and two names."""
PATIENCE = 60.0
"""Seconds that a change goes on while the server is away: a failover took up to 8 s, a restart may take longer."""
AWAY = 0.2
"""Seconds before a server that is away is tried again."""
LONGEST_PAUSE = 5.0
"""Seconds before a lost race is run again, at most."""
SECOND_READ = 2.0
"""Seconds until bad news is read again: a deposed leader answers old reads for half a second after it thaws."""


_BECAME = {
    "superseded": (
        "is superseded: its messages are delivered again and belong to another claim, as when no task had begun "
        "by the end of its lease, or the attempt that held it died. Nothing is lost; do not clear this task. If tasks "
        "often begin late, give the sensor a longer hand_off_timeout"
    ),
    "failed": "was given up as failed, and its messages are delivered again to the next sensor",
    "": (
        "is unknown: the ledger does not know it, as after 90 days, or a reset of the consumer or the "
        "ledger. What is not acknowledged is delivered again to the next sensor"
    ),
}
"""What became of a claim that is neither open nor done, by the state of its receipt, and what to do."""


class NotOpen(Exception):
    """Raised inside a change for a claim that is not open; :meth:`Ledger.decide` finds out why."""

    def __init__(self, record: Record | None) -> None:
        self.record = record


class Ledger:
    """The ledger's view of one consumer of one stream."""

    def __init__(self, js: JetStream, stream: str, consumer: str) -> None:
        if js.settings.api_prefix:
            # The plain acknowledgement reaches this account's consumer of the same name, too, and a client cannot learn
            # which account is behind an import.
            remedy = (
                "claims cannot be acknowledged safely through an import: connect with the account that has the stream"
            )
            raise InvalidValue("api_prefix", js.settings.api_prefix, f"{remedy}; for a domain give domain instead")
        self.js = js
        self.stream = js.stream(stream)
        self.consumer = self.stream.consumer(consumer)
        self._claims = f"{js.settings.ledger}_claims"
        self._receipts = f"{js.settings.ledger}_receipts"
        self._address: AckAddress | None = None
        self._record_subject = f"$KV.{self._claims}.{_base32(stream)}.{_base32(consumer)}"

    @property
    def bucket(self) -> Stream:
        """The stream of the records."""
        return self.js.stream(f"KV_{self._claims}")

    @property
    def buckets(self) -> tuple[str, str]:
        """The names of the buckets of records and of receipts."""
        return self._claims, self._receipts

    @property
    def subjects(self) -> tuple[str, str]:
        """Where the record is written, and where a receipt would be that no claim has."""
        return self._sent_to(self._record_subject), self._sent_to(f"$KV.{self._receipts}.{new_claim_id()}")

    async def locate(self) -> AckAddress:
        """Where the consumer is acknowledged, asked of the servers once.

        Raises:
            AddressUnknown: it cannot be learned; nothing was acknowledged.
            PermissionDenied: this user may not acknowledge there.
            StreamNotFound: there is no such stream.
        """
        if self._address is None:
            self._address = await address.find(self.stream, self.consumer.name, patience=PATIENCE)
        return self._address

    @property
    def address(self) -> AckAddress:
        """What :meth:`locate` found before."""
        if self._address is None:
            raise JetStreamError(f"consumer {self.consumer.name!r} was not located yet")
        return self._address

    async def create(self) -> None:
        """Create the buckets where they are missing, on file, with the stream's number of replicas.

        Raises:
            LedgerUnavailable: as :meth:`check`; or one is missing and cannot be created.
        """
        replicas = (await self.stream.info(patience=PATIENCE)).config.get("num_replicas", 1)
        for name, max_age in ((self._claims, timedelta(0)), (self._receipts, RECEIPTS_KEPT)):
            try:
                await self._check(name)
                continue
            except LedgerUnavailable as error:
                if not never_used(error):
                    raise
            log.info("creating the ledger's bucket %s", name)
            try:
                await self.js.create_stream(bucket_config(name, replicas, max_age))
            except StreamNameInUse:  # another sensor was faster
                await self._check(name)
            except JetStreamError as error:
                raise _unavailable(name, error) from error

    async def check(self) -> None:
        """Raises LedgerUnavailable unless both buckets exist and may be read, and LedgerUnsuitable for one that could
        lose what is written into it."""
        for name in (self._claims, self._receipts):
            await self._check(name)

    async def look(self) -> dict[str, StreamInfo | LedgerUnavailable]:
        """For each bucket, by its name, what the server says of it, or why it cannot be used."""
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
        """Try writes that the buckets refuse because of the revision that they expect: nothing is stored.

        Raises:
            LedgerUnavailable: this user may not write, for one.
        """
        for subject in (self._record_subject, f"$KV.{self._receipts}.{new_claim_id()}"):
            with suppress(WrongLastSequence):
                await self._write(subject, {}, NO_MESSAGE)

    async def read(self) -> tuple[Record | None, int]:
        """The record and its revision, from the leader; ``(None, 0)`` when there is none yet.

        Raises:
            LedgerUnavailable: the bucket is missing or may not be read.
        """
        message = await self._last(self._claims, self._record_subject)
        if message is None:
            return None, 0
        text, revision = message
        queue = Queue.of(self.js, self._record_subject)
        if queue.read != text:  # a record of 100,000 ranges takes a tenth of a second
            queue.record = Record.from_json(_decoded("record", text))
            queue.read = text
        return queue.record, revision

    async def known(self) -> Record | None:
        """The record; None, too, where no sensor has ever taken a claim. Raises LedgerUnavailable."""
        try:
            return (await self.read())[0]
        except LedgerUnavailable as error:
            if not never_used(error):
                raise
            return None

    async def receipt(self, claim_id: str) -> Receipt | None:
        """Raises LedgerUnavailable."""
        return (await self._receipt(claim_id))[0]

    async def _receipt(self, claim_id: str) -> tuple[Receipt | None, int]:
        message = await self._last(self._receipts, f"$KV.{self._receipts}.{claim_id}")
        if message is None:
            return None, 0
        text, revision = message
        return Receipt.from_json(claim_id, _decoded("receipt", text)), revision

    async def change(self, function: Change) -> tuple[Record | None, ConsumerInfo]:
        """Read the record, then INFO, apply, and write if nobody else did; else again.

        ``function`` returns the new record (which may equal the old one: then nothing is written), or raises. It must
        recognise its own effect, because a write whose answer got lost is simply tried again.

        What waits at the same time on this connection is applied together and written once (:mod:`.changes`).

        Returns the record as this change left it, and the INFO that it saw.

        Raises:
            LedgerUnavailable: the buckets are missing, not permitted or full, or the server was away for ``PATIENCE``.
        """
        queue = Queue.of(self.js, self._record_subject)
        async with queue.turn(function) as mine:
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
                deadline = clock() + PATIENCE  # whoever won has shown that the ledger can be written
                await asyncio.sleep(_pause(lost, clock() - began))
            except (RequestTimeout, ConnectionLost, JetStreamNotEnabled) as away:
                if clock() > deadline or self.js.connection.closed:
                    error = LedgerUnavailable(f"the ledger could not be written within {PATIENCE:g} s: {away}")
                    return queue.done((each, error) for each in together)
                await asyncio.sleep(AWAY)
            except JetStreamError as error:
                return queue.done((each, error) for each in together)
            else:
                if applied is not None:
                    return queue.done(applied.outcomes)

    async def _attempt(self, queue: Queue, together: list[Waiting], receipted: set[str]) -> Applied | None:
        """Read, apply, write. None: only receipts were written, and what was read is old by now."""
        began = asyncio.get_running_loop().time()
        old, revision = await self.read()
        info = await self.consumer.info(patience=PATIENCE)
        applied = queue.apply(together, old, info)
        new = applied.record
        if new is None or new == old:
            return applied
        forgotten = [each for each in self._forgotten(applied.steps) if each.claim_id not in receipted]
        if forgotten:
            await asyncio.gather(*map(self._forget, forgotten))
            receipted.update(each.claim_id for each in forgotten)
            return None
        rivals = revision != queue.written
        queue.written = await self._write(self._record_subject, new.to_json(), revision)
        if rivals:
            now = asyncio.get_running_loop().time()
            queue.idle_until = now + random.uniform(0, 4 * (now - began))  # noqa: S311
        return applied

    async def decide(self, function: Change, claim_id: str) -> Record:
        """A change that hold or settle depends on. Bad news is believed only when a second read says the same.

        Raises:
            AlreadyDone, Superseded, HeldByAnother: what became of the claim.
            LedgerUnavailable: as :meth:`change`.
        """
        try:
            record, _ = await believed(lambda: self.change(function))
        except NotOpen as bad:
            raise await self.verdict(claim_id, bad.record) from None
        except (ConsumerNotFound, StreamNotFound) as gone:
            raise Superseded(f"claim {claim_id}: {gone.description}; its messages cannot be settled") from gone
        if record is None:
            raise Superseded(f"claim {claim_id}: the ledger has no record of consumer {self.consumer.name!r}")
        return record

    @property
    def largest_value(self) -> int:
        """Bytes that the server takes as the value of a key."""
        return self.js.connection.max_payload - _AROUND

    def can_be_written(self, record: Record) -> bool:
        """Whether the server takes a message of this size."""
        return len(json.dumps(record.to_json())) <= self.largest_value

    def fits(self, record: Record, *, reserve: bool = False) -> bool:
        """Whether claims may be entered into the record; ``reserve``: those that hold the floor have more room."""
        ranges = [len(entry.sequences.ranges) for entry in record.open.values()]
        if max(len(record.settled.spans), *ranges, 0) > MOST_RANGES:
            return False
        largest = min(LARGEST_RECORD, self.largest_value // 2)
        return len(json.dumps(record.to_json())) <= largest * (1.5 if reserve else 1)

    async def write_receipt(self, receipt: Receipt, *, new: bool = True) -> None:
        """A done receipt is never replaced, it may have been reprocessed since; a superseded one replaces nothing.

        ``new``: as :meth:`change_receipt`."""

        def stands(old: Receipt | None) -> Receipt:
            if old is None or (old.state != "done" and receipt.state != "superseded"):
                return receipt
            return old

        await self.change_receipt(receipt.claim_id, stands, new=new)

    async def try_receipt(self, receipt: Receipt) -> None:
        """:meth:`write_receipt` of what the record decides: a full or missing bucket does not turn it into a failure.

        The receipt of a done claim is written by the take that forgets it, which fails while it cannot be.
        """
        try:
            await self.write_receipt(receipt)
        except JetStreamError as error:
            log.error("claim %s is %s, but without a receipt: %s", receipt.claim_id, receipt.state, error)  # noqa: TRY400

    async def _forget(self, receipt: Receipt) -> None:
        """A done claim is forgotten only with its receipt. Of an open one the receipt says only what became of it."""
        if receipt.state == "done":
            await self.write_receipt(receipt, new=False)
        else:
            await self.try_receipt(receipt)

    async def change_receipt(
        self, claim_id: str, function: Callable[[Receipt | None], Receipt], *, new: bool = False
    ) -> Receipt:
        """Read a receipt, apply, and write if nobody else did; else again. As :meth:`change`; ``new``: as if there were
        none, at first.

        Raises:
            LedgerUnavailable: as :meth:`change`.
        """
        subject = f"$KV.{self._receipts}.{claim_id}"
        clock = asyncio.get_running_loop().time
        deadline = clock() + PATIENCE
        while True:
            old, revision = (None, 0) if new else await self._receipt(claim_id)
            new = False
            receipt = function(old)
            if receipt == old:
                return receipt
            try:
                await self._write(subject, receipt.to_json(), revision)
            except (WrongLastSequence, RequestTimeout, ConnectionLost, JetStreamNotEnabled) as again:
                if clock() > deadline or self.js.connection.closed:
                    raise _unavailable(self._receipts, again) from again
                await asyncio.sleep(0 if isinstance(again, WrongLastSequence) else 0.2)
            else:
                return receipt

    def done_receipt(self, claim_id: str, entry: DoneEntry) -> Receipt:
        names, sequences = self.names, entry.sequences
        return Receipt(claim_id, "done", *names, sequences, entry.token, entry.value, entry.rejected, entry.at)

    @property
    def names(self) -> tuple[str, str]:
        """Of stream and consumer."""
        return self.stream.name, self.consumer.name

    def claim_of(self, claim_id: str, entry: OpenEntry, stream_created: str, consumer_created: str) -> Claim:
        """An open claim as it is handed on; after :meth:`locate`."""
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

    async def verdict(self, claim_id: str, record: Record | None) -> AlreadyDone | Superseded:
        """Why a claim is not open."""
        entry = record.done.get(claim_id) if record else None
        receipt = await self.receipt(claim_id)
        if receipt is not None and receipt.state == "done":
            return AlreadyDone(claim_id, receipt.token or "", receipt.value, receipt.at)
        if entry is not None:
            return AlreadyDone(claim_id, entry.token, entry.value, entry.at)
        became = _BECAME[receipt.state if receipt else ""]
        return Superseded(f"claim {claim_id} of consumer {self.consumer.name!r} {became}")

    async def committed(self) -> list[Receipt]:
        """The done receipts of this consumer that are kept, and the done entries that have none yet.

        One for each claim: of a claim that was processed again the newest attempt that was settled. Not those that
        processed nothing, because all of their messages are dead letters: they have no output.
        """
        record, _ = await self.read()
        found = {
            claim_id: self.done_receipt(claim_id, entry) for claim_id, entry in (record.done.items() if record else ())
        }
        for claim_id in filter(is_claim_id, await _keys(self.js, self._receipts)):
            receipt = await self.receipt(claim_id)
            if receipt and receipt.state == "done" and (receipt.stream, receipt.consumer) == self.names:
                found[claim_id] = receipt
        with_output = [receipt for receipt in found.values() if receipt.processed]
        return sorted(with_output, key=lambda receipt: receipt.sequences.first)

    def _forgotten(self, steps: Iterable[Record | None]) -> Iterator[Receipt]:
        for old, new in pairwise(steps):
            if old is None or new is None:
                continue
            for claim_id in old.done.keys() - new.done.keys():
                yield self.done_receipt(claim_id, old.done[claim_id])
            for claim_id in old.open.keys() - new.open.keys() - new.done.keys():
                yield Receipt(claim_id, "superseded", *self.names, old.open[claim_id].sequences)

    async def _last(self, bucket: str, subject: str) -> tuple[str, int] | None:
        """The text of the key's value, in base64, and its revision."""
        try:
            answer = await self.js.api(f"STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": subject}, patience=PATIENCE)
        except MessageNotFound:
            return None
        except JetStreamError as error:
            raise _unavailable(bucket, error) from error
        try:
            message = answer["message"]
            return message.get("data", ""), int(message["seq"])  # without data: the mark of a deleted key
        except (KeyError, TypeError, ValueError, AttributeError):
            raise LedgerInvalid("record" if bucket == self._claims else "receipt", "not an answer") from None

    def _sent_to(self, subject: str) -> str:
        # A plain $KV subject would be stored by the connected server's own bucket of that name. Each server maps this
        # one in its own domain (generateJSMappingTable in nats-server's server/jetstream_api.go).
        return f"{self.js.settings.prefix}.{subject}" if self.js.settings.domain else subject

    async def _write(self, subject: str, value: Mapping[str, Any], revision: int) -> int:
        subject = self._sent_to(subject)
        data = json.dumps(value).encode()
        try:
            ack = await self.js.publish(subject, data, expected_last_subject_sequence=revision, retry_attempts=0)
        except WrongLastSequence:
            raise
        except NoStreamResponse:
            raise JetStreamNotEnabled(503, 0, f"no stream listens on {subject!r}") from None
        except PermissionDenied as error:
            raise LedgerUnavailable(f"the ledger may not be written: {error}") from error
        except WrongDomain as error:
            wrong = f"{subject!r} was stored in domain {error.stored!r}: check the mappings of subjects"
            raise LedgerUnavailable(wrong) from error
        except ApiError as error:
            raise LedgerUnavailable(f"the ledger refused a write: {error}") from error
        return ack.seq


async def believed(change: Callable[[], Awaitable[Result]]) -> Result:
    """The result of a change whose bad news is believed only when a second read says the same."""
    with suppress(NotOpen, HeldByAnother, HoldLost, Superseded):
        return await change()
    await asyncio.sleep(SECOND_READ)
    return await change()


async def ledgers(js: JetStream, stream: str | None = None, consumer: str | None = None) -> list[Ledger]:
    """The consumers that the ledger has a record of, all or those named, by name. A key that the ledger did not write
    is passed over.

    Raises LedgerUnavailable.
    """
    bucket = f"{js.settings.ledger}_claims"
    found = []
    for key in await _keys(js, bucket):
        try:
            of_stream, name = map(_name, key.split("."))
        except ValueError:
            log.warning("key %r in bucket %s is not the ledger's: it is ignored", key, bucket)
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


def _pause(lost: int, duration: float) -> float:
    """Seconds before the next attempt after so many lost races, of which the last took ``duration``.

    Shorter each time: whoever came last waits longest, so that nobody starves. Among 100 rivals the unluckiest change
    then takes 6 times its share, and 23 times with pauses that grow.
    """
    return random.uniform(0, min(LONGEST_PAUSE, duration * 2 ** max(1, 6 - lost)))  # noqa: S311


def _decoded(what: str, text: str) -> Any:
    try:
        return json.loads(base64.b64decode(text))
    except (TypeError, ValueError, RecursionError):
        raise LedgerInvalid(what, "not JSON") from None


def _base32(name: str) -> str:
    return base64.b32encode(name.encode()).rstrip(b"=").decode()


def _name(base32: str) -> str:
    """The reverse. Raises ValueError for what is no name of a stream or consumer in base32."""
    return check_stream_name(base64.b32decode(base32 + "=" * (-len(base32) % 8)).decode())


def _unavailable(bucket: str, error: Exception) -> LedgerUnavailable:
    if isinstance(error, StreamNotFound):
        return LedgerUnavailable(
            f"the ledger's bucket {bucket!r} is missing: a sensor creates it; without it nothing is acknowledged"
        )
    if isinstance(error, ConnectionLost):
        return LedgerUnavailable(f"the ledger's bucket {bucket!r} cannot be reached: {error}")
    return LedgerUnavailable(
        f"the ledger's bucket {bucket!r} cannot be used: {error}; the account needs its stream KV_{bucket}"
    )


def never_used(error: LedgerUnavailable) -> bool:
    """Whether no sensor has ever taken a claim: the first one makes the buckets."""
    return isinstance(error.__cause__, StreamNotFound)
