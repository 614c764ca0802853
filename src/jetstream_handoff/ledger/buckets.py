# SPDX-License-Identifier: Apache-2.0
"""The ledger's two key-value buckets in an account: one has a record for each consumer, the other a receipt for each
claim.
"""

from __future__ import annotations

import base64
import logging
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from jetstream_client.consume.address import NO_MESSAGE
from jetstream_client.errors import (
    ApiError,
    ConnectionLost,
    JetStreamError,
    JetStreamNotEnabled,
    MessageNotFound,
    NoStreamResponse,
    PermissionDenied,
    StreamNameInUse,
    StreamNotFound,
    WrongDomain,
    WrongLastSequence,
    promised,
)
from jetstream_client.names import check_stream_name
from jetstream_handoff.errors import LedgerInvalid, LedgerUnavailable, StorageFull
from jetstream_handoff.ledger.bucket import RECEIPTS_KEPT, bucket_config, check_bucket, receipts_bucket, records_bucket
from jetstream_handoff.ledger.record import stored_receipt
from jetstream_handoff.ledger.reserve import Reserve
from jetstream_handoff.rules.storage import WAY_OUT, storage_full

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.info import StreamInfo
    from jetstream_client.stream import Stream
    from jetstream_handoff.ledger.record import Receipt

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds for which a request is repeated while the server does not answer. A failover took up to 8 s, and a restart
may take longer."""


class Buckets:
    """The buckets of one ledger in the account of a connection.

    name:      the name of the ledger; default: that of the connection.
    claims:    the name of the bucket of records.
    receipts:  the name of the bucket of receipts.
    reserve:   the messages that are freed when storage is full.
    """

    def __init__(self, js: JetStream, name: str | None = None) -> None:
        self.js = js
        self.name = name or js.settings.ledger
        self.claims = records_bucket(self.name)
        self.receipts = receipts_bucket(self.name)
        self.reserve = Reserve(js, self.name, js.settings.sent_to)

    @property
    def names(self) -> tuple[str, str]:
        """The names of the buckets of records and of receipts."""
        return self.claims, self.receipts

    @property
    def records(self) -> Stream:
        """The stream of the bucket of records."""
        return self.stream(self.claims)

    def stream(self, bucket: str) -> Stream:
        """The stream of a bucket."""
        return self.js.stream(f"KV_{bucket}")

    async def create(self, replicas: int) -> None:
        """Create the buckets that do not exist, on file, with this number of replicas. Create or fill the reserve.

        Raises:
            LedgerUnavailable: a bucket cannot be used, as for :meth:`check`, or cannot be created.
        """
        for name, max_age in ((self.claims, timedelta(0)), (self.receipts, RECEIPTS_KEPT)):
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
                raise unavailable(name, error) from error
        await self.reserve.ensure(replicas)

    async def _tell_created(self, name: str) -> None:
        """Log that a bucket is created. If the other one has entries, this one has existed, too."""
        (other,) = {*self.names} - {name}
        entries = 0
        with suppress(JetStreamError):
            entries = await self.entries(other)
        if entries:
            text = (
                "creating the ledger's bucket %s, which must have been deleted or lost, because bucket %s has %d "
                "entries: restore it from a backup if there is one. Messages that are not acknowledged are processed "
                "again"
            )
            log.error(text, name, other, entries)
        else:
            log.info("creating the ledger's bucket %s", name)

    async def entries(self, bucket: str) -> int:
        """Return the number of keys of a bucket. Raises LedgerUnavailable."""
        try:
            info = await self.stream(bucket).info(patience=PATIENCE)
            with promised("the answer to STREAM.INFO"):
                return int(info.state.get("num_subjects", 0))
        except JetStreamError as error:
            raise unavailable(bucket, error) from error

    async def check(self) -> None:
        """Check that both buckets can be used.

        Raises:
            LedgerUnavailable: a bucket does not exist, or this account is not permitted to read it.
            LedgerUnsuitable: a bucket could lose its entries.
        """
        for name in (self.claims, self.receipts):
            await self._check(name)

    async def look(self) -> dict[str, StreamInfo | LedgerUnavailable]:
        """Return, by the name of each bucket, its stream's INFO, or the error that makes the bucket unusable."""
        found: dict[str, StreamInfo | LedgerUnavailable] = {}
        for name in self.names:
            try:
                found[name] = await self._check(name)
            except LedgerUnavailable as error:
                found[name] = error
        return found

    async def _check(self, name: str) -> StreamInfo:
        try:
            info = await self.stream(name).info(patience=PATIENCE)
        except JetStreamError as error:
            raise unavailable(name, error) from error
        check_bucket(name, info.config, expires=name == self.receipts)
        return info

    async def check_writable(self, *subjects: str) -> None:
        """Check the permission to write, with writes that expect an impossible revision, so that nothing is stored.

        Raises:
            LedgerUnavailable: a write was refused for another reason, for example a missing permission.
        """
        for subject in subjects:
            with suppress(WrongLastSequence):
                await self.write(subject, b"{}", NO_MESSAGE)

    async def consumers(self, stream: str | None = None, consumer: str | None = None) -> list[tuple[str, str]]:
        """Return the names of the streams and consumers that have a record, or only those of one stream, or of one
        consumer, sorted.

        A key that the ledger did not write is ignored. Raises LedgerUnavailable.
        """
        named = {names for key in await self._keys(self.claims) if (names := self._names(key, self.claims, 2))}
        return sorted((of, name) for of, name in named if stream in (None, of) and consumer in (None, name))

    async def receipted(self) -> list[tuple[str, str]]:
        """Return the names of the streams and consumers that have a receipt, sorted. This lists every receipt.

        As :meth:`consumers`.
        """
        return sorted(
            {names for key in await self._keys(self.receipts) if (names := self._names(key, self.receipts, 3))}
        )

    def _names(self, key: str, bucket: str, parts: int) -> tuple[str, str] | None:
        """The names of the stream and the consumer in a key; None if the ledger did not write it."""
        names = key.split(".")
        with suppress(ValueError):
            if len(names) == parts:
                return _name(names[0]), _name(names[1])
        log.warning("ignoring key %r in bucket %s, because the ledger did not write it", key, bucket)
        return None

    async def _keys(self, bucket: str) -> list[str]:
        prefix = f"$KV.{bucket}."
        subjects: list[str] = []
        while True:
            page = {"subjects_filter": f"{prefix}>", "offset": len(subjects)}
            try:
                answer = await self.js.api(f"STREAM.INFO.KV_{bucket}", page, patience=PATIENCE)
            except JetStreamError as error:
                raise unavailable(bucket, error) from error
            more = answer["state"].get("subjects") or {}
            subjects += more
            if not more or len(subjects) >= answer.get("total", 0):
                return [subject.removeprefix(prefix) for subject in subjects]

    async def receipt(self, claim_id: str) -> Receipt | None:
        """Return the receipt of a claim, whatever its consumer; None if there is none. Raises LedgerUnavailable."""
        message = await self.last(self.receipts, f"$KV.{self.receipts}.*.*.{claim_id}")
        return stored_receipt(claim_id, message[0]) if message else None

    async def last(self, bucket: str, subject: str) -> tuple[bytes, int] | None:
        """Return the value of a key and its revision; None if the key does not exist."""
        try:
            answer = await self.js.api(f"STREAM.MSG.GET.KV_{bucket}", {"last_by_subj": subject}, patience=PATIENCE)
        except MessageNotFound:
            return None
        except JetStreamError as error:
            raise unavailable(bucket, error) from error
        try:
            message = answer["message"]
            data = base64.b64decode(message.get("data", ""))  # the marker of a deleted key has no data
            return data, int(message["seq"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise invalid_answer(subject) from None

    async def write(self, subject: str, data: bytes, revision: int) -> int:
        """Write a value and return its revision. If storage is full, free the reserve, part by part, until it fits."""
        while True:
            try:
                return await self._publish(subject, data, revision)
            except StorageFull:
                if not await self.reserve.free():
                    raise

    async def _publish(self, subject: str, data: bytes, revision: int) -> int:
        subject = self.js.settings.sent_to(subject)
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


def _name(base32: str) -> str:
    """The reverse of :func:`~.bucket.base32`. Raises ValueError if this is not the name of a stream or consumer in
    base32."""
    return check_stream_name(base64.b32decode(base32 + "=" * (-len(base32) % 8)).decode())


def invalid_answer(subject: str) -> LedgerInvalid:
    wrong = "the server's answer is invalid"
    remedy = "Connect to the server without a proxy. If that does not help, read the server's log"
    return LedgerInvalid(f"entry {subject!r}", wrong, remedy)


def unavailable(bucket: str, error: Exception) -> LedgerUnavailable:
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
