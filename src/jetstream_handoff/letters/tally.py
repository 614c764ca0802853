# SPDX-License-Identifier: Apache-2.0
"""How many dead letters wait in a stream, for each consumer.

The stream's own number of messages includes the notes of dead letters that were replayed or discarded. So the headers
are read, each once, and only as many at a time as a page can wait for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jetstream_handoff.letters.stubs import WITHIN, all_read, stubs

if TYPE_CHECKING:
    from jetstream_client.info import StreamInfo
    from jetstream_handoff.letters.dead_letters import DeadLetters
    from jetstream_handoff.letters.letter import Head
    from jetstream_handoff.letters.stubs import Stub

AT_A_TIME = 4_000
"""How many messages are read at a time, at most."""
MOST = 100_000
"""How many messages are counted at most, because a subject is remembered for each."""


@dataclass(frozen=True)
class Count:
    """The dead letters of a stream.

    stored:    number of messages in the stream, notes and parts included.
    waiting:   number of dead letters by consumer, among the messages that were read.
    newest:    the newest dead letter by consumer, unless something has become of it.
    complete:  whether all messages were read.
    """

    stored: int = 0
    waiting: Mapping[str, int] = field(default_factory=dict)
    newest: Mapping[str, Head] = field(default_factory=dict)
    complete: bool = True

    @property
    def count(self) -> int:
        """Number of dead letters; if not all messages were read, of the messages that were."""
        return sum(self.waiting.values())


class Tally:
    """Counts the dead letters of one stream. It remembers what it has read."""

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters
        self._begin("")

    def _begin(self, created: str) -> None:
        self._created = created
        self._read = 0  # the number of the last message that was read
        self._owners: dict[int, str] = {}
        """For the hash of each subject, the consumer whose dead letter is there; empty if it is a note or neither."""
        self._newest: dict[str, Head] = {}

    async def count(self, info: StreamInfo) -> Count:
        """Read the messages that were stored since the last call, and return the numbers.

        info:  the dead-letter stream, as it is now.

        Raises:
            JetStreamError: the server does not answer, or refuses the request.
        """
        stored, last = int(info.state["messages"]), int(info.state["last_seq"])
        removed = self._read >= last and len(self._owners) > stored  # expired, purged or deleted
        if info.created != self._created or last < self._read or removed:
            self._begin(info.created)
        if self._read < last and len(self._owners) < MOST:
            await self._read_on(last)
        waiting = Counter(filter(None, self._owners.values()))
        return Count(stored, waiting, dict(self._newest), complete=self._read >= last)

    async def _read_on(self, last: int) -> None:
        clock = asyncio.get_running_loop().time
        end, left = clock() + WITHIN, AT_A_TIME
        async with aclosing(stubs(self._letters, self._read)) as reading:
            async for stub, behind in reading:
                self._add(stub)
                left -= 1
                if not left or (clock() > end and all_read(AT_A_TIME - left, behind)):
                    return
        self._read = max(self._read, last)

    def _add(self, stub: Stub) -> None:
        self._read = stub.number
        place, owner = hash(stub.address), stub.head.consumer if stub.head else ""
        before = self._owners.get(place, "")
        newest = self._newest.get(before)
        if newest is not None and newest.address == stub.address:
            del self._newest[before]
        self._owners[place] = owner
        if stub.head is not None:
            self._newest[owner] = stub.head
