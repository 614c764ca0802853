# SPDX-License-Identifier: Apache-2.0
"""The base of the sensors. It ends the wait of a sensor that is killed in a worker, and checks the trigger's event."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow.sdk import BaseSensorOperator

from airflow_nats_jetstream.compat import AirflowSensorTimeout, AirflowSkipException
from airflow_nats_jetstream.errors import reported
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.links import JetStreamLink
from airflow_nats_jetstream.template import yes_or_no
from jetstream_client.errors import InvalidValue, JetStreamError


class JetStreamSensor(BaseSensorOperator):
    """Base of the sensors that wait in the triggerer, or in a worker.

    deferrable:    whether to wait in the triggerer (True, the default) or in a worker (False).
    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. (templated)
    """

    ui_color = "#375c93"
    ui_fgcolor = "#ffffff"
    operator_extra_links = (JetStreamLink(),)
    _waiting = False

    def __init__(
        self, *, deferrable: bool = True, nats_conn_id: str = JetStreamHook.default_conn_name, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = yes_or_no("deferrable", deferrable)
        self.nats_conn_id = nats_conn_id
        self.check_mode()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Return a context manager for waiting in the worker: inside it, :meth:`on_kill` ends the wait."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    def on_kill(self) -> None:
        """Stop waiting in the worker. Everything that was taken and not handed on is released.

        Airflow calls this in the waiting thread, from the signal's handler, so an exception ends the wait.
        """
        if self._waiting:
            raise JetStreamError("the task was killed while it waited")

    def check_mode(self) -> None:
        """Raise InvalidValue for ``mode="reschedule"`` of a deferrable sensor, on which it has no effect."""
        if self.deferrable and self.reschedule:
            remedy = "leave mode out, because a deferred sensor occupies no worker; or keep it and set deferrable=False"
            raise InvalidValue("mode", self.mode, remedy)

    def check_event(self, event: dict[str, Any], timed_out: str) -> None:
        """Raise the error or the time-out that a trigger's event reports.

        event:      the payload of the event.
        timed_out:  the message of the exception for a time-out.

        Raises:
            JetStreamError: the event reports an error. The type is that of the error in the trigger.
            AirflowSkipException: the event reports a time-out, and the sensor has ``soft_fail``.
            AirflowSensorTimeout: the event reports a time-out.
        """
        if event["status"] == "error":
            raise reported(event)
        if event["status"] == "timeout":
            raise AirflowSkipException(timed_out) if self.soft_fail else AirflowSensorTimeout(timed_out)
