# SPDX-License-Identifier: Apache-2.0
"""Reading stored messages at any sequences by direct get, without a consumer. Reading resumes after a lost connection.

Batched direct get is ADR-31; its answers were observed on nats-server 2.15.1. This file takes four facts into account:
deleted sequences are skipped silently, ``up_to_seq`` is ignored if ``seq`` and ``batch`` are set, a replica may lag
behind its leader, and the server closes a connection with more than 64 MiB of unread answers.
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
"""The largest number of messages in one request. Larger answers do not fit into the processor's caches: with 10,000
messages, reading was a third slower."""
MAX_BYTES = 8 << 20
"""The largest number of bytes in the answer to one request. The server exceeds it by at most one message."""
OUTSTANDING = 2 * MAX_BYTES
"""The largest number of bytes that are outstanding, or that have arrived and wait for earlier messages."""
NEAR = 8
"""Up to this many unwanted messages between two wanted messages are read and dropped. This is cheaper than another
request: about 4 µs for each message against 25 µs for a request, measured on one machine."""
ENOUGH = 100
"""An answer with at least this many messages is used to estimate the density of the messages in the stream."""


class _Segment:
    """A range of sequences, with at most one outstanding request. ``next`` advances as its messages arrive."""

    def __init__(self, next_sequence: int, last: int, gaps: bool) -> None:
        self.next = next_sequence
        self.last = last
        self.gaps = gaps  # whether the range contains unwanted sequences
        self.arrived: list[RawMessage] = []
        self.size = 0  # bytes in arrived
        self.request = 0  # number of the outstanding request, 0 for none
        self.start = 0  # first sequence of the request
        self.count = 0  # messages that the request asks for
        self.answered = 0  # messages that have arrived for the request
        self.cost = 0  # the largest number of bytes in the answers to the request
        self.single = False  # whether the request asks for one message by its sequence, which no status follows

    @property
    def complete(self) -> bool:
        return not self.request and self.next > self.last


class DirectWindow:
    """Decides which requests read the ``wanted`` sequences, and sorts the answers. No I/O.

    The driver sends each :meth:`next_request` with the reply subject ``<inbox>.<number>``, reports every frame, and
    takes the messages in order. The size of a request follows earlier answers: it has at most the number of messages
    that fitted into one answer, and fewer if most of the range was deleted.

    With a filter ``subject``, sequences that the filter excludes are not missing. So only the end of a range counts as
    missing: the sequences after the last message that arrived from it. A replica may not have their messages yet.
    """

    def __init__(self, wanted: Sequences, subject: str | None = None, density: float = 1.0) -> None:
        self._wanted = wanted
        self._subject = subject
        self._segments = _near(wanted)
        self._outstanding: dict[int, _Segment] = {}
        self._number = 0
        self._missing: list[tuple[int, int]] = []
        self._batch = BATCH
        self._density = density  # messages per sequence
        self._largest = 1 << 20
        self.last_sequence = 0
        """The last sequence that was taken."""

    @property
    def done(self) -> bool:
        return not self._segments

    @property
    def missing(self) -> Sequences:
        """Wanted sequences that were skipped. The leader must confirm that they were removed."""
        return Sequences.from_ranges(self._missing) & self._wanted

    def restart(self, max_payload: int) -> None:
        """Prepare for a new connection, on which everything that is still outstanding is requested again."""
        self._largest = max_payload
        for segment in self._outstanding.values():
            segment.request = 0
        self._outstanding.clear()

    def next_request(self) -> tuple[int, bytes] | None:
        """Number and body of a request to send now, or None."""
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
        request: dict[str, Any] = {"seq": segment.next}
        # For a batch, the server counts the messages behind it: 5 ms in a memory stream of 200,000 messages.
        segment.single = segment.next == segment.last and self._subject is None
        if not segment.single:
            request |= {"batch": count, "max_bytes": MAX_BYTES}
        if self._subject is not None:
            request["next_by_subj"] = self._subject
        return self._number, json.dumps(request).encode()

    def on_frames(self, frames: Iterable[Frame], skip: int) -> bool:
        """Record frames. Returns whether at least one of the frames answers a request.

        skip:  bytes in front of the request's number in a frame's subject.

        Raises:
            JetStreamError: the server refused a request, or answered out of order.
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
                message = answered_message(header, frame.data)
                sequence = message.sequence
                if sequence != segment.next:
                    if sequence < segment.next:
                        expected = segment.next
                        raise JetStreamError(f"direct get answered with sequence {sequence}, not {expected} or higher")
                    if segment.next <= segment.last and self._subject is None:
                        self._missing.append((segment.next, min(sequence - 1, segment.last)))
                segment.next = sequence + 1
                segment.answered += 1
                if sequence <= segment.last and (not segment.gaps or sequence in self._wanted):
                    segment.arrived.append(message)
                    segment.size += len(frame.data) + len(header)
                if segment.single:
                    self._answered(number, segment)
        except (ValueError, IndexError):
            raise ProtocolError("the answer to a direct get is not a stored message") from None
        return answered

    def _on_status(self, number: int, segment: _Segment, status: int, description: str) -> None:
        if status == 204 and segment.answered:
            covered = segment.next - segment.start
            if segment.answered < segment.count:  # ended by max_bytes, or by the end of the stream
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
            raise JetStreamNotEnabled(status, 0, description or "no server answers direct gets at this moment")
        else:
            raise JetStreamError(f"the server refused a direct get: {status} {description}")
        self._answered(number, segment)

    def _answered(self, number: int, segment: _Segment) -> None:
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
    """Read the wanted messages of a stream in batches, in ascending order. Messages that had to be requested from the
    leader follow at the end.

    This call is blocking.

    created:  creation time of the stream, as in its INFO.
    subject:  filter. Messages that it excludes are not read, and do not count as missing. Default None.
    density:  expected share of the wanted sequences that match the filter. Default 1.0.

    After a lost connection, another connection is opened and reading continues after the last message, until there is
    no progress for 60 s.

    Raises:
        StreamRecreated: the stream's creation time is not ``created``.
        DirectGetDisabled: the stream does not allow direct get.
        MessagesMissing: some of the wanted messages did not arrive, and the stream's leader does not have them either.
            This error is raised after all other messages were read.
        ConnectionLost: there was no progress for 60 s. The error contains the last sequence that was read.
    """
    window = DirectWindow(wanted, subject, density)

    def batches(wire: Wire, info: StreamInfo) -> Iterator[RawMessages]:
        _check_allowed(wire, stream, info)
        window.restart(wire.max_payload)
        return _batches(wire, stream, window)

    return resumed(settings, stream, created, window, batches, subjects=() if subject is None else (subject,))


class Progress(Protocol):
    """The progress of reading."""

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
    subjects: tuple[str, ...],
) -> Iterator[RawMessages]:
    """Read with ``batches``. After a lost connection, reading continues over another one. Then request the missing
    messages from the leader.

    Raises the same errors as :func:`read`.
    """
    attempts = Attempts(lambda: f"reading stream {stream} was interrupted after sequence {progress.last_sequence}")
    try:
        while True:
            with attempts, Wire.open(settings) as wire:
                info = StreamInfo(wire.api(f"STREAM.INFO.{stream}"))
                if info.created != created:
                    raise StreamRecreated(
                        f"stream {stream!r} was recreated at {info.created}; the messages to read were in the stream "
                        f"that was created at {created}"
                    )
                for batch in batches(wire, info):
                    yield batch
                    attempts.reached(progress.last_sequence)  # after the yield: the caller's time does not count
                missing = progress.missing
                found = [each for subject in subjects or (">",) for each in _confirm(wire, stream, missing, subject)]
                if found:
                    yield RawMessages.of(sorted(found, key=lambda each: each.sequence))
                lost = missing - Sequences.of(sorted(each.sequence for each in found))
                if lost and not subjects:
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
        # Take first: the previous connection may have been lost after the last message, before its final status.
        if batch := window.take():
            yield RawMessages.of(batch)
            answered = time.monotonic()  # after the yield: the caller's time does not count
        if window.done:
            return
        while request := window.next_request():
            number, body = request
            wire.send(encode_publish(subject, f"{inbox}.{number}", body))
        if window.on_frames(wire.receive(ANSWERED_WITHIN), skip):
            answered = time.monotonic()
        elif time.monotonic() - answered > ANSWERED_WITHIN:
            raise RequestTimeout(f"direct gets of stream {stream!r} were not answered for {ANSWERED_WITHIN:g} s")


def stream_info(wire: Wire, stream: str) -> StreamInfo:
    """The state of a stream. Raises StreamNotFound, and DirectGetDisabled if it cannot be read by direct get."""
    info = StreamInfo(wire.api(f"STREAM.INFO.{stream}"))
    _check_allowed(wire, stream, info)
    return info


def _check_allowed(wire: Wire, stream: str, info: StreamInfo) -> None:
    if not info.config.get("allow_direct"):
        raise DirectGetDisabled(stream, wire.settings.words)


def _confirm(wire: Wire, stream: str, missing: Sequences, subject: str) -> list[RawMessage]:
    """Request from the leader the messages that a replica may not have had yet. Returns those that the leader has."""
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
                raise ProtocolError(f"the leader answered with sequence {message.sequence}, not {sequence} or higher")
            sequence = message.sequence + 1
            if message.sequence in missing:
                found.append(message)
    return found


def answered_message(header: bytes, data: bytes) -> RawMessage:
    """Parse an answer to a direct get. The server appends lines to the publisher's headers: stream, subject, sequence,
    time and more."""
    start = header.rfind(b"Nats-Stream: ")
    lines = header[start:].split(b"\r\n", 4)
    if start < 0 or not lines[2].startswith(b"Nats-Sequence: ") or not lines[3].startswith(b"Nats-Time-Stamp: "):
        raise JetStreamError("the answer to a direct get is not a stored message")
    # Like header_lines; calling it would double the time.
    plain = header.startswith(FIRST_LINE) and header.endswith(b"\r\n", 0, start)
    own = header[len(FIRST_LINE) : start] if plain else header_lines(header[:start])
    fields = (int(lines[2][15:]), lines[1][14:], lines[3][17:], own, data)
    return tuple.__new__(RawMessage, fields)


def _near(wanted: Sequences) -> deque[_Segment]:
    """The wanted ranges, joined across small gaps."""
    segments: deque[_Segment] = deque()
    for first, last in wanted.ranges:
        if segments and first - segments[-1].last - 1 <= NEAR:
            segments[-1].last, segments[-1].gaps = last, True
        else:
            segments.append(_Segment(first, last, gaps=False))
    return segments
