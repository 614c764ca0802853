# SPDX-License-Identifier: Apache-2.0
"""The trigger of event-driven DAGs. Its class path must not change, because Airflow's database stores it.

Its event is a *notice* that messages wait to be claimed. The notice contains no message, and the trigger pulls and
acknowledges nothing: the run that it starts has a sensor, which takes the claims. A notice that is lost, repeated or
shared therefore does no harm: the first sensor that pulls gets the messages, and the next measurement shows the
remaining messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Hashable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import airflow_nats_jetstream.airflow_version  # noqa: F401 - an older Airflow lacks what is imported next

# isort: split

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.template import duration
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_stream_name
from jetstream_handoff.take.threshold import Threshold

if TYPE_CHECKING:
    from jetstream_handoff.watch.backlog import Backlog

log = logging.getLogger(__name__)

POLL_INTERVAL = timedelta(seconds=5)
REMIND_AFTER = timedelta(minutes=15)
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between attempts while NATS cannot be reached


class JetStreamNoticeTrigger(BaseEventTrigger):
    """Give notice that messages wait to be claimed. This is the trigger of an ``AssetWatcher``.

    stream:         the name of the stream that the sensor of the triggered DAG pulls from.
    consumer:       the name of the consumer that the sensor pulls from. While the consumer does not exist, all messages
                    of the stream count, because the sensor of the first run creates the consumer.
    min_messages:   the smallest number of messages that causes a notice. Default 1.
    max_wait:       fewer messages cause a notice, too, when the stream stored the oldest of them this long ago: a
                    ``timedelta``, an ISO 8601 string such as ``PT10M``, or seconds. The user of the connection must be
                    permitted to read the stream; otherwise the time counts from when this watcher first sees the
                    message. Default None: no limit.
    remind_after:   how long a notice may remain unanswered before it is repeated: a ``timedelta``, an ISO 8601 string
                    such as ``PT15M``, or seconds. Default 15 minutes.
    poll_interval:  the longest time between two measurements of the consumer's backlog, in the same forms. A message
                    that is published while none waits causes a measurement at once, if the user of the connection is
                    permitted to subscribe to its subject. Default 5 s.
    nats_conn_id:   the id of the Airflow connection. Default ``nats_default``.

    Watchers of one consumer with the same connection and interval share one connection to NATS and one measurement
    (Airflow's shared streams).

    A watcher has at most one unanswered notice. A notice is answered when messages have been delivered, or when none
    are left. After that, remaining or new messages cause another notice. No notice is given while a pull request waits
    at the consumer, because this request will get the messages.

    The payload of the event has ``stream``, ``consumer``, ``pending`` (the number of messages to claim) and
    ``consumer_sequence`` (the number of deliveries so far).

    Raises:
        InvalidValue: an invalid parameter. Raised when the DAG is parsed.
    """

    def __init__(
        self,
        stream: str,
        consumer: str,
        *,
        min_messages: int = 1,
        max_wait: timedelta | str | float | None = None,
        remind_after: timedelta | str | float = REMIND_AFTER,
        poll_interval: timedelta | str | float = POLL_INTERVAL,
        nats_conn_id: str = JetStreamHook.default_conn_name,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream = check_stream_name(stream)
        self.consumer = check_consumer_name(consumer)
        self.min_messages = min_messages
        self.max_wait = None if max_wait is None else interval("max_wait", max_wait)
        self.remind_after = interval("remind_after", remind_after)
        self.poll_interval = interval("poll_interval", poll_interval)
        self.nats_conn_id = nats_conn_id
        limit = None if self.max_wait is None else timedelta(seconds=self.max_wait)
        self._threshold = Threshold(min_messages, max_wait=limit)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("stream", "consumer", "min_messages", "remind_after", "poll_interval", "nats_conn_id")
        path = "airflow_nats_jetstream.watcher.JetStreamNoticeTrigger"
        values = {name: getattr(self, name) for name in names}
        # Only if it is used: an older release does not know it, and Airflow replaces a trigger whose values change.
        return path, values if self.max_wait is None else {**values, "max_wait": self.max_wait}

    def shared_stream_key(self) -> Hashable:
        of = ("jetstream", self.nats_conn_id, self.stream, self.consumer, self.poll_interval)
        return of if self.max_wait is None else (*of, "max_wait")  # only these watchers need the oldest message

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Backlog]:
        """Measure the backlog repeatedly, for all watchers of the consumer. This never ends and never raises an error.

        Airflow restarts a failed watcher at once, forever. This loop pauses instead, and reads the Airflow connection
        again for every attempt, because somebody may have corrected it.

        kwargs:  the parameters of one of the watchers.
        """
        from jetstream_handoff.watch import backlog, oldest
        from jetstream_handoff.watch.hearing import Hearing

        consumer, stream = kwargs["consumer"], kwargs["stream"]
        pause = _FIRST_PAUSE
        before: Backlog | None = None
        first: oldest.Oldest | None = None
        while True:
            try:
                shared = JetStreamHook(kwargs["nats_conn_id"]).shared()
                async with shared as js, Hearing(js, stream) as hearing:
                    while True:
                        async with js.connection.timeout(None):
                            look = await backlog.look(js, stream, consumer)
                            seen = look.backlog(backlog.unknown)
                            ready = seen.steady(before)
                            if kwargs.get("max_wait") is not None:
                                first = await oldest.find(
                                    js, stream, look=look, ready=ready, ended=backlog.unknown, before=first
                                )
                                ready = replace(ready, waited=first.waited(look.now) if first else 0.0)
                        yield ready
                        before, pause = seen, _FIRST_PAUSE
                        idle = not ready.count and not ready.pulls
                        await hearing.wait(kwargs["poll_interval"], look.filters, idle=idle)
            except Exception as error:  # noqa: BLE001 - a missing connection, for example, is an exception of Airflow
                name = type(error).__name__
                said = "cannot measure the backlog of consumer %s of stream %s; the next attempt is in %g s (%s: %s)"
                log.warning(said, consumer, stream, pause, name, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Backlog]) -> AsyncIterator[TriggerEvent]:
        """Yield the notices of this watcher.

        shared_stream:  the measurements for all watchers of the consumer.
        """
        unanswered: int | None = None  # the number of deliveries at the last notice, while it is unanswered
        until = 0.0
        async for seen in shared_stream:
            if unanswered != seen.counter or not seen.count:
                unanswered = None  # answered: messages were delivered, or none are left
            due = unanswered is None or time.monotonic() >= until
            if due and not seen.pulls and self._threshold.enough(seen.count, 0, seen.waited):
                if self.max_wait is not None:
                    why = self._threshold.said(seen.count, None, seen.waited)
                    log.info("notice for consumer %s of stream %s: %s", self.consumer, self.stream, why)
                unanswered, until = seen.counter, time.monotonic() + self.remind_after
                yield TriggerEvent(self._notice(seen))  # type: ignore[no-untyped-call]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield the notices of this watcher alone, when Airflow does not use a shared stream."""
        async for event in self.filter_shared_stream(self.open_shared_stream(self.serialize()[1])):
            yield event

    def _notice(self, seen: Backlog) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "consumer": self.consumer,
            "pending": seen.count,
            "consumer_sequence": seen.counter,
        }


def interval(name: str, value: timedelta | str | float) -> float:
    """Return the seconds of a parameter that is a duration. Raises InvalidValue.

    name:   the name of the parameter.
    value:  a ``timedelta``, an ISO 8601 string, or seconds.
    """
    seconds = duration(name, value).total_seconds() if isinstance(value, timedelta | str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.1 <= seconds < 10**9:
        raise InvalidValue(name, value, "give a duration of at least 0.1 s and less than 1,000,000,000 s")
    return float(seconds)
