# SPDX-License-Identifier: Apache-2.0
"""The receipts of one consumer's claims: reading, writing by compare-and-set, and what is committed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from jetstream_client import requirements
from jetstream_client.errors import (
    ConnectionLost,
    JetStreamError,
    JetStreamNotEnabled,
    MessageNotFound,
    RequestTimeout,
    WrongLastSequence,
)
from jetstream_client.read import stored
from jetstream_client.read.message import RawMessage
from jetstream_client.sequences import Sequences
from jetstream_handoff.claim import is_claim_id
from jetstream_handoff.ledger.bucket import receipt_key
from jetstream_handoff.ledger.buckets import PATIENCE, invalid_answer, unavailable
from jetstream_handoff.ledger.record import Receipt, skipped_key, stored_receipt, stored_skipped
from jetstream_handoff.rules import edited

if TYPE_CHECKING:
    from datetime import datetime

    from jetstream_client.info import ConsumerInfo
    from jetstream_client.read.message import StoredMessage
    from jetstream_handoff.ledger.buckets import Buckets
    from jetstream_handoff.ledger.record import DoneEntry, Record

log = logging.getLogger(__name__)

Known = tuple["Receipt | None", int]
"""A receipt as it was last seen, and its revision."""
MISSING: Known = (None, 0)
"""What is known of a receipt that was probably not written yet."""
MOST_NAMED = 20
"""How many of the claims that superseded a claim its receipt names, at most."""


class Receipts:
    """The receipts of the claims of one consumer. Each has the key ``<stream>.<consumer>.<claim id>``, with the names
    in base32, so that they are found by consumer."""

    def __init__(self, buckets: Buckets, stream: str, consumer: str) -> None:
        self._buckets = buckets
        self._names = stream, consumer
        self._prefix = f"$KV.{buckets.receipts}.{receipt_key(stream, consumer, '')}"

    def subject(self, key: str) -> str:
        """The subject of a key of this consumer: the id of a claim, or the name of an attempt."""
        return f"{self._prefix}{key}"

    async def read(self, claim_id: str) -> Receipt | None:
        """Return the receipt of a claim; None if there is none. Raises LedgerUnavailable."""
        return (await self._read(claim_id))[0]

    async def _read(self, claim_id: str) -> Known:
        message = await self._buckets.last(self._buckets.receipts, self.subject(claim_id))
        if message is None:
            return None, 0
        data, revision = message
        return stored_receipt(claim_id, data), revision

    async def write(self, receipt: Receipt, known: Known | None = MISSING) -> tuple[Receipt, int]:
        """Write a receipt. A done receipt is never replaced, because the claim may have been reprocessed since; it only
        gets the time of the acknowledgement. A superseded receipt does not replace any other receipt.

        known: as in :meth:`change`.
        """

        def stands(old: Receipt | None) -> Receipt:
            if old is None or (old.state != "done" and receipt.state != "superseded"):
                return receipt
            return replace(old, acknowledged=receipt.acknowledged) if receipt.acknowledged is not None else old

        return await self.change(receipt.claim_id, stands, known)

    async def try_write(self, receipt: Receipt, known: Known | None = MISSING) -> tuple[Receipt, int] | None:
        """Write a receipt. An error is only logged: the record already says how the claim ended, so the attempt must
        not fail. None is then returned.

        If the receipt is missing, the take that removes the done claim from the record writes it. That take fails if it
        cannot write the receipt.

        known: as in :meth:`change`.
        """
        try:
            return await self.write(receipt, known)
        except JetStreamError as error:
            text = "claim %s is %s, but its receipt could not be written: %s"
            log.error(text, receipt.claim_id, receipt.state, error)  # noqa: TRY400
            return None

    async def change(
        self,
        claim_id: str,
        function: Callable[[Receipt | None], Receipt],
        known: Known | None = None,
        *,
        confirm: bool = False,
    ) -> tuple[Receipt, int]:
        """Read a receipt, call ``function`` with it, and write the receipt that it returns. If another client has
        written the receipt in the meantime, begin again.

        known:    what is known of the receipt, which saves the first read. Default: nothing.
        confirm:  whether the receipt is written even if it is unchanged. Then no deposed leader can have answered with
                  an old one: its write would not succeed.

        Returns the receipt as it is stored now, and its revision.

        Raises:
            LedgerUnavailable: as :meth:`change`.
        """
        subject = self.subject(claim_id)
        clock = asyncio.get_running_loop().time
        deadline = clock() + PATIENCE
        sent: list[Receipt] = []
        while True:
            old, revision = known or await self._read(claim_id)
            known = None
            receipt = old if old is not None and old in sent else function(old)
            if receipt == old and not confirm:
                return receipt, revision
            sent.append(receipt)
            try:
                return receipt, await self._buckets.write(subject, json.dumps(receipt.to_json()).encode(), revision)
            except (WrongLastSequence, RequestTimeout, ConnectionLost, JetStreamNotEnabled) as again:
                if clock() > deadline or self._buckets.js.connection.closed:
                    raise unavailable(self._buckets.receipts, again) from again
                await asyncio.sleep(0 if isinstance(again, WrongLastSequence) else 0.2)

    def of_done(self, claim_id: str, entry: DoneEntry) -> Receipt:
        of = (claim_id, "done", *self._names, entry.sequences, entry.token)
        told = (entry.value, entry.rejected, entry.at)
        return Receipt(*of, *told, history=entry.history, work=entry.work, skipped=entry.skipped)

    def of_superseded(self, claim_id: str, old: Record, new: Record, info: ConsumerInfo) -> Receipt:
        entry = old.open[claim_id]
        entered = new.open.keys() - old.open.keys()
        by = sorted(each for each in entered if new.open[each].sequences & entry.sequences)
        reason = "its messages were redelivered to another take" if by else "its sensor or an operator withdrew it"
        if not by and new.life != old.life:
            reason = "its consumer was recreated, reset or rolled back"
        return Receipt(
            claim_id,
            "superseded",
            *self._names,
            entry.sequences,
            at=info.now,
            reason=reason,
            superseded_by=tuple(by[:MOST_NAMED]),
            history=entry.whole_history,
            changed=edited.changed(entry.config, info.config),
        )

    async def skipped(self, claim_id: str, token: str) -> Sequences:
        """Return the messages of a claim that an attempt could not read and has skipped (:mod:`.skipped`).

        Raises:
            LedgerUnavailable: they cannot be read.
        """
        message = await self._buckets.last(self._buckets.receipts, self.subject(skipped_key(claim_id, token)))
        return stored_skipped(claim_id, message[0]) if message else Sequences()

    async def done(self, since: datetime | None = None) -> dict[str, Receipt]:
        """Return the done receipts by the ids of their claims, or only those that were stored at this time or later.

        Raises:
            LedgerUnavailable: they cannot be read.
        """
        found: dict[str, Receipt] = {}
        for subject, data in (await self._stored(since)).items():
            if is_claim_id(claim_id := subject.removeprefix(self._prefix)):
                receipt = stored_receipt(claim_id, data)
                if receipt.state == "done" and (receipt.stream, receipt.consumer) == self._names:
                    found[claim_id] = receipt
        return found

    async def exist(self) -> bool:
        """Whether there is a receipt of this consumer. Raises LedgerUnavailable."""
        return await self._next(1) is not None

    async def _stored(self, since: datetime | None) -> dict[str, bytes]:
        """Return the values of this consumer's keys by their subjects.

        Direct get reads a thousand at a time. The replica or mirror that answers may lag behind the leader, or lack
        messages, and each page may come from another one. So the leader says with which receipt each page begins. If a
        page begins otherwise, or if direct get is not possible, the leader is asked for the rest.
        """
        stream = self._buckets.stream(self._buckets.receipts)
        found: dict[str, bytes] = {}
        begin = await self._next(1, since)
        try:
            requirements.BATCHED_DIRECT_GET.check_answer((await stream.info(patience=PATIENCE)).config)
            while begin is not None:
                which = stored.selection(begin.sequence, self._prefix + ">")
                page = [each async for each in stored.pages(stream, which, stored.BATCH)]
                if page and page[0].sequence == begin.sequence:
                    found |= {each.subject: each.data for each in page}
                    begin = await self._next(page[-1].sequence + 1)
                    continue
                beginning, begin = begin, await self._next(begin.sequence)  # it may have been written again
                if begin is not None and begin.sequence == beginning.sequence:
                    break
        except JetStreamError as error:
            text = (
                "direct get from stream %s is not possible, so the messages from sequence %d on are read from its "
                "leader: %s"
            )
            log.info(text, stream.name, begin.sequence if begin else 1, error)
        return found | await self._of_leader(begin.sequence) if begin else found

    async def _of_leader(self, first: int) -> dict[str, bytes]:
        """Return the values from a sequence on by their subjects, read one by one."""
        found: dict[str, bytes] = {}
        while (message := await self._next(first)) is not None:
            if message.sequence < first:
                raise invalid_answer(message.subject)
            found[message.subject], first = message.data, message.sequence + 1
        return found

    async def _next(self, first: int, since: datetime | None = None) -> StoredMessage | None:
        """The first message of this consumer from a sequence or a time on, from the leader; None if there is none."""
        body = stored.selection(None if since else first, self._prefix + ">", None, since)
        bucket = self._buckets.receipts
        if since is not None:
            await self._buckets.js.require(requirements.START_TIME)
        try:
            answer = await self._buckets.js.api(f"STREAM.MSG.GET.KV_{bucket}", body, patience=PATIENCE)
            return RawMessage.parse(answer).decoded()
        except MessageNotFound:
            return None
        except JetStreamError as error:
            raise unavailable(bucket, error) from error
