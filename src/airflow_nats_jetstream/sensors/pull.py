# SPDX-License-Identifier: Apache-2.0
"""The sensor that takes messages and hands them on as claims."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import PokeReturnValue
from airflow.triggers.base import StartTriggerArgs

from airflow_nats_jetstream.compat import (
    NEVER_EXPIRE,
    AirflowFailException,
    AirflowSkipException,
    task_state,
    triggers_know_their_run,
)
from airflow_nats_jetstream.dag.between import begun, early, early_work, listed, settling
from airflow_nats_jetstream.dag.mapping import bounded, check_mappable, default_messages, most_claims
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.fields import consumer_config
from airflow_nats_jetstream.owner import cleared, owner_in_worker
from airflow_nats_jetstream.sensors import handed_on
from airflow_nats_jetstream.sensors.unhanded import handing_on
from airflow_nats_jetstream.sensors.waiting import JetStreamSensor
from airflow_nats_jetstream.signals import lineage
from airflow_nats_jetstream.template import (
    absent,
    check_rendered,
    duration,
    instant,
    known_duration,
    optional_number,
    templated,
    whole_number,
    yes_or_no,
)
from airflow_nats_jetstream.triggers import JetStreamPullTrigger
from jetstream_client.consume.priority import Priority
from jetstream_client.errors import InvalidValue, JetStreamError
from jetstream_client.names import check_consumer_name, check_stream_name
from jetstream_handoff.durations import GATHER, HAND_OFF_TIMEOUT

if TYPE_CHECKING:
    from airflow.sdk import Context

    from jetstream_client.context import JetStream
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.ledger.history import Owner
    from jetstream_handoff.rules.order_key import OrderKey
    from jetstream_handoff.take.pace import Pace
    from jetstream_handoff.take.take import Take
    from jetstream_handoff.take.taking import Taking
    from jetstream_handoff.take.threshold import Threshold

_PRIORITY = {each.name for each in dataclasses.fields(Priority)}
_TRIGGER_SLACK = timedelta(minutes=1)  # Airflow ends the trigger this long after the trigger's own time-out
_PACE = "jetstream_pace"  # the key in the task state store
_RELEASE_TIMEOUT = 4.0  # seconds for the release when the task ends; Airflow kills a process 5 s after asking it to end


class JetStreamPullSensor(JetStreamSensor):
    """Wait for messages, and hand them on as claims without acknowledging them.

    stream:              the name of the stream. (templated)
    consumer:            the name of the durable consumer to pull from. It is created if it does not exist, unless
                         ``create_consumer`` is False. (templated)
    max_messages:        the largest number of messages to take; the wait ends as soon as this many have arrived.
                         Default None: 10,000, or fewer if they would make more claims than Airflow can map.
                         (templated)
    messages_per_claim:  the largest number of messages in one claim. The messages are divided into as many claims as
                         necessary, so that tasks can be mapped over the claims. Default None: one claim. (templated)
    ordered_by:          process the messages of each key in order: ``{2}`` or ``{1}.{3}`` for tokens of the subject
                         (counted from 1), ``subject``, or ``header:<name>``. All messages of a key are in one claim,
                         and the next messages are taken when no claim is open. Not with ``messages_per_claim``,
                         ``until`` or ``priority``. Default None: no order.
    claims:              with ``ordered_by``, the number of claims into which the messages are divided by key; more if
                         messages have failed. Default None: one claim. (templated)
    on_poison:           with ``ordered_by`` and ``max_failures``, what becomes of a key whose message becomes a dead
                         letter: ``skip`` goes on with its next message; with ``stop_key``, all later messages of the
                         key become dead letters, too, so that they can be replayed in order, and other keys go on.
                         Default ``skip``.
    min_messages:        keep waiting until at least this many messages have arrived. Default 1. (templated)
    min_bytes:           keep waiting until the payloads of these messages have at least this many bytes together, or
                         ``max_messages`` have arrived. Default None: any size. (templated)
    max_wait:            how long the oldest message waits for others, counted from when the stream stored it, so also
                         while no sensor waits. After that, fewer messages than ``min_messages`` and ``min_bytes`` are
                         enough: "a thousand messages or ten minutes". A ``timedelta`` of at least a second, or an ISO
                         8601 string such as ``PT10M``; shorter than ``timeout``, unless ``soft_fail`` is set. Default
                         None: no limit. (templated)
    until:               take only messages that the stream stored before this time, such as
                         ``{{ data_interval_end }}``: a ``datetime`` with a time zone, or an ISO 8601 string with one.
                         The sensor waits until all of them are stored, and is skipped if none of them is left. Default
                         None: no end. (templated)
    gather:              how long to wait at most for more messages after the first one: a ``timedelta``, or an ISO
                         8601 string such as ``PT5S``. A batch that is large enough ends earlier after a pause of half
                         a second and of twice any pause before it. Default 5 s. (templated)
    hand_off_timeout:    how long a claim may wait for its task. If no task has begun to hold the claim by then, its
                         messages are redelivered. A ``timedelta``, or an ISO 8601 string. Default 15 minutes.
                         (templated)
    max_failures:        how many times a message may fail in a claim without other messages before it becomes a dead
                         letter. Messages that have failed are taken in smaller claims, down to single messages, to find
                         the one that fails. Default None: messages are redelivered without end. (templated)
    dead_letters:        the name of the stream for dead letters. It is created if it does not exist. Default None:
                         ``DEAD_<stream>``. (templated)
    backlog:             the path of a function, ``package.module.function``, that decides when to pull. It is called
                         every ``poke_interval`` with the consumer's :class:`~jetstream_client.info.ConsumerInfo`, in a
                         thread of the process that waits, and returns whether to pull. ``info.pending`` is the number
                         of messages that wait for their first delivery, and ``info.ack_pending`` is the number of
                         unacknowledged messages. Default None: pull at once.
    priority:            for a consumer with priority groups, the fields of
                         :class:`~jetstream_client.consume.priority.Priority`, such as
                         ``{"group": "batch", "level": 5}``. Default None. (templated)
    consumer_config:     other fields of the consumer, as for
                         :class:`~airflow_nats_jetstream.operators.consumer.JetStreamCreateConsumerOperator`. The
                         fields that claims need are filled in. Default None. (templated)
    create_consumer:     whether to create a consumer that does not exist, which then delivers the whole stream, unless
                         its ``deliver_policy`` says otherwise. With False, a missing consumer is an error, so that a
                         mistyped name creates nothing. Default True. (templated)
    start_from_trigger:  whether the sensor begins in the triggerer, without first occupying a worker. It needs
                         ``deferrable=True`` and no templates. A mapped sensor begins in a worker even so. With this
                         parameter, Airflow sends the whole DAG with the trigger. A triggerer that takes over from
                         another one starts to count ``timeout`` again, but the wait ends at most a minute late. Default
                         False.
    deferrable:          whether to wait in the triggerer (True, the default) or in a worker (False). If enough messages
                         wait already, the worker takes them and does not defer, unless ``min_bytes``, ``priority``,
                         ``backlog`` or ``start_from_trigger`` is given, or, with ``ordered_by``, others are
                         unacknowledged. With False and ``mode="poke"`` the pull stays open, and ``poke_interval`` is
                         used for ``backlog`` only. With ``mode="reschedule"`` the worker pulls every
                         ``poke_interval`` and takes the messages that have arrived; if they are too few, they are
                         negatively acknowledged.
    poke_interval:       the time between two calls of ``backlog``, or between two pulls with ``mode="reschedule"``:
                         seconds or a ``timedelta``. Default 60 s.
    timeout:             how long to wait: seconds or a ``timedelta``. Default: 7 days, as for every Airflow sensor.
    soft_fail:           whether the task is skipped instead of failed on a time-out; an error always fails it. Default
                         False.
    nats_conn_id:        the id of the Airflow connection. Default ``nats_default``. (templated)

    All other parameters are the parameters of every Airflow sensor.

    Always returns a list of claims: ``task.expand(claim=sensor.output)``. For a mapped sensor, see
    :func:`airflow_nats_jetstream.all_claims.all_claims`.

    The list has at most ``[core] max_map_length`` claims if tasks are mapped over it. If the task fails after it has
    taken messages, for example because Airflow refuses its XCom, it releases them.

    Raises:
        InvalidValue, ConsumerUnsuitable: a parameter that JetStream or a rule for claims forbids. Raised when the
            DAG is parsed, unless the value is templated. Also if the template in ``until`` has no value.
        AirflowFailException: a :class:`~airflow_nats_jetstream.operators.settle.JetStreamSettleOperator`, or a task
            between the sensor and a task that settles or holds its claims, has begun before the claims were handed on;
            nothing is taken, or it is released.
        JetStreamError: another error while waiting.
        AirflowSensorTimeout: too few messages arrived in time.
        AirflowSkipException: with ``until``, no message of the period is left.
    """

    template_fields: Sequence[str] = (
        "stream",
        "consumer",
        "max_messages",
        "messages_per_claim",
        "claims",
        "min_messages",
        "min_bytes",
        "max_wait",
        "until",
        "gather",
        "hand_off_timeout",
        "max_failures",
        "dead_letters",
        "priority",
        "consumer_config",
        "create_consumer",
        "nats_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"priority": "json", "consumer_config": "json"}
    get_openlineage_facets_on_complete = lineage.read
    takes_claims = True

    def __init__(
        self,
        *,
        stream: str,
        consumer: str,
        max_messages: int | str | None = None,
        messages_per_claim: int | str | None = None,
        ordered_by: str | None = None,
        claims: int | str | None = None,
        on_poison: str = "skip",
        min_messages: int | str = 1,
        min_bytes: int | str | None = None,
        max_wait: timedelta | str | None = None,
        until: datetime | str | None = None,
        gather: timedelta | str = GATHER,
        hand_off_timeout: timedelta | str = HAND_OFF_TIMEOUT,
        max_failures: int | str | None = None,
        dead_letters: str | None = None,
        backlog: str | None = None,
        priority: Priority | Mapping[str, Any] | None = None,
        consumer_config: Mapping[str, Any] | None = None,
        create_consumer: bool | str = True,
        start_from_trigger: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stream = stream
        self.consumer = consumer
        self.max_messages = max_messages
        self.messages_per_claim = messages_per_claim
        self.ordered_by = ordered_by
        self.claims = claims
        self.on_poison = on_poison
        self.min_messages = min_messages
        self.min_bytes = min_bytes
        self.max_wait = None if max_wait is None else known_duration("max_wait", max_wait)
        self.until = until
        self._of_period = until is not None
        self.gather = known_duration("gather", gather, zero=True)
        self.hand_off_timeout = known_duration("hand_off_timeout", hand_off_timeout)
        self.max_failures = max_failures
        self.dead_letters = dead_letters
        self.backlog = backlog
        self.priority = dataclasses.asdict(priority) if isinstance(priority, Priority) else priority
        self.consumer_config = consumer_config
        self.create_consumer = create_consumer
        numbers = [max_messages, messages_per_claim, claims, min_messages, min_bytes, max_failures]
        path = [] if backlog is None else str(backlog).split(".")
        if len(path) == 1 or not all(part.isidentifier() for part in path):
            raise InvalidValue(
                "backlog", backlog, "give the import path of a function, such as package.module.function"
            )
        self._check_each()
        others = [max_wait, until, gather, hand_off_timeout, create_consumer]
        known = not templated([stream, consumer, dead_letters, self.priority, consumer_config, *numbers, *others])
        if known:
            self._taking(("owner",))
        if yes_or_no("start_from_trigger", start_from_trigger):
            if not triggers_know_their_run:
                remedy = (
                    "leave it out, or use Airflow 3.3 or later: this Airflow does not tell the trigger its run, so two "
                    "deployments with the same DAG could hand on each other's claims"
                )
                raise InvalidValue("start_from_trigger", True, remedy)
            if not (known and self.deferrable) or templated(self.nats_conn_id):
                remedy = (
                    "leave it out, or give deferrable=True and no templates, because only a worker can render templates"
                )
                raise InvalidValue("start_from_trigger", True, remedy)
            self.start_from_trigger = True
            self.start_trigger_args = self._start()

    def _check_each(self) -> None:
        """Check each parameter that is known when the DAG is parsed, also if others are not. Raises InvalidValue."""
        if not templated(self.consumer_config):
            consumer_config(self.consumer_config)
        if not templated(self.priority):
            _priority(self.priority)
        if not templated([self.min_messages, self.min_bytes, self.max_wait]):
            self._threshold()
        if not templated(self.create_consumer):
            yes_or_no("create_consumer", self.create_consumer)
        if self.ordered_by is not None:
            self._order_key()
        self._check_on_poison()

    def execute(self, context: Context) -> Any:
        if not self.deferrable and self.reschedule:
            return super().execute(context)
        taking = self._taking_for(context)
        end = time.time() + self.timeout
        if self.deferrable:
            claims, _ = self._in_worker(taking, lambda take: take.at_once(max(1.0, end - time.time())))
            if claims:
                return self._handed_on(context, claims)
            trigger = JetStreamPullTrigger(self.nats_conn_id, taking.to_json(), end)
            self.defer(trigger=trigger, method_name="resume", timeout=self.execution_timeout)
        claims, _ = self._in_worker(taking, lambda take: take.take(max(1.0, end - time.time())))
        return self.resume(context, {"status": "claims", "claims": claims} if claims else {"status": "timeout"})

    def _start(self) -> StartTriggerArgs:
        """Return the arguments that the scheduler passes to the triggerer. They lack the owner, which only the
        triggerer knows."""
        taking = self._taking(("owner",)).to_json()
        del taking["owner"]
        return StartTriggerArgs(
            trigger_cls="airflow_nats_jetstream.triggers.JetStreamPullTrigger",
            trigger_kwargs={"nats_conn_id": self.nats_conn_id, "taking": taking, "timeout": self.timeout},
            next_method="resume",
            timeout=timedelta(seconds=self.timeout) + _TRIGGER_SLACK,
        )

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Pull once. Hand on the messages as claims, or negatively acknowledge them if they are too few.

        The pace of the take is kept for the next call. Otherwise, every call would pull and drop the same messages if
        there are too many to keep them leased.
        """
        from jetstream_handoff.errors import ConsumerUnsuitable
        from jetstream_handoff.take.pace import Pace

        state: Any = task_state(context)
        kept = Pace.from_json(state.get(_PACE))
        try:
            claims, pace = self._in_worker(self._taking_for(context), lambda take: take.look(), kept)
        except ConsumerUnsuitable:
            state.delete(_PACE)  # otherwise a retry could fail when it drops its first batch
            raise
        if (pace := Pace() if claims else pace) != kept:
            try:
                state.set(_PACE, pace.to_json(), retention=NEVER_EXPIRE)
            except Exception as error:  # noqa: BLE001 - an error would lose the claims, which have been taken
                self.log.warning(
                    "the size limit of the next batch was not stored, so the next poke may not know it: %s", error
                )
        return PokeReturnValue(is_done=True, xcom_value=self._handed_on(context, claims)) if claims else False

    def _in_worker(
        self, taking: Taking, wait: Callable[[Take], Awaitable[list[Claim]]], pace: Pace | None = None
    ) -> tuple[list[dict[str, Any]], Pace]:
        """Take claims in the worker, as the trigger does in the triggerer. Begins with a pace, and returns the one at
        the end."""
        from jetstream_handoff.hold.completion import LEASE_ENDS, complete
        from jetstream_handoff.take.take import Take

        async def run(js: JetStream) -> tuple[list[dict[str, Any]], Pace]:
            take = Take(js, taking)
            take.pace = pace or take.pace
            try:
                await take.prepare()
                claims, reached = await wait(take), take.pace
                take.handed_on()
                if take.period.exhausted:
                    raise AirflowSkipException(self._nothing_left())
            finally:
                await complete(take.put_back(), _RELEASE_TIMEOUT, "releasing the taken messages", LEASE_ENDS)
            return [claim.to_json() for claim in claims], reached

        with self.waiting():
            return JetStreamHook(self.nats_conn_id).run(run)

    def resume(self, context: Context, event: dict[str, Any]) -> list[dict[str, Any]]:
        """Continue after the trigger's ``event``: claims, a time-out or an error."""
        if event["status"] == "exhausted":
            raise AirflowSkipException(self._nothing_left())
        size = "" if absent(self.min_bytes) else f" or {self.min_bytes} bytes"
        self.check_event(event, f"fewer than {self.min_messages} messages{size} were taken within {self.timeout:g} s")
        return self._handed_on(context, event["claims"])

    def _nothing_left(self) -> str:
        return f"no message that the stream {self.stream} stored before {self.until} is left for {self.consumer}"

    def _handed_on(self, context: Context, claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the claims. If they cannot be handed on, they are released."""
        with handing_on(self, context, claims):
            self._check_begun(context)
            check_mappable(claims, most_claims(self))
            if settling(self):
                handed_on.tell(context, claims)
        return claims

    def _check_begun(self, context: Context) -> None:
        """Check that no task has begun that would settle claims which this sensor has not handed on yet.

        Raises:
            AirflowFailException: a task has begun, or its trigger rule lets it begin before this sensor has ended. With
                ``soft_fail``, this is a JetStreamError, because Airflow would make a skip of an AirflowFailException.
        """
        ti: Any = context["ti"]
        failure = JetStreamError if self.soft_fail or self.never_fail else AirflowFailException  # never a skip
        if wrong := early(self):
            raise failure(early_work(self.task_id, wrong))
        if work := begun(self, ti, first=not cleared(context)):
            raise failure(
                f"the sensor {self.task_id} hands on no claims, because tasks downstream of it have already begun in "
                f"this run ({listed(work)}), and their success would acknowledge messages that they have never seen; "
                "clear the sensor with Downstream, so that all of them run again, or start a new run"
            )

    def _taking_for(self, context: Context) -> Taking:
        taking = self._taking(owner_in_worker(context))
        taking.backlog_function()  # an error must be raised here and not in the triggerer
        self._check_begun(context)
        return taking

    def _order_key(self) -> OrderKey:
        from jetstream_handoff.rules.order_key import OrderKey

        return OrderKey.parse(self.ordered_by)

    def _check_on_poison(self) -> None:
        from jetstream_handoff.rules.order_key import check_on_poison

        check_on_poison(self.on_poison, self.ordered_by, self.max_failures)

    def _threshold(self) -> Threshold:
        """Check how many messages the sensor waits for and for how long, and return it as a value."""
        from jetstream_handoff.take.threshold import Threshold

        threshold = Threshold(
            min_messages=whole_number("min_messages", self.min_messages),
            min_bytes=optional_number("min_bytes", self.min_bytes),
            max_wait=None if absent(self.max_wait) else duration("max_wait", self.max_wait),
        )
        expected = self.soft_fail or self.never_fail
        if threshold.max_wait and threshold.max_wait.total_seconds() >= self.timeout and not expected:
            remedy = (
                f"the sensor fails after timeout={self.timeout:g} s, before messages that arrive while it waits have "
                "waited for max_wait; give less than timeout, raise timeout, or set soft_fail=True"
            )
            raise InvalidValue("max_wait", self.max_wait, remedy)
        return threshold

    def _taking(self, owner: Owner) -> Taking:
        """Check the parameters, and return them as a Taking. The backlog function is not imported when the DAG is
        parsed."""
        from jetstream_handoff.rules.consumer import check_config
        from jetstream_handoff.take.taking import Taking

        check_stream_name(self.stream)
        check_consumer_name(self.consumer)
        if self._of_period:
            check_rendered("until", self.until)
        config = consumer_config(self.consumer_config)
        per_claim = optional_number("messages_per_claim", self.messages_per_claim)
        most = optional_number("max_messages", self.max_messages)
        taking = Taking(
            stream=self.stream,
            consumer=self.consumer,
            owner=owner,
            max_messages=most or default_messages(per_claim, most_claims(self)),
            messages_per_claim=per_claim,
            ordered_by=self.ordered_by,
            claims=optional_number("claims", self.claims),
            on_poison=self.on_poison,
            **dataclasses.asdict(self._threshold()),
            until=None if absent(self.until) else instant("until", self.until),
            gather=duration("gather", self.gather, zero=True),
            hand_off_timeout=duration("hand_off_timeout", self.hand_off_timeout),
            max_failures=optional_number("max_failures", self.max_failures),
            look_every=timedelta(seconds=self.poke_interval),
            priority=_priority(self.priority),
            dead_letters=None if absent(self.dead_letters) else self.dead_letters,
            consumer_config=config,
            create_consumer=yes_or_no("create_consumer", self.create_consumer),
            backlog=self.backlog,
        )
        taking = bounded(taking, most_claims(self))
        # The shortest ack_wait is a field of the connection, so it is checked later, against the server's consumer.
        check_config(
            self.consumer,
            config,
            max_messages=taking.max_messages,
            shortest_ack_wait=timedelta(0),
            group=taking.priority.group if taking.priority else None,
        )
        if self.ordered_by is not None:
            self._order_key().check_config(self.consumer, config, taking.max_messages)
        return taking


def _priority(fields: Any) -> Priority | None:
    """Return the fields as a value, with numbers in place of the strings that templates render. Raises InvalidValue."""
    if absent(fields) or fields == {}:
        return None
    if not isinstance(fields, Mapping) or not {"group"} <= fields.keys() <= _PRIORITY:
        optional = ", ".join(sorted(_PRIORITY - {"group"}))
        raise InvalidValue("priority", fields, f"give a mapping with the key 'group', and optionally {optional}")
    numbers = {name: whole_number(f"priority[{name!r}]", fields[name], 0) for name in fields if name != "group"}
    return Priority(fields["group"], **numbers)
