# SPDX-License-Identifier: Apache-2.0
"""A DataFrame whose rows the executors write to the files of a table, so that the driver does not collect them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ANSWER = "kind STRING, text STRING, messages BINARY, files BINARY"
"""The columns of :data:`jetstream_tables.spread.ANSWER`."""


class SpreadFrame:
    """A DataFrame for :class:`jetstream_tables.spread.Spread`."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self.schema: pa.Schema = frame.limit(0).toArrow().schema

    def run(self, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> pa.Table:
        """Run a job, each of whose tasks calls ``task`` with its rows. Spark counts one attempt of each task; the files
        of others belong to no table."""

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from task(batches)

        return self._frame.mapInArrow(write, ANSWER).toArrow()

    def collected(self) -> pa.Table:
        """All rows, in the driver."""
        return self._frame.toArrow()
