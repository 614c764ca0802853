# SPDX-License-Identifier: Apache-2.0
"""Writing: each row becomes a message. A task succeeds when the stream has acknowledged the messages of all its rows.

Message ids are made from the job (or query and batch), the partition, the content, and the occurrence of this content
in the partition. The partition is included because equal rows of two partitions are two messages, and no task knows how
many equal rows the other partitions have.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

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
from pyspark_jetstream.compat import DataSourceStreamArrowWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_jetstream.write_options import WriteOptions

log = logging.getLogger(__name__)

ROWS = 1_000
"""The largest number of rows that exist as Python objects at the same time. An Arrow batch can have 10,000 rows,
however large they are."""

_OF_QUERY, _OF_BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # local properties of a micro-batch's tasks


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The result of one task.

    partition:    the number of the task's partition.
    stored:       number of messages that the task stored.
    duplicates:   number of messages that an earlier attempt had already stored.
    first, last:  the lowest and the highest stream sequence of the messages; 0 if there are no rows.
    """

    partition: int
    stored: int = 0
    duplicates: int = 0
    first: int = 0
    last: int = 0


class JetStreamWriter(DataSourceArrowWriter):
    """Writes a batch job. It is created once on the driver and sent to every attempt of every task.

    Raises:
        InvalidValue: the stream does not exist. Nothing was published.
        ConnectionFailed: no connection could be made. Nothing was published.
        PermissionDenied, RequestTimeout: the stream's state cannot be read, for example because the account lacks the
            permission, and ``acceptDuplicates`` is not set. Nothing was published.
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
        remedy = (
            "If you run the job again, it stores these messages again; within the stream's duplicate_window, rows with "
            "a msg_id are stored only once"
        )
        _aborted(self._options.stream, "the job", messages, remedy)


class JetStreamStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query. Spark creates one writer to write a batch, and another to commit
    or abort the batch."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = _task()
        query, batch = context.getLocalProperty(_OF_QUERY), context.getLocalProperty(_OF_BATCH)
        if not query or not batch:
            remedy = "only micro-batches have the ids that writing needs; use a trigger that makes micro-batches"
            raise InvalidValue("trigger", f"query {query}, batch {batch}", remedy)
        return _write(self._options, iterator, f"{query}/{batch}", None)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        _committed(self._options.stream, f"batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        remedy = (
            "If you restart the query within the stream's duplicate_window, rows with a msg_id, and rows in the same "
            "partition as before, are stored only once"
        )
        _aborted(self._options.stream, f"batch {batchId}", messages, remedy)


def _position(options: WriteOptions) -> Position | None:
    """Return the end of the stream before any task writes. If a message after it has an id of a task, an earlier
    attempt of that task stored the message."""
    try:
        return Position.current(options.settings(), options.stream)
    except StreamNotFound:
        raise InvalidValue("stream", options.stream, "this stream does not exist; create it first") from None
    except (PermissionDenied, RequestTimeout) as silence:
        if not options.accept_duplicates:
            raise
        log.warning("a task that runs again may store messages twice, because the stream cannot be read: %s", silence)
        return None


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None  # noqa: S101 - Spark calls this in a task
    return context


def _write(options: WriteOptions, batches: Iterator[pa.RecordBatch], scope: str, since: Position | None) -> Written:
    """Publish every row of a partition.

    Raises:
        InvalidValue: a row cannot be a message. The error names column, value and row.
        PublishFailed: a message was refused, or no answer to it arrived. The error names the first such message, and
            how many were stored.
        DuplicatesPossible: it is unknown which messages an earlier attempt has stored.
    """
    context = _task()
    partition = context.partitionId()
    first = next(batches, None)
    if first is None:
        return Written(partition)
    try:
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
        remedy = (
            f"stream {options.stream!r} does not listen on this subject; correct the subject, or add it to the "
            "stream's subjects"
        )
        refused = InvalidValue("subject", failed.subject, remedy)
        raise PublishFailed(failed.position, failed.subject, failed.stored, refused) from failed
    return Written(partition, done.stored, done.duplicates, done.first, done.last)


def _messages(batches: Iterator[pa.RecordBatch], partition: int) -> Iterator[Publishable]:
    row = 0
    for batch in batches:
        _check_nulls(batch, partition, row)
        for start in range(0, batch.num_rows, ROWS):
            yield from _rows(batch.slice(start, ROWS))
        row += batch.num_rows


def _check_nulls(batch: pa.RecordBatch, partition: int, row: int) -> None:
    """Check a whole Arrow batch for nulls, before any of its rows is published."""
    for name in ("subject", "data"):
        column = batch.column(name)
        if column.null_count:
            position = row + column.is_null().index(True).as_py()
            remedy = f"row {position} of partition {partition} has no {name!r}; set it, or filter such rows out"
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
    """Return the headers of a row. The column ``msg_id`` takes precedence over an id among the headers."""
    headers = dict(entries or ())
    for name, value in headers.items():
        if value is None or (not isinstance(value, str) and None in value):
            raise InvalidValue(f"headers[{name!r}]", value, "a header needs values; leave out headers that are null")
    if identity is not None:
        if not identity.strip():
            raise InvalidValue(
                "msg_id", identity, "an id must not be empty; give null, so that the id is made from the content"
            )
        headers["Nats-Msg-Id"] = identity
    return headers


def _committed(stream: str, what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    written = [each for each in messages if isinstance(each, Written)]
    stored, duplicates = sum(each.stored for each in written), sum(each.duplicates for each in written)
    _tell(
        logging.INFO,
        "stream %s contains all %d messages of %s, from %d tasks; %d of these messages had been stored before, with "
        "the same ids",
        stream,
        stored + duplicates,
        what,
        len(written),
        duplicates,
    )


def _aborted(stream: str, what: str, messages: Sequence[WriterCommitMessage | None], remedy: str) -> None:
    written = [each for each in messages if isinstance(each, Written)]
    _tell(
        logging.ERROR,
        "%s failed. %d messages of the %d tasks that succeeded stay in stream %s, and so do messages that the other %d "
        "tasks had published, because publishing cannot be undone. %s",
        what,
        sum(each.stored + each.duplicates for each in written),
        len(written),
        stream,
        len(messages) - len(written),
        remedy,
    )


def _tell(level: int, message: str, *values: object) -> None:
    """Log at any configured level, or write to standard error if nothing is configured: Spark commits in a separate
    process that configures no logging, where only warnings would be shown. The configuration is not changed."""
    record = log.makeRecord(log.name, level, __file__, 0, message, values, None)
    if log.hasHandlers():
        log.handle(record)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.handle(record)
