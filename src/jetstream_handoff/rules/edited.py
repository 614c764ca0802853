# SPDX-License-Identifier: Apache-2.0
"""What was changed in a consumer since a claim was taken from it. No I/O.

Anybody who may do so can edit a consumer while its claims are open. So the fields that can end a lease, or keep
messages from being delivered, are kept with each open claim. They only explain how a claim ended: no decision depends
on them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from jetstream_client import config as configs

FIELDS = (
    "ack_wait",
    "backoff",
    "max_deliver",
    "max_ack_pending",
    "filter_subject",
    "filter_subjects",
    "inactive_threshold",
    "num_replicas",
    "mem_storage",
)
_LONGEST = 200
"""Bytes of the longest value that is kept as it is, as JSON."""


def kept(config: configs.Config) -> dict[str, Any]:
    """Return the fields of a consumer's configuration that are kept with a claim, without those that are not set. Long
    values are replaced by their size and a hash.

    config:  the configuration in the consumer's INFO.
    """
    return {field: _short(config[field]) for field in FIELDS if config.get(field)}


def changed(before: Mapping[str, Any], config: configs.Config) -> str:
    """Return each changed field with the value before and after, for example ``ack_wait: 60000000000 → 1000000000``;
    empty if nothing was changed, or if ``before`` is unknown.

    before:  the return value of :func:`kept` at an earlier time; empty if it is unknown.
    config:  the configuration in the consumer's INFO.
    """
    if not before:
        return ""
    now = kept(config)
    return configs.describe(configs.difference(before, {field: now.get(field) for field in FIELDS}))


def said(changes: str) -> str:
    """Return the sentence that tells the holder of a claim about changes.

    changes:  the return value of :func:`changed`; not empty.
    """
    return (
        f"since the claim was taken, its consumer was changed ({changes}), so the server may redeliver the messages "
        "early, or no longer have the consumer; change a consumer only while none of its claims is open"
    )


def read(value: object) -> dict[str, Any]:
    """Return what was kept, from its JSON value. A value that cannot be read counts as unknown."""
    if not isinstance(value, Mapping):
        return {}
    return {field: _short(value[field]) for field in FIELDS if value.get(field)}


def _short(value: object) -> object:
    text = json.dumps(value)
    if len(text) <= _LONGEST:
        return value
    return f"{len(text)} bytes with SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]}…"
