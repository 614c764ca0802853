# SPDX-License-Identifier: Apache-2.0
"""The sensor that holds a claim for other tasks until the claim ends."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_nats_jetstream.compat import AirflowFailException
from airflow_nats_jetstream.held.one_claim import one_claim
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.owner import current_task
from airflow_nats_jetstream.sensors.waiting import JetStreamSensor
from airflow_nats_jetstream.template import OfClaim
from airflow_nats_jetstream.tracebacks import brief
from airflow_nats_jetstream.triggers import JetStreamHoldTrigger, hold_event
from jetstream_client.errors import InvalidValue
from jetstream_handoff.durations import LONGEST_HOLD
from jetstream_handoff.errors import ClaimInvalid

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg


class JetStreamHoldSensor(OfClaim, JetStreamSensor):
    """Hold a claim while other tasks work on it at the same time, until
    :class:`~airflow_nats_jetstream.operators.settle.JetStreamSettleOperator` settles or fails it.

    claim:         the claim as the pull sensor returned it; map over it with ``expand``. (templated)
    deferrable:    whether to hold in the triggerer (True, the default) or in a worker (False).
    timeout:       the longest hold: seconds or a ``timedelta``. After that, the claim is released, and its messages
                   are redelivered. Default 24 hours.
    soft_fail:     whether the task is skipped instead of failed when ``timeout`` is over. Default False.
    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. (templated)

    All other parameters are the parameters of every Airflow sensor. The value ``mode="reschedule"`` is not allowed.

    Put only the pull sensor upstream of this sensor, or a task that picks one of its claims, and nothing downstream.
    The work must not wait for this sensor, because the sensor itself waits until the claim is settled. Without this
    sensor, the messages of a claim are redelivered after the pull sensor's ``hand_off_timeout``.

    Returns the state in which the claim ended: ``"done"`` or ``"failed"``.

    Raises:
        AirflowFailException: the messages now belong to another run, so the work cannot be settled.
        JetStreamError: another error. A retry continues to hold the claim.
        AirflowSensorTimeout: ``timeout`` is over.
    """

    template_fields: Sequence[str] = ("claim", "nats_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"claim": "json"}

    def __init__(self, *, claim: Mapping[str, Any] | XComArg, **kwargs: Any) -> None:
        super().__init__(**{"timeout": LONGEST_HOLD, **kwargs})
        self.claim = claim

    def check_mode(self) -> None:
        """Raise InvalidValue for ``mode="reschedule"``, which would interrupt the hold."""
        if self.reschedule:
            raise InvalidValue("mode", self.mode, "leave it out, because a claim must be held without interruption")

    def execute(self, context: Context) -> Any:
        try:
            claim = one_claim(self.claim, JetStreamHook(self.nats_conn_id).run).to_json()
        except ClaimInvalid as invalid:
            raise AirflowFailException(str(invalid)) from brief(invalid)
        end = time.time() + self.timeout
        if self.deferrable:
            trigger = JetStreamHoldTrigger(self.nats_conn_id, claim, end)
            self.defer(trigger=trigger, method_name="resume", timeout=self.execution_timeout)
        with self.waiting():
            event = JetStreamHook(self.nats_conn_id).run(
                lambda js: hold_event(js, claim, max(1.0, end - time.time()), current_task())
            )
        return self.resume(context, event)

    def resume(self, context: Context, event: dict[str, Any]) -> str:  # noqa: ARG002
        """Continue after the trigger's ``event``: the end of the claim, a time-out or an error."""
        if event["status"] == "superseded":
            raise AirflowFailException(event["error"])
        self.check_event(event, f"the claim was not settled within {self.timeout:g} s")
        return str(event["status"])
