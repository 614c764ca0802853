# SPDX-License-Identifier: Apache-2.0
"""The batches that one run of a reader has found committed, and which of their messages are owed: committed, but not
settled in the ledger (docs/handoff.md, reader)."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from jetstream_client.errors import MessageNotFound
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.take.position import Owed, sequences_of, without

if TYPE_CHECKING:
    from jetstream_client.sequences import Sequences
    from jetstream_client.stream import Stream
    from jetstream_handoff.claim import Claim

log = logging.getLogger(__name__)

_LOOKED_AT = 10  # how many messages are looked at to find one that still exists
_REMEMBERED = 100  # how many committed claims a run remembers


class Committed:
    """What a run has found committed in the checkpoint.

    stream:  the stream that it reads.
    """

    def __init__(self, stream: Stream) -> None:
        self.claims: deque[Claim] = deque(maxlen=_REMEMBERED)
        """The claims of the last batches."""
        self._owed: Owed = ()
        self._stream = stream

    def add(self, claim: Claim, owed: Owed) -> None:
        """Note that a batch is committed: its claim, and what is owed in its position."""
        known = (*without(self._owed, sequences_of(owed)), *owed)
        self._owed = without(known, claim.sequences)
        self.claims.append(claim)

    def settled(self, sequences: Sequences) -> None:
        """Note that these messages are no longer owed: they are settled, or a position of the checkpoint has them."""
        self._owed = without(self._owed, sequences)

    def unsettled(self, claim: Claim) -> None:
        """Note that the messages of a claim are owed, because the ledger cannot settle it."""
        self._owed = (*self._owed, (claim.taken_at, claim.sequences))

    async def owed_in(self, claim: Claim) -> Owed:
        """Return what is owed when the next batch has these messages: also those that are in committed batches, and are
        redelivered although they were settled, because the consumer was reset or rolled back."""
        known = [*self._owed, *((each.taken_at, each.sequences & claim.sequences) for each in self.claims)]
        found: list[tuple[str, Sequences]] = []
        for at, sequences in known:
            new = sequences - sequences_of(found)
            again = new & claim.sequences
            if again and await self._others(again, at):
                new -= again
            elif again:
                text = "%d redelivered messages are in committed batches, and are not processed again: sequences %s"
                log.warning(text, again.count, again)
            if new:
                found.append((at, new))
        return tuple(found)

    async def _others(self, messages: Sequences, taken_at: str) -> bool:
        """Whether these sequences may be other messages than those of a claim that was taken at that time, because the
        stream was restored from an older copy. Then they are processed."""
        for sequence in reversed(list(messages)[-_LOOKED_AT:]):
            with suppress(MessageNotFound):
                message = await self._stream.get_message(sequence)
                return time_nanoseconds(message.time) > time_nanoseconds(taken_at)
        return True
