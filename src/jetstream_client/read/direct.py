"""Reading stored messages by direct get: any sequences, without a consumer, resumed after a lost connection.

Batched direct get is ADR-31; what its answers look like was seen on nats-server 2.15.1. Several things there shape this
file: deleted sequences are skipped without a word, ``up_to_seq`` is ignored beside ``seq`` and ``batch``, a replica may
lag behind its leader, and unread answers past 64 MiB make the server cut the connection.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from jetstream_client.errors import (
    ConnectionLost,
    DirectGetDisabled,
    JetStreamError,
    JetStreamNotEnabled,
    MessageNotFound,
    MessagesMissing,
    ProtocolError,
    RequestTimeout,
    StreamRecreated,
)
from jetstream_client.info import StreamInfo
from jetstream_client.read.message import RawMessage, RawMessages
from jetstream_client.sequences import Sequences
from jetstream_client.wire.attempts import PASSING, Attempts, is_passing
from jetstream_client.wire.blocking import ANSWERED_WITHIN, Wire
from jetstream_client.wire.parser import Frame
from jetstream_client.wire.protocol import FIRST_LINE, STATUS_LINE, decode_status, encode_publish, header_lines

if TYPE_CHECKING:
    from jetstream_client.wire.settings import ConnectionSettings

BATCH = 2_000
"""Messages in one request, at most. Larger ones leave the processor's caches: 10,000 were read a third slower."""
MAX_BYTES = 8 << 20
"""Bytes of one answer; the server goes past it by one message at most."""
OUTSTANDING = 2 * MAX_BYTES
"""Bytes that the server may have on its way, and that may wait here for those before them, together."""
NEAR = 8
"""Unwanted messages between two wanted ones that are cheaper to read and drop than to ask twice: about 4 µs each
against 25 µs for another request, measured on one machine."""
ENOUGH = 100
"""Messages of one answer that tell how densely the stream is filled there."""


class _Segment:
    """A span of sequences; ``next`` moves as its messages arrive. At most one request for it is on its way."""

    def __init__(self, next_sequence: int, last: int, gaps: bool) -> None:
        self.next = next_sequence
        self.last = last
        self.gaps = gaps  # whether it has sequences that are not wanted
        self.arrived: list[RawMessage] = []
        self.size = 0  # bytes that wait in arrived
        self.request = 0  # the number of the request on its way, 0 for none
        self.start = 0  # its first sequence, the messages asked for and answered, and the bytes it may bring
        self.count = 0
        self.answered = 0
        self.cost = 0

    @property
    def complete(self) -> bool:
        return not self.request and self.next > self.last


class DirectWindow:
    """The accounting of reading ``wanted``. No I/O.

    The driver sends each :meth:`next_request` with the reply ``<inbox>.<number>``, reports every frame, and takes what
    is there in order. Requests are sized by what was seen: no more messages than one answer's bytes held, and no more
    than the span has, where most of it was deleted.

    With ``subject``, a filter, ``wanted`` is what is asked for, and what the filter leaves out is not missing; only the
    end of each span is, if nothing came from there: a replica may not have it yet.
    """

    def __init__(self, wanted: Sequences, subject: str | None = None, density: float = 1.0) -> None:
        self._wanted = wanted
        self._subject = subject
        self._segments = _near(wanted)
        self._outstanding: dict[int, _Segment] = {}
        self._number = 0
        self._missing: list[tuple[int, int]] = []
        self._batch = BATCH
        self._density = density  # messages for each sequence
        self._largest = 1 << 20
        self.last_sequence = 0
        """The last one taken."""

    @property
    def done(self) -> bool:
        return not self._segments

    @property
    def missing(self) -> Sequences:
        """Wanted sequences that were skipped: the leader must confirm that they are gone."""
        return Sequences.from_ranges(self._missing) & self._wanted

    def restart(self, max_payload: int) -> None:
        """On a new connection: what was outstanding is asked for again, from where it had come to."""
        self._largest = max_payload
        for segment in self._outstanding.values():
            segment.request = 0
        self._outstanding.clear()

    def next_request(self) -> tuple[int, bytes] | None:
        """The number and body of a request that should be sent now, if any."""
        room = OUTSTANDING
        for position, segment in enumerate(self._segments):
            room -= segment.size
            if not segment.complete and not segment.request:
                span = max(1, int(self._batch / self._density))
                length = min(span, segment.last - segment.next + 1)
                count = min(self._batch, math.ceil(length * self._density))
                cost = min(MAX_BYTES, count * self._largest)
                if position and cost > room:
                    return None
                if segment.next + length <= segment.last:
                    self._segments.insert(position + 1, _Segment(segment.next + length, segment.last, segment.gaps))
                    segment.last = segment.next + length - 1
                return self._request(segment, count, cost)
            if segment.request:
                room -= segment.cost
            if room <= 0:
                break
        return None

    def _request(self, segment: _Segment, count: int, cost: int) -> tuple[int, bytes]:
        self._number += 1
        segment.request = self._number
        segment.start, segment.count, segment.answered, segment.cost = segment.next, count, 0, cost
        self._outstanding[self._number] = segment
        request: dict[str, Any] = {"seq": segment.next, "batch": count, "max_bytes": MAX_BYTES}
        if self._subject is not None:
            request["next_by_subj"] = self._subject
        return self._number, json.dumps(request).encode()

    def on_frames(self, frames: Iterable[Frame], skip: int) -> bool:
        """Account for answers; whether any was one. ``skip``: the characters of their subjects before the number of the
        request.

        Raises:
            JetStreamError: the server refuses a request, or answers out of order.
        """
        answered = False
        try:
            for frame in frames:
                number = int(frame.subject[skip:])
                segment = self._outstanding.get(number)
                if segment is None:
                    continue
                answered = True
                header = frame.header
                if header.startswith(STATUS_LINE) and (status := decode_status(header))[0]:
                    self._on_status(number, segment, *status)
                    continue
                message = _message(header, frame.data)
                sequence = message.sequence
                if sequence != segment.next:
                    if sequence < segment.next:
                        raise JetStreamError(f"direct get answered with sequence {sequence} after {segment.next - 1}")
                    if segment.next <= segment.last and self._subject is None:
                        self._missing.append((segment.next, min(sequence - 1, segment.last)))
                segment.next = sequence + 1
                segment.answered += 1
                if sequence <= segment.last and (not segment.gaps or sequence in self._wanted):
                    segment.arrived.append(message)
                    segment.size += len(frame.data) + len(header)
        except (ValueError, IndexError):
            raise ProtocolError("direct get answered with what is no message of a stream") from None
        return answered

    def _on_status(self, number: int, segment: _Segment, status: int, description: str) -> None:
        if status == 204 and segment.answered:
            covered = segment.next - segment.start
            if segment.answered < segment.count:  # cut by max_bytes, or the stream's end
                self._batch = segment.answered
            else:
                self._batch = min(BATCH, 2 * self._batch)
            if segment.answered >= ENOUGH:
                self._density = segment.answered / covered
        elif status == 404:
            if segment.next <= segment.last:
                self._missing.append((segment.next, segment.last))
                segment.next = segment.last + 1
        elif status in PASSING:
            raise JetStreamNotEnabled(status, 0, description or "nobody answers direct gets at this moment")
        else:
            raise JetStreamError(f"direct get: {status} {description}")
        segment.request = 0
        del self._outstanding[number]

    def take(self) -> list[RawMessage]:
        """The messages that have arrived and are next in order."""
        taken: list[RawMessage] = []
        while self._segments:
            first = self._segments[0]
            taken += first.arrived
            first.arrived, first.size = [], 0
            if not first.complete:
                break
            self._segments.popleft()
        if taken:
            self.last_sequence = taken[-1].sequence
        return taken


def read(
    settings: ConnectionSettings,
    stream: str,
    wanted: Sequences,
    created: str,
    *,
    subject: str | None = None,
    density: float = 1.0,
) -> Iterator[RawMessages]:
    """The wanted messages of a stream, in batches, ascending. Blocking. What only the leader had comes last.

    subject:  a filter; the wanted messages are those that pass it, and of the others none is missing.
    density:  what share of the wanted sequences is expected to pass.

    A lost connection is opened again and reading goes on after the last message, for up to 60 s without progress.

    Raises:
        StreamRecreated: the stream's creation time is not ``created``.
        DirectGetDisabled: the stream does not allow direct get.
        MessagesMissing: after everything else was given: what the stream's leader does not hold either.
        ConnectionLost: no progress for 60 s; carries the last sequence.
    """
    window = DirectWindow(wanted, subject, density)

    def batches(wire: Wire, info: StreamInfo) -> Iterator[RawMessages]:
        _check_allowed(stream, info)
        window.restart(wire.max_payload)
        return _batches(wire, stream, window)

    return resumed(settings, stream, created, window, batches, subject=subject)


class Progress(Protocol):
    """How far a reading has come."""

    last_sequence: int

    @property
    def missing(self) -> Sequences: ...


def resumed(
    settings: ConnectionSettings,
    stream: str,
    created: str,
    progress: Progress,
    batches: Callable[[Wire, StreamInfo], Iterator[RawMessages]],
    *,
    subject: str | None,
) -> Iterator[RawMessages]:
    """What ``batches`` reads over a connection, and over the next one when that is lost, then what only the leader had.

    Raises: as :func:`read`.
    """
    attempts = Attempts(lambda: f"reading stream {stream} was interrupted after sequence {progress.last_sequence}")
    try:
        while True:
            with attempts, Wire.open(settings) as wire:
                info = StreamInfo(wire.api(f"STREAM.INFO.{stream}"))
                if info.created != created:
                    raise StreamRecreated(
                        f"stream {stream!r} was recreated at {info.created}; expected the one of {created}"
                    )
                for batch in batches(wire, info):
                    yield batch
                    attempts.reached(progress.last_sequence)  # after it: the reader's own pauses do not count
                found, lost = _confirm(wire, stream, progress.missing, subject or ">")
                if found:
                    yield RawMessages.of(found)
                if lost and subject is None:
                    raise MessagesMissing(stream, lost)
                return
    except JetStreamError as error:
        if not is_passing(error):
            raise
        last = progress.last_sequence
        raise ConnectionLost(f"reading stream {stream!r} stopped after sequence {last}: {error}", last) from error


def _batches(wire: Wire, stream: str, window: DirectWindow) -> Iterator[RawMessages]:
    subject = f"{wire.settings.prefix}.DIRECT.GET.{stream}"
    inbox = wire.new_inbox()
    wire.subscribe(f"{inbox}.*")
    skip = len(inbox) + 1
    answered = time.monotonic()
    while True:
        # First: a connection may have been lost between the last message of a request and the word that it ended.
        if batch := window.take():
            yield RawMessages.of(batch)
            answered = time.monotonic()  # after it: the reader's own pauses do not count
        if window.done:
            return
        while request := window.next_request():
            number, body = request
            wire.send(encode_publish(subject, f"{inbox}.{number}", body))
        if window.on_frames(wire.receive(ANSWERED_WITHIN), skip):
            answered = time.monotonic()
        elif time.monotonic() - answered > ANSWERED_WITHIN:
            raise RequestTimeout(f"what arrives answers no direct get of stream {stream!r}")


def stream_info(wire: Wire, stream: str) -> StreamInfo:
    """Raises StreamNotFound, and DirectGetDisabled for a stream that cannot be read."""
    info = StreamInfo(wire.api(f"STREAM.INFO.{stream}"))
    _check_allowed(stream, info)
    return info


def _check_allowed(stream: str, info: StreamInfo) -> None:
    if not info.config.get("allow_direct"):
        raise DirectGetDisabled(stream)


def _confirm(wire: Wire, stream: str, missing: Sequences, subject: str) -> tuple[list[RawMessage], Sequences]:
    """Ask the leader for what a replica may not have had yet: what was found, and what is gone."""
    found: list[RawMessage] = []
    for first, last in missing.ranges:
        sequence = first
        while sequence <= last:
            try:
                answer = wire.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence, "next_by_subj": subject})
            except MessageNotFound:
                break
            message = RawMessage.parse(answer)
            if message.sequence < sequence:
                raise ProtocolError(f"the leader answered with sequence {message.sequence}, asked from {sequence} on")
            sequence = message.sequence + 1
            if message.sequence in missing:
                found.append(message)
    return found, missing - Sequences.of(message.sequence for message in found)


def _message(header: bytes, data: bytes) -> RawMessage:
    """Split what the server appended to the user's headers: stream, subject, sequence, time, pending, last sequence."""
    start = header.rfind(b"Nats-Stream: ")
    lines = header[start:].split(b"\r\n", 4)
    if start < 0 or not lines[2].startswith(b"Nats-Sequence: ") or not lines[3].startswith(b"Nats-Time-Stamp: "):
        raise JetStreamError("direct get answered without a sequence")
    # As header_lines, which to call takes as long.
    plain = header.startswith(FIRST_LINE) and header.endswith(b"\r\n", 0, start)
    own = header[len(FIRST_LINE) : start] if plain else header_lines(header[:start])
    fields = (int(lines[2][15:]), lines[1][14:], lines[3][17:], own, data)
    return tuple.__new__(RawMessage, fields)


def _near(wanted: Sequences) -> deque[_Segment]:
    """Ranges with the small gaps between them closed."""
    segments: deque[_Segment] = deque()
    for first, last in wanted.ranges:
        if segments and first - segments[-1].last - 1 <= NEAR:
            segments[-1].last, segments[-1].gaps = last, True
        else:
            segments.append(_Segment(first, last, gaps=False))
    return segments
