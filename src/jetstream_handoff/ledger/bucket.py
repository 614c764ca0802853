# SPDX-License-Identifier: Apache-2.0
"""The streams of the ledger's key-value buckets: their configuration, and the check of existing streams."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from jetstream_client.times import nanoseconds
from jetstream_handoff.errors import LedgerUnsuitable
from jetstream_handoff.ledger.keeping import broken_rules

RECEIPTS_KEPT = timedelta(days=90)
LARGEST_MESSAGE = 1 << 20
"""The smallest ``max_msg_size`` of a bucket, in bytes. After claims were entered, a record has at most three quarters
of this. The rest is for the return values and rejected sequences that settling adds."""
_OWN_KEYS = "the bucket must store exactly what the ledger writes, under the ledger's keys"


def records_bucket(ledger: str) -> str:
    """The name of a ledger's bucket of records."""
    return f"{ledger}_claims"


def receipts_bucket(ledger: str) -> str:
    """The name of a ledger's bucket of receipts."""
    return f"{ledger}_receipts"


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

    for field, remedy in broken_rules(config, expires=expires):
        refuse(field, remedy)
    for field in ("mirror", "sources", "discard_new_per_subject"):
        if config.get(field):
            refuse(field, f"it must be absent, because {_OWN_KEYS}")
    if config.get("subjects") != [f"$KV.{bucket}.>"]:
        refuse("subjects", f"it must be {[f'$KV.{bucket}.>']!r}, because these are the subjects of the ledger's keys")
    if config.get("max_msgs", -1) > 0:
        refuse("max_msgs", "it must be -1, because there is a key for each consumer and for each claim")
    if 0 < config.get("max_msg_size", -1) < LARGEST_MESSAGE:
        refuse("max_msg_size", f"it must be -1 or at least {LARGEST_MESSAGE}, so that a record fits")


def record_key(stream: str, consumer: str) -> str:
    """The key of a consumer's record in the bucket of records."""
    return f"{base32(stream)}.{base32(consumer)}"


def receipt_key(stream: str, consumer: str, name: str) -> str:
    """A key of a consumer in the bucket of receipts. The names come first, so that the receipts of a
    consumer are found.

    name:  the id of a claim, for its receipt, or the name of an attempt, for what it has skipped.
    """
    return f"{record_key(stream, consumer)}.{name}"


def base32(name: str) -> str:
    """A name as a part of a key, which may contain any character."""
    return base64.b32encode(name.encode()).rstrip(b"=").decode()
