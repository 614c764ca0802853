# SPDX-License-Identifier: Apache-2.0
"""The component: an asset from claims, with its sensor, declared in YAML."""

from __future__ import annotations

import pkgutil
from datetime import timedelta
from typing import Any

import dagster as dg

from dagster_nats_jetstream.assets import claimed_asset
from dagster_nats_jetstream.sensor import jetstream_sensor
from jetstream_client.errors import InvalidValue
from jetstream_client.quantities import check_count, check_seconds
from jetstream_handoff.rules.missing import Missing


class ClaimedAssetComponent(dg.Component, dg.Model, dg.Resolvable):
    """An asset that is materialized from the messages of a consumer, and the sensor that requests its runs.

    .. code-block:: yaml

        type: dagster_nats_jetstream.ClaimedAssetComponent
        attributes:
          asset: orders
          function: pipelines.orders.process
          stream: ORDERS
          consumer: raw

    asset:             the key of the asset, with ``/`` between its parts.
    function:          the path ``package.module.function`` of the asset's function; see
                       :func:`~dagster_nats_jetstream.assets.claimed_asset`.
    stream, consumer:  the names of the stream and of the consumer.
    max_messages, min_messages, max_failures, dead_letters, missing, consumer_config, create_consumer:  as in
                       ``claimed_asset``. Durations in ``consumer_config`` are nanoseconds.
    wait:              seconds for which the step waits for messages. Default 30.
    max_retries:       how often the step is retried. Default 0.
    sensor:            whether there is a sensor, which runs from the beginning. Default True.
    resource:          the key of the resource. Default ``jetstream``.
    """

    asset: str
    function: str
    stream: str
    consumer: str
    max_messages: int = 100_000
    min_messages: int = 1
    max_failures: int | None = None
    dead_letters: str | None = None
    missing: Missing = "error"
    consumer_config: dict[str, Any] | None = None
    create_consumer: bool = True
    wait: float = 30
    max_retries: int = 0
    sensor: bool = True
    resource: str = "jetstream"

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """Return the asset and the sensor.

        Raises:
            InvalidValue: the function cannot be imported, or a value is invalid.
        """
        try:
            function = pkgutil.resolve_name(self.function)
        except (ImportError, AttributeError, ValueError) as error:
            remedy = f"the function cannot be imported ({error}); give the path package.module.function"
            raise InvalidValue("function", self.function, remedy) from None
        if not callable(function):  # its value may be a secret
            raise InvalidValue("function", self.function, "this is not a function; name a function")
        check_count("max_retries", self.max_retries, 0)
        check_seconds("wait", self.wait, zero=True)
        key = self.asset.split("/")
        if not all(key):
            raise InvalidValue("asset", self.asset, "a part of the key is empty; give parts with / between them")
        of: dict[str, Any] = {"stream": self.stream, "consumer": self.consumer, "resource": self.resource}
        asset = claimed_asset(
            key=key,
            max_messages=self.max_messages,
            min_messages=self.min_messages,
            max_failures=self.max_failures,
            dead_letters=self.dead_letters,
            missing=self.missing,
            consumer_config=self.consumer_config,
            create_consumer=self.create_consumer,
            wait=timedelta(seconds=self.wait),
            retry_policy=dg.RetryPolicy(max_retries=self.max_retries) if self.max_retries else None,
            **of,
        )(function)
        running = dg.DefaultSensorStatus.RUNNING
        options: dict[str, Any] = {"min_messages": self.min_messages, "default_status": running, **of}
        sensors = [jetstream_sensor(target=[asset], **options)] if self.sensor else []
        return dg.Definitions(assets=[asset], sensors=sensors)
