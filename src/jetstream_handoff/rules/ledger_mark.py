# SPDX-License-Identifier: Apache-2.0
"""The mark in a consumer's metadata that says which ledger the consumer belongs to (docs/handoff.md).

A ledger does not know which messages another ledger calls done, so a consumer has only one. Every take, hold and
settle compares the mark with the ledger of its connection (:meth:`.Ledger.info`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jetstream_client.errors import ApiError, PermissionDenied
from jetstream_handoff.errors import WrongLedger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetstream_client.config import Config
    from jetstream_client.consume.consumer import Consumer
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.words import Words

log = logging.getLogger(__name__)

KEY = "jetstream_handoff.ledger.ledger"
"""The key in the metadata. Its value is the name of the ledger."""


def marked(config: Config) -> str:
    """Return the name of the ledger that a consumer belongs to, from its configuration; empty if it has no mark."""
    metadata: Mapping[str, str] = config.get("metadata") or {}
    return metadata.get(KEY, "")


def with_mark(config: Config, ledger: str) -> Config:
    """Return the configuration of a consumer with the mark, and with all other metadata."""
    return {**config, "metadata": {KEY: ledger, **(config.get("metadata") or {})}}


def check(stream: str, consumer: str, config: Config, ledger: str, words: Words) -> None:
    """Raise WrongLedger if the consumer is marked with the name of another ledger.

    config:  the consumer's configuration.
    ledger:  the name of the connection's ledger.
    words:   the words of the connection.
    """
    if (owner := marked(config)) and owner != ledger:
        raise WrongLedger(
            f"consumer {consumer!r} of stream {stream!r} belongs to ledger {owner!r}, but this connection has ledger "
            f"{ledger!r}: each of the two would settle the same messages. Set 'ledger' of this connection to "
            f"{owner!r}, or take from another consumer. To give the consumer to ledger {ledger!r}, run "
            f"{words.command(f'ledger {stream} {consumer}')} with this connection"
        )


async def ensure(stream: str, consumer: Consumer, info: ConsumerInfo, ledger: str, words: Words) -> ConsumerInfo:
    """Mark a consumer that has no mark. Of several ledgers that do so at the same time, one wins. Returns the INFO.

    Without the permission to change the consumer, this only warns: no ledger is refused then.

    info:    the consumer's INFO.
    ledger:  the name of the connection's ledger.
    words:   the words of the connection.

    Raises:
        WrongLedger: the consumer belongs to another ledger.
    """
    if not marked(info.config):
        try:
            await put(consumer, ledger)
        except (ApiError, PermissionDenied) as refused:
            log.warning(
                "consumer %s of stream %s is not marked as belonging to ledger %s, so another ledger that settles the "
                "same messages would not be noticed (%s). Let a user who may create this consumer run %s",
                consumer.name,
                stream,
                ledger,
                refused,
                words.command(f"ledger {stream} {consumer.name} --yes"),
            )
            return info
        info = await consumer.info()  # another ledger may have written its mark since
    check(stream, consumer.name, info.config, ledger, words)
    return info


async def put(consumer: Consumer, ledger: str) -> None:
    """Write the mark. All other fields and metadata keep their values."""
    await consumer.update({"metadata": {KEY: ledger}})
