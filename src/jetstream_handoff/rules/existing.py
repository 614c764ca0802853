# SPDX-License-Identifier: Apache-2.0
"""Which of some messages a stream still contains for a consumer."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from itertools import compress
from typing import TYPE_CHECKING

from jetstream_client.errors import MessageNotFound, PermissionDenied
from jetstream_client.filters import filters_of
from jetstream_client.sequences import Sequences
from jetstream_handoff.rules.missing import vanishing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from jetstream_client.stream import Stream

log = logging.getLogger(__name__)

_TOGETHER = 50
"""Ranges for which the leader is asked at the same time. A record has at most 1,000."""


async def existing(
    stream: Stream, config: Mapping[str, Any], consumer: Mapping[str, Any], messages: Sequences
) -> Sequences:
    """Return the ranges of these messages without those that contain no message that the consumer selects.

    A work-queue or interest stream removes a message when it is acknowledged, so that it does not tell what has
    existed: there, all messages are returned if the consumer selects all and none vanish by design, and none otherwise.
    The same holds for a stream that this user is not permitted to read.

    config, consumer:  the configurations of the stream and of its consumer, as the server reports them.

    Raises:
        JetStreamError: the stream cannot be read.
    """
    filters = filters_of(consumer)
    untold = messages if filters == [">"] and not vanishing(config) else Sequences()
    if config["retention"] != "limits":
        return untold

    async def contains(first: int, last: int) -> bool:
        for subject in filters:
            with suppress(MessageNotFound):
                if (await stream.get_message(first, next_by_subject=subject)).sequence <= last:
                    return True
        return False

    found: list[tuple[int, int]] = []
    for at in range(0, len(messages.ranges), _TOGETHER):
        some = messages.ranges[at : at + _TOGETHER]
        try:
            answers = await asyncio.gather(*(contains(*each) for each in some))
        except PermissionDenied:
            log.info("whether stream %s still contains the messages %s is not known", stream.name, messages)
            return untold
        found += compress(some, answers)
    return Sequences.from_ranges(found)
