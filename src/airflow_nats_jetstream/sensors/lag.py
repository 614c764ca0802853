# SPDX-License-Identifier: Apache-2.0
"""The sensor that waits for a consumer's lag."""

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
    """Wait until a consumer has caught up, or until enough messages wait for it.

    The lag is the number of messages that wait for their first delivery or are not acknowledged. Messages in claims
    that are not settled are part of the lag.

    stream:         the name of the stream that the consumer belongs to. (templated)
    consumer:       the name of the consumer, which must exist. (templated)
    below:          wait until the lag is less than this number of messages; 1 waits until nothing is left. Default
                    None: give ``above`` instead. (templated)
    above:          wait until the lag is greater than this number of messages; 0 waits until there is a message.
                    Default None: give ``below`` instead. (templated)
    poke_interval:  the time between two requests: seconds or a ``timedelta``. Default 60 s.
    deferrable:     whether to wait in the triggerer (True, the default) or in a worker (False), in any ``mode``. If the
                    lag is within the bound already, the sensor ends in a worker in either case.
    timeout:        how long to wait: seconds or a ``timedelta``. Default: 7 days, as for every Airflow sensor.
    soft_fail:      whether the task is skipped instead of failed on a time-out; an error always fails it. Default
                    False.
    nats_conn_id:   the id of the Airflow connection. Default ``nats_default``. (templated)

    All other parameters are the parameters of every Airflow sensor.

    Returns ``{"lag": 0, "pending": 0, "unacknowledged": 0}``. A lag of 0 does not mean that every message was
    processed: messages that the stream's limits have deleted are not part of the lag.

    Raises:
        InvalidValue: an invalid name or number, or not exactly one of ``below`` and ``above``. Raised when the DAG is
            parsed, unless one of these values is templated.
        StreamNotFound, ConsumerNotFound: the consumer or its stream does not exist. The sensor does not wait for them
            to be created.
        JetStreamError: another error while waiting.
        AirflowSensorTimeout: the lag did not reach the bound in time.
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
            if isinstance(met := self.poke(context), PokeReturnValue):
                return met.xcom_value
            trigger = JetStreamLagTrigger(self.nats_conn_id, bound, self.poke_interval, end)
            self.defer(trigger=trigger, method_name="resume", timeout=self.execution_timeout)
        return super().execute(context)

    def poke(self, context: Context) -> bool | PokeReturnValue:  # noqa: ARG002
        lag = JetStreamHook(self.nats_conn_id).run(self._bound().measure)
        return False if lag is None else PokeReturnValue(is_done=True, xcom_value=lag.to_json())

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, int]:  # noqa: ARG002
        """Continue after the trigger's ``event``: the lag, a time-out or an error."""
        within = f"{self._bound()} within {self.timeout:g} s"
        self.check_event(event, f"the lag of consumer {self.consumer} was not {within}")
        lag: dict[str, int] = event["lag"]
        self.log.info("the lag of consumer %s is %d messages", self.consumer, lag["lag"])
        return lag

    def _bound(self) -> Bound:
        below, above = optional_number("below", self.below), optional_number("above", self.above, 0)
        return Bound(stream=self.stream, consumer=self.consumer, below=below, above=above)
