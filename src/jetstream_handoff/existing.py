# SPDX-License-Identifier: Apache-2.0
"""Which of some messages a stream still contains for a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_client.errors import MessageNotFound
from jetstream_client.sequences import Sequences

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from jetstream_client.stream import Stream

_MOST_ASKED = 100
"""Ranges for which the leader is asked. Of further ranges, all messages count as existing."""


async def existing(
    stream: Stream, config: Mapping[str, Any], consumer: Mapping[str, Any], messages: Sequences
) -> Sequences:
    """Return the ranges of these messages without those that contain no message that the consumer selects.

    A work-queue or interest stream removes a message when it is acknowledged, so that it does not tell what has
    existed: there, all messages are returned if the consumer selects all, and none otherwise.

    config, consumer:  the configurations of the stream and of its consumer, as the server reports them.

    Raises:
        JetStreamError: the stream cannot be read.
    """
    filters = consumer.get("filter_subjects") or [consumer.get("filter_subject") or ">"]
    if config["retention"] != "limits":
        return messages if filters == [">"] else Sequences()
    found = list(messages.ranges[_MOST_ASKED:])
    for first, last in messages.ranges[:_MOST_ASKED]:
        for subject in filters:
            try:
                message = await stream.get_message(first, next_by_subject=subject)
            except MessageNotFound:
                continue
            if message.sequence <= last:
                found.append((first, last))
                break
    return Sequences.from_ranges(found)
