# SPDX-License-Identifier: Apache-2.0
"""Decoding the payloads of a column one by one, in pieces, so that not all decoded objects are in memory at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
"""A decoded payload: its ``value``, or the ``reason`` why it has none."""


def in_pieces(
    data: pa.Array, row: Callable[[bytes], Row], column: Callable[[list[Row]], pa.Array], together: int
) -> pa.Array:
    """Return the decoded column. A payload that is null or empty is malformed in every format.

    data:      a binary column.
    row:       decodes a payload.
    column:    makes an Arrow array of rows.
    together:  the number of bytes of payloads whose rows become an array together.
    """
    parts, rows, size = [], [], 0
    for payload in data:
        message = payload.as_py()
        rows.append(row(message) if message else {"reason": "empty"})
        size += len(message or b"")
        if size >= together:
            parts.append(column(rows))
            rows, size = [], 0
    return pa.concat_arrays([*parts, column(rows)])
