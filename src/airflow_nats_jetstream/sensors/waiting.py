"""What the sensors share: how they are killed while they wait in a worker, and what a trigger's event means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.links import JetStreamLink
from jetstream_client.errors import InvalidValue, JetStreamError


class JetStreamSensor(BaseSensorOperator):
    """A sensor that waits in the triggerer, or in the worker."""

    ui_color = "#375c93"
    ui_fgcolor = "#ffffff"
    operator_extra_links = (JetStreamLink(),)
    _waiting = False

    def __init__(
        self, *, deferrable: bool = True, nats_conn_id: str = JetStreamHook.default_conn_name, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        self.nats_conn_id = nats_conn_id
        self.check_mode()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While it waits in the worker, :meth:`on_kill` ends it."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    def on_kill(self) -> None:
        """Stop waiting in the worker; what was taken and not handed on goes back.

        Airflow calls it in the waiting thread, out of the signal's handler: raising is what ends the wait.
        """
        if self._waiting:
            raise JetStreamError("killed while waiting")

    def check_mode(self) -> None:
        """Raises InvalidValue for a mode that makes no difference to a sensor that defers."""
        if self.deferrable and self.reschedule:
            remedy = "leave it out, as a deferred sensor needs no worker at all; or give deferrable=False, too"
            raise InvalidValue("mode", self.mode, remedy)

    def check_event(self, event: dict[str, Any], timed_out: str) -> None:
        """Raises what the event of a trigger says: an error, or a time-out in these words."""
        if event["status"] == "error":
            raise JetStreamError(event["error"])
        if event["status"] == "timeout":
            raise AirflowSkipException(timed_out) if self.soft_fail else AirflowSensorTimeout(timed_out)
