"""Writing: a row is a message. A task succeeds when the stream has answered for each of its rows.

Message ids are made from job (or query and batch), partition, content and occurrence in the partition. The partition
belongs to it: equal rows of two partitions are two messages, and no task knows how many of them the others have.
"""

from __future__ import annotations

import gc
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from jetstream_client.errors import (
    InvalidValue,
    NoStreamResponse,
    PermissionDenied,
    PublishFailed,
    RequestTimeout,
    StreamNotFound,
    WrongStream,
)
from jetstream_client.publish.bulk import Publishable, publish_all
from jetstream_client.publish.position import Position

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_jetstream.write_options import WriteOptions

log = logging.getLogger(__name__)

ROWS = 1_000
"""Rows that are Python objects at a time: an Arrow batch of large payloads has 10,000."""

_OF_QUERY, _OF_BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # local properties of a micro-batch's tasks


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task wrote. ``duplicates``: an earlier attempt had stored them. Sequences are 0 for no rows."""

    partition: int
    stored: int = 0
    duplicates: int = 0
    first: int = 0
    last: int = 0


class JetStreamWriter(DataSourceArrowWriter):
    """A batch job. Made once on the driver and sent to every attempt of every task.

    Raises, before anything is published:
        InvalidValue: there is no such stream.
        ConnectionFailed: no connection.
        RequestTimeout: the account may not ask for the stream, see ``acceptDuplicates``.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._scope = secrets.token_hex(16)
        self._since = _position(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self._options, iterator, self._scope, self._since)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _committed(self._options.stream, "the job", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        remedy = "run again, the job is a new one and stores them again, unless the rows have a msg_id"
        _aborted(self._options.stream, "the job", messages, remedy)


class JetStreamStreamWriter(DataSourceStreamArrowWriter):
    """The micro-batches of a streaming query. Spark makes one for a batch, and another to commit or abort it."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _task()
        query, batch = context.getLocalProperty(_OF_QUERY), context.getLocalProperty(_OF_BATCH)
        if not query or not batch:
            raise InvalidValue("trigger", f"query {query}, batch {batch}", "write in micro-batches: they have ids")
        return _write(self._options, iterator, f"{query}/{batch}", None)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        _committed(self._options.stream, f"batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        remedy = "restarted within the stream's duplicate_window, the query stores none of them again"
        _aborted(self._options.stream, f"batch {batchId}", messages, remedy)


def _position(options: WriteOptions) -> Position | None:
    """Where the stream ends now: what a task finds behind it under its ids, an earlier attempt has stored."""
    try:
        return Position.current(options.settings(), options.stream)
    except StreamNotFound:
        raise InvalidValue("stream", options.stream, "there is none of this name here: create it first") from None
    except (PermissionDenied, RequestTimeout) as silence:
        if not options.accept_duplicates:
            raise
        log.warning("a task that runs again will not know what it stored before: %s", silence)
        return None


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None  # noqa: S101 - Spark calls this in a task
    return context


def _write(options: WriteOptions, batches: Iterator[pa.RecordBatch], scope: str, since: Position | None) -> Written:
    """Publish every row of a partition.

    Raises:
        InvalidValue: a row that is no message: which column, its value, which row.
        PublishFailed: the first message that was refused or not answered, and how many were stored.
        DuplicatesPossible: what an earlier attempt stored cannot be found out.
    """
    context = _task()
    partition = context.partitionId()
    first = next(batches, None)
    if first is None:
        return Written(partition)
    try:
        with _seldom_collected():
            done = publish_all(
                options.settings(),
                _messages(chain([first], batches), partition),
                stream=options.stream,
                scope=f"{scope}/{partition}",
                since=since,
                first=context.attemptNumber() == 0,
                accept_duplicates=options.accept_duplicates,
            )
    except PublishFailed as failed:
        if not isinstance(failed.cause, NoStreamResponse | WrongStream):
            raise
        remedy = f"stream {options.stream!r} does not listen on it: correct it, or add it to the stream's subjects"
        refused = InvalidValue("subject", failed.subject, f"{remedy} ({failed.cause})")
        raise PublishFailed(failed.position, failed.subject, failed.stored, refused) from failed
    return Written(partition, done.stored, done.duplicates, done.first, done.last)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Python's cyclic garbage collector looks after every 700 new objects, a fifth of the time of writing: at messages
    that wait for their answers and refer to nothing. Nearly all are gone before it looks as seldom as here."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _messages(batches: Iterator[pa.RecordBatch], partition: int) -> Iterator[Publishable]:
    row = 0
    for batch in batches:
        _check_nulls(batch, partition, row)
        for start in range(0, batch.num_rows, ROWS):
            yield from _rows(batch.slice(start, ROWS))
        row += batch.num_rows


def _check_nulls(batch: pa.RecordBatch, partition: int, row: int) -> None:
    """Of a whole Arrow batch, before any of its rows is sent."""
    for name in ("subject", "data"):
        column = batch.column(name)
        if column.null_count:
            position = row + column.is_null().index(True).as_py()
            remedy = f"row {position} of partition {partition} has none: fill it or filter such rows out"
            raise InvalidValue(name, None, remedy)


def _rows(batch: pa.RecordBatch) -> Iterator[Publishable]:
    import pyarrow as pa

    names = batch.schema.names
    subjects = batch.column("subject").to_pylist()
    data = batch.column("data").cast(pa.binary()).to_pylist()
    if "headers" not in names and "msg_id" not in names:
        return zip(subjects, data, strict=True)
    nothing = [None] * batch.num_rows
    headers = batch.column("headers").to_pylist() if "headers" in names else nothing
    ids = batch.column("msg_id").to_pylist() if "msg_id" in names else nothing
    return zip(subjects, data, map(_headers, headers, ids), strict=True)


def _headers(entries: Sequence[tuple[str, Any]] | None, identity: str | None) -> Mapping[str, str | Sequence[str]]:
    """The column ``msg_id`` goes before an id among the headers."""
    headers = dict(entries or ())
    for name, value in headers.items():
        if value is None or (not isinstance(value, str) and None in value):
            raise InvalidValue(f"headers[{name!r}]", value, "a header has values: leave out those that are null")
    if identity is not None:
        if not identity.strip():
            raise InvalidValue("msg_id", identity, "an id is not empty: null gives one made from the content")
        headers["Nats-Msg-Id"] = identity
    return headers


def _committed(stream: str, what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [each for each in messages if isinstance(each, Written)]
    stored, duplicates = sum(each.stored for each in written), sum(each.duplicates for each in written)
    _driver_log().info(
        "stream %s has all %d messages of %s, from %d tasks; %d were there before, under the same ids",
        stream,
        stored + duplicates,
        what,
        len(written),
        duplicates,
    )


def _aborted(stream: str, what: str, messages: Sequence[WriterCommitMessage | None], remedy: str) -> None:
    written = [each for each in messages if isinstance(each, Written)]
    _driver_log().error(
        "%s failed. %d messages of %d tasks that succeeded stay in stream %s, and so does what the other %d tasks had "
        "published: a stream takes nothing back; %s",
        what,
        sum(each.stored + each.duplicates for each in written),
        len(written),
        stream,
        len(messages) - len(written),
        remedy,
    )


def _driver_log() -> logging.Logger:
    """Spark commits in a process of its own that configures no logging: what is no warning would not be said."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    return log
