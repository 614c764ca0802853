# SPDX-License-Identifier: Apache-2.0
"""The sensor that requests runs: it looks at what could be claimed, and never pulls."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import dagster as dg

from dagster_nats_jetstream import runs
from dagster_nats_jetstream.partitions import check_partitions, consumer_of, filter_of, keys_of, token_of
from jetstream_client.names import check_consumer_name, check_stream_name
from jetstream_client.quantities import check_count
from jetstream_handoff.take.threshold import Threshold
from jetstream_handoff.watch import backlog
from jetstream_handoff.watch.backlog import Backlog
from jetstream_handoff.watch.oldest import Oldest, find

if TYPE_CHECKING:
    from dagster_nats_jetstream.resource import JetStreamResource
    from jetstream_client.context import JetStream

Answer = TypeVar("Answer")

_AT_ONCE = 250
"""How many consumers are looked at at the same time. Each request has its time-out from the moment it is sent."""
_SHOWN = 10
"""How many partitions the reason of a skipped tick names."""


def jetstream_sensor(
    *,
    stream: str,
    consumer: str,
    target: Any,
    name: str | None = None,
    min_messages: int = 1,
    max_wait: timedelta | None = None,
    subject: str | None = None,
    partitions_def: dg.PartitionsDefinition[str] | None = None,
    max_runs: int = 100,
    minimum_interval_seconds: int = 30,
    resource: str = "jetstream",
    **sensor: Any,
) -> dg.SensorDefinition:
    """Return a sensor that requests a run of ``target`` while messages of a consumer wait.

    stream, consumer:          the names of the stream and of the consumer, as in ``target``.
    target:                    the assets or the job to run, as ``target`` of ``@dg.sensor``.
    name:                      the name of the sensor. Default ``<stream>_<consumer>``, in lower case.
    min_messages:              request a run when at least this many messages wait. Default 1.
    max_wait:                  request a run for fewer messages, too, when the stream stored the oldest of them this
                               long ago, at least a second. The user of the resource must be permitted to read the
                               stream; otherwise the time counts from the tick that first sees the message. Default
                               None: no limit.
    subject, partitions_def:   as in ``claimed_asset``: look at the consumer of each partition. With dynamic partitions,
                               the partitions are the tokens of the stream's subjects, and new ones are added. Tokens
                               that cannot be partitions are logged, with the number of their messages.
    max_runs:                  the largest number of runs that one tick requests. Partitions that were left out come
                               first in the next tick. Default 100.
    minimum_interval_seconds:  how often to look. Default 30 s.
    resource:                  the key of the resource. Default ``jetstream``.
    sensor:                    other parameters of ``@dg.sensor``, such as ``default_status``.

    The requested run pulls. Until it has pulled, or has ended, no other run is requested for the same messages. Claims
    that are open although the runs of their group have ended are taken over by the requested run. While the claims of a
    batch with ``ordered_by`` are at work, no run is requested, because it could take nothing; the reason of the skipped
    tick names these claims.

    Raises:
        InvalidValue: a parameter is invalid. Raised when the code location is loaded.
    """
    check_stream_name(stream)
    check_consumer_name(consumer)
    threshold = Threshold(min_messages, max_wait=max_wait)
    check_count("max_runs", max_runs)
    check_partitions(consumer, subject, partitions_def)
    title = name or re.sub("[^a-z0-9]", "_", f"{stream}_{consumer}".lower())

    @dg.sensor(
        name=title,
        target=target,
        minimum_interval_seconds=minimum_interval_seconds,
        required_resource_keys={resource},
        **sensor,
    )
    def look(context: dg.SensorEvaluationContext, **_: Any) -> dg.SensorResult:  # a direct call passes the resources
        jetstream: JetStreamResource = getattr(context.resources, resource)
        keys, added, reasons = _partitions(
            context, jetstream, stream, consumer, subject=subject, defined=partitions_def
        )
        places = {key or "": _consumer(consumer, subject, key) for key in keys}
        pulling = runs.requested(context.instance, title)  # before the look: a run that pulls now changes the counter
        looks = _each(
            context,
            jetstream,
            places,
            {
                place: partial(backlog.look, stream=stream, consumer=of, subject=only)
                for place, (of, only) in places.items()
            },
        )
        ended = runs.ended(context.instance, {owner for each in looks.values() for owner in each.owners})
        before, after = Cursor.from_json(context.cursor), {}
        ready: dict[str, Backlog] = {}
        for place, seen in looks.items():
            waits = seen.backlog(ended.__contains__)
            if waits.ack_pending:  # otherwise no message can wait to be redelivered, for which alone this is kept
                after[place] = waits
            ready[place] = waits.steady(before.seen.get(place))
        few = {place: each for place, each in ready.items() if max_wait and 0 < each.count < min_messages}
        of_stream = partial(find, stream=stream, ended=ended.__contains__)
        requests = {
            place: partial(of_stream, look=looks[place], ready=each, before=before.oldest.get(place))
            for place, each in few.items()
        }
        found = _each(context, jetstream, places, requests)
        oldest = {place: each for place, each in found.items() if each is not None}
        wanted: dict[str, dg.RunRequest] = {}
        for place, waits in ready.items():
            waited = oldest[place].waited(looks[place].now) if place in oldest else 0.0
            if not threshold.enough(waits.count, 0, waited) and not waits.orphans:
                reasons.append(f"{place or consumer}: {threshold.waiting(waits.count, waited)}")
                continue
            if not waits.orphans and (barrier := looks[place].barrier(ended.__contains__)):
                reasons.append(f"{place or consumer}: {barrier.text}")
                continue
            request = _request(f"{title}/{place}", waits)
            if request in pulling:
                reasons.append(f"{place or consumer}: a run was requested that has not pulled yet")
                continue
            tags = {runs.REQUEST: request, **runs.take_over(waits.orphans)}
            wanted[place] = dg.RunRequest(partition_key=place or None, tags=tags)
            if max_wait and threshold.enough(waits.count, 0, waited):
                context.log.info("%s: %s", place or consumer, threshold.said(waits.count, None, waited))
        turns = before.turns(wanted)
        if left := turns[max_runs:]:
            text = "%d more partitions need a run; their turn comes first in the next ticks (max_runs=%d)"
            context.log.info(text, len(left), max_runs)
        unseen = [place for place in before.left if place in places and place not in looks]
        return dg.SensorResult(
            run_requests=[wanted[place] for place in turns[:max_runs]],
            skip_reason=None if wanted else dg.SkipReason(_summary(reasons)),
            cursor=Cursor((*unseen, *left), after, oldest).to_json(),
            dynamic_partitions_requests=added,
        )

    return look


@dataclass(frozen=True)
class Cursor:
    """What a tick leaves to the next one.

    left:  the partitions that need a run and were left out, those that have waited longest first.
    seen:  the counters of each partition with unacknowledged messages.
    oldest:  the oldest message of each partition with too few messages, with ``max_wait``.
    """

    left: Sequence[str] = ()
    seen: Mapping[str, Backlog] = field(default_factory=dict)
    oldest: Mapping[str, Oldest] = field(default_factory=dict)

    def turns(self, wanted: Iterable[str]) -> list[str]:
        """Return the partitions in the order in which they get a run. So each one that is left out moves up."""
        order = {place: number for number, place in enumerate(self.left)}
        return sorted(wanted, key=lambda place: order.get(place, len(order)))

    def to_json(self) -> str:
        counters = {
            place: [each.created, each.counter, each.floor, each.ack_pending] for place, each in self.seen.items()
        }
        oldest = {place: each.to_json() for place, each in self.oldest.items()}
        return json.dumps({"left": self.left, "seen": counters, **({"oldest": oldest} if oldest else {})})

    @classmethod
    def from_json(cls, cursor: str | None) -> Cursor:
        """Read a cursor. Of a cursor of something else, nothing: then messages that wait to be redelivered count one
        tick later."""
        try:
            value = json.loads(cursor or "{}")
            seen = {
                place: Backlog(0, created=created, counter=counter, floor=floor, ack_pending=ack_pending)
                for place, (created, counter, floor, ack_pending) in value.get("seen", {}).items()
            }
            oldest = {place: Oldest.from_json(each) for place, each in value.get("oldest", {}).items()}
            return cls([str(place) for place in value.get("left", ())], seen, oldest)
        except (AttributeError, TypeError, ValueError, RecursionError):
            return cls()


def _each(
    context: dg.SensorEvaluationContext,
    jetstream: JetStreamResource,
    places: Collection[str],
    requests: Mapping[str, Callable[[JetStream], Awaitable[Answer]]],
) -> dict[str, Answer]:
    """Return the answer to each partition's request. A partition whose request fails is logged and left out.

    places:  all partitions.

    Raises:
        JetStreamError: the requests of all partitions fail.
    """
    if not requests:
        return {}

    async def sent(js: JetStream) -> list[Answer | BaseException]:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(request: Callable[[JetStream], Awaitable[Answer]]) -> Answer:
            async with slots:
                return await request(js)

        return await asyncio.gather(*map(one, requests.values()), return_exceptions=True)

    found = dict(zip(requests, jetstream.run(sent), strict=True))
    errors = {place: each for place, each in found.items() if isinstance(each, BaseException)}
    for place, error in errors.items():  # one partition must not keep the others from being processed
        if len(errors) == len(places):
            raise error
        context.log.error("partition %s: %s", place, error)
    return {place: each for place, each in found.items() if not isinstance(each, BaseException)}


def _request(of: str, waits: Backlog) -> str:
    """Return the tag of a run that is requested for these messages.

    of:  the sensor and the partition.
    """
    request = f"{of}/{waits.created}/{waits.counter}"
    if waits.orphans:  # a run that takes these claims over does not pull, so the counter stays
        request += f"/{hashlib.sha256(json.dumps(waits.orphans).encode()).hexdigest()[:8]}"
    return request


def _consumer(consumer: str, subject: str | None, key: str | None) -> tuple[str, str | None]:
    """Return the name and the filter of a partition's consumer."""
    return (consumer, None) if key is None else (consumer_of(consumer, key), filter_of(subject, token_of(key)))


def _summary(reasons: Sequence[str]) -> str:
    """Return the reasons why no run is requested."""
    return _some(reasons, "partitions") or "the stream has no partitions"


def _some(texts: Sequence[str], what: str) -> str:
    """Join at most :data:`_SHOWN` texts, because each tick is stored."""
    more = [f"and {len(texts) - _SHOWN} more {what}"] if len(texts) > _SHOWN else []
    return "; ".join([*texts[:_SHOWN], *more])


def _partitions(
    context: dg.SensorEvaluationContext,
    jetstream: JetStreamResource,
    stream: str,
    consumer: str,
    *,
    subject: str | None,
    defined: dg.PartitionsDefinition[str] | None,
) -> tuple[list[str | None], list[Any], list[str]]:
    """Return the partitions to look at, or None alone without partitions, the requests to add new ones, and the
    reason why some tokens are not partitions, which is also logged."""
    if subject is None or defined is None:
        return [None], [], []
    if not isinstance(defined, dg.DynamicPartitionsDefinition):
        return list(defined.get_partition_keys()), [], []

    async def subjects(js: JetStream) -> Mapping[str, int]:
        info = await js.stream(stream).info(subjects_filter=filter_of(subject, "*"))
        return info.state.get("subjects") or {}

    keys, refused = keys_of(jetstream.run(subjects), subject, consumer)
    known = set(context.instance.get_dynamic_partitions(str(defined.name)))
    new = [key for key in keys if key not in known]
    reasons = []
    if refused:
        some = (
            f"{len(refused)} tokens of the subjects of stream {stream} cannot be partitions: {_some(refused, 'tokens')}"
        )
        context.log.warning("%s. Publish such messages on other subjects, or process them with another asset", some)
        reasons = [some]
    return [*keys], [defined.build_add_request(new)] if new else [], reasons
