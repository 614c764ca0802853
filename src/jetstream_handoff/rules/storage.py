# SPDX-License-Identifier: Apache-2.0
"""Full storage: how it is recognised, what to do, and which streams can fill it. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetstream_client.errors import ApiError

_FULL = frozenset({10002, 10023, 10047})
"""nats-server's JSAccountResourcesExceededErr, JSInsufficientResourcesErr and JSStorageResourcesExceededErr."""
NEARLY_FULL = 0.9
"""The part of a limit in bytes that may be used before that is reported."""
_GROW = ("workqueue", "interest")
WAY_OUT = (
    "raise the limit (max_file of the account, or max_file_store in the server's configuration, which it reloads), or "
    "delete what nobody needs (`nats stream report` shows what is large). Then give the streams that grow a max_bytes, "
    "with discard 'new', so that a publisher gets an error before the ledger does"
)
"""What to do when storage is full."""


def storage_full(error: object) -> bool:
    """Whether the server refused a write because the storage of the account or of the server is used up."""
    return isinstance(error, ApiError) and error.err_code in _FULL


def nearly_full(used: int, most: int) -> bool:
    """Whether storage is nearly full.

    used:  the bytes that are used.
    most:  the limit in bytes; 0 or less if there is none.
    """
    return 0 < most * NEARLY_FULL <= used


def unbounded(config: Mapping[str, Any]) -> str:
    """Return what it means that a stream grows without a limit while its consumers acknowledge nothing, with the
    remedy; empty if it does not.

    config: the stream's configuration.
    """
    if config.get("retention") not in _GROW or config.get("max_bytes", -1) > 0:
        return ""
    return (
        f"it has {config['retention']} retention and no max_bytes: while nothing is acknowledged, it grows until the "
        "storage of the account or of the server is full, and then nothing of this account can be written, including "
        "the ledger. Set max_bytes below the storage limit, with discard 'new', so that a publisher gets an error "
        "before that"
    )
