# SPDX-License-Identifier: Apache-2.0
"""For how long the oldest message has waited that could be claimed from a consumer.

The server tells how many messages wait, but not since when: it takes the request for one message to find out, which is
not repeated while the same message is the oldest.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from jetstream_client.errors import MessageNotFound, PermissionDenied
from jetstream_client.times import time_nanoseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jetstream_client.context import JetStream
    from jetstream_client.stream import Stream
    from jetstream_handoff.ledger.history import Owner
    from jetstream_handoff.watch.backlog import Backlog, Look

log = logging.getLogger(__name__)

_FROM_NOW_ON = "max_wait counts from when a message of stream %s is first seen to wait, not from when it was stored: %s"


@dataclass(frozen=True, slots=True)
class Oldest:
    """The oldest message that could be claimed, as it was found at one look. Keep it for the next one.

    created:  when the consumer was created.
    first:    the sequence from which on the message was looked for.
    count:    the number of messages that could be claimed.
    stored:   when the stream stored the message, in nanoseconds since 1970, or when it was first seen if this user is
              not permitted to read the stream. Never later than the first look that found it, so a server's clock that
              is set back cannot prolong the wait by more than its limit.
    """

    created: str
    first: int
    count: int
    stored: int

    def waited(self, now: int) -> float:
        """For how many seconds it had waited at a time of the server, in nanoseconds since 1970."""
        return (now - self.stored) / 1e9

    def to_json(self) -> list[str | int]:
        """Return it as JSON, to keep it until the next look."""
        return list(astuple(self))

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read the return value of :meth:`to_json`. Raises TypeError or ValueError."""
        created, first, count, stored = value
        return cls(str(created), int(first), int(count), int(stored))


async def find(
    js: JetStream,
    stream: str,
    *,
    look: Look,
    ready: Backlog,
    ended: Callable[[Owner], bool],
    before: Oldest | None,
    strict: bool = False,
) -> Oldest | None:
    """Find the oldest message of a backlog; None if there are no messages.

    look:    the look at the consumer.
    ready:   the backlog of this look, which may be :meth:`~.backlog.Backlog.steady`.
    ended:   as in :func:`.backlog.measure`.
    before:  the return value of the look before this one.
    strict:  whether an error is raised if this user is not permitted to read the stream. Otherwise the time counts from
             this look, and a warning is logged.

    Raises:
        PermissionDenied: with ``strict``, this user is not permitted to read the stream.
        JetStreamError: the server does not answer, or refuses the request.
    """
    if not ready.count:
        return None
    first = look.first(ended, again=ready.again > 0)
    same = before is not None and (before.created, before.first) == (ready.created, first)
    if before is None or not same or ready.count < before.count:  # with fewer, the oldest may have been removed
        try:
            stored = await _stored(js.stream(stream), look.filters, first)
        except PermissionDenied as error:
            if strict:
                raise
            log.warning(_FROM_NOW_ON, stream, error)
            stored = None
        before = Oldest(ready.created, first, ready.count, stored or look.now)
    return replace(before, count=ready.count, stored=min(before.stored, look.now))


async def _stored(stream: Stream, filters: Iterable[str], first: int) -> int | None:
    """When the first message from a sequence on was stored that one of the filters selects; None if there is none.
    Raises PermissionDenied."""

    async def of(subject: str) -> list[int]:
        try:
            message = await stream.get_message(first, next_by_subject=subject)
        except MessageNotFound:
            return []
        return [time_nanoseconds(message.time)]

    found = await asyncio.gather(*map(of, filters))
    return min((each for times in found for each in times), default=None)
