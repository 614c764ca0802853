# SPDX-License-Identifier: Apache-2.0
"""Which of some messages a stream still contains for a consumer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from jetstream_client.errors import MessageNotFound, PermissionDenied
from jetstream_client.sequences import Sequences
from jetstream_handoff.missing import vanishing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from jetstream_client.stream import Stream

log = logging.getLogger(__name__)

_MOST_ASKED = 100
"""Ranges for which the leader is asked. Of further ranges, all messages count as existing."""


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
    filters = consumer.get("filter_subjects") or [consumer.get("filter_subject") or ">"]
    untold = messages if filters == [">"] and not vanishing(config) else Sequences()
    if config["retention"] != "limits":
        return untold
    found = list(messages.ranges[_MOST_ASKED:])
    for first, last in messages.ranges[:_MOST_ASKED]:
        for subject in filters:
            try:
                message = await stream.get_message(first, next_by_subject=subject)
            except MessageNotFound:
                continue
            except PermissionDenied:
                log.info("whether stream %s still contains the messages %s is not known", stream.name, messages)
                return untold
            if message.sequence <= last:
                found.append((first, last))
                break
    return Sequences.from_ranges(found)
