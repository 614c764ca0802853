# SPDX-License-Identifier: Apache-2.0
"""Which batched direct gets (ADR-31) read long ranges of sequences, and sorting their answers. No I/O.

The answers were observed on nats-server 2.15.1. This file takes two facts into account: deleted sequences are skipped
silently, and ``up_to_seq`` is ignored if ``seq`` and ``batch`` are set.
"""

from __future__ import annotations

import json
import math
from collections import deque
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import JetStreamError, ProtocolError
from jetstream_client.read.answers import OUTSTANDING, Taken, answered_message, frames, refused
from jetstream_client.read.message import RawMessage, RawMessages
from jetstream_client.sequences import Sequences
from jetstream_client.wire.protocol import STATUS_LINE, decode_status, encode_publish

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetstream_client.wire.run import Frame, Run

BATCH = 2_000
"""The largest number of messages in one request. Larger answers do not fit into the processor's caches: with 10,000
messages, reading was a third slower."""
MAX_BYTES = OUTSTANDING // 2
"""The largest number of bytes in the answer to one request. The server exceeds it by at most one message."""
NEAR = 8
"""Up to this many unwanted messages between two wanted ranges are read and dropped. This is cheaper than another
request: about 7 µs for each message against 100 µs for a request and its two statuses, measured on one machine."""
ENOUGH = 100
"""An answer with at least this many messages is used to estimate the density of the messages in the stream."""


class _Segment:
    """A range of sequences, with at most one outstanding request. ``next`` advances as its messages arrive."""

    def __init__(self, next_sequence: int, last: int, gaps: bool) -> None:
        self.next = next_sequence
        self.last = last
        self.gaps = gaps  # whether the range contains unwanted sequences
        self.arrived: list[RawMessage] = []
        self.missing: list[tuple[int, int]] = []
        self.size = 0  # bytes in arrived
        self.request = 0  # number of the outstanding request, 0 for none
        self.start = 0  # first sequence of the request
        self.count = 0  # messages that the request asks for
        self.answered = 0  # messages that have arrived for the request
        self.cost = 0  # the largest number of bytes in the answers to the request

    @property
    def complete(self) -> bool:
        return not self.request and self.next > self.last


class BatchWindow:
    """A :class:`~jetstream_client.read.answers.Window` that asks for many messages at a time. The size of a request
    follows earlier answers: it has at most the number of messages that fitted into one answer, and fewer if most of the
    range was deleted.

    With a filter ``subject``, sequences that the filter excludes are not missing. So only the end of a range counts as
    missing: the sequences after the last message that arrived from it. A replica may not have their messages yet.

    density:      expected share of the wanted sequences that have a message to read.
    max_payload:  the largest message in bytes.
    """

    def __init__(
        self, wanted: Sequences, subject: str | None = None, density: float = 1.0, max_payload: int = 1 << 20
    ) -> None:
        self._wanted = wanted
        self._subject = subject
        self._segments = _near(wanted)
        self._outstanding: dict[int, _Segment] = {}
        self._number = 0
        self._batch = BATCH
        self._density = density  # messages per sequence
        self._largest = max_payload

    @property
    def done(self) -> bool:
        return not self._segments

    def commands(self, address: str, inbox: str) -> bytes:
        requests = iter(self.next_request, None)
        return b"".join(encode_publish(address, f"{inbox}.{number}", body) for number, body in requests)

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
        request: dict[str, Any] = {"seq": segment.next, "batch": count, "max_bytes": MAX_BYTES}
        if self._subject is not None:
            request["next_by_subj"] = self._subject
        return self._number, json.dumps(request).encode()

    def on_run(self, run: Run, inbox: str) -> bool:
        return self.on_frames(frames(run), inbox)

    def on_frames(self, arrived: Iterable[Frame], inbox: str) -> bool:
        """Like :meth:`on_run`, with messages one by one."""
        front = f"{inbox}.".encode()
        skip = len(front)
        answered = False
        try:
            for frame in arrived:
                if not frame.subject.startswith(front):
                    continue
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
                        segment.missing.append((segment.next, min(sequence - 1, segment.last)))
                segment.next = sequence + 1
                segment.answered += 1
                if sequence <= segment.last and (not segment.gaps or sequence in self._wanted):
                    segment.arrived.append(message)
                    segment.size += len(frame.data) + len(header)
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
                segment.missing.append((segment.next, segment.last))
                segment.next = segment.last + 1
        else:
            raise refused(status, description)
        segment.request = 0
        del self._outstanding[number]

    def take(self) -> Taken | None:
        messages: list[RawMessage] = []
        missing: list[tuple[int, int]] = []
        through = 0
        while self._segments:
            first = self._segments[0]
            messages += first.arrived
            missing += first.missing
            first.arrived, first.missing, first.size = [], [], 0
            through = min(first.next - 1, first.last)
            if not first.complete:
                break
            self._segments.popleft()
        if not (messages or missing):
            return None
        lost = (Sequences.from_ranges(missing) & self._wanted).ranges
        return Taken([RawMessages.of(messages)] if messages else [], lost, through)


def _near(wanted: Sequences) -> deque[_Segment]:
    """The wanted ranges, joined across small gaps."""
    segments: deque[_Segment] = deque()
    for first, last in wanted.ranges:
        if segments and first - segments[-1].last - 1 <= NEAR:
            segments[-1].last, segments[-1].gaps = last, True
        else:
            segments.append(_Segment(first, last, gaps=False))
    return segments
