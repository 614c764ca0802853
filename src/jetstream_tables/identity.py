# SPDX-License-Identifier: Apache-2.0
"""What identifies a message in a row: columns that :meth:`append_to` writes and looks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetstream_handoff.claim import Claim

STREAM, SEQUENCE, TIMESTAMP = "_stream", "_sequence", "_timestamp"
IDENTITY = (STREAM, SEQUENCE, TIMESTAMP)
"""The columns in the table. ``_stream`` is the stream with the time at which it was created, because a stream that is
created again begins with sequence 1 again. ``_timestamp`` is when the server stored the message, because a stream that
is restored from an older copy uses sequences again."""

OF_ROWS = {"sequence": SEQUENCE, "timestamp": TIMESTAMP}
"""The columns of the rows, by the names that a claim's messages have, and how they are called in the table."""


def stream_of(claim: Claim) -> str:
    """The value of ``_stream``: ``ORDERS@2026-11-21T03:00:00.123456789Z``."""
    return f"{claim.stream}@{claim.stream_created}"
