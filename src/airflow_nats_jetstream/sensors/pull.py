"""The sensor for messages, which are handed on as claims."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import PokeReturnValue
from airflow.triggers.base import StartTriggerArgs

from airflow_nats_jetstream import lineage
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.fields import CONSUMER, Wrong
from airflow_nats_jetstream.owner import owner_in_worker
from airflow_nats_jetstream.sensors.waiting import JetStreamSensor
from airflow_nats_jetstream.template import absent, duration, known_duration, optional_number, templated, whole_number
from airflow_nats_jetstream.triggers import JetStreamPullTrigger
from jetstream_client.config import normalise
from jetstream_client.consume.priority import Priority
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_stream_name
from jetstream_handoff.durations import GATHER, HAND_OFF_TIMEOUT

if TYPE_CHECKING:
    from airflow.sdk import Context

    from jetstream_client.context import JetStream
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.record import Owner
    from jetstream_handoff.take import Take
    from jetstream_handoff.taking import Taking

_PRIORITY = {each.name for each in dataclasses.fields(Priority)}
_TRIGGER_SLACK = timedelta(minutes=1)  # after the end of the trigger itself, before Airflow ends it
_RELEASE_TIMEOUT = 4.0  # seconds for giving back on the way out; Airflow kills a process 5 s after asking it to end


class JetStreamPullSensor(JetStreamSensor):
    """Wait for messages and hand them on as claims, without acknowledging them.

    stream, consumer:    where to pull; the durable consumer is created if it is missing. (templated)
    max_messages:        so many messages end the wait at once. Default 10,000. (templated)
    messages_per_claim:  the batch is cut into claims of so many, to map tasks over. Default: one claim. (templated)
    min_messages:        keep waiting until at least this many messages have arrived. Default 1. (templated)
    gather:              how long to wait for more after the first message: a ``timedelta``, or ISO 8601 (``PT5S``).
                         Default 5 s. (templated)
    backlog:             the path of a function, ``package.module.function``, that is given the consumer's
                         :class:`~jetstream_client.info.ConsumerInfo` every ``poke_interval`` and says
                         whether to pull: ``info.pending`` messages wait for their first delivery, ``info.ack_pending``
                         are not acknowledged. It runs where the sensor waits, in a thread. Default: pull at once.
    priority:            for a consumer with priority groups, the fields of
                         :class:`~jetstream_client.consume.priority.Priority`: ``{"group": "batch", "level": 5}``.
                         (templated)
    hand_off_timeout:    messages are redelivered when no task has begun to hold their claim by then: a ``timedelta``,
                         or ISO 8601. Default 15 min. (templated)
    max_failures:        with it what failed before is claimed in smaller claims, down to single messages, and a message
                         that failed so often alone goes to the dead letters. Default: never. (templated)
    dead_letters:        the stream for them, created if it is missing. Default ``DEAD_<stream>``. (templated)
    consumer_config:     fields of the consumer, as for
                         :class:`~airflow_nats_jetstream.operators.consumer.JetStreamCreateConsumerOperator`; what a
                         claim needs is filled in. (templated)
    deferrable:          wait in the triggerer (default), or in the worker: with ``mode="poke"`` as long as it takes, so
                         ``poke_interval`` has no meaning but for ``backlog``; with ``mode="reschedule"`` the worker
                         pulls every ``poke_interval``, claims what has arrived, and gives it back if it is too little.
    start_from_trigger:  begin in the triggerer, without a worker before it. Only where nothing is templated; a mapped
                         sensor begins in a worker all the same. Airflow then sends the whole DAG with the trigger. A
                         triggerer that takes over from another one begins the time-out anew, for a minute past its end.
    timeout, soft_fail:  as every sensor's; ``soft_fail`` skips on time-out only, never on an error.

    Returns a list of claims, always: ``task.expand(claim=sensor.output)``.

    Raises:
        InvalidValue, ConsumerUnsuitable: when the DAG is parsed, for what JetStream or a claim forbids.
        JetStreamError: what went wrong while waiting.
        AirflowSensorTimeout: too few messages in time.
    """

    template_fields: Sequence[str] = (
        "stream",
        "consumer",
        "max_messages",
        "messages_per_claim",
        "min_messages",
        "gather",
        "hand_off_timeout",
        "max_failures",
        "dead_letters",
        "priority",
        "consumer_config",
        "nats_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"priority": "json", "consumer_config": "json"}
    get_openlineage_facets_on_complete = lineage.read

    def __init__(
        self,
        *,
        stream: str,
        consumer: str,
        max_messages: int | str = 10_000,
        messages_per_claim: int | str | None = None,
        min_messages: int | str = 1,
        gather: timedelta | str = GATHER,
        hand_off_timeout: timedelta | str = HAND_OFF_TIMEOUT,
        max_failures: int | str | None = None,
        dead_letters: str | None = None,
        backlog: str | None = None,
        priority: Priority | Mapping[str, Any] | None = None,
        consumer_config: Mapping[str, Any] | None = None,
        start_from_trigger: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stream = stream
        self.consumer = consumer
        self.max_messages = max_messages
        self.messages_per_claim = messages_per_claim
        self.min_messages = min_messages
        self.gather = known_duration("gather", gather, zero=True)
        self.hand_off_timeout = known_duration("hand_off_timeout", hand_off_timeout)
        self.max_failures = max_failures
        self.dead_letters = dead_letters
        self.backlog = backlog
        self.priority = dataclasses.asdict(priority) if isinstance(priority, Priority) else priority
        self.consumer_config = consumer_config
        numbers = [max_messages, messages_per_claim, min_messages, max_failures]
        if backlog is not None and not all(part.isidentifier() for part in str(backlog).split(".")):
            raise InvalidValue("backlog", backlog, "give the path of a function: package.module.function")
        if not templated(consumer_config):
            _consumer_config(consumer_config)
        if not templated(self.priority):
            _priority(self.priority)
        durations = [gather, hand_off_timeout]
        known = not templated([stream, consumer, dead_letters, self.priority, consumer_config, *numbers, *durations])
        if known:
            self._taking(("owner",))
        if start_from_trigger:
            if not (known and self.deferrable) or templated(self.nats_conn_id):
                remedy = "leave it out where a field is templated, or with deferrable=False: only a worker renders them"
                raise InvalidValue("start_from_trigger", True, remedy)
            self.start_from_trigger = True
            self.start_trigger_args = self._start()

    def execute(self, context: Context) -> Any:
        if not self.deferrable and self.reschedule:
            return super().execute(context)
        taking = self._taking_for(context)
        end = time.time() + self.timeout
        if self.deferrable:
            trigger = JetStreamPullTrigger(self.nats_conn_id, taking.to_json(), end)
            self.defer(trigger=trigger, method_name="resume", timeout=self.execution_timeout)
        claims = self._in_worker(taking, lambda take: take.take(max(1.0, end - time.time())))
        return self.resume(context, {"status": "claims", "claims": claims} if claims else {"status": "timeout"})

    def _start(self) -> StartTriggerArgs:
        """What the scheduler hands to the triggerer. The owner is known there."""
        taking = self._taking(("owner",)).to_json()
        del taking["owner"]
        return StartTriggerArgs(
            trigger_cls="airflow_nats_jetstream.triggers.JetStreamPullTrigger",
            trigger_kwargs={"nats_conn_id": self.nats_conn_id, "taking": taking, "timeout": self.timeout},
            next_method="resume",
            timeout=timedelta(seconds=self.timeout) + _TRIGGER_SLACK,
        )

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Pull once: hand on claims of what has arrived, or give it back if it is too little."""
        claims = self._in_worker(self._taking_for(context), lambda take: take.look())
        return PokeReturnValue(is_done=True, xcom_value=self._handed_on(claims)) if claims else False

    def _in_worker(self, taking: Taking, wait: Callable[[Take], Awaitable[list[Claim]]]) -> list[dict[str, Any]]:
        """What the trigger does, in the worker."""
        from jetstream_handoff.completion import LEASE_ENDS, complete
        from jetstream_handoff.take import Take

        async def run(js: JetStream) -> list[dict[str, Any]]:
            take = Take(js, taking)
            try:
                await take.prepare()
                claims = await wait(take)
                take.handed_on()
            finally:
                await complete(take.put_back(), _RELEASE_TIMEOUT, "giving back what was taken", LEASE_ENDS)
            return [claim.to_json() for claim in claims]

        with self.waiting():
            return JetStreamHook(self.nats_conn_id).run(run)

    def resume(self, context: Context, event: dict[str, Any]) -> list[dict[str, Any]]:  # noqa: ARG002
        """The trigger's event: claims, a time-out or an error."""
        self.check_event(event, f"fewer than {self.min_messages} messages came within {self.timeout:g} s")
        return self._handed_on(event["claims"])

    def _handed_on(self, claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
        count = sum(claim["count"] for claim in claims)
        self.log.info("%d messages in %d claims: %s", count, len(claims), ", ".join(each["id"] for each in claims))
        return claims

    def _taking_for(self, context: Context) -> Taking:
        taking = self._taking(owner_in_worker(context))
        taking.backlog_function()  # refused here rather than in the triggerer
        return taking

    def _taking(self, owner: Owner) -> Taking:
        """What to take, checked; but for the function, which a parse of the DAG does not import."""
        from jetstream_handoff.consumer import check_config
        from jetstream_handoff.taking import Taking

        check_stream_name(self.stream)
        check_consumer_name(self.consumer)
        config = _consumer_config(self.consumer_config)
        taking = Taking(
            stream=self.stream,
            consumer=self.consumer,
            owner=owner,
            max_messages=whole_number("max_messages", self.max_messages),
            messages_per_claim=optional_number("messages_per_claim", self.messages_per_claim),
            min_messages=whole_number("min_messages", self.min_messages),
            gather=duration("gather", self.gather, zero=True),
            hand_off_timeout=duration("hand_off_timeout", self.hand_off_timeout),
            max_failures=optional_number("max_failures", self.max_failures),
            look_every=timedelta(seconds=self.poke_interval),
            priority=_priority(self.priority),
            dead_letters=None if absent(self.dead_letters) else self.dead_letters,
            consumer_config=config,
            backlog=self.backlog,
        )
        # How short a lease may be is the connection's to say: the server's consumer is checked against it.
        check_config(
            self.consumer,
            config,
            max_messages=taking.max_messages,
            shortest_ack_wait=timedelta(0),
            group=taking.priority.group if taking.priority else None,
        )
        return taking


def _consumer_config(config: Any) -> dict[str, Any] | None:
    """The fields in the server's terms. Raises InvalidValue."""
    if absent(config):
        return None
    try:
        return normalise(CONSUMER.check(config)) or None
    except Wrong as wrong:
        place = "consumer_config" + "".join(f"[{each!r}]" for each in wrong.path)
        raise InvalidValue(place, wrong.value, wrong.remedy) from None


def _priority(fields: Any) -> Priority | None:
    """The fields as numbers where they are numbers: templates render texts."""
    if absent(fields) or fields == {}:
        return None
    if not isinstance(fields, Mapping) or not {"group"} <= fields.keys() <= _PRIORITY:
        raise InvalidValue("priority", fields, f"give group and, if wanted, others of {', '.join(sorted(_PRIORITY))}")
    numbers = {name: whole_number(f"priority[{name!r}]", fields[name], 0) for name in fields if name != "group"}
    return Priority(fields["group"], **numbers)
