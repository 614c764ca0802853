# SPDX-License-Identifier: Apache-2.0
"""Rows that are spread over several processes, such as those of a DataFrame of Spark: each process writes files of the
table, and only the files' names and the messages of their rows come together, for one commit.

A process that dies leaves at most files that no version of the table names.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.compute as pc

from jetstream_tables.columns import check_fit, created, kept
from jetstream_tables.errors import Conflict, RowsInvalid, TableFailed
from jetstream_tables.identity import SEQUENCE
from jetstream_tables.messages import Messages, mask, pairs_of
from jetstream_tables.rows import RowsReader, check_times, converted, identified
from jetstream_tables.secrets import forget_hidden

if TYPE_CHECKING:
    from jetstream_client.sequences import Sequences
    from jetstream_tables.decision import Decision

log = logging.getLogger(__name__)

ANSWER = pa.schema([("kind", pa.string()), ("text", pa.string()), ("messages", pa.binary()), ("files", pa.binary())])
"""What a process answers: ``written``, or the name of an error with its text; the messages of all of its rows, packed;
and the files that it has written, pickled."""
_MISSING = "missing"


@runtime_checkable
class Spread(Protocol):
    """Rows in several processes.

    schema:  their columns.
    """

    schema: pa.Schema

    def run(self, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> pa.Table:
        """Call a function with the rows of each process, in this process, and return what all of them have answered,
        with the columns of :data:`ANSWER`."""

    def collected(self) -> Any:
        """All rows, in this process."""


class Files(Protocol):
    """How files of a table are written, for another process. Two are equal if their files fit the same table."""

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""

    def write(self, rows: RowsReader) -> list[Any]:
        """Write files with rows, of which there is at least one batch, and return what a commit has to know of them."""


class FilesLook(Protocol):
    """A look at a table whose files other processes may write."""

    present: Messages
    schema: pa.Schema | None

    def files(self, schema: pa.Schema) -> Files | None:
        """How its files are written; None if this process has to write them.

        schema:  the columns of the table, if it does not exist.
        """

    def commit_files(self, files: Files, written: list[Any], new: Messages) -> int | None:
        """As :meth:`jetstream_tables.append.Look.commit`, with the rows of files."""


class WritersMissing(Exception):
    """The other processes lack a library. The text names it."""


@dataclass
class SpreadRows:
    """Rows whose files are written. ``messages`` are those of all rows, ``written`` those of the files."""

    spread: Spread
    stream: str
    columns: pa.Schema
    files: Files
    present: Messages
    messages: Messages = field(init=False)
    written: Sequences = field(init=False)

    def __post_init__(self) -> None:
        self.schema = created(self.columns)
        self._write(self.files, self.present)

    @classmethod
    def of(cls, spread: Spread, look: Any, stream: str, name: str) -> SpreadRows | None:
        """Let the files be written, without the rows of messages that a look has found. None if this process has to
        write them."""
        columns = kept(spread.schema)
        files = look.files(created(columns)) if hasattr(look, "files") else None
        if files is None:
            log.info("the rows are collected by one process, because others cannot write to table %s", name)
            return None
        check_fit(created(columns), files.schema, name)
        try:
            return cls(spread, stream, columns, files, look.present)
        except WritersMissing as missing:
            log.warning("the rows are collected by one process, because the others lack %s", missing)
            return None

    def commit(self, look: Any, decision: Decision) -> int | None:
        """Commit the files, or write them again if they have rows of other messages, or do not fit the table."""
        files = look.files(self.schema)
        if files is None:
            raise TableFailed("the table was changed, so that other processes cannot write its files; try again")
        if decision.new != self.written or files != self.files:
            self._write(files, look.present)
            raise Conflict("the files were written again")
        version: int | None = look.commit_files(files, self._found, self.messages.within(decision.new))
        return version

    def _write(self, files: Files, present: Messages) -> None:
        answers = self.spread.run(Task(files, self.stream, self.columns, present.packed_or_none()))
        for kind, error in (("RowsInvalid", RowsInvalid), ("TableFailed", TableFailed), (_MISSING, WritersMissing)):
            failed = answers.filter(pc.equal(answers["kind"], kind))
            if len(failed):
                raise error(failed["text"][0].as_py())
        self.files, self.present = files, present
        self.messages = Messages.of(Messages.unpacked(each).table for each in answers["messages"].to_pylist())
        check_times(self.messages)
        self.written = self.messages.sequences - present.compared(self.messages).same
        self._found = [each for packed in answers["files"].to_pylist() for each in pickle.loads(packed)]  # noqa: S301
        text = "%d processes have written %d files with the rows of %d messages, which are not in the table yet"
        log.info(text, len(answers), len(self._found), self.written.count)


@dataclass(frozen=True)
class Task:
    """What each process does. It is sent there, together with the credentials of the object store."""

    files: Files = field(repr=False)
    stream: str
    columns: pa.Schema
    present: bytes | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen: list[pa.Table] = []
        try:
            found = self._written(batches, seen)
        except (RowsInvalid, TableFailed) as error:
            forget_hidden(error)
            yield _answer("RowsInvalid" if isinstance(error, RowsInvalid) else "TableFailed", str(error))
        except ModuleNotFoundError as error:
            yield _answer(_MISSING, str(error.name))
        else:
            if seen:
                yield _answer("written", None, Messages.of(seen).packed(), pickle.dumps(found))

    def _written(self, batches: Iterable[pa.RecordBatch], seen: list[pa.Table]) -> list[Any]:
        rows = self._new(batches, seen)
        first = next(rows, None)
        if first is None:
            return []

        def every() -> Iterator[pa.RecordBatch]:
            yield first
            yield from rows

        return self.files.write(RowsReader(every(), self.files.schema))

    def _new(self, batches: Iterable[pa.RecordBatch], seen: list[pa.Table]) -> Iterator[pa.RecordBatch]:
        present = Messages.unpacked(self.present) if self.present is not None else None
        for each in batches:
            if not each.num_rows:
                continue
            batch = identified(each, self.columns)
            seen.append(pairs := pairs_of(batch))
            if present is not None:
                batch = batch.filter(pc.invert(mask(batch[SEQUENCE], present.compared(Messages.of([pairs])).same)))
            if batch.num_rows:
                yield converted(batch, self.files.schema, self.stream)


def _answer(kind: str, text: str | None, *of: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(ANSWER.names, (kind, text, *of), strict=False))], schema=ANSWER)
