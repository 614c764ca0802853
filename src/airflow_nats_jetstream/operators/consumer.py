"""Consumers: create or update, delete, pause, resume, our own reset."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_nats_jetstream.operators import fields
from airflow_nats_jetstream.operators.configuration import ConfigurationOperator
from airflow_nats_jetstream.operators.fields import CONSUMER
from airflow_nats_jetstream.operators.stream import StreamOperator
from airflow_nats_jetstream.template import instant, optional_number, templated
from jetstream_client.config import check_consumer_config, consumer_name
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_stream_name
from jetstream_client.times import time_nanoseconds

if TYPE_CHECKING:
    from airflow.sdk import Context

    from jetstream_client.consume.consumer import Consumer
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.reset import Reset


class JetStreamCreateConsumerOperator(ConfigurationOperator):
    """Create a consumer, or change the fields that differ and leave every other field as it is.

    stream:  whose. (templated)
    config:  the server's own fields, e.g. ``{"durable_name": "invoices", "max_ack_pending": 500}``, in every form that
             :class:`~airflow_nats_jetstream.operators.stream.JetStreamCreateStreamOperator` takes. A new consumer has
             ``ack_policy: explicit`` unless the configuration says otherwise. (templated, what is in the file, too)

    Run twice, it changes nothing the second time. The log shows each field that was changed, what it was and is. The
    sensor creates the consumer that it takes claims from automatically.

    Returns ``{"stream", "consumer": name, "created": bool, "changed": [field, …]}``. ``dry_run`` prints the difference.

    Raises:
        InvalidValue: a field that JetStream does not have, a value that it forbids, or no name; when the DAG is parsed,
            unless it is templated. Names the file, its line, the field and what to do.
        UpdateRefused: the server does not change it: names the field, its value, the wanted value, and what to do.
        ApiError: the server refuses to create it.
        StreamNotFound: there is no such stream.
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
        """Its name, once the task knows it."""
        return self._name

    def _checked(self, config: dict[str, Any]) -> dict[str, Any]:
        wanted = check_consumer_config(config)
        consumer_name(wanted)
        if not wanted.get("durable_name") and not wanted.get("inactive_threshold"):
            remedy = "give durable_name, or inactive_threshold: else the server deletes it 5 s after its last use"
            raise InvalidValue("config['name']", wanted["name"], remedy)
        return wanted

    def _handle(self, js: JetStream, name: str) -> Consumer:
        return js.consumer(self.stream, name)

    def _create(self, js: JetStream, wanted: dict[str, Any]) -> Awaitable[Any]:
        return js.stream(self.stream).create_consumer(wanted)


class ConsumerOperator(StreamOperator):
    """An operator on one consumer: its names, the connection, and the link to its page."""

    def __init__(self, *, consumer: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.consumer = consumer
        if not templated(consumer):
            check_consumer_name(consumer)

    def _check_names(self) -> None:
        super()._check_names()
        check_consumer_name(self.consumer)


class JetStreamDeleteConsumerOperator(ConsumerOperator):
    """Delete a consumer, and what it knows of which messages were processed. A new one begins from the beginning.

    stream, consumer:     the consumer. Deleting one that does not exist succeeds. (templated)
    despite_open_claims:  also while claims of it are open: they are superseded first, so the attempts that work on
                          them stop and cannot settle. Default False: refused, and the claims are named.
    despite_unprocessed:  also from a stream with retention ``interest`` that would drop what this consumer has not
                          acknowledged. Default False: refused, with how many these are.

    Returns ``{"stream", "consumer", "deleted": bool, "unacknowledged": how many messages,
    "superseded": [claim id, …]}``. ``dry_run`` prints what would be deleted.

    Raises:
        InvalidValue: a name that JetStream forbids; when the DAG is parsed, unless it is templated.
        DeletionRefused: claims are open, or messages would be lost; which ones, and what to do.
        LedgerUnavailable: it cannot be told whether claims are open.
    """

    template_fields: Sequence[str] = ("stream", "consumer", "nats_conn_id")

    def __init__(self, *, despite_open_claims: bool = False, despite_unprocessed: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.despite_open_claims = despite_open_claims
        self.despite_unprocessed = despite_unprocessed

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        from jetstream_handoff.deletion import delete

        despite = {
            "despite_open_claims": self.despite_open_claims,
            "despite_unprocessed": self.despite_unprocessed,
        }
        gone = self._run(lambda js: delete(js, self.stream, self.consumer, **despite))
        if gone is None:
            self.log.warning("consumer %s of %s does not exist: nothing is deleted", self.consumer, self.stream)
        else:
            left = gone.messages
            self.log.info("consumer %s of %s is deleted, %d messages unacknowledged", self.consumer, self.stream, left)
        return {
            "stream": self.stream,
            "consumer": self.consumer,
            "deleted": gone is not None,
            "unacknowledged": gone.messages if gone else 0,
            "superseded": list(gone.superseded) if gone else [],
        }

    def dry_run(self) -> None:
        """Print what :meth:`execute` would delete."""
        from jetstream_handoff.deletion import plan

        found = self._run(lambda js: plan(js, self.stream, self.consumer))
        self.log.info("%s", found.describe() if found else f"consumer {self.consumer} of {self.stream} does not exist")


class JetStreamPauseConsumerOperator(ConsumerOperator):
    """Let a consumer deliver nothing for a while. What it has delivered can be acknowledged all the same.

    stream, consumer:  which. (templated)
    until:             a ``datetime`` with a time zone (pendulum's, too), or an ISO 8601 string with one, such as
                       ``{{ data_interval_end }}``. (templated)
    duration:          instead of ``until``, from now on by the server's clock: a ``timedelta``, or a string such
                       as ``2h`` or ``PT2H``. (templated)

    Needs nats-server 2.11. A consumer that is paused until then already stays so. The log shows until when it was, and
    is, paused.

    Returns ``{"stream", "consumer", "until": RFC 3339, "changed": bool}``. ``dry_run`` prints the difference.

    Raises:
        InvalidValue: names or times, when the DAG is parsed, unless they are templated; a time that is past, which
            would resume the consumer, when the task runs.
        ConsumerNotFound, StreamNotFound: there is no such consumer.
        ServerTooOld: before nats-server 2.11.
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
        """The end of the pause, in nanoseconds as ``now`` is. Raises InvalidValue."""
        until, duration = self.until or None, self.duration or None
        if (until is None) == (duration is None):
            raise InvalidValue("until", until, "give until or duration, one of them")
        if until is not None:
            end = time_nanoseconds(instant("until", until))
        else:
            try:
                end = now + int(fields.duration(duration))
            except fields.Wrong as wrong:
                raise InvalidValue("duration", duration, wrong.remedy) from None
        return end // 1_000 * 1_000  # as exact as the datetime that the client pauses until

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        async def run(js: JetStream) -> tuple[str, str]:
            consumer = js.consumer(self.stream, self.consumer)
            before, end = self._compare(await consumer.info())
            if before is None or time_nanoseconds(before) != end:
                await consumer.pause(_datetime(end))
            return _paused(before), str((await consumer.info()).config["pause_until"])

        before, until = self._run(run)
        changed = before != _paused(until)
        was = f" (was {before})" if changed else " already"
        self.log.info("consumer %s of %s is %s%s", self.consumer, self.stream, _paused(until), was)
        return {"stream": self.stream, "consumer": self.consumer, "until": until, "changed": changed}

    def _compare(self, info: ConsumerInfo) -> tuple[str | None, int]:
        """Until when it is paused, if it is, and until when it is to be. Raises InvalidValue."""
        end = self._end(time_nanoseconds(info.now))
        if end <= time_nanoseconds(info.now):
            remedy = f"is past, at the server it is {info.now}; to end a pause there is JetStreamResumeConsumerOperator"
            raise InvalidValue("until", self.until or self.duration, remedy)
        return _pause(info), end

    def dry_run(self) -> None:
        """Print what :meth:`execute` would change."""

        async def run(js: JetStream) -> str:
            before, end = self._compare(await js.consumer(self.stream, self.consumer).info())
            return f"is {_paused(before)}, and would be {_paused(_datetime(end).isoformat())}"

        self.log.info("consumer %s of %s %s", self.consumer, self.stream, self._run(run))


class JetStreamResumeConsumerOperator(ConsumerOperator):
    """End the pause of a consumer. Succeeds if it is not paused.

    stream, consumer:  which. (templated)

    Returns ``{"stream", "consumer", "changed": bool}``. ``dry_run`` prints until when it is paused.

    Raises:
        InvalidValue: a name that JetStream forbids; when the DAG is parsed, unless it is templated.
        ConsumerNotFound, StreamNotFound: there is no such consumer.
        ServerTooOld: before nats-server 2.11.
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
        self.log.info("consumer %s of %s delivers (was %s)", self.consumer, self.stream, was)
        return {"stream": self.stream, "consumer": self.consumer, "changed": before.paused}

    def dry_run(self) -> None:
        """Print whether :meth:`execute` would end a pause."""
        info = self._run(lambda js: js.consumer(self.stream, self.consumer).info())
        now = _paused(_pause(info))
        self.log.info("consumer %s of %s is %s, and would deliver", self.consumer, self.stream, now)


def _pause(info: ConsumerInfo) -> str | None:
    """Until when it is paused, if it is."""
    return str(info.config["pause_until"]) if info.paused else None


def _paused(until: str | None) -> str:
    return f"paused until {until}" if until else "delivering"


def _datetime(nanoseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanoseconds // 1_000)


class JetStreamResetConsumerOperator(ConsumerOperator):
    """Let a consumer that claims are taken from begin again, and have everything from there on processed again.

    stream, consumer:  the consumer. (templated)
    sequence:          the first stream sequence to be delivered again; by default everything that is not acknowledged,
                       or comes after something that is not. Never past what nobody processed. (templated)
    claims:            False for a consumer that no claims are taken from: the server's own reset, without a ledger. It
                       is refused while the ledger knows claims of this consumer.

    Open claims are superseded: attempts that hold them stop and cannot settle. What was done past the sequence is
    processed again, by new claims. Takes a few seconds, and fails instead of losing a message: while acknowledgements
    are unconfirmed, while claims go on being settled, or while another reset is under way.

    Returns ``{"stream", "consumer", "sequence", "superseded": [claim id, …], "forgotten": ranges, "pending"}``: the
    claims that were open, messages above the floor that were settled, and how many come now. ``dry_run`` prints it.

    Raises:
        InvalidValue: names or sequence; when the DAG is parsed, unless they are templated.
        ResetRefused, LedgerUnavailable, ConsumerNotFound, StreamNotFound: the consumer was not reset.
    """

    template_fields: Sequence[str] = ("stream", "consumer", "sequence", "nats_conn_id")

    def __init__(self, *, sequence: int | str | None = None, claims: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sequence = sequence
        self.claims = claims
        if not templated(sequence):
            optional_number("sequence", sequence)

    def execute(self, context: Context) -> dict[str, Any]:  # noqa: ARG002
        from jetstream_handoff.ledger import Ledger
        from jetstream_handoff.reset import reset, reset_unclaimed

        sequence = optional_number("sequence", self.sequence)
        run = reset if self.claims else reset_unclaimed
        return _plain(self._run(lambda js: run(Ledger(js, self.stream, self.consumer), sequence)))

    def dry_run(self) -> None:
        """Print what :meth:`execute` would do now."""
        from jetstream_handoff.ledger import Ledger
        from jetstream_handoff.reset import plan

        sequence = optional_number("sequence", self.sequence)
        found = self._run(lambda js: plan(Ledger(js, self.stream, self.consumer), sequence, claims=self.claims))
        self.log.info("would do: %s", _plain(found))


def _plain(made: Reset) -> dict[str, Any]:
    return {**asdict(made), "superseded": list(made.superseded), "forgotten": made.forgotten.to_json()}
