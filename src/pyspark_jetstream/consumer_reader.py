# SPDX-License-Identifier: Apache-2.0
"""Reading a consumer in a streaming query: each micro-batch is a claim, and its messages are acknowledged when the
query's checkpoint contains that it is committed (docs/handoff.md, reader).

Spark calls a reader in this order (``MicroBatchExecution``): ``latestOffset(start)``, which it asks only when the
commit log contains the micro-batch that ends at ``start``; the offset log; ``commit(start)``, except for the query's
first micro-batch; ``partitions``; the sink; the commit log; ``latestOffset`` again, also before ``availableNow`` ends.
After a restart, a micro-batch that is in the offset log and not in the commit log is repeated, with ``partitions`` as
the first call. One Python process makes all these calls of a query from its start to its end, so that a thread of it
can renew leases.

With ``asyncProgressTrackingEnabled``, an option of the sink that no source is told, Spark goes on before its logs are
written (``AsyncProgressTrackingMicroBatchExecution``), and ``latestOffset(start)`` says nothing. It shows by a missing
``commit(start)``. So the first micro-batch that a process has planned is settled only after a ``commit``. To get one
before more messages arrive, the end of the next micro-batch is the same position with another number, and the
micro-batch is empty. A commit that comes all the same, because the logs were written in the moment between Spark's two
steps, is not repeated in the next micro-batch, which is refused; and as the ledger knows which batch is settled, a
checkpoint that lacks it is refused, too. ``availableNow`` and asynchronous tracking exclude each other.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from jetstream_client.errors import InvalidValue
from jetstream_client.wire.attempts import Attempts
from jetstream_client.wire.blocking import Wire
from jetstream_handoff.errors import ConsumerUnsuitable
from jetstream_handoff.ledger.first_read import mark_read
from jetstream_handoff.take.position import Position, new_reader_id
from pyspark_jetstream.compat import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark_jetstream.options import MOST_CLAIMED
from pyspark_jetstream.reader import SparkReading
from pyspark_jetstream.stream_reader import WORTH_A_TASK

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from jetstream_handoff.take.reader import ConsumerReader
    from pyspark_jetstream.options import Options
    from pyspark_jetstream.reader_thread import ReaderThread

Result = TypeVar("Result")

_EMPTY = "empty"  # the name of the number in the offset of an empty micro-batch


class JetStreamConsumerReader(SparkReading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages of a consumer in micro-batches, and acknowledges those that are committed.

    Spark also creates a reader in processes that only plan or read a partition: nothing is started before the first
    call.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._most = options.max_offsets or MOST_CLAIMED
        self._initial: dict[str, Any] | None = None
        self._running: ReaderThread | None = None
        self._asked: tuple[dict[str, Any], dict[str, Any]] | None = None
        """The start and the end of the last micro-batch that Spark has asked for."""
        self._committed: dict[str, Any] | None = None  # the last micro-batch that Spark has reported as committed
        self._planned = False  # whether this process has planned a micro-batch
        self._waits = False  # whether Spark is known to wait for its logs

    def initialOffset(self) -> dict[str, Any]:
        """Return the position of a new query. Its id counts when the first micro-batch is in the checkpoint."""
        if self._initial is None:
            self._initial = Position(self._options.stream, self._consumer, new_reader_id()).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a micro-batch, which the take has anyway."""
        return ReadMaxRows(self._most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Settle the micro-batch that ends at ``start``, which is committed, and take the next one. Returns its end;
        ``start`` if no messages wait.

        Raises:
            InvalidValue: the trigger is ``once``.
            ConsumerReserved, CheckpointRefused, HeldByAnother, JetStreamError: as
                :meth:`~jetstream_handoff.take.reader.ConsumerReader.next`.
        """
        if isinstance(limit, ReadAllAvailable):
            remedy = "the trigger once is not supported with the option 'consumer'; use the trigger availableNow"
            raise InvalidValue("trigger", "once", remedy)
        if self._planned and not self._waits:
            end = {**start, _EMPTY: start.get(_EMPTY, 0) + 1}
        else:
            position = self._position(start)
            found: Position = self._patiently(lambda reader: reader.next(position))
            end = start if found == position else found.to_json()
        self._asked = start, end
        return end

    def prepareForTriggerAvailableNow(self) -> None:
        self._waits = True
        self._patiently(lambda reader: reader.end_with_the_present())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the partitions of a micro-batch that is in the checkpoint: exactly its claim, without what is owed.

        Raises:
            InvalidValue: the query tracks its progress asynchronously.
            ConsumerReserved, CheckpointRefused, HeldByAnother, JetStreamError: as
                :meth:`~jetstream_handoff.take.reader.ConsumerReader.logged`.
        """
        first, last = self._position(start), self._position(end)
        if start == end:  # nothing was taken, or Spark starts the reader again
            return []
        if (start, end) == self._asked and start not in (self._initial, self._committed):
            remedy = (
                "the messages of a micro-batch would be acknowledged before the checkpoint contains that it is "
                "committed; leave this option of writeStream out, or the option 'consumer'"
            )
            raise InvalidValue("asyncProgressTrackingEnabled", "true", remedy)
        self._planned = True
        if last.claim is None or first == last:
            return []
        self._patiently(lambda reader: reader.logged(first, last))
        wanted = last.wanted
        tasks = self._options.min_partitions or min(os.cpu_count() or 1, math.ceil(wanted.count / WORTH_A_TASK))
        with Wire.open(self._options.settings()) as wire:
            parts = self.claimed(wire, replace(last.claim, sequences=wanted), tasks)
        return [InputPartition((part, last.claim if last.batch == 1 else None)) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition, and note in the ledger that messages of the first micro-batch are read."""
        part, first = partition.value
        if first is not None:
            mark_read(self._options.settings(), first)
        return self.batches(part)

    def commit(self, end: dict[str, Any]) -> None:
        """Note that Spark waits for its logs. It reports a micro-batch when the next one is in its offset log: too late
        for acknowledging, and never for the last one."""
        self._committed = end
        self._waits = self._waits or (self._asked is not None and self._asked[0] == end)

    def stop(self) -> None:
        """Release the claim that is held, so that the next start need not wait for its lease."""
        running, self._running = self._running, None
        if running is not None:
            running.close()

    @property
    def _consumer(self) -> str:
        return str(self._options.consumer)

    def _position(self, offset: dict[str, Any]) -> Position:
        return Position.from_json(offset, self._options.stream, self._consumer)

    def _patiently(self, step: Callable[[ConsumerReader], Awaitable[Result]]) -> Result:
        """Take a step of the reader, and repeat it while the server does not answer. Each step may be repeated."""
        attempts = Attempts(lambda: f"reading consumer {self._consumer} was interrupted and will be tried again")
        while True:
            with attempts:
                if self._running is None:
                    self._running = _started(self._options, self._most)
                try:
                    return self._running.take(step)
                except ConsumerUnsuitable as broken:
                    raise self._in_words_of_spark(broken) from None

    def _in_words_of_spark(self, broken: ConsumerUnsuitable) -> ConsumerUnsuitable:
        """Say with which option the query can be suited to the consumer, and what another consumer needs."""
        remedy = broken.remedy
        if "max_messages" in remedy:
            given = f"={self._most}" if self._options.max_offsets else f", whose default is {self._most}"
            remedy += f". Here, max_messages is the option maxOffsetsPerTrigger{given}: or give a smaller one"
        if broken.rule == "priority_groups":
            remedy += ". A query names no group: remove priority_groups and priority_policy from the consumer"
        remedy += ". A query with another consumer needs a new checkpointLocation and a new output folder"
        return ConsumerUnsuitable(broken.consumer, broken.rule, broken.value, remedy)


def _started(options: Options, most: int) -> ReaderThread:
    """Start the run, for which this process needs more than one that reads a partition: executors have only pyspark,
    pyarrow and this package.

    Raises:
        ModuleNotFoundError: a dependency of this package is missing; says where.
    """
    try:
        from pyspark_jetstream.reader_thread import ReaderThread
    except ModuleNotFoundError as missing:
        where = f"{sys.executable} on the driver's machine"
        text = f"a query that acknowledges needs {missing.name}: install this package with its dependencies in {where}"
        raise ModuleNotFoundError(text, name=missing.name) from None
    return ReaderThread(options, most)
