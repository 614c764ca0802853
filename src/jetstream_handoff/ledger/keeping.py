# SPDX-License-Identifier: Apache-2.0
"""The rules for a stream that must keep what this package writes into it: the ledger's buckets and dead letters.
No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jetstream_handoff.ledger.record import ABANDONED

_EVERY_WRITE = "each write must be confirmed when it is stored"
_RULES: dict[str, tuple[tuple[object, ...], str]] = {
    "retention": (("limits",), "any other retention removes messages that were read, or that no consumer waits for"),
    "storage": (("file",), "what is stored must survive a restart of the server"),
    "sealed": ((None,), _EVERY_WRITE),
    "no_ack": ((None,), _EVERY_WRITE),
    "persist_mode": ((None, "default"), _EVERY_WRITE),
    "max_msgs_per_subject": ((1,), "the stream must keep the newest message on each subject, and only that one"),
    "discard": (("new",), "a full stream must refuse a write instead of dropping what was written before"),
    "subject_transform": ((None,), "what is stored is found by its subject"),
}
"""For each field of a stream's configuration, the allowed values (None: absent or off) and the reason for the rule."""


def broken_rules(config: Mapping[str, Any], *, expires: bool) -> Iterator[tuple[str, str]]:
    """Yield each field with which a stream may lose what is written into it, and the remedy.

    config:   the stream's configuration, as the server reports it.
    expires:  whether messages may expire after 7 days or later.
    """
    for field, (allowed, reason) in _RULES.items():
        if (config.get(field) or None) not in allowed:
            yield field, f"it must be {'absent' if allowed[0] is None else repr(allowed[0])}, because {reason}"
    age = config.get("max_age", 0)
    if age and not expires:
        yield "max_age", "it must be 0, because what the stream has dropped is forgotten"
    elif 0 < age < ABANDONED:
        yield (
            "max_age",
            f"it must be 0 or at least {ABANDONED} ns (7 days), so that there is time to read what is stored",
        )
