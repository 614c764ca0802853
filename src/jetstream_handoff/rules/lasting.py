# SPDX-License-Identifier: Apache-2.0
"""The rule that a consumer of claims can neither vanish nor stop delivering, and the fields that decide it. No I/O.

Without the consumer, nobody knows which messages are unacknowledged: a limits stream delivers everything again, and an
interest stream stores nothing until the consumer exists again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FIXED = frozenset({"mem_storage"})
"""Fields that the server never changes in an existing consumer."""

_DURABLE = "set it, because claims need a durable consumer, which still exists after the take has ended"
_INACTIVE = (
    "it must be absent, also from the stream's consumer_limits, because the server would delete the consumer and "
    "forget which messages are unacknowledged"
)
_IN_MEMORY = (
    "it must be absent, because a restart of the server would delete the consumer, and with it the list of "
    "unacknowledged messages. The server does not change this field: name a new consumer, and let it begin at this "
    "one's acknowledgement floor + 1 (deliver_policy 'by_start_sequence') once no claim of this one is open. On an "
    "interest stream, create it before you delete this one"
)
_USED_UP = "it must be -1, because the server would stop delivering a message after this number of deliveries"


def broken_rules(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each field with which a consumer can vanish, or stop delivering for good, and the remedy.

    A pause is not among them: it ends, nothing is lost while it lasts, and a take that waits logs it.

    config: the consumer's configuration, complete or as the server reports it.
    """
    if not config.get("durable_name"):
        yield "durable_name", _DURABLE
    if (config.get("max_deliver") or -1) > 0:
        yield "max_deliver", _USED_UP
    if config.get("inactive_threshold"):
        yield "inactive_threshold", _INACTIVE
    if config.get("mem_storage"):
        yield "mem_storage", _IN_MEMORY
