# SPDX-License-Identifier: Apache-2.0
"""Conservation: every message that a consumer has delivered above its floor is unacknowledged, or done in the ledger.

If it is neither, the server has given up its delivery, and never delivers it again unless the consumer is reset
(docs/handoff.md). No I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_client.sequences import Sequences
from jetstream_handoff.errors import DeliveriesGivenUp

if TYPE_CHECKING:
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.record import Record


def given_up(record: Record | None, info: ConsumerInfo) -> Sequences:
    """Return the sequences among which are the messages that the server has given up; empty if there are none.

    The server does not say which messages were delivered, so sequences that the consumer's filter does not select, or
    that were deleted, are among them.

    record:  the consumer's record; None if there is none yet.
    info:    the consumer's INFO, which was requested after the record was read.
    """
    if not info.gave_up:
        return Sequences()
    delivered = Sequences.from_ranges([(info.floor + 1, info.delivered)])
    return delivered - (record.all_settled.sequences if record else Sequences())


def check(stream: str, consumer: str, record: Record | None, info: ConsumerInfo) -> None:
    """Raise DeliveriesGivenUp if the server has given up deliveries of messages that are not done.

    stream, consumer:  the names, for the error.
    record, info:      as for :func:`given_up`.
    """
    if messages := given_up(record, info):
        raise DeliveriesGivenUp(stream, consumer, messages, info.floor + 1)
