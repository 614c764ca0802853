"""The sensor that holds a claim for others, until its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow.sdk.exceptions import AirflowFailException

from airflow_nats_jetstream.hooks import JetStreamHook
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
    """Hold a claim while other tasks work on it, in parallel with them, until
    :class:`~airflow_nats_jetstream.operators.settle.JetStreamSettleOperator` has settled it or given it back.

    claim:               as the pull sensor returned it; map over it. (templated)
    deferrable:          hold in the triggerer (default), or in the worker.
    timeout, soft_fail:  the longest hold, default 24 h: then the claim is released, and its messages redelivered.

    It is downstream of the pull sensor and of nothing else, and upstream of nothing: the work does not wait for it, and
    the settling ends it. Without it a claim waits for as long as the pull sensor's ``hand_off_timeout`` says.

    Returns ``"done"`` or ``"failed"``: what was decided.

    Raises:
        AirflowFailException: the messages belong to another run now, so the work cannot be settled.
        JetStreamError: what else went wrong; a retry goes on holding.
        AirflowSensorTimeout: the longest hold is over.
    """

    template_fields: Sequence[str] = ("claim", "nats_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"claim": "json"}

    def __init__(self, *, claim: Mapping[str, Any] | XComArg, **kwargs: Any) -> None:
        super().__init__(**{"timeout": LONGEST_HOLD, **kwargs})
        self.claim = claim

    def check_mode(self) -> None:
        if self.reschedule:
            raise InvalidValue("mode", self.mode, "leave it out: a claim is held all the time, best by deferring")

    def execute(self, context: Context) -> Any:
        from jetstream_handoff.claim import Claim

        try:
            claim = Claim.from_json(cast("Mapping[str, Any]", self.claim)).to_json()
        except ClaimInvalid as invalid:
            raise AirflowFailException(str(invalid)) from brief(invalid)
        end = time.time() + self.timeout
        if self.deferrable:
            trigger = JetStreamHoldTrigger(self.nats_conn_id, claim, end)
            self.defer(trigger=trigger, method_name="resume", timeout=self.execution_timeout)
        with self.waiting():
            event = JetStreamHook(self.nats_conn_id).run(lambda js: hold_event(js, claim, max(1.0, end - time.time())))
        return self.resume(context, event)

    def resume(self, context: Context, event: dict[str, Any]) -> str:  # noqa: ARG002
        """The trigger's event: what was decided, a time-out or an error."""
        if event["status"] == "superseded":
            raise AirflowFailException(event["error"])
        self.check_event(event, f"the claim was not settled within {self.timeout:g} s")
        return str(event["status"])
