"""Reading stored messages by direct get: any sequences, without a consumer, resumed after a lost connection.

Batched direct get is ADR-31; what its answers look like was seen on nats-server 2.15.1. Several things there shape this
file: deleted sequences are skipped without a word, ``up_to_seq`` is ignored beside ``seq`` and ``batch``, a replica may
lag behind its leader, and unread answers past 64 MiB make the server cut the connection.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from airflow_nats_jetstream.client.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ConnectionLost,
    DirectGetDisabled,
    JetStreamError,
    JetStreamNotEnabled,
    MessageNotFound,
    MessagesMissing,
    RequestTimeout,
    StreamRecreated,
)
from airflow_nats_jetstream.client.protocol import HEADER_LINE, NO_RESPONDERS, Frame, decode_status, encode_publish
from airflow_nats_jetstream.client.sequences import Sequences
from airflow_nats_jetstream.client.wire import Wire

if TYPE_CHECKING:
    from airflow_nats_jetstream.client.settings import ConnectionSettings

log = logging.getLogger(__name__)

BATCH = 10_000
"""Messages in one request."""
MAX_BYTES = 8 << 20
"""Bytes of one answer. With two requests outstanding the server has at most twice this on its way."""
NEAR = 16
"""Unwanted messages between two wanted ones that are cheaper to read and drop than to ask twice."""
ANSWERED_WITHIN = 10.0
RESUMED_WITHIN = 60.0
"""Seconds without progress after which reading gives up."""

_PREFIX = len(HEADER_LINE) + 2


class DirectMessage(NamedTuple):
    """A stored message, undecoded. ``time`` is RFC 3339; ``header`` holds the user's lines, or is empty."""

    sequence: int
    subject: bytes
    time: bytes
    header: bytes
    data: bytes


class _Segment:
    """A span of sequences that one request asks for; ``next`` moves as its messages arrive."""

    def __init__(self, next_sequence: int, last: int) -> None:
        self.next = next_sequence
        self.last = last


class DirectWindow:
    """The accounting of reading ``wanted``. No I/O.

    The driver sends each :meth:`next_request` with the reply ``<inbox>.<number>`` and reports every frame.
    """

    def __init__(self, wanted: Sequences, batch: int = BATCH) -> None:
        self._wanted = wanted
        self._batch = batch
        self._to_ask: deque[_Segment] = deque()
        for first, last in _near(wanted):
            self._to_ask.append(_Segment(first, last))
        self._outstanding: dict[int, _Segment] = {}
        self._number = 0
        self._missing: list[tuple[int, int]] = []
        self.last_sequence = 0

    @property
    def done(self) -> bool:
        return not self._to_ask and not self._outstanding

    @property
    def missing(self) -> Sequences:
        """Wanted sequences that were skipped: the leader must confirm that they are gone."""
        return Sequences.from_ranges(self._missing) & self._wanted

    def restart(self) -> None:
        """On a new connection: what was outstanding is asked for again, from where it had come to."""
        for segment in reversed(self._outstanding.values()):
            self._to_ask.appendleft(segment)
        self._outstanding.clear()

    def next_request(self) -> tuple[int, bytes] | None:
        """The number and body of a request that should be sent now, if any."""
        if not self._to_ask or len(self._outstanding) >= 2:
            return None
        segment = self._to_ask.popleft()
        end = segment.next + self._batch - 1
        if end < segment.last:
            self._to_ask.appendleft(_Segment(end + 1, segment.last))
            segment.last = end
        self._number += 1
        self._outstanding[self._number] = segment
        body = {"seq": segment.next, "batch": segment.last - segment.next + 1, "max_bytes": MAX_BYTES}
        return self._number, json.dumps(body).encode()

    def on_frame(self, number: int, frame: Frame) -> DirectMessage | None:
        """The message, if this frame is one that is wanted.

        Raises:
            JetStreamError: the server refuses the request, or answers out of order.
        """
        segment = self._outstanding.get(number)
        if segment is None:
            return None
        header = frame.header
        if header[len(HEADER_LINE) : len(HEADER_LINE) + 1] == b" ":
            self._on_status(number, segment, *decode_status(header))
            return None
        message = _message(header, frame.data)
        sequence = message.sequence
        if sequence < segment.next:
            raise JetStreamError(f"direct get answered with sequence {sequence} after {segment.next - 1}")
        if sequence > segment.next:
            self._missing.append((segment.next, min(sequence - 1, segment.last)))
        segment.next = sequence + 1
        if sequence > segment.last or sequence not in self._wanted:
            return None
        self.last_sequence = sequence
        return message

    def _on_status(self, number: int, segment: _Segment, status: int, description: str) -> None:
        if status == 204:
            del self._outstanding[number]
            if segment.next <= segment.last:  # cut by max_bytes: smaller requests keep the order
                self._to_ask.appendleft(segment)
        elif status == 404:
            del self._outstanding[number]
            if segment.next <= segment.last:
                self._missing.append((segment.next, segment.last))
        elif status in (NO_RESPONDERS, 429):
            raise JetStreamNotEnabled(status, 0, description or "nobody answers direct gets at this moment")
        else:
            raise JetStreamError(f"direct get: {status} {description}")


def read(settings: ConnectionSettings, stream: str, wanted: Sequences, created: str) -> Iterator[list[DirectMessage]]:
    """The wanted messages of a stream, in batches, ascending but for the edges of large batches. Blocking.

    A lost connection is opened again and reading goes on after the last message, for up to 60 s without progress.

    Raises:
        StreamRecreated: the stream's creation time is not ``created``.
        DirectGetDisabled: the stream does not allow direct get.
        MessagesMissing: after everything else was given: what the stream's leader does not hold either.
        ConnectionLost: no progress for 60 s; carries the last sequence.
    """
    window = DirectWindow(wanted)
    progress = time.monotonic()
    while True:
        try:
            with Wire.open(settings) as wire:
                _check(wire, stream, created)
                window.restart()
                for batch in _batches(wire, stream, window):
                    progress = time.monotonic()
                    yield batch
                found, lost = _confirm(wire, stream, window.missing)
                if found:
                    yield found
        except (ConnectionFailed, RequestTimeout, JetStreamNotEnabled) as error:
            if isinstance(error, AuthenticationFailed) or time.monotonic() - progress > RESUMED_WITHIN:
                raise ConnectionLost(
                    f"reading stream {stream!r} stopped after sequence {window.last_sequence}: {error}",
                    window.last_sequence,
                ) from error
            log.warning("reading stream %s was interrupted after sequence %d: %s", stream, window.last_sequence, error)
            time.sleep(0.2)
        else:
            if lost:
                raise MessagesMissing(stream, lost)
            return


def _batches(wire: Wire, stream: str, window: DirectWindow) -> Iterator[list[DirectMessage]]:
    subject = f"{wire.settings.prefix}.DIRECT.GET.{stream}"
    inbox = wire.new_inbox()
    wire.subscribe(f"{inbox}.*")
    skip = len(inbox) + 1
    while not window.done:
        while request := window.next_request():
            number, body = request
            wire.send(encode_publish(subject, f"{inbox}.{number}", body))
        batch = []
        for frame in wire.receive(ANSWERED_WITHIN):
            message = window.on_frame(int(frame.subject[skip:]), frame)
            if message is not None:
                batch.append(message)
        if batch:
            yield batch


def _check(wire: Wire, stream: str, created: str) -> None:
    info = wire.api(f"STREAM.INFO.{stream}")
    if info["created"] != created:
        raise StreamRecreated(f"stream {stream!r} was recreated at {info['created']}; expected the one of {created}")
    if not info["config"].get("allow_direct"):
        raise DirectGetDisabled(stream)


def _confirm(wire: Wire, stream: str, missing: Sequences) -> tuple[list[DirectMessage], Sequences]:
    """Ask the leader for what a replica may not have had yet: what was found, and what is gone."""
    found: list[DirectMessage] = []
    for first, last in missing.ranges:
        sequence = first
        while sequence <= last:
            try:
                answer = wire.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence, "next_by_subj": ">"})["message"]
            except MessageNotFound:
                break
            sequence = int(answer["seq"]) + 1
            if sequence - 1 in missing:
                header = base64.b64decode(answer.get("hdrs", ""))
                data = base64.b64decode(answer.get("data", ""))
                found.append(
                    DirectMessage(
                        sequence - 1, answer["subject"].encode(), answer["time"].encode(), header[_PREFIX:-2], data
                    )
                )
    return found, missing - Sequences.of(message.sequence for message in found)


def _message(header: bytes, data: bytes) -> DirectMessage:
    """Split what the server appended to the user's headers: stream, subject, sequence, time, pending, last sequence."""
    start = header.rfind(b"Nats-Stream: ")
    lines = header[start:].split(b"\r\n", 4)
    if start < 0 or not lines[2].startswith(b"Nats-Sequence: ") or not lines[3].startswith(b"Nats-Time-Stamp: "):
        raise JetStreamError("direct get answered without a sequence")
    return DirectMessage(int(lines[2][15:]), lines[1][14:], lines[3][17:], header[_PREFIX:start], data)


def _near(wanted: Sequences) -> Iterator[tuple[int, int]]:
    """Ranges with the small gaps between them closed."""
    current: tuple[int, int] | None = None
    for first, last in wanted.ranges:
        if current and first - current[1] - 1 <= NEAR:
            current = (current[0], last)
            continue
        if current:
            yield current
        current = (first, last)
    if current:
        yield current
