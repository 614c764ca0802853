# SPDX-License-Identifier: Apache-2.0
"""How messages name what a user of Dagster can use."""

from __future__ import annotations

from jetstream_handoff.words import Words

OF_DAGSTER = Words(
    pipeline="job",
    taker=2,  # an asset may be materialized by several jobs
    create_stream="JetStreamResource.ensure_stream(), or JetStream.create_stream()",
    update_stream="JetStreamResource.ensure_stream(), or Stream.update()",
    create_consumer="JetStreamResource.ensure_consumer(), or Stream.create_consumer()",
)
