# SPDX-License-Identifier: Apache-2.0
"""Operators on consumers: create or update, delete, pause, resume, and reset."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_nats_jetstream.operators import values
from airflow_nats_jetstream.operators.configuration import ConfigurationOperator
from airflow_nats_jetstream.operators.fields import CONSUMER
from airflow_nats_jetstream.operators.stream import StreamOperator
from airflow_nats_jetstream.template import condition, instant, optional_number, templated, yes_or_no
from jetstream_client.config import check_consumer_config, consumer_name
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_stream_name
from jetstream_client.times import time_nanoseconds

if TYPE_CHECKING:
    from airflow.sdk import Context

    from jetstream_client.consume.consumer import Consumer
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.repair.reset import Reset


class JetStreamCreateConsumerOperator(ConfigurationOperator):
    """Create a consumer, or change those fields of an existing consumer that differ from ``config``. Fields that
    ``config`` does not name stay unchanged.

    stream:        the name of the stream that the consumer belongs to. (templated)
    config:        the configuration with the server's own field names, for example
                   ``{"durable_name": "invoices", "max_ack_pending": 500}``, in every form that
                   :class:`~airflow_nats_jetstream.operators.stream.JetStreamCreateStreamOperator` accepts. A new
                   consumer has ``ack_policy: explicit`` unless the configuration names another policy. (templated, and
                   so is the content of a file)
    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. (templated)

    A second run changes nothing. The log shows each changed field with its old and its new value. The pull sensor
    creates its consumer automatically and does not need this operator.

    Returns ``{"stream", "consumer": name, "created": bool, "changed": [field, …]}``. ``dry_run`` prints the difference.

    Raises:
        InvalidValue: a field that JetStream does not have, a value that it forbids, or no name. Raised when the DAG is
            parsed, unless the value is templated. The error names the file, its line, the field and the remedy.
        UpdateRefused: the server refuses to change a field. The error names the field, its current and its requested
            value, and the remedy.
        ApiError: the server refuses to create the consumer.
        StreamNotFound: the stream does not exist.
    """

    template_fields: Sequence[str] = ("stream", "config", "nats_conn_id")
    _fields = CONSUMER
    _identity = ("stream", "consumer")

    def __init__(self, *, stream: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stream = stream
        if not templated(stream):
            check_stream_name(stream)

    @property
    def consumer(self) -> str | None:
        """The name of the consumer; None until the task knows it."""
        return self._name

    def _checked(self, config: dict[str, Any]) -> dict[str, Any]:
        wanted = check_consumer_config(config)
        consumer_name(wanted)
        if not wanted.get("durable_name") and not wanted.get("inactive_threshold"):
            remedy = (
                "set durable_name or inactive_threshold; without them, the server deletes the consumer 5 s after its "
                "last use"
            )
            raise InvalidValue("config['name']", wanted["name"], remedy)
        return wanted

    def _handle(self, js: JetStream, name: str) -> Consumer:
        return js.consumer(self.stream, name)

    def _create(self, js: JetStream, wanted: dict[str, Any]) -> Awaitable[Any]:
        return js.stream(self.stream).create_consumer(wanted)


class ConsumerOperator(StreamOperator):
    """Base of the operators on one consumer.

    stream:        the name of the stream that the consumer belongs to. (templated)
    consumer:      the name of the consumer. (templated)
    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. (templated)
    """

    def __init__(self, *, consumer: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.consumer = consumer
        if not templated(consumer):
            check_consumer_name(consumer)

    def _check_names(self) -> None:
        super()._check_names()
        check_consumer_name(self.consumer)


class JetStreamDeleteConsumerOperator(ConsumerOperator):
    """Delete a consumer. The server then no longer knows which messages were processed: a new consumer begins where its
    ``deliver_policy`` says.

    stream:               the name of the stream that the consumer belongs to. (templated)
    consumer:             the name of the consumer. Deleting a consumer that does not exist succeeds. (templated)
    despite_open_claims:  whether to delete the consumer while it has open claims. These claims are superseded first, so
                          the attempts that work on them stop and cannot settle them. Default False: the deletion is
                          refused, and the error names the claims.
    despite_unprocessed:  whether to delete the consumer of a stream with retention ``interest`` if the stream would
                          then drop messages that this consumer has not acknowledged. Default False: the deletion is
                          refused, and the error gives their number.
    nats_conn_id:         the id of the Airflow connection. Default ``nats_default``. (templated)

    Returns ``{"stream", "consumer", "deleted": bool, "unacknowledged": number of messages,
    "superseded": [claim id, …]}``. ``dry_run`` prints what would be deleted.

    Raises:
        InvalidValue: a name that JetStream forbids. Raised when the DAG is parsed, unless the name is templated.
        DeletionRefused: claims are open, or messages would be lost. The error names the claims or the number of
            messages, and the remedy.
        LedgerUnavailable: the ledger cannot be read, so it is unknown whether claims are open.
    """

    template_fields: Sequence[str] = ("stream", "consumer", "nats_conn_id")

    def __init__(self, *, despite_open_claims: bool = False, despite_unprocessed: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.despite_open_claims = yes_or_no("despite_open_claims", despite_open_claims)
        self.despite_unprocessed = yes_or_no("despite_unprocessed", despite_unprocessed)

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        from jetstream_handoff.repair.deletion import delete

        despite = {
            "despite_open_claims": self.despite_open_claims,
            "despite_unprocessed": self.despite_unprocessed,
        }
        gone = self._run(lambda js: delete(js, self.stream, self.consumer, **despite))
        if gone is None:
            self.log.warning(
                "consumer %s of stream %s does not exist, so nothing was deleted", self.consumer, self.stream
            )
        else:
            said = "consumer %s of stream %s was deleted; %d of its messages had not been acknowledged"
            self.log.info(said, self.consumer, self.stream, gone.messages)
        return {
            "stream": self.stream,
            "consumer": self.consumer,
            "deleted": gone is not None,
            "unacknowledged": gone.messages if gone else 0,
            "superseded": list(gone.superseded) if gone else [],
        }

    def dry_run(self) -> None:
        """Print what :meth:`execute` would delete."""
        from jetstream_handoff.repair.deletion import plan

        found = self._run(lambda js: plan(js, self.stream, self.consumer))
        self.log.info(
            "%s", found.describe() if found else f"consumer {self.consumer} of stream {self.stream} does not exist"
        )


class JetStreamPauseConsumerOperator(ConsumerOperator):
    """Pause a consumer: it delivers nothing until a given time. Messages already delivered can still be acknowledged.

    stream:        the name of the stream that the consumer belongs to. (templated)
    consumer:      the name of the consumer. (templated)
    until:         the end of the pause: a ``datetime`` with a time zone, such as pendulum's, or an ISO 8601 string with
                   one, such as ``{{ data_interval_end }}``. Default None: give ``duration`` instead. (templated)
    duration:      the length of the pause from now on, by the server's clock: a ``timedelta``, or a string such as
                   ``2h`` or ``PT2H``. Default None: give ``until`` instead. (templated)
    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. (templated)

    Needs nats-server 2.11 or later. If the consumer is already paused until that time, nothing is changed. The log
    shows the previous and the new end of the pause.

    Returns ``{"stream", "consumer", "until": RFC 3339, "changed": bool}``. ``dry_run`` prints the difference.

    Raises:
        InvalidValue: an invalid name or time, raised when the DAG is parsed, unless the value is templated; or a time
            in the past, which would resume the consumer, raised when the task runs.
        ConsumerNotFound, StreamNotFound: the consumer or its stream does not exist.
        ServerTooOld: the server is older than 2.11.
    """

    template_fields: Sequence[str] = ("stream", "consumer", "until", "duration", "nats_conn_id")

    def __init__(
        self, *, until: datetime | str | None = None, duration: timedelta | str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.until = until
        self.duration = duration
        if not templated([until, duration]):
            self._end(0)

    def _end(self, now: int) -> int:
        """Return the end of the pause. Both it and ``now`` are in nanoseconds since 1970. Raises InvalidValue."""
        until, duration = self.until or None, self.duration or None
        if (until is None) == (duration is None):
            raise InvalidValue("until", until, "give either 'until' or 'duration', not both")
        if until is not None:
            end = time_nanoseconds(instant("until", until))
        else:
            try:
                end = now + int(values.duration(duration))
            except values.Wrong as wrong:
                raise InvalidValue("duration", duration, wrong.remedy) from None
        return end // 1_000 * 1_000  # whole microseconds, because the client is called with a datetime

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        async def run(js: JetStream) -> tuple[str, str]:
            consumer = js.consumer(self.stream, self.consumer)
            before, end = self._compare(await consumer.info())
            if before is None or time_nanoseconds(before) != end:
                await consumer.pause(_datetime(end))
            return _paused(before), str((await consumer.info()).config["pause_until"])

        before, until = self._run(run)
        changed = before != _paused(until)
        was = f" (was {before})" if changed else " (unchanged)"
        self.log.info("consumer %s of stream %s is %s%s", self.consumer, self.stream, _paused(until), was)
        return {"stream": self.stream, "consumer": self.consumer, "until": until, "changed": changed}

    def _compare(self, info: ConsumerInfo) -> tuple[str | None, int]:
        """Return the end of the current pause, or None, and the requested end. Raises InvalidValue."""
        end = self._end(time_nanoseconds(info.now))
        if end <= time_nanoseconds(info.now):
            remedy = (
                f"the pause would end in the past, because the server's clock shows {info.now}; give a later end, or "
                "use JetStreamResumeConsumerOperator to end a pause"
            )
            raise InvalidValue("until" if self.until else "duration", self.until or self.duration, remedy)
        return _pause(info), end

    def dry_run(self) -> None:
        """Print the changes that :meth:`execute` would make."""

        async def run(js: JetStream) -> str:
            before, end = self._compare(await js.consumer(self.stream, self.consumer).info())
            return f"is {_paused(before)}, and would be {_paused(_datetime(end).isoformat())}"

        self.log.info("consumer %s of stream %s %s", self.consumer, self.stream, self._run(run))


class JetStreamResumeConsumerOperator(ConsumerOperator):
    """End the pause of a consumer. Succeeds if the consumer is not paused.

    stream:        the name of the stream that the consumer belongs to. (templated)
    consumer:      the name of the consumer. (templated)
    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. (templated)

    Returns ``{"stream", "consumer", "changed": bool}``. ``dry_run`` prints the current end of the pause.

    Raises:
        InvalidValue: a name that JetStream forbids. Raised when the DAG is parsed, unless the name is templated.
        ConsumerNotFound, StreamNotFound: the consumer or its stream does not exist.
        ServerTooOld: the server is older than 2.11.
    """

    template_fields: Sequence[str] = ("stream", "consumer", "nats_conn_id")

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        async def run(js: JetStream) -> ConsumerInfo:
            consumer = js.consumer(self.stream, self.consumer)
            info = await consumer.info()
            await consumer.resume()
            return info

        before = self._run(run)
        was = _paused(_pause(before))
        self.log.info("consumer %s of stream %s is not paused (was %s)", self.consumer, self.stream, was)
        return {"stream": self.stream, "consumer": self.consumer, "changed": before.paused}

    def dry_run(self) -> None:
        """Print whether :meth:`execute` would end a pause."""
        info = self._run(lambda js: js.consumer(self.stream, self.consumer).info())
        now = f"{_paused(_pause(info))}, and would be resumed" if info.paused else "not paused, so nothing would change"
        self.log.info("consumer %s of stream %s is %s", self.consumer, self.stream, now)


def _pause(info: ConsumerInfo) -> str | None:
    """Return the end of the consumer's pause, or None if it is not paused."""
    return str(info.config["pause_until"]) if info.paused else None


def _paused(until: str | None) -> str:
    return f"paused until {until}" if until else "not paused"


def _datetime(nanoseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanoseconds // 1_000)


class JetStreamResetConsumerOperator(ConsumerOperator):
    """Reset a consumer to a stream sequence: all messages from this sequence on are redelivered and processed again.

    stream:        the name of the stream that the consumer belongs to. (templated)
    consumer:      the name of the consumer. (templated)
    sequence:      the first stream sequence to redeliver. A sequence that would skip unprocessed messages is refused.
                   Default None: the first message that is not acknowledged. (templated)
    claims:        whether claims are taken from this consumer. False uses the server's own reset without the ledger,
                   which is refused while the ledger knows claims of this consumer. Default True.
    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. (templated)

    Open claims are superseded: the attempts that hold these claims stop and cannot settle them. All messages from the
    sequence on are processed again in new claims, even if they were settled before. The reset takes a few seconds. So
    that no message is lost, the reset fails while acknowledgements are unconfirmed, while claims are still being
    settled, and while another reset is under way.

    Returns ``{"stream", "consumer", "sequence", "superseded": [claim id, …], "forgotten": ranges, "pending"}``:
    ``superseded`` contains the claims that were open, ``forgotten`` contains the settled messages above the
    acknowledgement floor, and ``pending`` is the number of messages that will be delivered after the reset. ``dry_run``
    prints the same.

    Raises:
        InvalidValue: an invalid name or sequence. Raised when the DAG is parsed, unless the value is templated.
        ResetRefused, LedgerUnavailable, ConsumerNotFound, StreamNotFound: the consumer was not reset.
    """

    template_fields: Sequence[str] = ("stream", "consumer", "sequence", "nats_conn_id")

    def __init__(self, *, sequence: int | str | None = None, claims: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sequence = self._condition = sequence
        self.claims = yes_or_no("claims", claims)
        if not templated(sequence):
            optional_number("sequence", sequence)

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        from jetstream_handoff.ledger.ledger import Ledger
        from jetstream_handoff.repair.reset import reset, reset_unclaimed

        sequence = condition("sequence", self.sequence, self._condition)
        run = reset if self.claims else reset_unclaimed
        return _plain(self._run(lambda js: run(Ledger(js, self.stream, self.consumer), sequence)))

    def dry_run(self) -> None:
        """Print the reset that :meth:`execute` would make now."""
        from jetstream_handoff.ledger.ledger import Ledger
        from jetstream_handoff.repair.reset import plan

        sequence = condition("sequence", self.sequence, self._condition)
        found = self._run(lambda js: plan(Ledger(js, self.stream, self.consumer), sequence, claims=self.claims))
        self.log.info("the reset would have this result: %s", _plain(found))


def _plain(made: Reset) -> dict[str, Any]:
    return {**asdict(made), "superseded": list(made.superseded), "forgotten": made.forgotten.to_json()}
