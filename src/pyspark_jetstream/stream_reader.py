# SPDX-License-Identifier: Apache-2.0
"""Reading in a streaming query. An offset consists of the last sequence that was read and the stream's creation
time."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from jetstream_client.errors import MessagesMissing, StreamRecreated
from jetstream_client.read.direct import stream_info
from jetstream_client.sequences import Sequences
from jetstream_client.wire.attempts import Attempts
from jetstream_client.wire.blocking import Wire
from pyspark_jetstream.offsets import LATEST
from pyspark_jetstream.reader import Reading, first_sequence

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from jetstream_client.info import StreamInfo
    from pyspark_jetstream.options import Options

log = logging.getLogger(__name__)

Result = TypeVar("Result")

WORTH_A_TASK = 10_000
"""Without ``minPartitions``, a micro-batch has one partition for this many sequences, and at most one for each core of
the driver. With smaller partitions, another task would cost more than it saves."""


class JetStreamStreamReader(Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches, each of which is a range of sequences. Single messages that were deleted inside a range
    before it was planned are left out without an error.

    Nothing is stored on the server: the query's checkpoint contains its position.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before ``startingOffsets``; by default the end of the stream."""

        def before(wire: Wire) -> dict[str, Any]:
            info = stream_info(wire, self._options.stream)
            return _offset(info, first_sequence(wire, info, self._options.starting or LATEST) - 1)

        return self._patiently(before)

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_offsets
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch.

        Raises:
            StreamRecreated: the stream was recreated, or ends before the query's position. If ``failOnDataLoss`` is
                false, a warning is logged instead.
        """
        latest = self._target or self._end()
        read = start["sequence"]
        if latest["created"] != start["created"]:
            self._recreated(
                f"was recreated at {latest['created']}, but this query has read the stream created at "
                f"{start['created']}; with failOnDataLoss=false the query continues at the beginning of the new stream"
            )
            read = 0
        elif latest["sequence"] < read:
            if self._target is None:
                self._recreated(
                    f"ends at sequence {latest['sequence']}, but this query has read up to sequence {read}: the stream "
                    "was probably restored from an older copy. With failOnDataLoss=false the query waits for messages "
                    f"after sequence {read}"
                )
            return start
        if isinstance(limit, ReadMaxRows):
            return latest | {"sequence": min(latest["sequence"], read + limit.max_rows)}
        return latest

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._end()

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of the stream. The query's progress shows it next to the end of the micro-batch, so that users
        see the backlog."""
        return self._end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the partitions of a micro-batch.

        Raises:
            MessagesMissing: the stream removed messages from its beginning before they were read. If ``missing`` is
                ``skip``, a warning is logged instead.
        """
        first = start["sequence"] + 1 if start["created"] == end["created"] else 1

        def planned(wire: Wire) -> Sequence[InputPartition]:
            info = stream_info(wire, self._options.stream)
            if info.created != end["created"]:
                self._recreated(
                    f"was recreated at {info.created}, but this batch belongs to the stream created at "
                    f"{end['created']}; with failOnDataLoss=false the query leaves this batch out and continues at the "
                    "beginning of the new stream"
                )
                return self._parts(wire, info, Sequences(), 1)
            removed = min(info.state["first_seq"], end["sequence"] + 1) - 1
            if first <= removed and start["created"] == end["created"]:
                lost = Sequences.from_ranges([(first, removed)])
                if self._options.missing == "error":
                    raise MessagesMissing(self._options.stream, lost)
                self._skip(lost)
            wanted = self._present(wire, info, first, end["sequence"])
            tasks = self._options.min_partitions or min(os.cpu_count() or 1, math.ceil(wanted.count / WORTH_A_TASK))
            return self._parts(wire, info, wanted, tasks)

        return self._patiently(planned)

    def _end(self) -> dict[str, Any]:
        info = self._patiently(lambda wire: stream_info(wire, self._options.stream))
        return _offset(info, info.state["last_seq"])

    def _recreated(self, what: str) -> None:
        error = StreamRecreated(f"stream {self._options.stream!r} {what}")
        if self._options.fail_on_data_loss:
            raise error
        log.warning("%s", error)

    def _patiently(self, plan: Callable[[Wire], Result]) -> Result:
        """Retry planning while the server does not answer, so that a restart of the server does not end the query."""
        attempts = Attempts(lambda: f"reading stream {self._options.stream} failed and will be tried again")
        while True:
            with attempts, Wire.open(self._options.settings()) as wire:
                return plan(wire)


def _offset(info: StreamInfo, sequence: int) -> dict[str, Any]:
    return {"created": info.created, "sequence": int(sequence)}
