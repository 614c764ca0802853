# SPDX-License-Identifier: Apache-2.0
"""The trigger of event-driven DAGs. Its class path must not change, because Airflow's database stores it.

Its event is a *notice* that messages wait to be claimed. The notice contains no message, and the trigger pulls and
acknowledges nothing: the run that it starts has a sensor, which takes the claims. A notice that is lost, repeated or
shared therefore does no harm: the first sensor that pulls gets the messages, and the next measurement shows the
remaining messages.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Hashable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import airflow_nats_jetstream.airflow_version  # noqa: F401 - an older Airflow lacks what is imported next

# isort: split

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.template import duration, templated
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_stream_name
from jetstream_handoff.take.threshold import Threshold
from jetstream_handoff.watch.subjects import check_subjects

if TYPE_CHECKING:
    from airflow.sdk import Asset

    from jetstream_handoff.watch.backlog import Backlog

log = logging.getLogger(__name__)

POLL_INTERVAL = timedelta(seconds=5)
REMIND_AFTER = timedelta(minutes=15)
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds between attempts while NATS cannot be reached


def _mapping(subjects: Any) -> Any:
    """The filters of a trigger that the database contains, or of its caller."""
    if not isinstance(subjects, str):
        return subjects
    try:
        return json.loads(subjects)
    except ValueError:
        raise InvalidValue("subjects", subjects, "it must be a mapping, or one as JSON") from None


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
    subjects:       the filters of this and of other consumers of the stream that are watched together, by their names;
                    see :func:`watched_assets`. Also as JSON, which is how the trigger is stored. Default None: this
                    consumer alone.
    nats_conn_id:   the id of the Airflow connection. Default ``nats_default``.

    Watchers of one consumer, or of the same ``subjects``, with the same connection and interval share one connection to
    NATS and one measurement (Airflow's shared streams).

    A watcher has at most one unanswered notice. A notice is answered when messages have been delivered, or when none
    are left. After that, remaining or new messages cause another notice. No notice is given while a pull request waits
    at the consumer, because this request will get the messages.

    The payload of the event has ``stream``, ``consumer``, ``pending`` (the number of messages to claim),
    ``consumer_sequence`` (the number of deliveries so far) and, with ``subjects``, ``subject``, the consumer's filter.

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
        subjects: Mapping[str, str] | str | None = None,
        nats_conn_id: str = JetStreamHook.default_conn_name,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream = check_stream_name(stream)
        self.consumer = check_consumer_name(consumer)
        self.min_messages = min_messages
        self.max_wait = None if max_wait is None else interval("max_wait", max_wait)
        self.remind_after = interval("remind_after", remind_after)
        self.poll_interval = interval("poll_interval", poll_interval)
        self.subjects = None if subjects is None else check_subjects(_mapping(subjects))
        if self.subjects is not None and consumer not in self.subjects:
            raise InvalidValue("subjects", subjects, f"it must contain the filter of consumer {consumer!r}")
        if not isinstance(nats_conn_id, str) or templated(nats_conn_id):
            remedy = "give the id of an Airflow connection; Airflow renders no templates in a watcher"
            raise InvalidValue("nats_conn_id", nats_conn_id, remedy)
        self.nats_conn_id = nats_conn_id
        limit = None if self.max_wait is None else timedelta(seconds=self.max_wait)
        self._threshold = Threshold(min_messages, max_wait=limit)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("stream", "consumer", "min_messages", "remind_after", "poll_interval", "nats_conn_id")
        path = "airflow_nats_jetstream.watcher.JetStreamNoticeTrigger"
        values = {name: getattr(self, name) for name in names}
        # Only if used: an older release does not know them, and Airflow replaces a trigger whose values change.
        # As JSON: Airflow 3.2 does not decode a mapping when it reads its database.
        subjects = None if self.subjects is None else json.dumps(self.subjects)
        newer = {"max_wait": self.max_wait, "subjects": subjects}
        return path, {**values, **{name: value for name, value in newer.items() if value is not None}}

    def shared_stream_key(self) -> Hashable:
        watched = self.consumer if self.subjects is None else tuple(sorted(self.subjects.items()))
        of = ("jetstream", self.nats_conn_id, self.stream, watched, self.poll_interval)
        return of if self.max_wait is None else (*of, "max_wait")  # only these watchers need the oldest message

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Mapping[str, Backlog]]:
        """Measure the backlogs repeatedly, for all watchers of the consumers. This never ends and never raises an
        error. A consumer whose measurement fails is left out of the mapping.

        Airflow restarts a failed watcher at once, forever. This loop pauses instead, and reads the Airflow connection
        again for every attempt, because somebody may have corrected it.

        kwargs:  the parameters of one of the watchers.
        """
        from airflow_nats_jetstream.measuring import Measuring
        from jetstream_handoff.watch.hearing import Hearing

        stream, subjects = kwargs["stream"], _mapping(kwargs.get("subjects"))
        measuring = Measuring(stream, subjects or {kwargs["consumer"]: None}, oldest=kwargs.get("max_wait") is not None)
        pause = _FIRST_PAUSE
        while True:
            try:
                shared = JetStreamHook(kwargs["nats_conn_id"]).shared()
                async with shared as js, Hearing(js, stream) as hearing:
                    while True:
                        async with js.connection.timeout(None):
                            ready = await measuring.measure(js)
                        yield ready
                        pause = _FIRST_PAUSE
                        idle = not any(each.count or each.pulls for each in ready.values())
                        await hearing.wait(kwargs["poll_interval"], measuring.filters, idle=idle)
            except Exception as error:  # noqa: BLE001 - a missing connection, for example, is an exception of Airflow
                name = type(error).__name__
                said = "cannot measure the backlog of consumer %s of stream %s; the next attempt is in %g s (%s: %s)"
                log.warning(said, ", ".join(measuring.subjects), stream, pause, name, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Mapping[str, Backlog]]
    ) -> AsyncIterator[TriggerEvent]:
        """Yield the notices of this watcher.

        shared_stream:  the measurements for all watchers of the consumers.
        """
        unanswered: int | None = None  # the number of deliveries at the last notice, while it is unanswered
        until = 0.0
        async for measured in shared_stream:
            if (seen := measured.get(self.consumer)) is None:
                continue
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
        notice = {
            "stream": self.stream,
            "consumer": self.consumer,
            "pending": seen.count,
            "consumer_sequence": seen.counter,
        }
        return notice if self.subjects is None else {**notice, "subject": self.subjects[self.consumer]}


def watched_assets(
    *, server: str, stream: str, subjects: Mapping[str, str], name: str = "{stream}.{consumer}", **watcher: Any
) -> dict[str, Asset]:
    """Return an asset for each of several subject filters of a stream, all of which one watcher watches.

    Each filter belongs to a consumer, and the event of an asset says that messages of this consumer wait. The DAG that
    it starts takes them with a sensor for this consumer, whose ``consumer_config`` has the same ``filter_subject``. So
    the server sorts the messages, and each message belongs to exactly one asset.

    server:    the server of the assets' URIs, as ``host`` or ``host:port``.
    stream:    the name of the stream.
    subjects:  the filter of each consumer, by the consumer's name: ``{"orders_eu": "orders.eu.>"}``. No subject may
               match two of the filters.
    name:      the names of the assets, with ``{stream}``, ``{consumer}`` and ``{subject}``. No two assets may get the
               same name, because Airflow would use only one of them. Default: ``{stream}.{consumer}``.
    watcher:   parameters of :class:`JetStreamNoticeTrigger` that are the same for all of them.

    If a consumer exists and selects other subjects than its filter, no event is given for it, and the triggerer's log
    says so. Messages in the stream that no filter selects are named in the triggerer's log, too.

    Raises:
        InvalidValue: an invalid parameter, overlapping filters, or two assets of one name. Raised when the DAG is
            parsed.
    """
    from airflow.sdk import AssetWatcher

    from airflow_nats_jetstream.assets import create_asset

    found = check_subjects(subjects)
    names = _names(name, stream, found)
    triggers = {each: JetStreamNoticeTrigger(stream, each, subjects=found, **watcher) for each in found}
    return {
        each: create_asset(
            server=server,
            stream=stream,
            subject=subject,
            name=names[each],
            watchers=[AssetWatcher(name=each, trigger=triggers[each])],
        )
        for each, subject in found.items()
    }


def _names(name: str, stream: str, subjects: Mapping[str, str]) -> dict[str, str]:
    """Return the names of the assets by their consumers. Raises InvalidValue."""
    try:
        names = {each: name.format(stream=stream, consumer=each, subject=subjects[each]) for each in subjects}
    except (AttributeError, LookupError, ValueError):
        remedy = "give a string in which only {stream}, {consumer} and {subject} are in braces"
        raise InvalidValue("name", name, remedy) from None
    if len(set(names.values())) < len(names):
        both = next(each for each in names.values() if list(names.values()).count(each) > 1)
        remedy = f"several assets would have the name {both!r}; let it contain {{consumer}} or {{subject}}"
        raise InvalidValue("name", name, remedy)
    return names


def interval(name: str, value: timedelta | str | float) -> float:
    """Return the seconds of a parameter that is a duration. Raises InvalidValue.

    name:   the name of the parameter.
    value:  a ``timedelta``, an ISO 8601 string, or seconds.
    """
    seconds = duration(name, value).total_seconds() if isinstance(value, timedelta | str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.1 <= seconds < 10**9:
        raise InvalidValue(name, value, "give a duration of at least 0.1 s and less than 1,000,000,000 s")
    return float(seconds)
