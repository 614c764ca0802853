# SPDX-License-Identifier: Apache-2.0
"""Reading: the driver divides stream sequences into partitions, and executors read each partition into Arrow
batches."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from jetstream_client.errors import ConsumerRefused, MessageNotFound, StreamRecreated
from jetstream_client.info import StreamInfo
from jetstream_client.read import by_consumer, direct
from jetstream_client.read.message import RawMessages
from jetstream_client.sequences import Sequences
from jetstream_client.wire.blocking import Wire
from jetstream_handoff.ledger.skipped import report
from jetstream_handoff.rules.missing import reading
from pyspark_jetstream.arrow import record_batch, replaced
from pyspark_jetstream.offsets import EARLIEST, LATEST, Time
from pyspark_jetstream.options import AUTO, CONSUMER

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_jetstream.offsets import Offset
    from pyspark_jetstream.options import Options

log = logging.getLogger(__name__)

ROWS, BYTES = 2_000, 1 << 20
"""An Arrow batch is complete when it has this many rows, or this many bytes of data and headers. With 10,000 rows,
batches of small messages no longer fit into the processor's caches, and reading took a fifth longer. With a quarter of
these bytes, Spark spends so much time on each batch that messages of 64 KiB took a third longer. Messages that arrive
together are not split, so a batch can exceed both limits."""

WORTH_A_CONSUMER = 1_000
"""With ``readMode`` ``auto``, a consumer is used only if the partitions have at least this many sequences on
average."""
WORTH_HEADERS_ONLY = 1_024
"""If no column needs the data, a consumer leaves it out, provided that the stream's messages have at least this many
bytes on average. For smaller messages, the header that the server then adds costs more than the data."""


@dataclass
class Sequenced(InputPartition):
    """One partition of a read.

    sequences:     the sequences to read; with a filter, the range in which to look for matching messages.
    created:       when the stream was created.
    density:       the expected share of sequences whose messages match the filter.
    by_consumer:   whether to read with a consumer instead of direct get.
    headers_only:  whether the consumer delivers messages without their data.
    servers:       the servers that a server has named when the partition was planned. A streaming query has sent its
                   options to the executors before.
    """

    sequences: Sequences
    created: str
    density: float = 1.0
    by_consumer: bool = False
    headers_only: bool = False
    servers: tuple[str, ...] = ()


class Reading:
    """The part that batch reads and streaming queries share: dividing sequences into partitions, and reading a
    partition."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._columns = schema.fieldNames()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Sequenced)  # noqa: S101 - Spark passes the objects that partitions() returned
        if not partition.sequences:
            return
        several = _pattern(self._options.subjects) if len(self._options.subjects) > 1 else None
        parts: list[RawMessages] = []
        rows = size = 0
        damaged: list[int] = []
        for messages in self._messages(partition):
            part = messages
            if several is not None:
                wanted = [message for message in messages if several.fullmatch(message.subject)]
                if not wanted:
                    continue
                part = RawMessages.of(wanted)
            parts.append(part)
            damaged += replaced(part, self._columns)
            rows += len(part)
            size += sum(map(len, part.data)) + sum(map(len, part.headers))
            if rows >= ROWS or size >= BYTES:
                yield self._batch(parts)
                parts, rows, size = [], 0, 0
        if parts:
            yield self._batch(parts)
        if damaged:
            text = (
                "%d messages of stream %s have a subject or headers that are not UTF-8, and the columns have U+FFFD "
                "instead of these bytes: sequences %s"
            )
            log.warning(text, len(damaged), self._options.stream, Sequences.of(damaged))

    def _batch(self, parts: Sequence[RawMessages]) -> pa.RecordBatch:
        return record_batch(RawMessages.joined(parts), self._options.stream, self._columns)

    def _messages(self, partition: Sequenced) -> Iterator[RawMessages]:
        return reading(self._stored(partition), self._options.missing, self._skip)

    def _skip(self, missing: Sequences) -> None:
        """Go on without messages that no longer exist. Those of a claim are named in the ledger first."""
        options = self._options
        if options.claim is not None:
            report(options.settings(), options.claim, options.token, missing)
        else:
            text = "%d messages of stream %s no longer exist and are skipped: sequences %s"
            log.warning(text, missing.count, options.stream, missing)

    def _stored(self, partition: Sequenced) -> Iterator[RawMessages]:
        options, settings = self._options, self._options.settings()
        settings.learn(partition.servers)
        what = (settings, options.stream, partition.sequences, partition.created)
        if partition.by_consumer:
            try:
                yield from by_consumer.read(*what, subject=options.filter, headers_only=partition.headers_only)
            except ConsumerRefused as refused:  # nothing has been read yet
                if options.read_mode == CONSUMER:
                    raise
                log.info("reading by direct get, because a consumer cannot be used: %s", refused)
            else:
                return
        yield from direct.read(*what, subject=options.filter, density=partition.density)

    def _present(self, wire: Wire, info: StreamInfo, first: int, last: int) -> Sequences:
        """Return the sequences from ``first`` to ``last`` that the stream contains. Without a filter, sequences that
        are already deleted are left out, so only a message that is deleted after this call counts as missing."""
        first, last = max(first, info.state["first_seq"]), min(last, info.state["last_seq"])
        if not info.state["messages"] or first > last:
            return Sequences()
        present = Sequences.from_ranges([(first, last)])
        if info.state.get("num_deleted") and self._options.filter is None:
            details = wire.api(f"STREAM.INFO.{self._options.stream}", {"deleted_details": True})
            present -= Sequences.of(details["state"].get("deleted") or ())
        return present

    def _parts(self, wire: Wire, info: StreamInfo, wanted: Sequences, count: int) -> list[Sequenced]:
        """Divide ``wanted`` into at most ``count`` partitions whose sizes differ by at most one sequence. If ``wanted``
        is empty, return one empty partition, because without any partition Spark would create one and read it."""
        if not wanted:
            return [Sequenced(wanted, info.created)]
        density = self._density(wire, info)
        parts = list(_split(wanted, min(wanted.count, count)))
        by_consumer = self._by_consumer(info, wanted.count / len(parts), wanted)
        average = info.state["bytes"] / max(1, info.state["messages"])
        headers_only = "data" not in self._columns and average >= WORTH_HEADERS_ONLY
        servers = wire.settings.named
        return [Sequenced(part, info.created, density, by_consumer, headers_only, servers) for part in parts]

    def _by_consumer(self, info: StreamInfo, each: float, wanted: Sequences) -> bool:
        """Return whether to read with a consumer. With ``readMode`` ``auto``, the stream must have ``limits``
        retention, and the partitions must be large enough. A consumer delivers every message from its start on, so at
        least half of the sequences from the first to the last wanted one must be wanted."""
        if self._options.read_mode != AUTO:
            return self._options.read_mode == CONSUMER
        span = wanted.last - wanted.first + 1
        return (
            info.config.get("retention", "limits") == "limits" and each >= WORTH_A_CONSUMER and wanted.count * 2 >= span
        )

    def _density(self, wire: Wire, info: StreamInfo) -> float:
        """Return the expected share of the stream's sequences whose messages match the filter. Direct get uses it to
        choose how many sequences one request covers."""
        if self._options.filter is None:
            return 1.0
        span = info.state["last_seq"] - info.state["first_seq"] + 1
        request = {"subjects_filter": self._options.filter}
        subjects = wire.api(f"STREAM.INFO.{self._options.stream}", request)["state"].get("subjects") or {}
        return min(1.0, max(1, int(sum(subjects.values()))) / int(span))


class JetStreamReader(Reading, DataSourceReader):
    """Reads exactly the messages of a claim, or a range of a stream. If a planned message no longer exists, reading
    raises an error, unless ``missing`` is ``skip``."""

    def partitions(self) -> Sequence[InputPartition]:
        """Plan partitions whose sizes differ by at most one sequence.

        Raises:
            StreamNotFound, StreamRecreated, DirectGetDisabled, ConnectionFailed: the stream cannot be read.
        """
        options = self._options
        with Wire.open(options.settings()) as wire:
            info = direct.stream_info(wire, options.stream)
            if options.claim and options.claim.stream_created != info.created:
                raise StreamRecreated(
                    f"claim {options.claim.id} cannot be read, because stream {options.stream!r} was recreated at "
                    f"{info.created}, but the claim belongs to the stream created at {options.claim.stream_created}"
                )
            if options.claim:
                wanted = options.claim.sequences
            else:
                first = first_sequence(wire, info, options.starting or EARLIEST)
                last = last_sequence(wire, info, options.ending or LATEST)
                wanted = self._present(wire, info, first, last)
            # Spark plans in a process that does not know the executors. On a cluster, users set minPartitions instead.
            return self._parts(wire, info, wanted, options.min_partitions or os.cpu_count() or 1)


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


def _split(wanted: Sequences, count: int) -> Iterator[Sequences]:
    """Split the sequences, in ascending order, into ``count`` parts whose lengths differ by at most one."""
    size, longer = divmod(wanted.count, count)
    front = next(wanted.windows(longer * (size + 1))) if longer else Sequences()
    yield from front.windows(size + 1)
    yield from (wanted - front).windows(size)


def _pattern(subjects: Sequence[str]) -> re.Pattern[bytes]:
    """Return a regular expression for the subjects that match at least one of the filters."""
    tokens = {"*": rb"[^.]+", ">": rb".+"}
    filters = (
        rb"\.".join(tokens.get(token, re.escape(token.encode())) for token in each.split(".")) for each in subjects
    )
    return re.compile(b"|".join(filters), re.DOTALL)
