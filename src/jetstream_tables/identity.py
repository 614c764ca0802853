# SPDX-License-Identifier: Apache-2.0
"""What identifies a message in a row: columns that :meth:`append_to` writes and looks for."""

from __future__ import annotations

STREAM, SEQUENCE, TIMESTAMP = "_stream", "_sequence", "_timestamp"
IDENTITY = (STREAM, SEQUENCE, TIMESTAMP)
"""The columns in the table. ``_stream`` is the name of the stream. ``_timestamp`` is when the server stored the
message, in microseconds: a stream that is created again begins with sequence 1 again, and one that is restored from an
older copy uses sequences again. When the stream was created is no part of the identity, because this time changes when
a single server older than 2.15 is restarted."""

OF_ROWS = {"sequence": SEQUENCE, "timestamp": TIMESTAMP}
"""The columns of the rows, by the names that a claim's messages have, and how they are called in the table."""
