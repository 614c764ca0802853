# SPDX-License-Identifier: Apache-2.0
"""The components: an asset from claims, with its sensor, declared in YAML. Its work is a function, or a table."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_nats_jetstream.assets import claimed_asset
from dagster_nats_jetstream.sensor import jetstream_sensor
from jetstream_client.errors import InvalidValue
from jetstream_client.quantities import check_count, check_seconds
from jetstream_handoff.rules.missing import Missing
from jetstream_tables.described import table_of
from pyspark_jetstream.held_claim import HeldClaim
from pyspark_jetstream.to_table import ToTable


class _Claimed(dg.Model):
    """What both components say of their messages, their asset and its sensor."""

    asset: str
    stream: str
    consumer: str
    max_messages: int = 100_000
    min_messages: int = 1
    max_wait: float | None = None
    max_failures: int | None = None
    ordered_by: str | None = None
    dead_letters: str | None = None
    missing: Missing = "error"
    consumer_config: dict[str, Any] | None = None
    create_consumer: bool = True
    wait: float = 30
    max_retries: int = 0
    sensor: bool = True
    resource: str = "jetstream"

    def _definitions(self, function: Callable[..., Any]) -> dg.Definitions:
        check_count("max_retries", self.max_retries, 0)
        check_seconds("wait", self.wait, zero=True)
        max_wait = None if self.max_wait is None else timedelta(seconds=check_seconds("max_wait", self.max_wait))
        key = self.asset.split("/")
        if not all(key):
            raise InvalidValue("asset", self.asset, "a part of the key is empty; give parts with / between them")
        of: dict[str, Any] = {"stream": self.stream, "consumer": self.consumer, "resource": self.resource}
        asset = claimed_asset(
            key=key,
            max_messages=self.max_messages,
            min_messages=self.min_messages,
            max_wait=max_wait,
            max_failures=self.max_failures,
            ordered_by=self.ordered_by,
            dead_letters=self.dead_letters,
            missing=self.missing,
            consumer_config=self.consumer_config,
            create_consumer=self.create_consumer,
            wait=timedelta(seconds=self.wait),
            retry_policy=dg.RetryPolicy(max_retries=self.max_retries) if self.max_retries else None,
            **of,
        )(function)
        running = dg.DefaultSensorStatus.RUNNING
        options: dict[str, Any] = {"min_messages": self.min_messages, "max_wait": max_wait, "default_status": running}
        sensors = [jetstream_sensor(target=[asset], **options, **of)] if self.sensor else []
        return dg.Definitions(assets=[asset], sensors=sensors)


class ClaimedAssetComponent(dg.Component, _Claimed, dg.Resolvable):
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
    max_messages, min_messages, max_failures, ordered_by, dead_letters, missing, consumer_config, create_consumer:  as
                       in ``claimed_asset``. Durations in ``consumer_config`` are nanoseconds.
    max_wait:          seconds after which the oldest message no longer waits for ``min_messages``, as in
                       ``claimed_asset`` and ``jetstream_sensor``. Default: no limit.
    wait:              seconds for which the step waits for messages. Default 30.
    max_retries:       how often the step is retried. Default 0.
    sensor:            whether there is a sensor, which runs from the beginning. Default True.
    resource:          the key of the resource. Default ``jetstream``.
    """

    function: str

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
        return self._definitions(function)


class JetStreamToTableComponent(dg.Component, _Claimed, dg.Resolvable):
    """An asset that is a table, to which the messages of a consumer are written, and the sensor that requests its runs.
    It needs no function and no Spark. The table contains each message once; messages that cannot be decoded become dead
    letters with their reason.

    .. code-block:: yaml

        type: dagster_nats_jetstream.JetStreamToTableComponent
        attributes:
          asset: orders
          stream: ORDERS
          consumer: table
          table: {type: delta, uri: s3://lake/orders}
          payload_schema: shop STRING NOT NULL, amount DECIMAL(10, 2)

    asset:             the key of the asset, with ``/`` between its parts.
    stream, consumer:  the names of the stream and of the consumer.
    table:             the table: ``type``, which is ``delta``, ``iceberg`` or ``sql``, and the parameters of
                       :class:`~jetstream_tables.DeltaTable`, :class:`~jetstream_tables.IcebergTable` or
                       :class:`~jetstream_tables.SqlTable`.
    payload_schema:    the schema of the payloads. For JSON the columns in Spark's DDL, or a mapping of their names to
                       types; for Avro the reader's schema as JSON. Default None: payloads are not decoded, and the
                       table gets ``message_columns`` only.
    schema_file:       in place of ``payload_schema``, the path of a file that contains it, relative to the component's
                       folder; for Protobuf a descriptor set. Default None.
    format:            ``json`` (default), ``avro`` or ``protobuf``.
    decoding:          further parameters of :func:`jetstream_arrow.decoded`, by their names. ``registry`` is a mapping
                       of the fields of :class:`~pyspark_jetstream.SchemaRegistry`. Default None: none.
    columns:           the fields of the payload that become columns: a list of names, or a mapping of names of columns
                       to fields, in which ``customer.id`` is a field inside another. Default None: all fields.
    message_columns:   those of ``stream``, ``subject``, ``headers`` and ``data`` that become columns, too; ``data``
                       only without a schema. Default None: none.
    new_columns:       ``error`` (default), or ``add``: columns that the table does not have are added to it.
    max_malformed:     a claim with more malformed messages fails, so that a wrong schema does not make dead letters of
                       all messages. Default None: any number of them become dead letters.
    objects:           the name of the object store with the payloads of messages that refer to an object. A message
                       whose object cannot be read is malformed. Default None: messages are read as they are.
    max_object_size:   the largest object that is read, in bytes. Default 64 MiB.
    max_messages, min_messages, max_failures, ordered_by, dead_letters, missing, consumer_config, create_consumer:  as
                       in :class:`ClaimedAssetComponent`.
    wait, max_wait, max_retries, sensor, resource:  as in :class:`ClaimedAssetComponent`.
    """

    table: dict[str, Any]
    payload_schema: str | dict[str, str] | None = None  # pydantic's models have an attribute ``schema``
    schema_file: str | None = None
    format: str = "json"
    decoding: dict[str, Any] | None = None
    columns: list[str] | dict[str, str] | None = None
    message_columns: list[str] | None = None
    new_columns: str = "error"
    max_malformed: int | None = None
    objects: str | None = None
    max_object_size: int | None = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the asset and the sensor.

        Raises:
            InvalidValue: a value is invalid, or the file of the schema cannot be read.
        """
        how = ToTable(
            table=table_of(self.table),
            schema=self.payload_schema if self.schema_file is None else self._read(context, self.schema_file),
            format=self.format,
            decoding=self.decoding or {},
            columns=self.columns,
            message_columns=self.message_columns or (),
            new_columns=self.new_columns,
            max_malformed=self.max_malformed,
            objects=self.objects,
            max_object_size=self.max_object_size,
        )

        def to_table(claim: HeldClaim) -> dg.MaterializeResult[None]:
            return dg.MaterializeResult(
                metadata={f"jetstream/{name}": value for name, value in how.store(claim).to_json().items()}
            )

        return self._definitions(to_table)

    def _read(self, context: dg.ComponentLoadContext, file: str) -> str | bytes:
        if self.payload_schema is not None:
            raise InvalidValue("schema_file", file, "give either payload_schema or schema_file")
        path = Path(context.path) / file
        try:
            return path.read_bytes() if self.format == "protobuf" else path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            remedy = f"{path} cannot be read ({error}); give the path of a file, relative to the component's folder"
            raise InvalidValue("schema_file", file, remedy) from None
