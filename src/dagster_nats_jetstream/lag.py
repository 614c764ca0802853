# SPDX-License-Identifier: Apache-2.0
"""The sensor that reports the lag of all consumers as metadata of assets. It requests no run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import dagster as dg

from jetstream_client.quantities import number
from jetstream_handoff.watch.lag import lags, levels
from jetstream_handoff.watch.overview import overview

if TYPE_CHECKING:
    from dagster_nats_jetstream.resource import JetStreamResource
    from jetstream_client.context import JetStream
    from jetstream_handoff.watch.view import Overview


def jetstream_lag_sensor(
    *,
    name: str = "jetstream_lag",
    asset_key: Callable[[str, str], dg.AssetKey | None] = lambda stream, consumer: dg.AssetKey([stream, consumer]),
    minimum_interval_seconds: int = 60,
    resource: str = "jetstream",
    **sensor: Any,
) -> dg.SensorDefinition:
    """Return a sensor that observes the lag of every consumer that the ledger of a resource knows.

    name:                      the name of the sensor. Default ``jetstream_lag``.
    asset_key:                 called with the names of a stream and a consumer; returns the key of the asset that the
                               numbers belong to, or None to leave the consumer out. Default: the key of both names.
    minimum_interval_seconds:  how often to look. Each tick stores one event for each consumer. Default 60 s.
    resource:                  the key of the resource. Default ``jetstream``.
    sensor:                    other parameters of ``@dg.sensor``, such as ``default_status``.

    Each tick adds an ``AssetObservation`` to each asset. Its metadata has the fields of
    :class:`~jetstream_handoff.watch.lag.ConsumerLag` that are known, such as ``jetstream/pending`` and
    ``jetstream/oldest_seconds``; Dagster draws them over time. A tick fails if nothing answers.
    """

    @dg.sensor(
        name=name, minimum_interval_seconds=minimum_interval_seconds, required_resource_keys={resource}, **sensor
    )
    def look(context: dg.SensorEvaluationContext, **_: Any) -> dg.SensorResult:  # a direct call passes the resources
        jetstream: JetStreamResource = getattr(context.resources, resource)

        async def seen(js: JetStream) -> Overview:
            return await overview(js, ages=True)

        found = jetstream.run(seen)
        for symptom in found.findings:
            say = context.log.error if symptom.level == "error" else context.log.warning
            say("%s %s", symptom.text, symptom.remedy)
        observed = [
            dg.AssetObservation(key, metadata={f"jetstream/{field}": value for field, value in lag.numbers.items()})
            for lag in lags(found)
            if (key := asset_key(lag.stream, lag.consumer)) is not None
        ]
        errors, warnings = levels(found.findings)
        said = (
            f"observed {number(len(observed), 'consumer')}; findings about the ledger: {number(errors, 'error')}, "
            f"{number(warnings, 'warning')}"
        )
        return dg.SensorResult(asset_events=observed, skip_reason=dg.SkipReason(said))

    return look
