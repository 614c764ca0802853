# SPDX-License-Identifier: Apache-2.0
"""The rows of one call of ``append_to``: checked once, then read as often as a commit is tried.

They are kept in a temporary file, in memory as long as they are small, because a stream of Arrow batches can be read
only once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from jetstream_tables.columns import cast, created, kept
from jetstream_tables.errors import RowsInvalid
from jetstream_tables.identity import SEQUENCE, STREAM
from jetstream_tables.messages import TIME, Messages, mask, pairs_of

if TYPE_CHECKING:
    from jetstream_client.sequences import Sequences
    from jetstream_tables.append import Look
    from jetstream_tables.decision import Decision

IN_MEMORY = 64 * 2**20
"""Bytes of rows that are kept in memory. More go to a file."""


class Rows:
    """Rows with their messages. Get them from :func:`kept_rows`."""

    def __init__(self, file: Any, columns: pa.Schema, messages: Messages, stream: str) -> None:
        self.messages = messages
        self.schema = created(columns)
        self._file = file
        self._stream = stream

    def commit(self, look: Look, decision: Decision) -> int | None:
        """Commit what was decided. See :meth:`jetstream_tables.append.Look.commit`."""
        reader = self.reader(decision.new, look.schema if look.schema is not None else self.schema)
        return look.commit(reader, self.messages.within(decision.new), decision.old)

    def reader(self, new: Sequences, schema: pa.Schema) -> RowsReader:
        """The rows of some of the messages, with a table's columns in its order."""
        return RowsReader(self._batches(new, schema), schema)

    def _batches(self, new: Sequences, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        every = new == self.messages.sequences
        self._file.seek(0)
        with pa.ipc.open_stream(pa.PythonFile(self._file, "r")) as batches:
            for each in batches:
                batch = each if every else each.filter(mask(each[SEQUENCE], new))
                if batch.num_rows:
                    yield converted(batch, schema, self._stream)


class RowsReader:
    """Batches for a library that writes them. ``error`` is what this package raised while the library read them: the
    library's own error then contains it only as text."""

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self.error: Exception | None = None
        self.stream = pa.RecordBatchReader.from_batches(schema, self._watched(batches))

    def _watched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            self.error = error
            raise


@contextmanager
def kept_rows(rows: object, stream: str) -> Iterator[Rows]:
    """Check rows, and keep them until the end of the block.

    rows:    anything with ``__arrow_c_stream__``, with the columns ``sequence`` and ``timestamp``.
    stream:  the value of their column ``_stream``.

    Raises:
        RowsInvalid: the rows do not say which message each of them belongs to.
    """
    if not hasattr(rows, "__arrow_c_stream__"):
        raise RowsInvalid(
            f"rows are a {type(rows).__name__}; give a table of Arrow: anything with __arrow_c_stream__, such as a "
            "DataFrame of Spark or polars, a relation of DuckDB, or pyarrow.Table.from_pylist(rows)"
        )
    # The errors of a reader of pyarrow keep their class, which those of a stream do not.
    reader = rows if isinstance(rows, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(rows)
    with reader as given, SpooledTemporaryFile(IN_MEMORY) as file:
        columns = kept(given.schema)
        seen = []
        with pa.ipc.new_stream(pa.PythonFile(file, "w"), columns) as writer:
            for each in given:
                if each.num_rows:
                    batch = identified(each, columns)
                    seen.append(pairs_of(batch))
                    writer.write_batch(batch)
        messages = Messages.of(seen)
        check_times(messages)
        yield Rows(file, columns, messages, stream)


def check_times(messages: Messages) -> None:
    """Check that all rows of a message have the same time. Raises RowsInvalid."""
    if odd := messages.twice():
        raise RowsInvalid(
            f"rows of message {odd.sequence} have the times {odd.first} and {odd.second}; keep the column timestamp of "
            "the claim's messages unchanged"
        )


def converted(batch: pa.RecordBatch, schema: pa.Schema, stream: str) -> pa.RecordBatch:
    """Rows with a table's columns in its order."""
    name = pa.repeat(pa.scalar(stream), batch.num_rows)
    columns = [cast(name if field.name == STREAM else batch[field.name], field.type, field.name) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def identified(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Rows with the columns in which they are kept.

    Raises:
        RowsInvalid: a row does not say which message it belongs to, or a value cannot be kept.
    """
    for name in ("sequence", "timestamp"):
        if batch[name].null_count:
            raise RowsInvalid(f"column {name} contains nulls; it identifies the message of each row")
    time = batch["timestamp"]
    found = [
        cast(batch["sequence"], pa.int64(), "sequence"),
        pc.cast(time, TIME, safe=False) if time.type.unit == "ns" else cast(time, TIME, "timestamp"),
        *(cast(batch[field.name], field.type, field.name) for field in list(columns)[2:]),
    ]
    return pa.RecordBatch.from_arrays(found, schema=columns)
