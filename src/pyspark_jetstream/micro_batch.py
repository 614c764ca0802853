# SPDX-License-Identifier: Apache-2.0
"""The messages of a micro-batch in ``foreachBatch``, for a table that contains each message once.

A query with the option ``consumer`` repeats a micro-batch with exactly the same messages, and the table's rows remember
which messages it has. So the micro-batch needs no claim in the driver, and nobody who could take it over: of two runs
that append the same messages, one finds the rows of the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences
from jetstream_handoff.hold.table import Appended

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jetstream_handoff.hold.table import Table

_IDENTITY = ("stream", "sequence", "timestamp")
_RFC_3339 = "%Y-%m-%dT%H:%M:%SZ"  # %S has the fraction of the column's unit


def append(table: Table, batch: DataFrame, rows: DataFrame | None, *, every_message: bool) -> Appended:
    """See :func:`pyspark_jetstream.append_batch`."""
    if missing := [name for name in _IDENTITY if name not in batch.columns]:
        remedy = f"column {missing[0]!r} is missing; give the DataFrame that foreachBatch gets"
        raise InvalidValue("batch", batch.columns, remedy)
    with _persisted(batch, needed=rows is not None):
        given = (batch if rows is None else rows).toArrow()
        messages = (given if rows is None else batch.select(*_IDENTITY).toArrow()).select(_IDENTITY)
    streams = pc.unique(messages["stream"]).to_pylist()
    if len(streams) > 1:
        remedy = "it has messages of several streams; call this once for the messages of each"
        raise InvalidValue("batch", sorted(streams), remedy)
    if not streams:
        return Appended(Sequences(), Sequences())
    read = MicroBatch(streams[0], messages)
    return table.append(read, given, rejected=dict, every_message=every_message)


@contextmanager
def _persisted(batch: DataFrame, *, needed: bool) -> Iterator[None]:
    """Read the messages once, although the block uses the DataFrame twice."""
    kept = needed and not (batch.storageLevel.useMemory or batch.storageLevel.useDisk)
    if kept:
        batch.persist()
    try:
        yield
    finally:
        if kept:
            batch.unpersist()


@dataclass(frozen=True)
class _Stored:
    sequences: list[int]
    times: list[bytes]


class MicroBatch:
    """The messages of a micro-batch as an :class:`~jetstream_handoff.hold.table.Origin` of rows.

    stream:    the name of the stream.
    messages:  an Arrow table with the columns ``sequence`` and ``timestamp``, as the data source has read them.
    """

    def __init__(self, stream: str, messages: pa.Table) -> None:
        self._messages = messages
        self.stream = stream
        self.sequences = Sequences.of(messages["sequence"].to_pylist())
        self.id = f"(micro-batch of sequences {self.sequences.first} to {self.sequences.last})"
        self.rejected = Sequences()
        self.appended: dict[str, Sequences] = {}
        self.stored: dict[str, Sequences] = {}

    def stored_messages(self, sequences: Sequences) -> Iterator[_Stored]:
        """The times with which the micro-batch was read."""
        wanted = self._messages.filter(pc.is_in(self._messages["sequence"], pa.array(sequences, pa.int64())))
        times = pc.strftime(wanted["timestamp"], format=_RFC_3339).cast(pa.binary())
        yield _Stored(wanted["sequence"].to_pylist(), times.to_pylist())

    def skipped(self) -> Sequences:
        return Sequences()

    def reject(self, sequences: Any, reason: str) -> None:
        raise NotImplementedError

    def fence(self) -> None:
        raise NotImplementedError

    def check_held(self) -> None:
        """A micro-batch is not held in the driver."""
