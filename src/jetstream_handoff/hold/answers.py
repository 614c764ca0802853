# SPDX-License-Identifier: Apache-2.0
"""Acknowledgements, heartbeats and leases for claimed messages. A message's reply subject is derived from its sequence.

In that subject, the server checks the stream, the consumer and the stream sequence. For a negative acknowledgement it
also checks that the consumer sequence lies in (ack floor, delivered] (``processNak`` in nats-server's
``server/consumer.go``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from jetstream_client.consume.address import NO_MESSAGE
from jetstream_client.consume.message import ACK, IN_PROGRESS, nak
from jetstream_client.errors import ConnectionLost, JetStreamError, PermissionDenied, RequestTimeout
from jetstream_client.sequences import Sequences
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import Reply, encode_publish, inbox_number
from jetstream_handoff.ledger.buckets import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from jetstream_handoff.ledger.ledger import Ledger
    from jetstream_handoff.ledger.record import Record

log = logging.getLogger(__name__)

WINDOW = 1_000
"""Number of acknowledgements in a window. Before each window, it is tested whether the consumer's life is still the
same. An unconfirmed window is sent again, so this also limits how many acknowledgements are sent twice."""
PIPELINED = 200_000
"""Bytes of heartbeats or negative acknowledgements to send between two round trips, enough for about two thousand
messages. The server does not confirm them. Writing them blocks the event loop for about a millisecond, and a link of 40
KB/s sends them within ``request_timeout``."""
FEW = 100
"""At most so many acknowledgements are confirmed on the control connection: to connect once more would take longer."""
CONFIRMED_WITHIN = 5.0
"""Seconds to wait for the confirmations of one window."""
_UNCONFIRMED = f"the server did not confirm the acknowledgements within {CONFIRMED_WITHIN:g} s"


@dataclass(frozen=True, slots=True)
class Delivered:
    """Messages delivered in one life of the consumer. ``counter`` is their highest consumer sequence."""

    life: tuple[str, int]
    sequences: Sequences
    counter: int

    @classmethod
    def of(cls, record: Record, sequences: Sequences, counter: int) -> Delivered:
        return cls(record.life, sequences, counter)


async def negative(ledger: Ledger, sequences: Sequences, delay: timedelta | None = None) -> None:
    """Negatively acknowledge all of these messages. With a ``delay`` they are leased for that time.

    Raises:
        PermissionDenied: this user is not permitted to acknowledge for the consumer; names the subject.
    """
    counter = (await ledger.consumer.info(patience=PATIENCE)).counter
    await _publish(ledger, sequences, counter, nak(delay))


async def in_progress(ledger: Ledger, sequences: Iterable[int], counter: int) -> None:
    """Renew the lease of all of these messages: ``ack_wait`` begins again."""
    await _publish(ledger, sequences, counter, IN_PROGRESS)


async def check_permitted(ledger: Ledger) -> None:
    """Check that this user is permitted to acknowledge: send an in-progress acknowledgement for a message that does not
    exist.

    Raises:
        PermissionDenied: this user is not permitted to acknowledge for the consumer; names the subject.
    """
    await _publish(ledger, [NO_MESSAGE], 0, IN_PROGRESS)


async def _publish(ledger: Ledger, sequences: Iterable[int], counter: int, body: bytes) -> None:
    await ledger.locate()
    connection, left = ledger.js.connection, iter(sequences)
    before, after = f"{ledger.address.prefix}.1.", f".{counter}.0.0"
    size = len(before) + len(after) + len(body) + 32  # 32 bytes for the number and the protocol
    while window := list(islice(left, PIPELINED // size)):
        await connection.answer_all(before, window, after, body)
        await connection.flush()
        # The permission is the same for all messages of a consumer.
        connection.check_permitted(f"{before}{window[0]}{after}")


def _subjects(ledger: Ledger, sequences: Iterable[int], counter: int) -> Iterable[str]:
    prefix = ledger.address.prefix
    return (f"{prefix}.1.{sequence}.{counter}.0.0" for sequence in sequences)


async def acknowledge(ledger: Ledger, delivered: Delivered, within: float = 30.0, body: bytes = ACK) -> Sequences:
    """Acknowledge each message and wait for confirmations. Returns the messages that were not confirmed.

    Before each window, this reads the ledger and the consumer's INFO, and sends nothing more if the consumer was
    recreated or reset after it had delivered the messages. Otherwise, a late acknowledgement could count for messages
    that a reset delivers again. Messages whose acknowledgements stay unconfirmed may be redelivered; the next take
    finds them in the ledger and acknowledges them again.

    within: stop after this many seconds without a confirmation.
    body:   the kind of acknowledgement, for example a termination.

    Raises:
        PermissionDenied: this user is not permitted to acknowledge for the consumer; names the subject.
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
                await confirmer.ready(window)
                if not await _same_life(ledger, delivered):
                    log.warning(
                        "consumer %s of stream %s was recreated, reset or rolled back: the messages are not "
                        "acknowledged, because they are redelivered",
                        *reversed(ledger.names),
                    )
                    break
                if confirmed := await confirmer.confirm(window, delivered.counter, body):
                    deadline = clock() + within
                    window -= confirmed
            except PermissionDenied:
                raise
            except JetStreamError as error:
                if ledger.js.connection.closed:
                    log.warning("acknowledging has ended, because the connection is closed: %s", error)
                    break
                log.warning("acknowledging was interrupted and is tried again: %s", error)
                await asyncio.sleep(0.2)
            left.popleft()
            if window:
                left.append(window)  # to be sent again after all other windows
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
    """Acknowledges a window on a bulk connection in a worker thread, twice as fast as on the control connection, or a
    few messages on the latter."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._wire: Wire | None = None
        self._inbox = ""

    async def ready(self, window: Sequences) -> None:
        """Connect before the consumer's life is tested, so that the acknowledgements follow the test without a
        delay."""
        if self._wire is None and window.count > FEW:
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
            if self._wire is None:
                await self._confirm_few(window, counter, body, unconfirmed)
            else:
                await asyncio.to_thread(self._confirm, window, counter, body, unconfirmed)
        except (ConnectionLost, RequestTimeout) as error:
            log.info("%d of %d acknowledgements are unconfirmed: %s", len(unconfirmed), window.count, error)
            await self.close()
        return window - Sequences.of(unconfirmed)

    async def _confirm_few(self, window: Sequences, counter: int, body: bytes, unconfirmed: set[int]) -> None:
        connection, all_confirmed = self._ledger.js.connection, asyncio.Event()

        def confirmed(reply: Reply) -> None:
            if not reply.status:
                unconfirmed.discard(inbox_number(reply.subject))
            if not unconfirmed:
                all_confirmed.set()

        async with connection.inbox(confirmed) as inbox:
            subjects = list(_subjects(self._ledger, window, counter))
            for sequence, subject in zip(window, subjects, strict=True):
                await connection.publish(subject, body, inbox.subject(sequence))
            await connection.flush()
            connection.check_permitted(subjects[0])
            try:
                async with connection.timeout(CONFIRMED_WITHIN):
                    await all_confirmed.wait()
            except TimeoutError:
                raise RequestTimeout(_UNCONFIRMED) from None

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
                if not frame.header:  # headers contain a status: nothing listens on this subject
                    unconfirmed.discard(inbox_number(frame.subject))
            if unconfirmed and time.monotonic() > deadline:
                raise RequestTimeout(_UNCONFIRMED)
