# SPDX-License-Identifier: Apache-2.0
"""The trigger that reports the lag of all consumers as metrics. Its class path must not change, because Airflow's
database stores it.

It starts no run. It is the trigger of an ``AssetWatcher`` because Airflow runs each of these in exactly one triggerer,
all the time, and in another one when that triggerer dies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import airflow_nats_jetstream.airflow_version  # noqa: F401 - an older Airflow lacks what is imported next

# isort: split

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.signals import instruments
from airflow_nats_jetstream.watcher import interval

if TYPE_CHECKING:
    from jetstream_handoff.watch.view import Overview

log = logging.getLogger(__name__)

EVERY = timedelta(seconds=30)


class JetStreamLagTrigger(BaseEventTrigger):
    """Report the lag of every consumer that the ledger of a connection knows, as Airflow's metrics. Give it to an
    ``AssetWatcher`` of an asset in the schedule of a DAG that is not paused. It never starts a run.

    nats_conn_id:  the id of the Airflow connection. Default ``nats_default``. Its user needs the permissions of the
                   command line, and for the age of messages also the permission to read the streams.
    every:         the time between two looks, at least 0.1 s: a ``timedelta``, an ISO 8601 string such as ``PT30S``, or
                   seconds. Default 30 s.

    docs/monitoring.md lists the metrics. A look that fails is counted and logged, and the next one follows as usual.

    Raises:
        InvalidValue: an invalid parameter. Raised when the DAG is parsed.
    """

    def __init__(
        self,
        nats_conn_id: str = JetStreamHook.default_conn_name,
        *,
        every: timedelta | str | float = EVERY,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.nats_conn_id = nats_conn_id
        self.every = interval("every", every)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        values = {"nats_conn_id": self.nats_conn_id, "every": self.every}
        return "airflow_nats_jetstream.lag.JetStreamLagTrigger", values

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look again and again, and report. This never ends, raises no error, and yields no event: Airflow restarts a
        failed watcher at once, forever."""
        known: Collection[instruments.Names] = ()
        async for overview in self.looks():
            known = instruments.lagging(overview, self.nats_conn_id, known)
            for never in tuple[TriggerEvent]():
                yield never

    async def looks(self) -> AsyncIterator[Overview]:
        """Yield what each look has seen. A look that fails is logged and counted. The Airflow connection is read again
        after each, because somebody may have corrected it."""
        from jetstream_handoff.watch.overview import Survey

        while True:
            try:
                async with JetStreamHook(self.nats_conn_id).shared() as js:
                    survey = Survey(js, ages=True)
                    while True:
                        async with js.connection.timeout(None):
                            overview = await survey.look()
                        yield overview
                        await asyncio.sleep(self.every)
            except Exception as error:  # noqa: BLE001 - a missing connection, for example, is an exception of Airflow
                instruments.not_looked(self.nats_conn_id)
                said = "the lag of the consumers of connection %s is unknown; the next attempt is in %g s (%s: %s)"
                log.warning(said, self.nats_conn_id, self.every, type(error).__name__, error)
            await asyncio.sleep(self.every)
