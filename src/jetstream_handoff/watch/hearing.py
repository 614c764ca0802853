# SPDX-License-Identifier: Apache-2.0
"""Hear that a message is published, instead of measuring again and again until one is there."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Self

from jetstream_client.errors import JetStreamError, PermissionDenied

if TYPE_CHECKING:
    from types import TracebackType

    from jetstream_client.context import JetStream
    from jetstream_client.wire.protocol import Reply

log = logging.getLogger(__name__)

STORED = 0.1
"""Seconds from hearing a message until the stream has stored it, as far as a measurement is concerned."""
MOST_SUBJECTS = 20
"""For more filters, the stream's subjects are listened to, and a stream that has more of them is not."""


class Hearing:
    """Waits between two measurements of one consumer's backlog, and ends the wait when a message is published.

    It subscribes to the consumer's filters, or to the subjects of the stream if the consumer has none, and the server
    sends it one message, whose payload is ignored. A message that is heard only causes an earlier measurement, so a
    message of others, or one that the stream refuses, does no harm. What is not heard is measured after the full wait:
    messages of sources and mirrors, of another account or domain, and all messages if the user is not permitted to
    subscribe.

    While messages wait already, and after a message that the next measurement does not show, the wait is the full one.
    So there are at most three times as many measurements as without hearing, and as many as without while nothing
    arrives.
    """

    def __init__(self, js: JetStream, stream: str) -> None:
        self._js = js
        self._stream = stream
        self._heard = asyncio.Event()
        self._ear = AsyncExitStack()
        self._filters: tuple[str, ...] = ()  # while it listens
        self._deaf = self._early = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._ear.aclose()

    async def wait(self, seconds: float, filters: tuple[str, ...], *, idle: bool) -> None:
        """Wait this long, or until a message is heard.

        filters:  the subjects that the consumer selects.
        idle:     whether the latest measurement has shown no message, and no pull that would get the next one.
        """
        early, self._early = self._early, False
        if early or self._deaf or not idle:
            await asyncio.sleep(seconds)
            return
        if self._filters != filters and await self._listen(filters):
            return  # a message may have been published since the measurement
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._heard.wait()
        if self._heard.is_set():
            await self._close()
            self._early = True
            await asyncio.sleep(min(STORED, seconds))

    async def _listen(self, filters: tuple[str, ...]) -> bool:
        """Whether it listens now."""
        await self._close()
        try:
            few = len(filters) <= MOST_SUBJECTS and ">" not in filters
            subjects = filters if few else await self._of_stream()
            if not 0 < len(subjects) <= MOST_SUBJECTS:
                self._deaf = True
                return False
            for subject in subjects:
                listening = self._js.connection.listen(subject, self._hear, most=1)
                await self._ear.enter_async_context(listening)
        except JetStreamError as error:  # the measurements go on, and raise it if it lasts
            self._deaf = isinstance(error, PermissionDenied)
            level = logging.INFO if self._deaf else logging.DEBUG
            text = "stream %s is measured at intervals, because it cannot be listened to: %s"
            log.log(level, text, self._stream, error)
            await self._close()
            return False
        self._filters = filters
        return True

    async def _of_stream(self) -> tuple[str, ...]:
        config = (await self._js.stream(self._stream).info()).config
        return tuple(config.get("subjects") or ())

    def _hear(self, _: Reply) -> None:
        self._heard.set()

    async def _close(self) -> None:
        await self._ear.aclose()
        self._ear, self._filters = AsyncExitStack(), ()
        self._heard.clear()
