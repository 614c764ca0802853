"""The sensor that waits for messages and hands them on as claims."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException

from airflow_nats_jetstream.client.config import normalise
from airflow_nats_jetstream.client.errors import InvalidValue, JetStreamError
from airflow_nats_jetstream.client.names import check_consumer_name, check_stream_name
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.links import JetStreamLink
from airflow_nats_jetstream.operators.template import templated
from airflow_nats_jetstream.triggers import JetStreamPullTrigger, taking_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_nats_jetstream.client.context import JetStream

_TO_GIVE_BACK = 4.0  # seconds for giving back on the way out; Airflow kills a process 5 s after asking it to end


class JetStreamPullSensor(BaseSensorOperator):
    """Wait for messages and hand them on as claims, without acknowledging them.

    stream, consumer:    where to pull; the durable consumer is created if it is missing. (templated)
    max_messages:        ends the wait at once. Default 10,000. (templated)
    messages_per_claim:  cuts the batch into claims, to map tasks over. Default: one claim. (templated)
    min_messages:        fewer do not end the wait. Default 1. (templated)
    gather:              how long to wait for more after the first message. Default 5 s.
    hand_off_timeout:    messages are delivered again when no task has begun with their claim by then. Default 15 min.
    max_failures:        with it what failed before is claimed in smaller claims, down to single messages, and a message
                         that failed so often alone goes to the dead letters. Default: never. (templated)
    dead_letters:        the stream for them, created if it is missing. Default ``DEAD_<stream>``. (templated)
    consumer_config:     fields of the consumer, the server's own JSON; what a claim needs is filled in. (templated)
    deferrable:          wait in the triggerer (default), or in the worker.
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
        "max_failures",
        "dead_letters",
        "consumer_config",
        "nats_conn_id",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"consumer_config": "json"}
    ui_color = "#375c93"
    ui_fgcolor = "#ffffff"
    operator_extra_links = (JetStreamLink(),)

    def __init__(
        self,
        *,
        stream: str,
        consumer: str,
        max_messages: int = 10_000,
        messages_per_claim: int | None = None,
        min_messages: int = 1,
        gather: timedelta = timedelta(seconds=5),
        hand_off_timeout: timedelta = timedelta(minutes=15),
        max_failures: int | None = None,
        dead_letters: str | None = None,
        consumer_config: Mapping[str, Any] | None = None,
        deferrable: bool = True,
        nats_conn_id: str = JetStreamHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stream = stream
        self.consumer = consumer
        self.max_messages = max_messages
        self.messages_per_claim = messages_per_claim
        self.min_messages = min_messages
        self.gather = gather
        self.hand_off_timeout = hand_off_timeout
        self.max_failures = max_failures
        self.dead_letters = dead_letters
        self.consumer_config = consumer_config
        self.deferrable = deferrable
        self.nats_conn_id = nats_conn_id
        self._waiting = False
        if self.mode != "poke":
            raise InvalidValue("mode", self.mode, "leave it out: the sensor defers, which needs no worker at all")
        numbers = [max_messages, messages_per_claim, min_messages, max_failures]
        if not templated([stream, consumer, dead_letters, consumer_config, *numbers]):
            self._taking(("dag", "run", "task", -1, 1))

    def execute(self, context: Context) -> list[dict[str, Any]]:
        ti = context["ti"]
        taking = self._taking(
            (ti.dag_id, ti.run_id, ti.task_id, -1 if ti.map_index is None else ti.map_index, ti.try_number)
        )
        end = time.time() + self.timeout
        if self.deferrable:
            trigger = JetStreamPullTrigger(self.nats_conn_id, taking, end)
            self.defer(trigger=trigger, method_name="resume", timeout=self.execution_timeout)
        self._waiting = True
        try:
            event = JetStreamHook(self.nats_conn_id).run(lambda js: _wait(js, taking, end))
        finally:
            self._waiting = False
        return self.resume(context, event)

    def on_kill(self) -> None:
        """Stop waiting in the worker; what was taken and not handed on goes back.

        Airflow calls it in the waiting thread, out of the signal's handler: raising is what ends the wait.
        """
        if self._waiting:
            raise JetStreamError("killed while waiting for messages")

    def resume(self, context: Context, event: dict[str, Any]) -> list[dict[str, Any]]:  # noqa: ARG002
        """The trigger's event: claims, a time-out or an error."""
        if event["status"] == "error":
            raise JetStreamError(event["error"])
        if event["status"] == "timeout":
            message = f"fewer than {self.min_messages} messages came within {self.timeout:g} s"
            raise AirflowSkipException(message) if self.soft_fail else AirflowSensorTimeout(message)
        claims: list[dict[str, Any]] = event["claims"]
        count = sum(claim["count"] for claim in claims)
        self.log.info("%d messages in %d claims: %s", count, len(claims), ", ".join(each["id"] for each in claims))
        return claims

    def _taking(self, owner: tuple[str, str, str, int, int]) -> dict[str, Any]:
        """The flat JSON of what to take, checked."""
        from airflow_nats_jetstream.handoff.consumer import check_config

        check_stream_name(self.stream)
        check_consumer_name(self.consumer)
        config = self.consumer_config or None
        taking = {
            "stream": self.stream,
            "consumer": self.consumer,
            "owner": list(owner),
            "max_messages": _number("max_messages", self.max_messages),
            "messages_per_claim": _number("messages_per_claim", self.messages_per_claim),
            "min_messages": _number("min_messages", self.min_messages),
            "gather": self.gather.total_seconds(),
            "hand_off_timeout": self.hand_off_timeout.total_seconds(),
            "max_failures": _number("max_failures", self.max_failures),
            "dead_letters": None if self.dead_letters in (None, "", "None") else self.dead_letters,
            "consumer_config": None if config is None else normalise(config),
        }
        taking_of(taking)
        # How short a lease may be is the connection's to say: the server's consumer is checked against it.
        check_config(self.consumer, config, max_messages=taking["max_messages"], shortest_ack_wait=timedelta(0))
        return taking


async def _wait(js: JetStream, taking: dict[str, Any], end: float) -> dict[str, Any]:
    """What the trigger does, in the worker."""
    from airflow_nats_jetstream.handoff.take import Take

    take = Take(js, taking_of(taking))
    try:
        await take.prepare()
        claims = await take.take(max(1.0, end - time.time()))
        take.handed_on()
    finally:
        with anyio.move_on_after(_TO_GIVE_BACK, shield=True):
            await take.put_back()
    if not claims:
        return {"status": "timeout"}
    return {"status": "claims", "claims": [claim.to_json() for claim in claims]}


def _number(name: str, value: Any) -> Any:
    if value in (None, "", "None") and name in ("messages_per_claim", "max_failures"):
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        raise InvalidValue(name, value, "give a whole number") from None
