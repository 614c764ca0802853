# SPDX-License-Identifier: Apache-2.0
"""Reading: the driver divides stream sequences into partitions, and executors read each partition into Arrow
batches."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from jetstream_arrow.reading import Part, Reading
from jetstream_client.errors import MessageNotFound
from jetstream_client.read.direct import stream_info
from jetstream_client.wire.blocking import Wire
from pyspark_jetstream.offsets import EARLIEST, LATEST, Time

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from jetstream_client.info import StreamInfo
    from pyspark_jetstream.offsets import Offset
    from pyspark_jetstream.options import Options


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
    last message, this is the stream's last sequence plus one."""
    if offset == EARLIEST:
        return max(1, int(info.state["first_seq"]))
    if offset == LATEST:
        return int(info.state["last_seq"]) + 1
    if not isinstance(offset, Time):
        return int(offset)
    try:
        answer = wire.api(f"STREAM.MSG.GET.{info.config['name']}", {"start_time": offset.rfc3339})
    except MessageNotFound:
        return int(info.state["last_seq"]) + 1
    return int(answer["message"]["seq"])


def last_sequence(wire: Wire, info: StreamInfo, offset: Offset) -> int:
    """Return the last sequence of a read that ends at an offset. The offset is inclusive."""
    if isinstance(offset, int):
        return offset
    if isinstance(offset, Time):
        offset = replace(offset, nanoseconds=offset.nanoseconds + 1)
    return first_sequence(wire, info, offset) - 1
