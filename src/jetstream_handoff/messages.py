"""A claim's messages, for work without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_client.read.direct import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetstream_client.read.message import StoredMessage
    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.claim import Claim


def messages(settings: ConnectionSettings, claim: Claim) -> Iterator[StoredMessage]:
    """Exactly the claimed messages, by direct get, as they arrive; ascending, but for what only the stream's leader
    had, which comes last. Blocking. It neither holds nor settles the claim.

    Raises: as :func:`jetstream_client.read.direct.read`, with the first message or after the last one.
    """
    batches = read(settings, claim.stream, claim.sequences, claim.stream_created)
    return (message.decoded() for batch in batches for message in batch)
