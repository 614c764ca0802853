# SPDX-License-Identifier: Apache-2.0
"""Which direct gets of one message each (ADR-31) read scattered sequences, and sorting their answers. No I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from jetstream_client.errors import JetStreamError, ProtocolError
from jetstream_client.read.answers import OUTSTANDING, Taken, answered_message, frames, refused
from jetstream_client.read.message import RawMessage, RawMessages
from jetstream_client.wire.protocol import STATUS_LINE, decode_status, encode_publish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jetstream_client.sequences import Sequences
    from jetstream_client.wire.run import Frame, Run

SMALLEST = 16 << 10
"""An answer is expected to have at least this many bytes, so at most 1,024 requests are outstanding. That is enough to
hide a round trip of 5 ms."""
SHARE = 4
"""Requests are sent when a fourth of those that may be outstanding can be sent, because few large writes are cheaper
than many small ones."""


@dataclass
class _Group:
    """Requests that were sent together, whose answers arrive on the same subject.

    sequences:   what they ask for, in ascending order.
    unanswered:  how many of them have no answer yet.
    refused:     whether there is no message for at least one of them.
    """

    sequences: list[int]
    unanswered: int
    refused: bool = False


class GetWindow:
    """A :class:`~jetstream_client.read.answers.Window` that asks for each message by its sequence. Nothing is sent that
    is not wanted, and the server looks each message up where it is, in streams of any size.

    Requests that are sent together share a reply subject, because the server would otherwise look for the subscribers
    of each one, which takes it a quarter of the time. So an answer that says that there is no message does not say
    which one: that is known when all of these requests have been answered.

    How many requests are outstanding follows from the largest answer so far. Before the first answer, it is expected to
    have ``max_payload`` bytes. If messages become larger too suddenly, the server closes the connection, and reading
    resumes carefully over another one.
    """

    def __init__(self, wanted: Sequences, max_payload: int = 1 << 20) -> None:
        self._left = iter(wanted)  # without a request
        self._unasked = wanted.count
        self._groups: dict[int, _Group] = {}  # by number, those without all answers
        self._number = 0
        self._waiting: list[int] = []  # requested, and not ready
        self._arrived: dict[int, RawMessage | None] = {}  # that wait for earlier ones; None if there is no message
        self._ready: list[RawMessages] = []
        self._missing: list[tuple[int, int]] = []
        self._through = 0
        self._unknown = max_payload  # the expected size of an answer before the first one; 0 after it
        self._largest = SMALLEST

    @property
    def done(self) -> bool:
        return not (self._unasked or self._waiting or self._ready or self._missing)

    def commands(self, address: str, inbox: str) -> bytes:
        most = max(1, OUTSTANDING // max(self._unknown, self._largest))
        room = most - len(self._waiting)
        if not self._unasked or room * SHARE < most:
            return b""
        asked = list(islice(self._left, room))
        self._unasked -= len(asked)
        self._waiting += asked
        self._number += 1
        self._groups[self._number] = _Group(asked, len(asked))
        front = encode_publish(address, f"{inbox}.{self._number}", b"").removesuffix(b"0\r\n\r\n")
        requests, begin = [], 0
        while begin < len(asked):
            digits = len(str(asked[begin]))
            end = bisect_left(asked, 10**digits, begin)
            requests.append(_same_size(front, digits, tuple(asked[begin:end])))
            begin = end
        return b"".join(requests)

    def on_run(self, run: Run, inbox: str) -> bool:
        found = run.answers()
        groups = self._answered(found.inboxes, inbox) if found else None
        if not found or not groups:
            return self.on_frames(frames(run), inbox)
        sequences = list(map(int, found.sequences))
        messages = RawMessages(sequences, found.subjects, found.times, found.headers, found.data)
        count = len(sequences)
        if not self._arrived and sequences == self._waiting[:count]:  # the usual case with one server
            del self._waiting[:count]
            self._ready.append(messages)
            self._through = sequences[-1]
        elif len(set(sequences)) == count and set(self._waiting).difference(self._arrived).issuperset(sequences):
            self._arrived.update(zip(sequences, messages, strict=True))
        else:
            return self.on_frames(frames(run), inbox)
        for group, many in groups:
            group.unanswered -= many
        self._measured(max(map(len, run.bodies)))
        self._sort()
        return True

    def _answered(self, inboxes: Sequence[bytes], inbox: str) -> list[tuple[_Group, int]] | None:
        """The groups that messages answer, each with the number of these messages. None if a message answers none."""
        front = f"{inbox}.".encode()
        numbers = ((subject.removeprefix(front), many) for subject, many in Counter(inboxes).items())
        groups = [(self._groups.get(int(number)), many) for number, many in numbers if number.isdigit()]
        known = [(group, many) for group, many in groups if group and many <= group.unanswered]
        return known if sum(many for _, many in known) == len(inboxes) else None

    def on_frames(self, arrived: list[Frame], inbox: str) -> bool:
        """Like :meth:`on_run`, with messages one by one, in any order. Several servers may answer."""
        front = f"{inbox}.".encode()
        answered = False
        try:
            for frame in arrived:
                if not frame.subject.startswith(front):
                    continue
                group = self._groups.get(int(frame.subject[len(front) :]))
                if group is None or not group.unanswered:
                    continue
                answered = True
                if frame.header.startswith(STATUS_LINE) and (status := decode_status(frame.header))[0]:
                    if status[0] != 404:
                        raise refused(*status)
                    group.refused = True
                    group.unanswered -= 1
                    continue
                message = answered_message(frame.header, frame.data)
                if not _in(group.sequences, message.sequence):
                    raise JetStreamError(
                        f"direct get answered with sequence {message.sequence}, which was not requested"
                    )
                if _in(self._waiting, message.sequence) and message.sequence not in self._arrived:
                    group.unanswered -= 1
                    self._arrived[message.sequence] = message
                    self._measured(len(frame.header) + len(frame.data))
        except (ValueError, IndexError):
            raise ProtocolError("the answer to a direct get is not a stored message") from None
        self._sort()
        return answered

    def _measured(self, size: int) -> None:
        self._unknown, self._largest = 0, max(self._largest, size)

    def _sort(self) -> None:
        """Make ready what has arrived and is next in order."""
        for number in [number for number, group in self._groups.items() if not group.unanswered]:
            group = self._groups.pop(number)
            if group.refused:
                first = self._waiting[0]
                missing = [each for each in group.sequences if each >= first and each not in self._arrived]
                self._arrived.update(dict.fromkeys(missing))
        ready: list[RawMessage] = []
        count = 0
        for sequence in self._waiting:
            if sequence not in self._arrived:
                break
            count += 1
            if (message := self._arrived.pop(sequence)) is not None:
                ready.append(message)
            elif self._missing and self._missing[-1][1] == sequence - 1:
                self._missing[-1] = (self._missing[-1][0], sequence)
            else:
                self._missing.append((sequence, sequence))
            self._through = sequence
        del self._waiting[:count]
        if ready:
            self._ready.append(RawMessages.of(ready))

    def take(self) -> Taken | None:
        if not (self._ready or self._missing):
            return None
        taken = Taken(self._ready, self._missing, self._through)
        self._ready, self._missing = [], []
        return taken


def _same_size(front: bytes, digits: int, sequences: tuple[int, ...]) -> bytes:
    """Requests for sequences that have the same number of digits, with one formatting operation."""
    one = b'%b%d\r\n{"seq":%%d}\r\n' % (front.replace(b"%", b"%%"), digits + len(b'{"seq":}'))
    return one * len(sequences) % sequences


def _in(sequences: list[int], sequence: int) -> bool:
    """Whether a sequence is one of the sequences, which are ascending."""
    place = bisect_left(sequences, sequence)
    return sequences[place : place + 1] == [sequence]
