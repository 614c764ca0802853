# SPDX-License-Identifier: Apache-2.0
"""How many replicas a stream has, and what belongs to it: its consumers, its ledger and its dead letters. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AT_LEAST = 3
"""How many replicas survive the loss of one server."""


def count(config: Mapping[str, Any], stream: Mapping[str, Any] | None = None) -> int:
    """Return the number of replicas.

    config:  the configuration of a stream or consumer.
    stream:  for a consumer, the configuration of its stream: without ``num_replicas``, it has as many as its stream.
    """
    return int(config.get("num_replicas") or (stream or {}).get("num_replicas") or 1)


def few(stream: Mapping[str, Any]) -> str:
    """Return what it means that a stream has fewer replicas than survive the loss of a server, with the remedy; empty
    if it has enough."""
    own = count(stream)
    if own >= AT_LEAST:
        return ""
    remedy = f"set num_replicas={AT_LEAST}, on {AT_LEAST} servers with sync_interval: always (docs/reliability.md)"
    if stream.get("storage") == "memory":
        return f"it has num_replicas={own} and stores its messages in memory, so a restart can lose them; {remedy}"
    return (
        f"it has num_replicas={own}: its messages are lost with the disk of a server, and after a power cut those that "
        f"were stored since the last sync, of two minutes by default; {remedy}"
    )


def fewer(config: Mapping[str, Any], stream: Mapping[str, Any]) -> str:
    """Return what it means that a consumer, a bucket of the ledger or a dead-letter stream has fewer replicas than the
    stream, with the remedy; empty if it has not.

    config:  its configuration.
    stream:  the configuration of the stream from which claims are taken.
    """
    own, of_stream = count(config, stream), count(stream)
    if own >= of_stream:
        return ""
    return (
        f"it has num_replicas={own}, and the stream has {of_stream}: it can be lost while the stream remains, and with "
        f"it what it knows of the stream's messages. Set num_replicas={of_stream}"
    )
