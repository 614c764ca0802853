# SPDX-License-Identifier: Apache-2.0
"""The measurements that watchers share: the backlogs of one or several consumers of a stream."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from jetstream_client.errors import JetStreamError
from jetstream_handoff.errors import ConsumerUnsuitable
from jetstream_handoff.watch import backlog, oldest
from jetstream_handoff.watch.subjects import unmapped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetstream_client.context import JetStream
    from jetstream_handoff.watch.backlog import Backlog
    from jetstream_handoff.watch.oldest import Oldest

log = logging.getLogger(__name__)

UNMAPPED_EVERY = 15 * 60.0
"""Seconds between two searches for messages that no consumer selects."""
_AT_ONCE = 16  # consumers


class Measuring:
    """Measures the backlogs again and again.

    stream:    the name of the stream.
    subjects:  the consumers, each with the filter that it must have; None for one that is watched alone, whose filter
               is not checked.
    oldest:    whether to find for how long the oldest messages have waited.
    """

    def __init__(self, stream: str, subjects: Mapping[str, str | None], *, oldest: bool) -> None:
        self.subjects = subjects
        self._stream = stream
        self._wants_oldest = oldest
        self._before: dict[str, Backlog] = {}
        self._oldest: dict[str, Oldest | None] = {}
        self._told: dict[str, str] = {}
        self._filters: dict[str, tuple[str, ...]] = {}
        self._search_at = 0.0

    @property
    def filters(self) -> tuple[str, ...]:
        """What the consumers select, at the latest measurement."""
        return tuple(sorted({each for filters in self._filters.values() for each in filters}))

    async def measure(self, js: JetStream) -> Mapping[str, Backlog]:
        """Return the backlog of each consumer that can be measured.

        Raises:
            JetStreamError: none of them can be measured.
        """
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(consumer: str) -> Backlog:
            async with slots:
                return await self._measure(js, consumer)

        answers = await asyncio.gather(*map(one, self.subjects), return_exceptions=True)
        found = dict(zip(self.subjects, answers, strict=True))
        errors = {consumer: each for consumer, each in found.items() if isinstance(each, BaseException)}
        for consumer, error in errors.items():
            if len(errors) == len(found) or not isinstance(error, JetStreamError):
                raise error
            self._tell(consumer, f"cannot measure the backlog of consumer {consumer}: {error}")
        for consumer in found.keys() - errors.keys():
            self._tell(consumer, "")
        await self._find_unmapped(js)
        return {consumer: each for consumer, each in found.items() if not isinstance(each, BaseException)}

    async def _measure(self, js: JetStream, consumer: str) -> Backlog:
        subject = self.subjects[consumer]
        look = await backlog.look(js, self._stream, consumer, subject)
        self._filters[consumer] = look.filters
        if subject is not None and look.info is not None and look.filters != (subject,):
            remedy = (
                f"the watcher maps it to {subject!r}, so its events would belong to other messages; give the consumer "
                "or the watcher the other's filter"
            )
            raise ConsumerUnsuitable(consumer, "filter_subject", ", ".join(look.filters), remedy)
        seen = look.backlog(backlog.unknown)
        ready = seen.steady(self._before.get(consumer))
        if self._wants_oldest:
            before = self._oldest.get(consumer)
            first = await oldest.find(js, self._stream, look=look, ready=ready, ended=backlog.unknown, before=before)
            self._oldest[consumer] = first
            ready = replace(ready, waited=first.waited(look.now) if first else 0.0)
        self._before[consumer] = seen
        return ready

    async def _find_unmapped(self, js: JetStream) -> None:
        filters = [each for each in self.subjects.values() if each is not None]
        if not filters or time.monotonic() < self._search_at:
            return
        try:
            self._tell("", await unmapped(js.stream(self._stream), filters))
        except JetStreamError as error:
            self._tell("", f"cannot search stream {self._stream} for messages that no consumer selects: {error}")
        self._search_at = time.monotonic() + UNMAPPED_EVERY

    def _tell(self, of: str, said: str) -> None:
        """Log a sentence, unless it was the last one of this consumer."""
        if said and said != self._told.get(of):
            log.warning("%s", said)
        self._told[of] = said
