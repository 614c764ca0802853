# SPDX-License-Identifier: Apache-2.0
"""Airflow metrics and OpenTelemetry spans of the hand-off. They show stream, consumer, claim, number of messages and
duration.

docs/monitoring.md lists these metrics and spans. They contain neither messages nor the texts of exceptions, which must
appear only in Airflow's own spans and logs.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from airflow_nats_jetstream.compat import conf, stats
from jetstream_handoff import events
from jetstream_handoff.errors import AlreadyDone
from jetstream_handoff.watch.lag import NUMBERS, lags, levels

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from opentelemetry.trace import Tracer

    from jetstream_handoff.claim import Claim
    from jetstream_handoff.events import Event
    from jetstream_handoff.watch.view import Overview

Names = tuple[str, str]
"""The names of a stream and a consumer."""
Carrier = dict[str, str]
"""The W3C trace context headers of a span: ``traceparent`` and, if there is one, ``tracestate``."""

_SPANS = {  # for each event, its type of operation in OpenTelemetry's conventions for messaging, and the span's name
    "taken": ("receive", "take"),
    "done": ("settle", "settle"),
    "failed": ("settle", "fail"),
    "released": ("settle", "release"),
}
_KINDS = {
    "send": SpanKind.PRODUCER,
    "process": SpanKind.CONSUMER,
    "receive": SpanKind.CLIENT,
    "settle": SpanKind.CLIENT,
}
_ENVIRONMENT = "TRACEPARENT"  # read by child processes (OpenTelemetry: environment variables as context carriers)


def listen() -> None:
    """Record the events of the hand-off in this process from now on. Every hook calls this function; later calls do
    nothing."""
    events.listen(heard)


def heard(event: Event) -> None:
    """Count an event of the hand-off, and record a span if the event is an operation.

    event:  the event.
    """
    tags = {"stream": event.stream, "consumer": event.consumer}
    metrics = stats()
    if event.claim:
        metrics.incr(f"jetstream.claims.{event.name}", tags=tags)
    metrics.incr(f"jetstream.messages.{event.name}", event.messages, tags=tags)
    if event.seconds is not None:
        metrics.timing(f"jetstream.claims.{event.name}.duration", timedelta(seconds=event.seconds), tags=tags)
    if event.name in _SPANS:
        _draw(event, *_SPANS[event.name])


def published(stream: str, stored: int, duplicates: int, seconds: float) -> None:
    """Count the messages that a task has published, within the span of :func:`publishing`.

    stream:      the name of the stream.
    stored:      how many messages this try stored.
    duplicates:  how many messages had been stored before.
    seconds:     how long the task took to publish them.
    """
    trace.get_current_span().set_attribute("messaging.batch.message_count", stored + duplicates)
    tags, metrics = {"stream": stream}, stats()
    metrics.incr("jetstream.messages.published", stored, tags=tags)
    metrics.incr("jetstream.messages.published_before", duplicates, tags=tags)
    metrics.timing("jetstream.publish.duration", timedelta(seconds=seconds), tags=tags)


def lagging(overview: Overview, conn_id: str, before: Collection[Names]) -> Collection[Names]:
    """Report the lag of each consumer, and what is wrong with the ledger. Returns the names of the consumers.

    overview:  what was seen, with the ages of messages.
    conn_id:   the id of the connection.
    before:    the return value of the call before. The numbers of a consumer that the ledger no longer knows become 0.
    """
    seen = {lag.names: lag.numbers for lag in lags(overview)}
    if overview.now:  # otherwise the ledger could not be read
        seen |= {names: dict.fromkeys(NUMBERS, 0) for names in before if names not in seen}
    for (stream, consumer), numbers in seen.items():
        for name, value in numbers.items():
            _gauge(f"jetstream.lag.{name}", value, {"stream": stream, "consumer": consumer})
    errors, warnings = levels(overview.findings)
    _gauge("jetstream.ledger.errors", errors, {"nats_conn_id": conn_id})
    _gauge("jetstream.ledger.warnings", warnings, {"nats_conn_id": conn_id})
    stats().incr("jetstream.looks", tags={"nats_conn_id": conn_id})
    return {lag.names for lag in lags(overview)} if overview.now else before


def not_looked(conn_id: str) -> None:
    """Count a look that failed, so that the lag is unknown.

    conn_id:  the id of the connection.
    """
    stats().incr("jetstream.looks_failed", tags={"nats_conn_id": conn_id})


def _gauge(name: str, value: float, tags: Mapping[str, str]) -> None:
    """Set a gauge. Plain StatsD has no tags, so there the name contains their values: the gauges of several consumers
    would otherwise replace each other. Names of streams and consumers contain no dot."""
    tagged = ("statsd_datadog_enabled", "statsd_influxdb_enabled")
    plain = conf.getboolean("metrics", "statsd_on") and not any(conf.getboolean("metrics", each) for each in tagged)
    stats().gauge(".".join([name, *tags.values()]) if plain else name, value, tags=dict(tags))


@contextmanager
def publishing(stream: str) -> Iterator[Carrier]:
    """Record the span of a publish while the block runs. Yields the span's headers, empty if no trace is recorded.

    stream:  the name of the stream.
    """
    with _span("send", "publish", stream, {}):
        yield carrier()


@contextmanager
def processing(claim: Claim) -> Iterator[Carrier]:
    """Record the span of a hold while the block runs. Spark and the programs that the block starts continue the trace.

    claim:  the claim that is held.
    """
    with _span("process", "hold", claim.stream, _of_a_claim(claim.consumer, claim.id, claim.count)):
        before, carried = os.environ.get(_ENVIRONMENT), carrier()
        if carried:
            os.environ[_ENVIRONMENT] = carried["traceparent"]
        try:
            yield carried
        finally:
            if carried and before is None:
                del os.environ[_ENVIRONMENT]
            elif carried and before is not None:
                os.environ[_ENVIRONMENT] = before


def carrier() -> Carrier:
    """Return the headers of the current span, or an empty mapping if no trace is recorded."""
    carried: Carrier = {}
    if trace.get_current_span().is_recording():
        TraceContextTextMapPropagator().inject(carried)
    return carried


@contextmanager
def _span(kind: str, name: str, stream: str, attributes: Mapping[str, Any]) -> Iterator[None]:
    with _tracer().start_as_current_span(
        f"{name} {stream}",
        kind=_KINDS[kind],
        attributes={**_of_a_stream(kind, name, stream), **attributes},
        record_exception=False,  # the exception's text may contain a part of a message
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except AlreadyDone:
            raise
        except BaseException as error:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR))
            raise


def _draw(event: Event, kind: str, name: str) -> None:
    """Record the span of an operation that has ended."""
    end = time.time_ns()
    span = _tracer().start_span(
        f"{name} {event.stream}",
        kind=_KINDS[kind],
        start_time=end - int((event.seconds or 0) * 1e9),
        links=_links(event.origin),
        attributes={
            **_of_a_stream(kind, name, event.stream),
            **_of_a_claim(event.consumer, event.claim, event.messages),
        },
    )
    span.end(end)


def _links(origin: str) -> list[Link]:
    """Return the link to the span that published the message, or no link if its header is missing or invalid."""
    if not origin:
        return []
    span = trace.get_current_span(TraceContextTextMapPropagator().extract({"traceparent": origin}))
    context = span.get_span_context()
    return [Link(context)] if context.is_valid and context.is_remote else []


def _of_a_stream(kind: str, name: str, stream: str) -> dict[str, Any]:
    return {
        "messaging.system": "nats",
        "messaging.operation.type": kind,
        "messaging.operation.name": name,
        "messaging.destination.name": stream,
    }


def _of_a_claim(consumer: str, claim: str, messages: int) -> dict[str, Any]:
    return {
        "messaging.consumer.group.name": consumer,
        "messaging.batch.message_count": messages,
        "jetstream.claim.id": claim,
    }


def _tracer() -> Tracer:
    return trace.get_tracer("airflow_nats_jetstream")
