# SPDX-License-Identifier: Apache-2.0
"""The claim that a user's function gets from an orchestrator's task, with the methods for Spark and Arrow.

Importing this module loads neither pyspark nor pyarrow, because orchestrators import it to parse a task.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex

from jetstream_client.errors import InvalidValue
from jetstream_client.stores.reference import MAX_SIZE, Objects
from jetstream_client.wire.settings import environment_name
from jetstream_handoff.hold.blocking import BlockingHold
from pyspark_jetstream.spread import SpreadFrame

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from jetstream_arrow.claim_batches import ClaimBatches
    from jetstream_handoff.hold.table import Appended, Table
    from jetstream_tables.transaction import Transaction

log = logging.getLogger(__name__)

SPREAD_FROM = 64 * 2**20
"""Bytes of a claim from which on the executors write the rows of a DataFrame. For fewer, the driver is faster."""


class ArrowStream(Protocol):
    """An Arrow table or stream, of any library."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


class HeldClaim(BlockingHold):
    """A claim that this task holds. Its function receives it as ``claim``.

    The task ends the claim. Do not call ``settle``, ``fail``, ``release``, ``hand_over`` or ``kill`` in the function:
    they end the claim before the orchestrator has stored the result, and then the task fails. After ``settle``, the
    messages are acknowledged although it has failed. To make the claim fail, raise an error.

    connection:     the name of the connection. Spark finds its settings under this name in its environment.
    value:          the value that is recorded with the settlement when a block that processes the claim ends. Default
                    None.
    trace_context:  the W3C trace context headers of the hold's span, to pass on to another engine; empty if no traces
                    are recorded.
    """

    connection: str
    value: Any = None
    trace_context: Mapping[str, str] = {}
    _when_read: Callable[[SparkSession], object] | None = None

    def on_read(self, callback: Callable[[SparkSession], object]) -> None:
        """Call ``callback(spark)`` when :meth:`read` is called for the first time."""
        self._when_read = callback

    def read(self, spark: SparkSession, *, objects: str | None = None, max_object_size: int | None = None) -> DataFrame:
        """Return exactly the claimed messages as a DataFrame with the columns ``stream``, ``subject``, ``sequence``,
        ``timestamp``, ``headers`` and ``data``. The parameter ``missing`` of the task says what happens to messages
        that no longer exist.

        When the claim is lost or the task is killed, all jobs of the Spark application are cancelled. With Spark
        Connect, only jobs that this thread has started after this call are cancelled, because the session and the
        server may also work on other claims.

        spark:    the Spark session, for example that of :func:`pyspark_jetstream.spark_session`.
        objects:  the name of the object store with the payloads of messages that refer to an object. ``data`` is then
                  the content of the object, and the column ``object_error`` says why it cannot be read, in which case
                  ``data`` stays as it was published. ``decoded`` calls such a message malformed. Default None: these
                  messages are read as they are.
        max_object_size:  the largest object that is read, in bytes. Default 64 MiB.
        """
        from pyspark_jetstream import read_claim
        from pyspark_jetstream.session import is_on_server

        connection, missing = self.connection, self.missing
        messages = read_claim(
            spark,
            self.claim,
            connection=connection,
            missing=missing,
            attempt=self.attempt_id,
            objects=objects,
            max_object_size=max_object_size,
        )
        if is_on_server(spark):
            where, tag = f"session {spark.session_id} of Spark Connect", f"jetstream-{self.attempt_id}"
            spark.addTag(tag)
            self.on_end(partial(spark.removeTag, tag))
            self.on_stop(partial(_quietly, partial(spark.interruptTag, tag)))
        else:
            context = spark.sparkContext
            where = f"application {context.applicationId}"
            self.on_stop(partial(_quietly, context.cancelAllJobs))
            for name, value in self.trace_context.items():  # Spark Connect has no local properties
                context.setLocalProperty(name, value)
        log.info("claim %s is read by Spark in %s: %d messages", self.id, where, self.count)
        if self._when_read is not None:
            self._when_read(spark)
            self._when_read = None
        return messages

    def arrow(
        self, columns: Sequence[str] | None = None, *, objects: str | None = None, max_object_size: int = MAX_SIZE
    ) -> pa.RecordBatchReader:
        """Return exactly the claimed messages as a stream of Arrow record batches, with the columns of :meth:`read`,
        and without Spark. Many libraries accept it, among them polars and DuckDB, as anything with
        ``__arrow_c_stream__``.

        The messages are read as the batches are asked for. A batch has about 2,000 messages or 1 MiB, so claims may be
        larger than the memory. The connection is closed after the last batch, when nothing refers to the reader any
        more, or when the function returns. Reading after that fails.

        The errors below are raised as such by the reader's own methods. Other libraries raise another error, which
        contains the message. The first four are raised by this method.

        columns:  the names of the columns, in order, for example ``["sequence", "data"]``. Default None: ``stream``,
                  ``subject``, ``sequence``, ``timestamp``, ``headers`` and ``data``.
        objects, max_object_size:  as for :meth:`read`. A batch with objects has about 16 MiB, and one object more.

        Raises:
            InvalidValue: there is no such column, or the column ``data`` for the objects is left out.
            BucketNotFound: the object store does not exist.
            StreamNotFound, StreamRecreated, DirectGetDisabled: the stream cannot be read.
            ModuleNotFoundError: pyarrow is not installed.
            MessagesMissing: some messages no longer exist, and :attr:`missing` is ``"error"``. Raised at the end.
            HoldLost: the claim is no longer held.
            ConnectionLost: there was no progress for 60 s.
        """
        try:
            from jetstream_arrow.claim_batches import ClaimBatches, Claimed
        except ModuleNotFoundError as missing:
            remedy = "claim.arrow() needs pyarrow; install airflow-provider-nats-jetstream[arrow]"
            raise ModuleNotFoundError(remedy, name=missing.name) from missing
        hold = self._hold
        wanted = None if objects is None else Objects(objects, max_object_size)
        what = Claimed(self.claim, hold.settings, self.missing, hold.token, objects=wanted)
        batches = ClaimBatches(what, columns, self.check_held)
        # The connection is closed earlier if nothing else refers to the batches.
        self.on_end(partial(_end, weakref.ref(batches)))
        log.info("claim %s is read into Arrow batches: %d messages", self.id, self.count)
        return batches.reader()

    def reject(
        self,
        sequences: SupportsIndex | Iterable[SupportsIndex] | DataFrame | ArrowStream,
        reason: str | None = None,
    ) -> None:
        """Reject messages that cannot be processed.

        When the claim is settled, they are copied with the reason to the dead-letter stream, and all other messages are
        acknowledged. When the work fails, nothing is rejected.

        sequences:  one or more stream sequences; or a DataFrame, or an Arrow table or stream, with a column
                    ``sequence``, which is collected when this method is called.
        reason:     why the messages are rejected, in one line. Default None: the column ``reason`` of the DataFrame or
                    table contains the reason for each message, as in the malformed messages of ``decoded``.

        Raises:
            InvalidValue: a sequence does not belong to this claim, or a reason is missing.
            DeadLettersUnsuitable: the dead-letter stream breaks a rule.
            HoldLost: the claim is no longer held.
        """
        for why, which in _by_reason(sequences, reason).items():
            super().reject(which, why)

    def append_to(
        self,
        table: Table,
        rows: Any,
        *,
        rejected: Mapping[str, Any] | DataFrame | ArrowStream | None = None,
        every_message: bool = True,
    ) -> Appended:
        """Append rows to a table that contains each message once, whatever happens to this attempt or to others.

        The rows of messages that are in the table are left out. The rows of all others are appended in one commit,
        which fails if somebody else commits messages of this stream at the same time; then the table is read again. So
        the table can be read at any time, by any reader. After that, the claim is settled as usual.

        A message may have several rows. Give all of them in one call. The columns ``sequence`` and ``timestamp`` of the
        messages are stored as ``_sequence`` and ``_timestamp``, next to ``_stream`` with the name of the stream. All
        other columns are stored with their names.

        table:          the table, such as :class:`jetstream_tables.DeltaTable`. It is created if it does not exist.
        rows:           a DataFrame, or anything else with ``__arrow_c_stream__``: a table of pyarrow or polars, a
                        relation of DuckDB. It needs the columns ``sequence`` and ``timestamp`` of the claim's messages.
                        The driver collects the rows of a DataFrame of Spark. For a claim of 64 MiB or more, the
                        executors write the files of a table of Delta Lake or Iceberg, and the driver commits them.
        rejected:       the messages that cannot be processed, which :meth:`reject` gets before the commit: a DataFrame,
                        or an Arrow table or stream, with the columns ``sequence`` and ``reason``, as the malformed
                        messages of ``decoded``, which is read after the rows; or sequences by reason. Default None.
        every_message:  whether it is an error if a message has neither a row, nor is rejected. Default True.

        Returns: which messages were written, which were in the table already, and the table's version.

        Raises:
            RowsInvalid: the rows do not belong to this claim, do not fit the table, or are not complete; their times
                are not those of the server; or a rejected message is in the table. Nothing was written.
            OtherMessage: a sequence is in the table with a later time, of another stream of this name. Nothing was
                written.
            TableUnsuitable: the table does not allow that each message is in it once.
            TableFailed: the table cannot be read or written, or the outcome is unknown. A retry finds out.
            StreamRecreated: the stream is another one than that of the claim.
            HoldLost: the claim was lost before the rows could be written.
            InvalidValue, DeadLettersUnsuitable: as :meth:`reject`.
        """
        given = SpreadFrame(rows) if hasattr(rows, "toArrow") and self.bytes >= SPREAD_FROM else _arrow(rows)
        return self._write(table, given, _lazily(rejected), every_message=every_message)

    def replace_in(
        self,
        table: Table,
        rows: Any,
        *,
        rejected: Mapping[str, Any] | DataFrame | None = None,
        every_message: bool = True,
    ) -> Appended:
        """Write the rows of the claim's messages to a table that contains each message once, in place of those that it
        contains, in one commit. For work whose result may differ when it is done again: with
        ``on_settled="reprocess"``, or after a reset of the consumer.

        Rows of messages that are not in the table are appended. Before the commit, the ledger confirms that no newer
        attempt has taken the claim over, so that an older attempt never replaces the rows of a newer one. The table has
        the new rows from the commit on, whether the claim is settled after it or not.

        table, rows:    as for :meth:`append_to`, except that the driver collects the rows of every DataFrame.
        rejected:       as for :meth:`append_to`. Rows of these messages that are in the table are removed. The messages
                        of a claim that is processed again cannot be rejected, because they are acknowledged.
        every_message:  whether it is an error if a message has neither a row, nor is rejected. Default True. With
                        False, the rows of such messages that are in the table are removed.

        Returns: which messages were written, which had rows that were removed, and the table's version.

        Raises:
            HeldByAnother, AlreadyDone, Superseded: a newer attempt has taken the claim over. Nothing was written.
            LedgerUnavailable: the ledger cannot be written. Nothing was written.
            RowsInvalid, OtherMessage, TableUnsuitable, TableFailed, StreamRecreated, HoldLost, InvalidValue,
                DeadLettersUnsuitable: as :meth:`append_to`.
        """
        return self._write(table, _arrow(rows), _lazily(rejected), every_message=every_message, replace=True)

    def transaction(self, connection: Any, table: str) -> AbstractContextManager[Transaction]:
        """Process messages with statements of SQL, each message once: ``with claim.transaction(connection, "totals") as
        tx``. In the block, process those messages whose sequences are in ``tx.new``. At its end, the messages are
        remembered and the transaction is committed together, or neither if the block raises an error. Sums, upserts and
        deletions are exact too, which a table without a row for each message could not be otherwise.

        At the beginning of the block, other transactions for messages of this stream and this table are waited for.

        connection:  a connection of DB-API to Postgres, for example of psycopg or psycopg2, without autocommit. The
                     block is a transaction of this connection, and does not close it.
        table:       the name of a table that the statements write, perhaps with a schema. The messages are remembered
                     with this table, in ``jetstream_messages`` in its schema, until it is dropped.

        Raises:
            TableUnsuitable: the table does not exist, or could lose rows that are remembered.
            OtherMessage, StreamRecreated: as :meth:`append_to`.
            InvalidValue: each statement of the connection is a separate transaction.
        """
        from jetstream_tables.transaction import transaction

        return transaction(self, connection, table)

    @property
    def extras(self) -> dict[str, Any]:
        """The claim for a process of another engine, as ``extras`` of a Pipes client: ``claim``, the JSON of
        :meth:`jetstream_handoff.claim.Claim.from_json`; ``attempt_id``; and ``connection``."""
        return {"claim": self.claim.to_json(), "attempt_id": self.attempt_id, "connection": self.connection}

    @property
    def environment(self) -> dict[str, str]:
        """The connection's settings, with its secrets, for the environment of such a process (``env`` of a Pipes
        client). There, for example :func:`pyspark_jetstream.read_claim` finds them by the name of the connection."""
        return {environment_name(self.connection): self._hold.settings.to_json()}


def _arrow(rows: Any) -> Any:
    # Spark's own stream of Arrow, since 4.2, fails with timestamps.
    return rows.toArrow() if hasattr(rows, "toArrow") else rows


def _lazily(rejected: Any) -> Callable[[], Mapping[str, Any]]:
    """The rejected messages by reason, which may be known only when the rows have been read."""
    if rejected is None or isinstance(rejected, Mapping):
        return lambda: rejected or {}
    return partial(_by_reason, rejected, None)


def _by_reason(rejected: Any, reason: str | None) -> dict[str, Any]:
    """Return the sequences to reject by reason. The reason is ``reason``, or, if that is None, the value in the column
    ``reason`` of a DataFrame.

    rejected:  a DataFrame, or an Arrow table or stream, with a column ``sequence``, which is collected; anything else
               is returned as it is.

    Raises:
        InvalidValue: the DataFrame or table lacks a column.
    """
    columns = ["sequence", "reason"] if reason is None else ["sequence"]
    if (rows := _spark_rows(rejected, columns)) is None and (rows := _arrow_rows(rejected, columns)) is None:
        return {reason or "": rejected}
    reasons: dict[str, list[int]] = {} if reason is None else {reason: []}
    for sequence, *of_row in rows:
        reasons.setdefault(of_row[0] or "" if reason is None else reason, []).append(sequence)
    return reasons


def _spark_rows(rejected: Any, columns: Sequence[str]) -> Iterable[Any] | None:
    if "pyspark.sql" not in sys.modules:  # without this module no object is a DataFrame
        return None
    from pyspark.sql import DataFrame

    if not isinstance(rejected, DataFrame):
        return None
    _check_columns(rejected.columns, columns)
    return rejected.select(*columns).collect()


def _arrow_rows(rejected: Any, columns: Sequence[str]) -> Iterable[Any] | None:
    if not hasattr(rejected, "__arrow_c_stream__"):
        return None
    import pyarrow as pa

    if not isinstance(reader := rejected, pa.RecordBatchReader):  # whose own errors keep their class
        try:
            reader = pa.RecordBatchReader.from_stream(rejected)
        except pa.ArrowInvalid:  # a stream of plain values, such as a Series of polars
            return None
    _check_columns(reader.schema.names, columns)
    return [row for batch in reader for row in zip(*(batch.column(name).to_pylist() for name in columns), strict=True)]


def _check_columns(found: Sequence[str], columns: Sequence[str]) -> None:
    for name in columns:
        if name not in found:
            remedy = f"the DataFrame has only these columns; it needs a column named {name!r}"
            if name == "reason":
                remedy += ", or call reject() with one reason for all messages"
            raise InvalidValue("sequences", found, remedy)


def _end(batches: weakref.ref[ClaimBatches]) -> None:
    if (found := batches()) is not None:
        found.end()


def _quietly(cancel: Callable[[], object]) -> None:
    with suppress(Exception):  # the session may have ended, and its jobs with it
        cancel()
