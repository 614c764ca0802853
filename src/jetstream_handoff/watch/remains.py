# SPDX-License-Identifier: Apache-2.0
"""What shows that a ledger was used, apart from its records: marks in consumers, receipts, and dead letters.

The bucket of records can be deleted or lost, and is then created again without the old records. Consumers keep the
mark of their ledger (:mod:`~jetstream_handoff.rules.ledger_mark`), and receipts are in another bucket.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_client.errors import JetStreamError
from jetstream_client.quantities import number
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.ledger.bucket import records_bucket
from jetstream_handoff.ledger.buckets import Buckets
from jetstream_handoff.letters.dead_letters import DEFAULT_PREFIX
from jetstream_handoff.rules import ledger_mark, roles

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo, StreamInfo

log = logging.getLogger(__name__)

AT_ONCE = 16
"""The consumers of how many streams are listed at the same time, at most."""
_BUCKETS = ("KV_", "OBJ_")

Names = tuple[str, str]
"""The names of a stream and a consumer."""


@dataclass(frozen=True)
class Remains:
    """What exists apart from the records.

    consumers:     the consumers that belong to the ledger by their marks or receipts, sorted.
    delivered:     those of them that have delivered a message, or have a receipt. A sensor marks a consumer before it
                   creates the ledger, so the mark alone does not show that there was one.
    receipts:      number of keys in the bucket of receipts.
    dead_letters:  the dead-letter streams, if the account has no bucket of records at all. Otherwise they may belong to
                   another ledger.
    """

    consumers: tuple[Names, ...] = ()
    delivered: int = 0
    receipts: int = 0
    dead_letters: tuple[str, ...] = ()

    def lost(self, bucket: str) -> tuple[str, str, str] | None:
        """Return three sentences about the bucket of records, which does not exist although something of the ledger
        does: what is the case, what it means, and what to do. None if nothing remains, so that there may never have
        been a ledger.

        bucket:  the name of the bucket.
        """
        found = [number(self.receipts, "receipt")] if self.receipts else []
        found += [f"{number(self.delivered, 'consumer')} of this ledger"] if self.delivered else []
        found += [f"{number(len(self.dead_letters), 'stream')} of dead letters"] if self.dead_letters else []
        if not found:
            return None
        exist = "exists" if len(found) == 1 and found[0].startswith("1 ") else "exist"
        effect = (
            f"It does not exist, although {' and '.join(found)} {exist}. Nobody knows which claims are open, and until "
            "it exists nothing is acknowledged."
        )
        remedy = (
            f"Restore stream KV_{bucket} from a backup before a sensor runs; otherwise the next sensor creates it "
            "empty, and messages that are not acknowledged are processed again."
        )
        return f"The bucket {bucket} of the ledger was deleted or lost.", effect, remedy


async def remains(js: JetStream, records: StreamInfo | None) -> Remains:
    """Look for what exists apart from the records, as far as this user is permitted to see it.

    records:  the stream of the bucket of records; None if it does not exist. All receipts are listed only if it is
              missing, or younger than the bucket of receipts: the old records are then gone.

    Raises:
        JetStreamError: the server does not answer.
    """
    buckets = Buckets(js)
    receipts, receipted = 0, set[Names]()
    with suppress(JetStreamError):
        info = await buckets.stream(buckets.receipts).info()
        receipts = int(info.state.get("num_subjects", 0))
        if receipts and (records is None or time_nanoseconds(info.created) < time_nanoseconds(records.created)):
            receipted = {*await buckets.receipted()}
    names = await _stream_names(js)
    letters = tuple(name for name in names if name.startswith(DEFAULT_PREFIX))
    if any(name.startswith("KV_") and name.endswith(records_bucket("")) for name in names):
        letters = ()
    marked = await _marked(js, buckets.name, names)
    delivered = receipted | {each for each, info in marked.items() if info.counter}
    return Remains(tuple(sorted({*receipted, *marked})), len(delivered), receipts, letters)


async def _stream_names(js: JetStream) -> list[str]:
    if await roles.denied(js.connection, [roles.request(js.settings.prefix, "STREAM.NAMES")]):
        return []
    return [name async for name in js.stream_names()]


async def _marked(js: JetStream, ledger: str, streams: list[str]) -> dict[Names, ConsumerInfo]:
    prefix = js.settings.prefix
    asked = {name: roles.request(prefix, f"CONSUMER.LIST.{name}") for name in streams if not name.startswith(_BUCKETS)}
    denied = await roles.denied(js.connection, asked.values())
    slots = asyncio.Semaphore(AT_ONCE)
    found: dict[Names, ConsumerInfo] = {}

    async def look(name: str) -> None:
        async with slots:
            try:
                async for info in js.list_consumers(name):
                    if ledger_mark.marked(info.config) == ledger and (consumer := info.config.get("durable_name")):
                        found[name, consumer] = info
            except JetStreamError as error:  # the stream was deleted in the meantime, or a consumer has no leader
                log.info("the consumers of stream %s cannot be listed completely: %s", name, error)

    await asyncio.gather(*(look(name) for name, need in asked.items() if need.subject not in denied))
    return found
