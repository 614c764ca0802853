# SPDX-License-Identifier: Apache-2.0
"""The sensor that requests runs: it looks at what could be claimed, and never pulls."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_nats_jetstream import runs
from dagster_nats_jetstream.partitions import check_partitions, consumer_of, filter_of, keys_of
from jetstream_client.names import check_consumer_name, check_stream_name
from jetstream_client.quantities import check_count
from jetstream_handoff.backlog import Backlog, measure

if TYPE_CHECKING:
    from dagster_nats_jetstream.resource import JetStreamResource
    from jetstream_client.context import JetStream

SILENT = timedelta(minutes=15)
"""How long a run may take to pull, unless it is queued. After that it counts as dead, whatever its status says:
with Dagster's default run launcher, only the code server that launched a run notices that its process was killed."""
REQUEST = "jetstream/request"
"""The tag of a requested run: the sensor, the partition, and the consumer's life and number of deliveries."""
_RUN_KEY = "dagster/run_key"
_NEWEST = 100
"""How many of the runs for the same messages are looked at: their retries, and runs that ended without pulling."""


def jetstream_sensor(
    *,
    stream: str,
    consumer: str,
    target: Any,
    name: str | None = None,
    min_messages: int = 1,
    subject: str | None = None,
    partitions_def: dg.PartitionsDefinition[str] | None = None,
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
                               the partitions are the tokens of the stream's subjects, and new ones are added.
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
        keys, added = _partitions(context, jetstream, stream, consumer, subject=subject, defined=partitions_def)
        ended = runs.has_ended(context.instance)

        async def measured(js: JetStream) -> list[Backlog | BaseException]:
            places = [
                (consumer, None) if key is None else (consumer_of(consumer, key), filter_of(subject, key))
                for key in keys
            ]
            looks = (measure(js, stream, name, ended, subject=only) for name, only in places)
            return await asyncio.gather(*looks, return_exceptions=True)

        before, after = _earlier(context.cursor), {}
        requests: list[dg.RunRequest] = []
        reasons: list[str] = []
        backlogs = jetstream.run(measured)
        errors = [each for each in backlogs if isinstance(each, BaseException)]
        if errors and len(errors) == len(backlogs):
            raise errors[0]
        for key, backlog in zip(keys, backlogs, strict=True):
            place = key or ""
            if isinstance(backlog, BaseException):  # one partition must not keep the others from being processed
                context.log.error("partition %s: %s", place, backlog)
                continue
            after[place] = [backlog.created, backlog.counter, backlog.floor, backlog.ack_pending]
            waiting = backlog.steady(before.get(place))
            if waiting.count < min_messages and not backlog.orphans:
                reasons.append(f"{place or consumer}: {waiting.count} of {min_messages} messages wait")
                continue
            key_of_run = f"{title}/{place}/{backlog.created}/{backlog.counter}"
            if backlog.orphans:  # a run that takes these claims over does not pull, so the counter stays
                key_of_run += f"/{hashlib.sha256(json.dumps(backlog.orphans).encode()).hexdigest()[:8]}"
            number = _number(context.instance, key_of_run)
            if number is None:
                reasons.append(f"{place or consumer}: a run was requested that has not pulled yet")
                continue
            tags = {REQUEST: key_of_run, **runs.take_over(backlog.orphans)}
            requests.append(dg.RunRequest(run_key=f"{key_of_run}/{number}", partition_key=key, tags=tags))
        skipped = dg.SkipReason("; ".join(reasons) or "the stream has no partitions") if not requests else None
        return dg.SensorResult(
            run_requests=requests, skip_reason=skipped, cursor=json.dumps(after), dynamic_partitions_requests=added
        )

    return look


def _partitions(
    context: dg.SensorEvaluationContext,
    jetstream: JetStreamResource,
    stream: str,
    consumer: str,
    *,
    subject: str | None,
    defined: dg.PartitionsDefinition[str] | None,
) -> tuple[list[str | None], list[Any]]:
    """Return the partitions to look at, or None alone without partitions, and the requests to add new ones."""
    if subject is None or defined is None:
        return [None], []
    if not isinstance(defined, dg.DynamicPartitionsDefinition):
        return list(defined.get_partition_keys()), []

    async def subjects(js: JetStream) -> Iterable[str]:
        info = await js.stream(stream).info(subjects_filter=filter_of(subject, "*"))
        return (info.state.get("subjects") or {}).keys()

    keys = keys_of(jetstream.run(subjects), subject, consumer)
    known = context.instance.get_dynamic_partitions(str(defined.name))
    new = [key for key in keys if key not in known]
    return [*keys], [defined.build_add_request(new)] if new else []


def _earlier(cursor: str | None) -> dict[str, Backlog]:
    """Return the counters that the previous tick saw for each partition. Of a cursor of something else, nothing: then
    messages that wait to be redelivered count one tick later."""
    try:
        return {
            place: Backlog(0, created=created, counter=counter, floor=floor, ack_pending=ack_pending)
            for place, (created, counter, floor, ack_pending) in json.loads(cursor or "{}").items()
        }
    except (AttributeError, TypeError, ValueError, RecursionError):
        return {}


def _number(instance: dg.DagsterInstance, key_of_run: str) -> int | None:
    """Return the number of the next run for the same messages; None if the last such run may still pull them."""
    wanted = dg.RunsFilter(tags={REQUEST: key_of_run})
    records = instance.get_run_records(wanted, limit=_NEWEST)  # the newest first
    if not all(each.dagster_run.is_finished or _is_silent(each) for each in records):
        return None
    keys = (each.dagster_run.tags.get(_RUN_KEY, "") for each in records)  # a re-executed run may lack the key
    numbers = (re.fullmatch(re.escape(key_of_run) + "/([0-9]{1,9})", key) for key in keys)
    return 1 + max((int(number[1]) for number in numbers if number), default=-1)


def _is_silent(record: dg.RunRecord) -> bool:
    since = record.start_time or record.update_timestamp.timestamp()
    return record.dagster_run.status != dg.DagsterRunStatus.QUEUED and time.time() - since > SILENT.total_seconds()
