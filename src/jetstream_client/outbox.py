# SPDX-License-Identifier: Apache-2.0
"""Publishing without ever making the caller wait, and without ever failing it: for signals about work that must go on
when NATS does not answer.

A thread publishes what callers put into the outbox, on a connection that it opens and restores. The outbox is bounded;
what does not fit, or is left at the end of the process, is lost, counted and logged. Messages that must not be lost are
published with :meth:`JetStream.publish`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jetstream_client import connect
from jetstream_client.errors import ConnectionFailed, JetStreamError, NoStreamResponse, RequestTimeout
from jetstream_client.quantities import check_count, number

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.publish.options import PublishOptions
    from jetstream_client.wire.settings import ConnectionSettings

log = logging.getLogger(__name__)

MOST = 10_000
"""The largest number of messages in an outbox."""
MOST_BYTES = 16 * 1024 * 1024
"""The largest size of all messages in an outbox, subjects included."""
CONNECT = 2.0
"""Seconds for connecting, at most: after that, NATS is known not to answer, and nobody waits for it."""
SAID = 60.0
"""Seconds after which lost messages, and why nothing can be published, are logged again."""
_AT_ONCE = 256
"""How many messages wait for their answers at the same time."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds between attempts while NATS does not answer
_LATER = (ConnectionFailed, RequestTimeout, NoStreamResponse)
"""The errors after which a message is published again: NATS does not answer, or the stream has no leader."""


@dataclass(frozen=True, slots=True)
class _Letter:
    subject: str
    data: bytes
    msg_id: str

    @property
    def size(self) -> int:
        return len(self.subject) + len(self.data)


class Outbox:
    """A bounded outbox. Its thread begins with the first message. All methods can be called in any thread.

    settings:  called in the outbox's thread for the settings of each new connection; it may wait and raise.
    stream:    name of the stream that must store the messages. Default None: any stream.
    most:      the largest number of messages in the outbox. Default 10,000. The size of all is limited to 16 MiB.
    on_count:  called in any thread with the numbers of messages that were published and lost since the last call. It
               must neither wait nor raise.

    Each message has a ``Nats-Msg-Id``, so the stream stores it once although the outbox publishes it again after a lost
    answer.
    """

    def __init__(
        self,
        settings: Callable[[], ConnectionSettings],
        *,
        stream: str | None = None,
        most: int = MOST,
        on_count: Callable[[int, int], object] | None = None,
    ) -> None:
        self._settings = settings
        self._stream = stream
        self._most = check_count("most", most)
        self._on_count = on_count
        self._changed = threading.Condition()
        """Guards what follows, and is notified of changes."""
        self._letters: deque[_Letter] = deque()
        self._sending = 0  # messages that wait for their answers
        self._bytes = 0
        self._thread: threading.Thread | None = None
        self._wake: Callable[[], object] = lambda: None
        """Wakes the thread while it waits on its event loop."""
        self._closed = False
        self._broken = ""
        """Why nothing can be published at this moment; empty if nothing is known to be wrong."""
        self._begun: float | None = None
        """Since when the first connection is being opened, on the monotonic clock; None if none is."""
        self.published = 0
        """Number of messages that a stream has stored."""
        self.lost = 0
        """Number of messages that were lost."""
        self._said = {"lost": -SAID, "broken": -SAID}
        """When each was logged, on the monotonic clock."""
        self._unsaid = 0

    @property
    def waiting(self) -> int:
        """Number of messages that are neither published nor lost."""
        with self._changed:
            return len(self._letters) + self._sending

    def put(self, subject: str, data: bytes, msg_id: str) -> bool:
        """Put a message into the outbox. This never waits for NATS, and raises nothing.

        Returns False if the message is lost, because the outbox is full or closed.
        """
        letter = _Letter(subject, data, msg_id)
        with self._changed:
            full = len(self._letters) + self._sending >= self._most or self._bytes + letter.size > MOST_BYTES
            why = "the outbox is closed" if self._closed else self._full() if full else self._start()
            if not why:
                self._letters.append(letter)
                self._bytes += letter.size
                self._changed.notify_all()
                self._wake()
                return True
        self._lose(1, why)
        return False

    def _full(self) -> str:
        return f"the outbox is full{self._broken and f', because {self._broken}'}"

    def _start(self) -> str:
        """Start the thread, if it does not run. Returns why it cannot be started, or an empty string."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="jetstream outbox", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the interpreter ends, or the system has no more threads
                return str(error)
            self._thread, self._begun = thread, time.monotonic()
        return ""

    def flush(self, seconds: float) -> int:
        """Wait until every message is published or lost, for at most so many seconds, and not at all while NATS is
        known not to answer. The time for which the first connection has been opened already counts.

        Returns the number of messages that are left."""
        with self._changed:
            if self._begun is not None:
                seconds -= time.monotonic() - self._begun
            self._changed.wait_for(lambda: self._broken or not (self._letters or self._sending), max(0, seconds))
            return len(self._letters) + self._sending

    def close(self, seconds: float = 0.0) -> None:
        """Flush, and close the outbox. What is left is lost; a message that waits for its answer may be stored."""
        self.flush(seconds)
        with self._changed:
            left = len(self._letters) + self._sending
            self._closed = True
            self._letters.clear()
            self._bytes = self._sending = 0
            self._changed.notify_all()
            self._wake()
        if left:
            self._lose(left, self._broken or f"the process ends, and no stream has answered for {seconds:g} s")
        self._say_lost(now=True)

    def _run(self) -> None:
        """Publish until the outbox is closed. This is the outbox's thread."""
        pause = _FIRST_PAUSE
        while not self._closed:
            before = self.published
            try:
                settings = self._settings()
                within = min(CONNECT, settings.connect_timeout)
                asyncio.run(self._connected(replace(settings, connect_timeout=within)))
            except Exception as error:  # noqa: BLE001 - a missing connection, for example, is an orchestrator's error
                self._break(_words(error))
            pause = _FIRST_PAUSE if self.published > before else min(pause * 2, _LONGEST_PAUSE)
            with self._changed:
                self._changed.wait_for(lambda: self._closed, pause)

    async def _connected(self, settings: ConnectionSettings) -> None:
        """Open a connection, and publish on it until it ends or the outbox is closed."""
        loop, some = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(some.set)

        async with connect(settings) as js:
            with self._changed:
                self._wake, self._begun = wake, None
            while not self._closed:
                js.connection.check_open()
                some.clear()
                letters = self._next()
                if not letters:
                    await some.wait()
                    continue
                errors = await asyncio.gather(*(self._publish(js, letter) for letter in letters))
                if not self._answered(letters, errors):
                    await asyncio.sleep(_FIRST_PAUSE)

    def _next(self) -> list[_Letter]:
        with self._changed:
            letters = [self._letters.popleft() for _ in range(min(_AT_ONCE, len(self._letters)))]
            self._sending = len(letters)
            return letters

    async def _publish(self, js: JetStream, letter: _Letter) -> Exception | None:
        """Return the error because of which the message was not stored."""
        try:
            options: PublishOptions = {"msg_id": letter.msg_id, "expected_stream": self._stream}
            await js.publish(letter.subject, letter.data, retry_attempts=0, **options)
        except Exception as error:  # noqa: BLE001 - one message must not keep the others from being published
            return error
        return None

    def _answered(self, letters: list[_Letter], errors: list[Exception | None]) -> bool:
        """Note what was stored, put back what can be published later, and lose the rest. Returns False if NATS does not
        answer."""
        stored = sum(error is None for error in errors)
        again = [letter for letter, error in zip(letters, errors, strict=True) if isinstance(error, _LATER)]
        refused = [error for error in errors if error is not None and not isinstance(error, _LATER)]
        later = [error for error in errors if isinstance(error, _LATER)]
        with self._changed:
            if self._closed:  # these messages were counted as lost
                return True
            self._letters.extendleft(reversed(again))
            self._sending = 0
            self._bytes = sum(letter.size for letter in self._letters)
            self.published += stored
            self._broken = ""
            self._changed.notify_all()
        if stored and self._on_count:
            self._on_count(stored, 0)
        if refused:
            self._lose(len(refused), _words(refused[-1]))
        if later:
            self._break(_words(later[-1]))
        return not later

    def _break(self, why: str) -> None:
        """Note that nothing can be published at this moment."""
        with self._changed:
            self._broken = why
            self._changed.notify_all()
        if self._due("broken"):
            log.warning("%s cannot be published yet: %s", number(self.waiting, "message"), why)

    def _lose(self, count: int, why: str) -> None:
        with self._changed:
            self.lost += count
            self._unsaid += count
            self._why = why
        if self._on_count:
            self._on_count(0, count)
        self._say_lost()

    def _say_lost(self, *, now: bool = False) -> None:
        """Log how many messages were lost since the last time."""
        if self._unsaid and (now or self._due("lost")):
            with self._changed:
                lost, self._unsaid = self._unsaid, 0
            log.warning("%s lost, %s in all: %s", number(lost, "message"), f"{self.lost:,}", self._why)

    def _due(self, what: str) -> bool:
        now = time.monotonic()
        due = now - self._said[what] >= SAID
        if due:
            self._said[what] = now
        return due


def _words(error: Exception) -> str:
    """Return an error in words. Errors of this project contain no secret; of others, only the type is said."""
    return str(error) if isinstance(error, JetStreamError) else type(error).__name__
