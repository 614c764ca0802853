# SPDX-License-Identifier: Apache-2.0
"""Reading: the driver divides stream sequences into partitions, and executors read each partition into Arrow
batches."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from jetstream_arrow.reading import Part, Reading
from jetstream_client.errors import InvalidValue, MessageNotFound
from jetstream_client.read.direct import stream_info
from jetstream_client.times import time_text, unix_time
from jetstream_client.wire.blocking import Wire
from jetstream_handoff.rules import period
from pyspark_jetstream.offsets import EARLIEST, LATEST, Before, Time

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from jetstream_client.info import StreamInfo
    from pyspark_jetstream.offsets import Offset
    from pyspark_jetstream.options import Options

log = logging.getLogger(__name__)


class SparkReading(Reading):
    """The part that batch reads and streaming queries share. The value of each of Spark's partitions is a
    :class:`~jetstream_arrow.reading.Part`."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema.fieldNames())
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part: Part = partition.value
        return self.batches(part)


def partitions(parts: Sequence[Part]) -> Sequence[InputPartition]:
    return [InputPartition(part) for part in parts]


class JetStreamReader(SparkReading, DataSourceReader):
    """Reads exactly the messages of a claim, or a range of a stream. If a planned message no longer exists, reading
    raises an error, unless ``missing`` is ``skip``."""

    def partitions(self) -> Sequence[InputPartition]:
        """Plan partitions whose sizes differ by at most one sequence.

        Raises:
            StreamNotFound, StreamRecreated, DirectGetDisabled, ConnectionFailed: the stream cannot be read.
        """
        options = self._options
        # Spark plans in a process that does not know the executors. On a cluster, users set minPartitions instead.
        count = options.min_partitions or os.cpu_count() or 1
        with Wire.open(options.settings()) as wire:
            if options.claim:
                return partitions(self.claimed(wire, options.claim, count))
            info = stream_info(wire, options.stream)
            first = first_sequence(wire, info, options.starting or EARLIEST)
            last = last_sequence(wire, info, options.ending or LATEST)
            return partitions(self.parts(wire, info, self.present(wire, info, first, last), count))


def first_sequence(wire: Wire, info: StreamInfo, offset: Offset) -> int:
    """Return the first sequence of a read that starts at an offset. For ``latest``, and for a time after the stream's
    last message, this is the stream's last sequence plus one.

    Raises:
        InvalidValue: the offset is a number that the stream does not have as a sequence, and that looks like a time.
    """
    last = int(info.state["last_seq"])
    if offset == EARLIEST:
        return max(1, int(info.state["first_seq"]))
    if offset == LATEST:
        return last + 1
    if isinstance(offset, Time):
        return _at_or_after(wire, info, offset.nanoseconds) or last + 1
    _check_sequence("startingOffsets", offset, last)
    return int(offset)


def last_sequence(wire: Wire, info: StreamInfo, offset: Offset) -> int:
    """Return the last sequence of a read that ends at an offset. An offset is inclusive, and the end of a period is
    exclusive. If messages of a period may still be on their way to the stream, this waits for them.

    Raises:
        InvalidValue: the period has not ended yet, or the offset is a number that looks like a time.
    """
    if not isinstance(offset, Time):
        if isinstance(offset, int):
            _check_sequence("endingOffsets", offset, int(info.state["last_seq"]))
            return offset
        return first_sequence(wire, info, offset) - 1
    exclusive = isinstance(offset, Before)
    name, end = ("endingTimestamp", offset.nanoseconds) if exclusive else ("endingOffsets", offset.nanoseconds + 1)
    while True:
        if (found := _at_or_after(wire, info, end)) is not None:
            return found - 1
        period.check(name, offset.rfc3339, end, info)
        if not (wait := period.left(end, info)):
            return int(info.state["last_seq"])
        log.info("waiting %.1f s for messages that were published before %s", wait, offset.rfc3339)
        time.sleep(wait)
        info = stream_info(wire, info.config["name"])


def _at_or_after(wire: Wire, info: StreamInfo, nanoseconds: int) -> int | None:
    """Return the first sequence that was stored at a time or later; None if there is none."""
    request = {"start_time": time_text(nanoseconds)}
    try:
        return int(wire.api(f"STREAM.MSG.GET.{info.config['name']}", request)["message"]["seq"])
    except MessageNotFound:
        return None


def _check_sequence(name: str, sequence: int | str, last: int) -> None:
    if int(sequence) > last + 1 and (remedy := unix_time(sequence)):
        raise InvalidValue(name, sequence, f"the stream ends at sequence {last}; {remedy}")
