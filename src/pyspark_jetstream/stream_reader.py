# SPDX-License-Identifier: Apache-2.0
"""Reading in a streaming query. An offset consists of the stream's name and creation time, the last sequence that was
read, the server's time of that message, and the offset at which the query began.

The time shows that a stream was restored from an older copy: it then uses sequences again, under the same creation
time, for messages that the query has not read.

Spark asks for the initial offset again whenever it repeats the first micro-batch, and the answer can have changed: the
stream may have removed messages, and ``latest`` may be later than the batch that is repeated. The end of the batch
says where the batch began.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from jetstream_client.errors import InvalidValue, MessagesMissing, StreamRecreated
from jetstream_client.read.direct import first_stored, stream_info
from jetstream_client.sequences import Sequences
from jetstream_client.times import time_nanoseconds
from jetstream_client.wire.attempts import Attempts
from jetstream_client.wire.blocking import Wire
from pyspark_jetstream.compat import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow
from pyspark_jetstream.offsets import LATEST, Time
from pyspark_jetstream.reader import SparkReading, first_sequence, partitions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from jetstream_client.info import StreamInfo
    from pyspark_jetstream.options import Options

log = logging.getLogger(__name__)

Result = TypeVar("Result")

WORTH_A_TASK = 10_000
"""Without ``minPartitions``, a micro-batch has one partition for this many sequences, and at most one for each core of
the driver. With smaller partitions, another task would cost more than it saves."""

_RESTORED = (
    "it was restored from an older copy, or its server has lost its last messages, so that sequences are used again. "
    "With failOnDataLoss=false the query"
)
_NEVER = "0001-01-01T"  # the time of the last message of a stream that has never had one
_BEGAN = "began"  # the name of the initial offset in the offsets that follow it
_CLOCKS = 60 * 10**9  # nanoseconds by which the clocks of a cluster's servers may differ, or be set back


class JetStreamStreamReader(SparkReading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches, each of which is a range of sequences. Single messages that were deleted inside a range
    before it was planned are left out without an error.

    Nothing is stored on the server: the query's checkpoint contains its position.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: dict[str, Any] | None = None
        self._told = ""
        self._oldest: tuple[int, int] | None = None  # what was read, and when the next message was stored

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before ``startingOffsets``; by default the end of the stream.

        Raises:
            InvalidValue: the start is in the future, by the server's clock. The query would read what is stored before.
        """
        starting = self._options.starting or LATEST

        def before(wire: Wire) -> dict[str, Any]:
            info = stream_info(wire, self._options.stream)
            first = first_sequence(wire, info, starting)
            if isinstance(starting, Time) and time_nanoseconds(info.now) < starting.nanoseconds:
                remedy = (
                    f"the start is in the future: the server's clock shows {info.now}, and messages that are stored "
                    "before it would be read, too; give a time that has passed, or startingOffsets=latest"
                )
                raise InvalidValue("startingTimestamp or startingOffsets", starting.rfc3339, remedy)
            return _end(info) if first > info.state["last_seq"] else _at(wire, info, first - 1)

        return self._patiently(before)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch. Spark knows no limit with both a smallest and a largest number, so
        :meth:`latestOffset` takes the smallest one from the options."""
        most, least = self._options.max_offsets, self._options.min_offsets
        if most:
            return ReadMaxRows(most)
        return ReadMinRows(least) if least else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch.

        Raises:
            InvalidValue: the query's checkpoint belongs to another stream.
            StreamRecreated: the stream was recreated, or restored from an older copy. If ``failOnDataLoss`` is false, a
                warning is logged instead.
        """

        self._check_stream(start)

        def end(wire: Wire) -> dict[str, Any]:
            info = stream_info(wire, self._options.stream)
            latest = self._target or _end(info)
            read = self._read_already(wire, info, start)
            if latest["created"] == start["created"] and latest["sequence"] <= read:
                return start
            if isinstance(limit, ReadMaxRows | ReadMinRows) and self._too_few(wire, info, read, latest):
                return start
            if isinstance(limit, ReadMaxRows) and read + limit.max_rows < latest["sequence"]:
                # A gap is not counted: it would become micro-batches without a message.
                found = first_stored(wire, self._options.stream, read + 1)
                last = (found.sequence - 1 if found else latest["sequence"]) + limit.max_rows
                if last < latest["sequence"]:
                    latest = _at(wire, info, last)
            return {**latest, _BEGAN: start.get(_BEGAN, start)}

        return self._patiently(end)

    def _too_few(self, wire: Wire, info: StreamInfo, read: int, latest: dict[str, Any]) -> bool:
        """Return whether to wait for more messages: there are fewer than ``minOffsetsPerTrigger``, and the oldest one
        was stored less than ``maxTriggerDelay`` ago, by the server's clock. With the trigger ``availableNow``, there
        will be no more."""
        least = self._options.min_offsets
        if least is None or self._target is not None or latest["sequence"] - read >= least:
            return False
        if self._oldest is None or self._oldest[0] != read:  # Spark asks many times a second
            found = first_stored(wire, self._options.stream, read + 1)
            self._oldest = read, time_nanoseconds(found.time.decode() if found else info.now)
        return time_nanoseconds(info.now) - self._oldest[1] < self._options.max_delay

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._patiently(lambda wire: _end(stream_info(wire, self._options.stream)))

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of the stream. The query's progress shows it next to the end of the micro-batch, so that users
        see the backlog."""
        return self._patiently(lambda wire: _end(stream_info(wire, self._options.stream)))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the partitions of a micro-batch.

        Raises:
            InvalidValue: as :meth:`latestOffset`.
            MessagesMissing: the stream removed messages from its beginning before they were read. If ``missing`` is
                ``skip``, a warning is logged instead.
            StreamRecreated: as :meth:`latestOffset`.
        """

        self._check_stream(end)
        if _BEGAN not in start:  # it is an initial offset, or of an earlier release
            start = end.get(_BEGAN, start)

        def planned(wire: Wire) -> Sequence[InputPartition]:
            info = stream_info(wire, self._options.stream)
            if info.created != end["created"]:
                self._recreated(
                    f"was recreated at {info.created}, but this batch belongs to the stream created at "
                    f"{end['created']}; with failOnDataLoss=false the query leaves this batch out and continues at the "
                    "beginning of the new stream"
                )
                return partitions(self.parts(wire, info, Sequences(), 1))
            first = self._read_already(wire, info, start) + 1
            self._read_already(wire, info, end)
            removed = min(info.state["first_seq"], end["sequence"] + 1) - 1
            if first <= removed and start["created"] == info.created:
                lost = Sequences.from_ranges([(first, removed)])
                if self._options.missing == "error":
                    raise MessagesMissing(self._options.stream, lost)
                self.skip(lost)
            wanted = self.present(wire, info, first, end["sequence"])
            tasks = self._options.min_partitions or min(os.cpu_count() or 1, math.ceil(wanted.count / WORTH_A_TASK))
            return partitions(self.parts(wire, info, wanted, tasks))

        return self._patiently(planned)

    def _check_stream(self, offset: dict[str, Any]) -> None:
        """Refuse an offset of another stream, whatever ``failOnDataLoss`` is: the output would contain both. One of a
        query that acknowledges is refused, too."""
        if "consumer" in offset:
            other = str(offset["consumer"])[:60]
            remedy = f"the checkpoint belongs to a query with consumer {other!r}; give this option, or another "
            raise InvalidValue("consumer", None, f"{remedy}checkpointLocation")
        if offset.get("stream", self._options.stream) != self._options.stream:
            remedy = (
                f"the checkpoint belongs to stream {offset['stream']!r}; give this query another checkpointLocation"
            )
            raise InvalidValue("stream", self._options.stream, remedy)

    def _read_already(self, wire: Wire, info: StreamInfo, start: dict[str, Any]) -> int:
        """Return the last sequence of the present stream that the query has read by the offset ``start``.

        Raises:
            StreamRecreated: as :meth:`latestOffset`.
        """
        read = int(start["sequence"])
        if info.created != start["created"]:
            self._recreated(
                f"was recreated at {info.created}, but this query has read the stream created at "
                f"{start['created']}; with failOnDataLoss=false the query continues at the beginning of the new stream"
            )
            return 0
        if (problem := _restored(wire, info, start)) is None:
            return read
        if "time" not in start:
            self._recreated(f"{problem}; {_RESTORED} waits for messages after sequence {read}")
            return read
        self._recreated(f"{problem}; {_RESTORED} continues with the messages that were stored after {start['time']}")
        return first_sequence(wire, info, Time(time_nanoseconds(start["time"]) + 1)) - 1

    def _recreated(self, what: str) -> None:
        error = StreamRecreated(f"stream {self._options.stream!r} {what}")
        if self._options.fail_on_data_loss:
            raise error
        if str(error) != self._told:  # Spark asks many times a second
            self._told = str(error)
            log.warning("%s", error)

    def _patiently(self, plan: Callable[[Wire], Result]) -> Result:
        """Retry planning while the server does not answer, so that a restart of the server does not end the query."""
        attempts = Attempts(lambda: f"reading stream {self._options.stream} failed and will be tried again")
        while True:
            with attempts, Wire.open(self._options.settings()) as wire:
                return plan(wire)


def _end(info: StreamInfo) -> dict[str, Any]:
    """Return the offset of the stream's end. The server keeps the time of the last message after it has removed it."""
    last = info.state["last_ts"]
    return _offset(info, info.state["last_seq"], None if last.startswith(_NEVER) else last)


def _at(wire: Wire, info: StreamInfo, sequence: int) -> dict[str, Any]:
    """Return the offset of a sequence. If there is no message, its time is one just before the next message."""
    if sequence == 0 or (found := first_stored(wire, info.config["name"], sequence)) is None:
        return _offset(info, sequence)
    time = found.time.decode()
    return _offset(info, sequence, time if found.sequence == sequence else Time(time_nanoseconds(time) - 1).rfc3339)


def _offset(info: StreamInfo, sequence: int, time: str | None = None) -> dict[str, Any]:
    """Return an offset. Earlier releases wrote offsets without a stream and a time. The offset before the first message
    has no time."""
    known = {"time": time} if time is not None and sequence else {}
    return {"stream": info.config["name"], "created": info.created, "sequence": int(sequence), **known}


def _restored(wire: Wire, info: StreamInfo, start: dict[str, Any]) -> str | None:
    """Return how the messages up to an offset differ from those that the query has read; None if they do not.

    The message at the offset may have vanished. Then a message before it that is newer shows that its sequence is used
    again. The clocks of servers may differ a little.
    """
    read, last = int(start["sequence"]), int(info.state["last_seq"])
    if last < read:
        return f"ends at sequence {last}, but this query has read up to sequence {read}"
    if "time" not in start or (last == read and info.state["last_ts"] == start["time"]):
        return None
    time = time_nanoseconds(start["time"])
    if (found := first_stored(wire, info.config["name"], read)) is not None and found.sequence == read:
        stored = found.time.decode()
        if time_nanoseconds(stored) == time:
            return None
        return f"has message {read} with time {stored}, but the message that this query has read had {start['time']}"
    newer = first_sequence(wire, info, Time(time + _CLOCKS))
    if newer > read:
        return None
    return f"has message {newer}, which is newer than the message {read} of {start['time']} that this query has read"
