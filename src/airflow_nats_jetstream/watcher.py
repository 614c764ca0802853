"""The trigger of event-driven DAGs. Its class path is stored in databases: it stays where it is.

The event is a *notice*: there are messages to be claimed. It carries none, and nothing is pulled or acknowledged here;
the run that it starts has a sensor, which takes the claims. So it does not matter how often a notice is lost, repeated
or shared: whoever pulls first gets the messages, and the next request shows what is left.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Hashable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.template import duration
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_stream_name

if TYPE_CHECKING:
    from jetstream_handoff.backlog import Backlog

log = logging.getLogger(__name__)

POLL_INTERVAL = timedelta(seconds=5)
REMIND_AFTER = timedelta(minutes=15)
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between attempts while NATS is away


class JetStreamNoticeTrigger(BaseEventTrigger):
    """Notice that messages wait to be claimed: the trigger of an ``AssetWatcher``.

    stream, consumer:  where the sensor of the triggered DAG pulls. While the consumer is missing, any message of the
                       stream causes a notice: the first run's sensor creates the consumer.
    min_messages:      fewer cause no notice. Default 1.
    remind_after:      a notice that no pull has answered is repeated after it. Default 15 min.
    poll_interval:     how often the consumer's backlog is measured. Default 5 s.
    nats_conn_id:      the connection.

    Watchers of one consumer with the same connection and interval share one connection to NATS and one
    measurement (Airflow's shared streams). Durations are ``timedelta``, ISO 8601 (``PT15M``), or seconds.

    At most one notice of a watcher is unanswered. It is answered when messages were delivered, or when none are left;
    after that, messages that are left or new cause another one. While a pull request waits, there is no notice.

    The event's payload: ``stream``, ``consumer``, ``pending`` (messages to be claimed) and ``consumer_sequence``
    (deliveries so far).

    Raises:
        InvalidValue: when the DAG is parsed.
    """

    def __init__(
        self,
        stream: str,
        consumer: str,
        *,
        min_messages: int = 1,
        remind_after: timedelta | str | float = REMIND_AFTER,
        poll_interval: timedelta | str | float = POLL_INTERVAL,
        nats_conn_id: str = JetStreamHook.default_conn_name,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream = check_stream_name(stream)
        self.consumer = check_consumer_name(consumer)
        self.min_messages = min_messages
        self.remind_after = _seconds("remind_after", remind_after)
        self.poll_interval = _seconds("poll_interval", poll_interval)
        self.nats_conn_id = nats_conn_id
        if type(min_messages) is not int or min_messages < 1:
            raise InvalidValue("min_messages", min_messages, "give a whole number of 1 or more")

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("stream", "consumer", "min_messages", "remind_after", "poll_interval", "nats_conn_id")
        path = "airflow_nats_jetstream.watcher.JetStreamNoticeTrigger"
        return path, {name: getattr(self, name) for name in names}

    def shared_stream_key(self) -> Hashable:
        return ("jetstream", self.nats_conn_id, self.stream, self.consumer, self.poll_interval)

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Backlog]:
        """Measure the backlog again and again, for all watchers of the consumer. Never ends, never raises.

        Airflow restarts a failed watcher at once and without end. Here it waits: the Airflow connection may be
        corrected meanwhile, and is read again for every attempt.
        """
        from jetstream_handoff import backlog

        consumer, stream = kwargs["consumer"], kwargs["stream"]
        pause = _FIRST_PAUSE
        before: Backlog | None = None
        while True:
            try:
                async with JetStreamHook(kwargs["nats_conn_id"]).shared() as js:
                    while True:
                        async with js.connection.timeout(None):
                            seen = await backlog.measure(js, stream, consumer)
                        yield seen.steady(before)
                        before, pause = seen, _FIRST_PAUSE
                        await asyncio.sleep(kwargs["poll_interval"])
            except Exception as error:  # noqa: BLE001 - a missing connection, for one, is no error of ours
                name = type(error).__name__
                said = "the backlog of consumer %s of %s cannot be measured, trying again in %g s: %s: %s"
                log.warning(said, consumer, stream, pause, name, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Backlog]) -> AsyncIterator[TriggerEvent]:
        unanswered: int | None = None  # the deliveries until the last notice
        until = 0.0
        async for seen in shared_stream:
            if unanswered != seen.counter or not seen.count:
                unanswered = None  # somebody has pulled, or there is nothing left
            due = unanswered is None or time.monotonic() >= until
            if due and not seen.pulls and seen.count >= self.min_messages:
                unanswered, until = seen.counter, time.monotonic() + self.remind_after
                yield TriggerEvent(self._notice(seen))  # type: ignore[no-untyped-call]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Without Airflow's shared streams: the same, for this watcher alone."""
        async for event in self.filter_shared_stream(self.open_shared_stream(self.serialize()[1])):
            yield event

    def _notice(self, seen: Backlog) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "consumer": self.consumer,
            "pending": seen.count,
            "consumer_sequence": seen.counter,
        }


def _seconds(name: str, value: timedelta | str | float) -> float:
    seconds = duration(name, value).total_seconds() if isinstance(value, timedelta | str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.1 <= seconds < 10**9:
        raise InvalidValue(name, value, "give a duration of at least 0.1 s")
    return float(seconds)
