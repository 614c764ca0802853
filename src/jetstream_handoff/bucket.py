"""The streams of the ledger's key-value buckets: how they are created, and which existing ones cannot be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from jetstream_client.times import nanoseconds
from jetstream_handoff.errors import LedgerUnsuitable
from jetstream_handoff.record import ABANDONED

RECEIPTS_KEPT = timedelta(days=90)
LARGEST_MESSAGE = 1 << 20
"""Bytes. A record has at most three quarters of it, with headers."""
_OWN_KEYS = "the bucket stores what the ledger writes, under its own keys"
_EVERY_WRITE = "every change of a record is a write to the same key, confirmed when it is stored"
_RULES: dict[str, tuple[tuple[object, ...], str]] = {
    "mirror": ((None,), _OWN_KEYS),
    "sources": ((None,), _OWN_KEYS),
    "subject_transform": ((None,), _OWN_KEYS),
    "retention": (("limits",), "any other removes what somebody consumes, or what nobody does"),
    "storage": (("file",), "what is done must survive a restart of the server"),
    "sealed": ((None,), _EVERY_WRITE),
    "no_ack": ((None,), _EVERY_WRITE),
    "persist_mode": ((None, "default"), _EVERY_WRITE),
    "discard_new_per_subject": ((None,), _EVERY_WRITE),
    "discard": (("new",), "a full bucket refuses a write, and never drops the record of another consumer"),
    "max_msgs_per_subject": ((1,), "the bucket keeps the newest record of each consumer"),
}
"""What a field may be, None: absent or off; and why."""


def bucket_config(bucket: str, replicas: int, max_age: timedelta) -> dict[str, Any]:
    """A key-value bucket with a history of one, as ADR-8 lays it down, without rollups: by one on its own record an
    account that may write no other could erase the whole bucket (``Nats-Rollup: all``)."""
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
    """Refuse a bucket that can lose what the ledger wrote, or that cannot store it.

    A limit in bytes is allowed: with ``discard`` new a full bucket refuses the next write, loudly.

    expires: whether old keys may go, which is so for receipts.

    Raises:
        LedgerUnsuitable: the first field that is wrong, its value, and what it must be.
    """

    def refuse(field: str, remedy: str) -> None:
        raise LedgerUnsuitable(bucket, field, config.get(field), remedy)

    rules = _RULES | {"subjects": (([f"$KV.{bucket}.>"],), "these are the keys")}
    for field, (allowed, reason) in rules.items():
        if (config.get(field) or None) not in allowed:
            refuse(field, f"must be {'absent' if allowed[0] is None else repr(allowed[0])}: {reason}")
    if config.get("max_msgs", -1) > 0:
        refuse("max_msgs", "must be -1: there is a key for each consumer, and one for each claim")
    if 0 < config.get("max_msg_size", -1) < LARGEST_MESSAGE:
        refuse("max_msg_size", f"must be -1, or at least {LARGEST_MESSAGE}: a record must fit")
    age = config.get("max_age", 0)
    if age and not expires:
        refuse("max_age", "must be 0: a record that expires forgets what is done")
    if 0 < age < ABANDONED:
        refuse("max_age", f"must be 0, or at least {ABANDONED} ns (7 days): a task asks what became of its claim")
