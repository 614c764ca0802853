# SPDX-License-Identifier: Apache-2.0
"""The streams of the ledger's key-value buckets: their configuration, and the check of existing streams."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from jetstream_client.times import nanoseconds
from jetstream_handoff.errors import LedgerUnsuitable
from jetstream_handoff.record import ABANDONED

RECEIPTS_KEPT = timedelta(days=90)
LARGEST_MESSAGE = 1 << 20
"""The smallest ``max_msg_size`` of a bucket, in bytes. After claims were entered, a record has at most three quarters
of this. The rest is for the return values and rejected sequences that settling adds."""
_OWN_KEYS = "the bucket must store exactly what the ledger writes, under the ledger's keys"
_EVERY_WRITE = "the ledger writes to the same key again and again, and needs a confirmation of each write"
_RULES: dict[str, tuple[tuple[object, ...], str]] = {
    "mirror": ((None,), _OWN_KEYS),
    "sources": ((None,), _OWN_KEYS),
    "subject_transform": ((None,), _OWN_KEYS),
    "retention": (("limits",), "any other retention removes records that were read, or that no consumer waits for"),
    "storage": (("file",), "the record of settled claims must survive a restart of the server"),
    "sealed": ((None,), _EVERY_WRITE),
    "no_ack": ((None,), _EVERY_WRITE),
    "persist_mode": ((None, "default"), _EVERY_WRITE),
    "discard_new_per_subject": ((None,), _EVERY_WRITE),
    "discard": (("new",), "a full bucket must refuse a write instead of dropping the record of another consumer"),
    "max_msgs_per_subject": ((1,), "the bucket must keep the newest record of each consumer, and only that one"),
}
"""For each field of a bucket's configuration, the allowed values (None: absent or off) and the reason for the rule."""


def bucket_config(bucket: str, replicas: int, max_age: timedelta) -> dict[str, Any]:
    """The configuration of a key-value bucket with a history of one (ADR-8), without rollups.

    With rollups, an account with the permission to write a single record could erase the whole bucket
    (``Nats-Rollup: all``).
    """
    return {
        "name": f"KV_{bucket}",
        "description": "claims of airflow-provider-nats-jetstream",
        "subjects": [f"$KV.{bucket}.>"],
        "storage": "file",
        "num_replicas": replicas,
        "max_msgs_per_subject": 1,
        "max_age": nanoseconds(max_age),
        "discard": "new",
        "allow_rollup_hdrs": False,
        "deny_delete": True,
        "allow_direct": True,
    }


def check_bucket(bucket: str, config: Mapping[str, Any], *, expires: bool) -> None:
    """Refuse a bucket that could lose the ledger's entries, or cannot store them.

    A limit in bytes is allowed, because with ``discard`` new a full bucket refuses the next write with an error.

    expires: whether keys may expire, as receipts do.

    Raises:
        LedgerUnsuitable: names the first field that is wrong, its value and the remedy.
    """

    def refuse(field: str, remedy: str) -> None:
        raise LedgerUnsuitable(bucket, field, config.get(field), remedy)

    rules = _RULES | {"subjects": (([f"$KV.{bucket}.>"],), "these are the subjects of the ledger's keys")}
    for field, (allowed, reason) in rules.items():
        if (config.get(field) or None) not in allowed:
            refuse(field, f"it must be {'absent' if allowed[0] is None else repr(allowed[0])}, because {reason}")
    if config.get("max_msgs", -1) > 0:
        refuse("max_msgs", "it must be -1, because there is a key for each consumer and for each claim")
    if 0 < config.get("max_msg_size", -1) < LARGEST_MESSAGE:
        refuse("max_msg_size", f"it must be -1 or at least {LARGEST_MESSAGE}, so that a record fits")
    age = config.get("max_age", 0)
    if age and not expires:
        refuse("max_age", "it must be 0, because the ledger forgets which claims are done when a record expires")
    if 0 < age < ABANDONED:
        refuse(
            "max_age",
            f"it must be 0 or at least {ABANDONED} ns (7 days), so that a late task can find out how its claim ended",
        )
