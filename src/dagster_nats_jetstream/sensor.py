# SPDX-License-Identifier: Apache-2.0
"""The sensor that requests runs: it looks at what could be claimed, and never pulls."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_nats_jetstream import runs
from dagster_nats_jetstream.partitions import check_partitions, consumer_of, filter_of, keys_of, token_of
from jetstream_client.names import check_consumer_name, check_stream_name
from jetstream_client.quantities import check_count
from jetstream_handoff.watch import backlog
from jetstream_handoff.watch.backlog import Backlog, Look

if TYPE_CHECKING:
    from dagster_nats_jetstream.resource import JetStreamResource
    from jetstream_client.context import JetStream

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
    subject, partitions_def:   as in ``claimed_asset``: look at the consumer of each partition. With dynamic partitions,
                               the partitions are the tokens of the stream's subjects, and new ones are added. Tokens
                               that cannot be partitions are logged, with the number of their messages.
    max_runs:                  the largest number of runs that one tick requests. Partitions that were left out come
                               first in the next tick. Default 100.
    minimum_interval_seconds:  how often to look. Default 30 s.
    resource:                  the key of the resource. Default ``jetstream``.
    sensor:                    other parameters of ``@dg.sensor``, such as ``default_status``.

    The requested run pulls. Until it has pulled, or has ended, no other run is requested for the same messages. Claims
    that are open although the runs of their group have ended are taken over by the requested run.

    Raises:
        InvalidValue: a parameter is invalid. Raised when the code location is loaded.
    """
    check_stream_name(stream)
    check_consumer_name(consumer)
    check_count("min_messages", min_messages)
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
        looks = _looks(context, jetstream, stream, places)
        ended = runs.ended(context.instance, {owner for each in looks.values() for owner in each.owners})
        before, after = Cursor.from_json(context.cursor), {}
        wanted: dict[str, dg.RunRequest] = {}
        for place, seen in looks.items():
            waits = seen.backlog(ended.__contains__)
            if waits.ack_pending:  # otherwise no message can wait to be redelivered, for which alone this is kept
                after[place] = waits
            count = waits.steady(before.seen.get(place)).count
            if count < min_messages and not waits.orphans:
                reasons.append(f"{place or consumer}: {count} of {min_messages} messages wait")
                continue
            request = f"{title}/{place}/{waits.created}/{waits.counter}"
            if waits.orphans:  # a run that takes these claims over does not pull, so the counter stays
                request += f"/{hashlib.sha256(json.dumps(waits.orphans).encode()).hexdigest()[:8]}"
            if request in pulling:
                reasons.append(f"{place or consumer}: a run was requested that has not pulled yet")
                continue
            tags = {runs.REQUEST: request, **runs.take_over(waits.orphans)}
            wanted[place] = dg.RunRequest(partition_key=place or None, tags=tags)
        turns = before.turns(wanted)
        if left := turns[max_runs:]:
            text = "%d more partitions need a run; their turn comes first in the next ticks (max_runs=%d)"
            context.log.info(text, len(left), max_runs)
        unseen = [place for place in before.left if place in places and place not in looks]
        return dg.SensorResult(
            run_requests=[wanted[place] for place in turns[:max_runs]],
            skip_reason=None if wanted else dg.SkipReason(_summary(reasons)),
            cursor=Cursor((*unseen, *left), after).to_json(),
            dynamic_partitions_requests=added,
        )

    return look


@dataclass(frozen=True)
class Cursor:
    """What a tick leaves to the next one.

    left:  the partitions that need a run and were left out, those that have waited longest first.
    seen:  the counters of each partition with unacknowledged messages.
    """

    left: Sequence[str] = ()
    seen: Mapping[str, Backlog] = field(default_factory=dict)

    def turns(self, wanted: Iterable[str]) -> list[str]:
        """Return the partitions in the order in which they get a run. So each one that is left out moves up."""
        order = {place: number for number, place in enumerate(self.left)}
        return sorted(wanted, key=lambda place: order.get(place, len(order)))

    def to_json(self) -> str:
        counters = {
            place: [each.created, each.counter, each.floor, each.ack_pending] for place, each in self.seen.items()
        }
        return json.dumps({"left": self.left, "seen": counters})

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
            return cls([str(place) for place in value.get("left", ())], seen)
        except (AttributeError, TypeError, ValueError, RecursionError):
            return cls()


def _looks(
    context: dg.SensorEvaluationContext,
    jetstream: JetStreamResource,
    stream: str,
    places: Mapping[str, tuple[str, str | None]],
) -> dict[str, Look]:
    """Look at the consumer of each partition. A partition that cannot be looked at is logged and left out.

    places:  the name and the filter of each partition's consumer.

    Raises:
        JetStreamError: no partition can be looked at.
    """

    async def looked(js: JetStream) -> list[Look | BaseException]:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def one(name: str, only: str | None) -> Look:
            async with slots:
                return await backlog.look(js, stream, name, only)

        return await asyncio.gather(*(one(*each) for each in places.values()), return_exceptions=True)

    found = dict(zip(places, jetstream.run(looked), strict=True))
    errors = {place: each for place, each in found.items() if isinstance(each, BaseException)}
    for place, error in errors.items():  # one partition must not keep the others from being processed
        if len(errors) == len(found):
            raise error
        context.log.error("partition %s: %s", place, error)
    return {place: each for place, each in found.items() if isinstance(each, Look)}


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
