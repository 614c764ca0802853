# SPDX-License-Identifier: Apache-2.0
"""Single messages of a stream with their payloads, as its leader has them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import MessageNotFound
from jetstream_handoff.ledger.buckets import PATIENCE

if TYPE_CHECKING:
    from jetstream_client.stream import Stream


async def stored_message(stream: Stream, which: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the ``message`` of the leader's answer to STREAM.MSG.GET; None if no such message is stored."""
    try:
        answer = await stream.js.api(f"STREAM.MSG.GET.{stream.name}", which, patience=PATIENCE)
    except MessageNotFound:
        return None
    message: dict[str, Any] = answer["message"]
    return message


async def stored(stream: Stream, subject: str, first: int = 1) -> AsyncIterator[dict[str, Any]]:
    """Yield the stream's messages on a subject from a sequence on, one by one."""
    while (message := await stored_message(stream, {"seq": first, "next_by_subj": subject})) is not None:
        yield message
        first = message["seq"] + 1
