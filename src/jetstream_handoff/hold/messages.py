# SPDX-License-Identifier: Apache-2.0
"""A claim's messages, for work without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_client.errors import ReferencesUnresolved
from jetstream_client.read.direct import read
from jetstream_client.stores.objects import resolved, unresolved
from jetstream_handoff.rules.missing import Missing, reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jetstream_client.read.message import RawMessages, StoredMessage
    from jetstream_client.sequences import Sequences
    from jetstream_client.stores.reference import Objects
    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.claim import Claim


def messages(
    settings: ConnectionSettings,
    claim: Claim,
    *,
    missing: Missing = "error",
    skip: Callable[[Sequences], object] = lambda _: None,
    objects: Objects | None = None,
) -> Iterator[StoredMessage]:
    """Read exactly the claimed messages by direct get, and yield them as they arrive. Blocking.

    Messages arrive in ascending order of their sequences. Reading neither holds nor settles the claim.

    missing:  what to do with messages that no longer exist: ``"error"`` (default) or ``"skip"``.
    skip:     with ``missing="skip"``, called with their sequences after all other messages were read.
    objects:  the objects that are read in place of the payloads that refer to them. Default None: none.

    Raises:
        ReferencesUnresolved: the objects of some messages cannot be read. Raised after all other messages.
        BucketNotFound: the object store does not exist.
        JetStreamError: as :func:`jetstream_client.read.direct.read`, while the messages are iterated over. The call
            itself raises no error.
    """
    batches = reading(read(settings, claim.stream, claim.sequences, claim.stream_created), missing, skip)
    if objects is not None:
        return _resolved(settings, claim.stream, batches, objects)
    return (message.decoded() for batch in unresolved(batches, claim.stream) for message in batch)


def _resolved(
    settings: ConnectionSettings, stream: str, batches: Iterator[RawMessages], objects: Objects
) -> Iterator[StoredMessage]:
    wrong: dict[int, str] = {}
    for batch, reasons in resolved(settings, batches, objects):
        for message, reason in zip(batch, reasons, strict=True):
            if reason is None:
                yield message.decoded()
            else:
                wrong[message.sequence] = reason
    if wrong:
        raise ReferencesUnresolved(stream, wrong)
