# SPDX-License-Identifier: Apache-2.0
"""Reading stored messages at any sequences by direct get (ADR-31), without a consumer. Reading resumes after a lost
connection.

A replica that answers may lag behind its leader, so a message that an answer left out is requested from the leader.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from jetstream_client.errors import (
    ConnectionLost,
    DirectGetDisabled,
    JetStreamError,
    MessageNotFound,
    MessagesMissing,
    ProtocolError,
    RequestTimeout,
    StreamRecreated,
)
from jetstream_client.info import StreamInfo
from jetstream_client.read.batch_window import NEAR, BatchWindow
from jetstream_client.read.get_window import GetWindow
from jetstream_client.read.message import RawMessage, RawMessages
from jetstream_client.sequences import Sequences
from jetstream_client.wire.attempts import Attempts, is_passing
from jetstream_client.wire.blocking import ANSWERED_WITHIN, Wire

if TYPE_CHECKING:
    from jetstream_client.read.answers import Window
    from jetstream_client.wire.settings import ConnectionSettings

LONG = 500
"""A range of at least this many sequences is read by batched direct gets, and a shorter one by a direct get for each
message. Such a get takes up to half as much time again as a message of a batch, but a batch also has its own cost."""
LISTED_AT_ONCE = 10_000
"""Up to so many deleted messages are listed in any case, within 20 ms."""
LISTED_PER_READ = 16
"""To list so many deleted messages takes as long as to read one message."""
MOST_LISTED = 5_000_000
"""More deleted messages cannot be listed: near eight million, the answer has 64 MiB, and the server closes a
connection that falls behind by so much (``max_pending``)."""
WANTED = 4
"""Ranges with small gaps between them count as one if they have at least this many wanted messages for each unwanted
one."""


class Piece(NamedTuple):
    """Sequences that are read in the same way.

    batched:  whether by batched direct gets, instead of a direct get for each message.
    """

    batched: bool
    sequences: Sequences


def pieces(wanted: Sequences, *, in_memory: bool) -> list[Piece]:
    """Decide how to read sequences. No I/O.

    in_memory:  whether the stream is in memory. For a batch, nats-server 2.15.1 then counts all messages behind it: 10
        ms for 100,000, and 2,000 gets of one message each take less.
    """
    if in_memory or not wanted:
        return [Piece(False, wanted)] if wanted else []
    ranges = wanted.ranges
    found: list[tuple[bool, int]] = []  # whether batched, and the number of the first range
    for begin, end in _groups(wanted):
        batched = ranges[end - 1][1] - ranges[begin][0] + 1 >= LONG
        if not found or found[-1][0] != batched:
            found.append((batched, begin))
    ends = [begin for _, begin in found[1:]] + [len(ranges)]
    return [Piece(batched, Sequences(ranges[begin:end])) for (batched, begin), end in zip(found, ends, strict=True)]


def _groups(wanted: Sequences) -> Iterator[tuple[int, int]]:
    """The numbers of the first range and behind the last range of each group that has small and few gaps."""
    begin = count = unwanted = 0
    before = wanted.first - 1
    for number, (first, last) in enumerate(wanted.ranges):
        gap, size = first - before - 1, last - first + 1
        if gap > NEAR or (unwanted + gap) * WANTED > count + size:
            yield begin, number
            begin, count, unwanted, gap = number, 0, 0, 0
        count += size
        unwanted += gap
        before = last
    yield begin, len(wanted.ranges)


def read(
    settings: ConnectionSettings,
    stream: str,
    wanted: Sequences,
    created: str,
    *,
    subject: str | None = None,
    density: float = 1.0,
) -> Iterator[RawMessages]:
    """Read the wanted messages of a stream in batches, in ascending order.

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
    reading = _Reading(stream, wanted, subject, density)
    return resumed(settings, stream, created, reading, ignore_missing=subject is not None)


class Progress(Protocol):
    """A read, and its progress.

    last_sequence:  the last sequence that has been dealt with.
    lost:           wanted sequences up to this one that the leader does not have.
    """

    last_sequence: int
    lost: list[tuple[int, int]]

    def batches(self, wire: Wire, info: StreamInfo) -> Iterator[RawMessages]:
        """Read what follows the last sequence, in ascending order."""


class _Reading:
    """A read by direct gets."""

    def __init__(self, stream: str, wanted: Sequences, subject: str | None, density: float) -> None:
        self._stream = stream
        self._wanted = wanted
        self._subject = subject
        self._density = density
        self.last_sequence = 0
        self.lost: list[tuple[int, int]] = []

    def batches(self, wire: Wire, info: StreamInfo) -> Iterator[RawMessages]:
        _check_allowed(wire, self._stream, info)
        if not (left := self._wanted.after(self.last_sequence)):
            return
        if self._subject is not None:
            yield from self._read(wire, BatchWindow(left, self._subject, self._density, wire.max_payload))
            return
        for batched, sequences in pieces(left, in_memory=info.config.get("storage") == "memory"):
            window = (
                BatchWindow(sequences, max_payload=wire.max_payload)
                if batched
                else GetWindow(sequences, wire.max_payload)
            )
            yield from self._read(wire, window)

    def _read(self, wire: Wire, window: Window) -> Iterator[RawMessages]:
        address = f"{wire.settings.prefix}.DIRECT.GET.{self._stream}"
        inbox = wire.new_inbox()
        sid = wire.subscribe(f"{inbox}.*")
        subjects = () if self._subject is None else (self._subject,)
        answered = time.monotonic()
        wire.send(window.commands(address, inbox))
        while not window.done:
            runs = wire.receive_runs(ANSWERED_WITHIN)
            if any([window.on_run(run, inbox) for run in runs]):  # noqa: C419 - all of them, not only up to the first
                answered = time.monotonic()
            elif time.monotonic() - answered > ANSWERED_WITHIN:
                raise RequestTimeout(
                    f"direct gets of stream {self._stream!r} were not answered for {ANSWERED_WITHIN:g} s"
                )
            taken = window.take()
            wire.send(window.commands(address, inbox))  # before the yield: the server works while the caller does
            if taken:
                missing = Sequences.from_ranges(taken.missing)
                messages, lost = completed(wire, self._stream, taken.messages, missing, subjects)
                self.lost += lost.ranges
                self.last_sequence = taken.through
                yield from messages
                answered = time.monotonic()  # after the yield: the caller's time does not count
        wire.unsubscribe(sid)


def resumed(
    settings: ConnectionSettings, stream: str, created: str, progress: Progress, *, ignore_missing: bool
) -> Iterator[RawMessages]:
    """Read. After a lost connection, reading continues over another one.

    ignore_missing:  whether sequences without a message are expected, because of a filter.

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
                for batch in progress.batches(wire, info):
                    yield batch
                    attempts.reached(progress.last_sequence)  # after the yield: the caller's time does not count
                if progress.lost and not ignore_missing:
                    raise MessagesMissing(stream, Sequences.from_ranges(progress.lost))
                return
    except JetStreamError as error:
        if not is_passing(error):
            raise
        last = progress.last_sequence
        raise ConnectionLost(f"reading stream {stream!r} stopped after sequence {last}: {error}", last) from error


def completed(
    wire: Wire, stream: str, messages: Sequence[RawMessages], missing: Sequences, subjects: tuple[str, ...] = ()
) -> tuple[Sequence[RawMessages], Sequences]:
    """Add the missing messages to the others, in ascending order, if the leader has them. Returns the messages, and
    the sequences that the leader does not have either.

    subjects:  filters, of which a message must match one. Default: all messages.
    """
    if not missing:
        return messages, missing
    found = [each for subject in subjects or (">",) for each in _confirm(wire, stream, missing, subject)]
    if found:
        together = [message for each in messages for message in each] + found
        messages = [RawMessages.of(sorted(together, key=lambda each: each.sequence))]
    return messages, missing - Sequences.of(each.sequence for each in found)


def stream_info(wire: Wire, stream: str) -> StreamInfo:
    """The state of a stream. Raises StreamNotFound, and DirectGetDisabled if it cannot be read by direct get."""
    info = StreamInfo(wire.api(f"STREAM.INFO.{stream}"))
    _check_allowed(wire, stream, info)
    return info


def first_stored(wire: Wire, stream: str, sequence: int, subject: str = ">") -> RawMessage | None:
    """Return the first message from a sequence on whose subject matches, according to the stream's leader; None if
    there is none."""
    try:
        answer = wire.api(f"STREAM.MSG.GET.{stream}", {"seq": max(1, sequence), "next_by_subj": subject})
    except MessageNotFound:
        return None
    message = RawMessage.parse(answer)
    if message.sequence < sequence:
        raise ProtocolError(f"the leader answered with sequence {message.sequence}, not {sequence} or higher")
    return message


def existing(wire: Wire, info: StreamInfo, first: int, last: int) -> Sequences:
    """Return the sequences from ``first`` to ``last`` that the stream contains.

    The server can only list all deleted messages of a stream. If they are many more than the sequences in question, it
    is faster to read what there is.
    """
    first, last = max(first, info.state["first_seq"]), min(last, info.state["last_seq"])
    stream, deleted = str(info.config["name"]), int(info.state.get("num_deleted", 0))
    if deleted > LISTED_AT_ONCE:  # a gap may reach into the range
        found = first_stored(wire, stream, first)
        first = found.sequence if found else last + 1
    if not info.state["messages"] or first > last:
        return Sequences()
    whole = Sequences.from_ranges([(first, last)])
    if not deleted:
        return whole
    if listable(deleted, last - first + 1):
        state = wire.api(f"STREAM.INFO.{stream}", {"deleted_details": True})["state"]
        return whole - Sequences.of(state.get("deleted") or ())
    reading = _Reading(stream, whole, ">", 1.0)
    return Sequences.of(each for batch in reading.batches(wire, info) for each in batch.sequences)


def listable(deleted: int, count: int) -> bool:
    """Whether to let the server list a stream's deleted messages, to find out which of ``count`` messages it has."""
    return deleted <= LISTED_AT_ONCE or (deleted <= MOST_LISTED and deleted <= LISTED_PER_READ * count)


def _check_allowed(wire: Wire, stream: str, info: StreamInfo) -> None:
    if not info.config.get("allow_direct"):
        raise DirectGetDisabled(stream, wire.settings.words)


def _confirm(wire: Wire, stream: str, missing: Sequences, subject: str) -> list[RawMessage]:
    """Request from the leader the messages that a replica may not have had yet. Returns those that the leader has."""
    found: list[RawMessage] = []
    for first, last in missing.ranges:
        sequence = first
        while sequence <= last and (message := first_stored(wire, stream, sequence, subject)):
            sequence = message.sequence + 1
            if message.sequence in missing:
                found.append(message)
    return found
