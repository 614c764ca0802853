"""The sensor for a consumer's lag."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.sensors.waiting import JetStreamSensor
from airflow_nats_jetstream.template import optional_number, templated
from airflow_nats_jetstream.triggers import JetStreamLagTrigger
from jetstream_client.consume.lag import Bound

if TYPE_CHECKING:
    from airflow.sdk import Context


class JetStreamLagSensor(JetStreamSensor):
    """Wait until a consumer has caught up, or until work has piled up: its lag is what waits for its first delivery and
    what is not acknowledged, claims that are not settled included.

    stream, consumer:    the consumer, which must exist. (templated)
    below:               the lag is to be smaller; 1 waits until nothing is left. (templated)
    above:               or greater; 0 waits until there is something. (templated)
    poke_interval:       seconds between two requests, or a ``timedelta``. Default 60 s.
    deferrable:          wait in the triggerer (default), or in the worker, in any ``mode``.
    timeout, soft_fail:  as every sensor's; ``soft_fail`` skips on time-out only, never on an error.

    Returns ``{"lag": 0, "pending": 0, "unacknowledged": 0}``. It says nothing about who processed what: messages that a
    stream's limits have deleted do not lag, either.

    Raises:
        InvalidValue: when the DAG is parsed, for an invalid bound.
        StreamNotFound, ConsumerNotFound: it is not waited for.
        JetStreamError: what else went wrong while waiting.
        AirflowSensorTimeout: the lag was never within the bound.
    """

    template_fields: Sequence[str] = ("stream", "consumer", "below", "above", "nats_conn_id")

    def __init__(
        self,
        *,
        stream: str,
        consumer: str,
        below: int | str | None = None,
        above: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.stream = stream
        self.consumer = consumer
        self.below = below
        self.above = above
        if not templated([stream, consumer, below, above]):
            self._bound()

    def execute(self, context: Context) -> Any:
        bound, end = asdict(self._bound()), time.time() + self.timeout
        if self.deferrable:
            trigger = JetStreamLagTrigger(self.nats_conn_id, bound, self.poke_interval, end)
            self.defer(trigger=trigger, method_name="resume", timeout=self.execution_timeout)
        return super().execute(context)

    def poke(self, context: Context) -> bool | PokeReturnValue:  # noqa: ARG002
        lag = JetStreamHook(self.nats_conn_id).run(self._bound().measure)
        return False if lag is None else PokeReturnValue(is_done=True, xcom_value=lag.to_json())

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, int]:  # noqa: ARG002
        """The trigger's event: the lag, a time-out or an error."""
        within = f"{self._bound()} within {self.timeout:g} s"
        self.check_event(event, f"the lag of consumer {self.consumer} was not {within}")
        lag: dict[str, int] = event["lag"]
        self.log.info("the lag of consumer %s is %d", self.consumer, lag["lag"])
        return lag

    def _bound(self) -> Bound:
        below, above = optional_number("below", self.below), optional_number("above", self.above, 0)
        return Bound(stream=self.stream, consumer=self.consumer, below=below, above=above)
