"""Answering claimed messages without having them: the reply subject of each is derived from its sequence.

The server looks at stream, consumer and stream sequence; for a negative acknowledgement also at the consumer sequence,
which must lie in (ack floor, delivered] (``processNak`` in nats-server's ``server/consumer.go``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_client.consume.address import NO_MESSAGE
from jetstream_client.consume.message import ACK, IN_PROGRESS, nak
from jetstream_client.errors import ConnectionLost, JetStreamError, PermissionDenied, RequestTimeout
from jetstream_client.sequences import Sequences
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import encode_publish, inbox_number
from jetstream_handoff.ledger import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from jetstream_handoff.ledger import Ledger
    from jetstream_handoff.record import Record

log = logging.getLogger(__name__)

WINDOW = 1_000
"""Acknowledgements between two tests. An unconfirmed window is sent again, so it also bounds what is sent twice."""
CONFIRMED_WITHIN = 5.0
"""Seconds for the confirmations of one window."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Messages that were delivered in one life of the consumer. ``counter`` is their highest consumer sequence."""

    life: tuple[str, int]
    sequences: Sequences
    counter: int

    @classmethod
    def of(cls, record: Record, sequences: Sequences, counter: int) -> Delivered:
        return cls(record.life, sequences, counter)


async def negative(ledger: Ledger, sequences: Sequences, delay: timedelta | None = None) -> None:
    """Negatively acknowledge all, with a fresh consumer sequence. A delay is a lease: it replaces ``ack_wait``.

    Raises PermissionDenied, which names the subject.
    """
    counter = (await ledger.consumer.info(patience=PATIENCE)).counter
    await _publish(ledger, sequences, counter, nak(delay))


async def in_progress(ledger: Ledger, sequences: Sequences, counter: int) -> None:
    """Restart ``ack_wait`` for all."""
    await _publish(ledger, sequences, counter, IN_PROGRESS)


async def check_permitted(ledger: Ledger) -> None:
    """Say "in progress" for no message, which changes nothing. Raises PermissionDenied, which names the subject."""
    await _publish(ledger, Sequences.of([NO_MESSAGE]), 0, IN_PROGRESS)


async def _publish(ledger: Ledger, sequences: Sequences, counter: int, body: bytes) -> None:
    await ledger.locate()
    connection = ledger.js.connection
    for window in sequences.windows(WINDOW):
        subjects = list(_subjects(ledger, window, counter))
        for subject in subjects:
            await connection.answer(subject, body)
        await connection.flush()
        connection.check_permitted(subjects[0])  # who may not answer one may not answer the others


def _subjects(ledger: Ledger, sequences: Iterable[int], counter: int) -> Iterable[str]:
    prefix = ledger.address.prefix
    return (f"{prefix}.1.{sequence}.{counter}.0.0" for sequence in sequences)


async def acknowledge(ledger: Ledger, delivered: Delivered, within: float = 30.0, body: bytes = ACK) -> Sequences:
    """Acknowledge each message, or terminate it (``body``), confirmed. Returns those that were not.

    Before each window the ledger and the server are asked whether this is still the life in which the messages were
    delivered: a late acknowledgement would swallow what a reset delivers again. If it is not, nothing more is sent.
    What stays unconfirmed is delivered again, recognised by the next take, and acknowledged then.

    within: seconds without a confirmation after which it is given up.

    Raises PermissionDenied, which names the subject.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + within
    left = deque(delivered.sequences.windows(WINDOW))
    confirmer = _Confirmer(ledger)
    try:
        while left and clock() < deadline:
            window = left[0]
            try:
                await ledger.locate()
                await confirmer.ready()
                if not await _same_life(ledger, delivered):
                    log.warning("acknowledgements withheld: the consumer began a new life; its messages come again")
                    break
                if confirmed := await confirmer.confirm(window, delivered.counter, body):
                    deadline = clock() + within
                    window -= confirmed
            except PermissionDenied:
                raise
            except JetStreamError as error:
                log.warning("acknowledging was interrupted: %s", error)
                if ledger.js.connection.closed:
                    break
                await asyncio.sleep(0.2)
            left.popleft()
            if window:
                left.append(window)  # again, after all others
    finally:
        await confirmer.close()
    return Sequences.from_ranges(each for window in left for each in window.ranges)


async def _same_life(ledger: Ledger, delivered: Delivered) -> bool:
    record, _ = await ledger.read()
    info = await ledger.consumer.info(patience=PATIENCE)
    return (
        record is not None
        and record.life == delivered.life
        and not record.new_life(info)
        and info.counter >= delivered.counter
        and info.delivered >= delivered.sequences.last
    )


class _Confirmer:
    """Acknowledges a window over a bulk connection, in a worker thread: twice as fast as on the control one."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._wire: Wire | None = None
        self._inbox = ""

    async def ready(self) -> None:
        """Connect, so that nothing waits between the test and the sending."""
        if self._wire is None:
            self._wire = await asyncio.to_thread(Wire.open, self._ledger.js.settings)
            self._inbox = self._wire.new_inbox()
            self._wire.subscribe(f"{self._inbox}.*")

    async def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    async def confirm(self, window: Sequences, counter: int, body: bytes) -> Sequences:
        unconfirmed = set(window)
        try:
            await asyncio.to_thread(self._confirm, window, counter, body, unconfirmed)
        except (ConnectionLost, RequestTimeout) as error:
            log.info("%d of %d acknowledgements are unconfirmed: %s", len(unconfirmed), window.count, error)
            await self.close()
        return window - Sequences.of(unconfirmed)

    def _confirm(self, window: Sequences, counter: int, body: bytes, unconfirmed: set[int]) -> None:
        assert self._wire is not None  # noqa: S101 - ready() comes first
        subjects = _subjects(self._ledger, window, counter)
        self._wire.send(
            *[
                encode_publish(subject, f"{self._inbox}.{sequence}", body)
                for sequence, subject in zip(window, subjects, strict=True)
            ]
        )
        deadline = time.monotonic() + CONFIRMED_WITHIN
        while unconfirmed:
            for frame in self._wire.receive(max(0.001, deadline - time.monotonic())):
                if not frame.header:  # a status line says that nobody listens; a confirmation has no headers
                    unconfirmed.discard(inbox_number(frame.subject))
            if unconfirmed and time.monotonic() > deadline:
                raise RequestTimeout("what arrives is no confirmation")
