# SPDX-License-Identifier: Apache-2.0
"""The ids of schemas with which the payloads of a DataFrame begin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from jetstream_arrow.payload.registry import ID_BYTES, MOST_IDS, answers
from jetstream_client.errors import InvalidValue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jetstream_arrow.payload.registry import Answers, SchemaRegistry


def asked(messages: DataFrame, registry: SchemaRegistry, framing: str, form: str | None = None) -> Answers:
    """Ask the registry for each id in the messages. This runs a job that reads them.

    framing:  ``confluent`` or ``apicurio``.
    form:     as for :meth:`SchemaRegistry.schema`.

    Raises:
        InvalidValue: the messages are a stream.
        SchemaRegistryFailed: as :meth:`SchemaRegistry.schema`.
    """
    if messages.isStreaming:
        remedy = "call decoded() in foreachBatch, on each batch: a registry is asked for the ids that a batch contains"
        raise InvalidValue("messages", "a streaming DataFrame", remedy)
    size = 1 + ID_BYTES[framing]
    heads = messages.select(F.substring(messages["data"], 1, size).alias("head"))
    framed = heads.where((F.length("head") == size) & (F.hex(F.substring("head", 1, 1)) == "00"))
    counted = framed.groupBy("head").count()
    rows = counted.orderBy(F.desc("count"), "head").limit(MOST_IDS + 1).collect()
    numbers = [int.from_bytes(row["head"][1:], "big") for row in rows]
    return answers(registry, numbers, framing, form)
