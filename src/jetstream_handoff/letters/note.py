# SPDX-License-Identifier: Apache-2.0
"""Notes: what takes the place of a dead letter that was replayed or discarded. No I/O.

A note has no payload. It stands for a deletion, because a killed server forgets its last deletions and would restore
the dead letter. Releases that do not know a kind of note do not take it for a dead letter, because the headers of a
dead letter are missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from jetstream_handoff.letters.letter import PREFIX

if TYPE_CHECKING:
    from jetstream_handoff.letters.letter import Head

Outcome = Literal["replayed", "discarded"]
"""What became of a dead letter."""
HEADERS: Mapping[Outcome, str] = {"replayed": f"{PREFIX}Replayed", "discarded": f"{PREFIX}Discarded"}
"""The header of each kind of note. Its value is the mark of the replay, or a random string by which the client that
discards a dead letter recognises its note."""
_WAS = f"{PREFIX}Was"
"""Header that says what the dead letter was, as JSON."""
_LONGEST = 8 << 10
LONGEST_TOKEN = 100
"""The largest number of characters of a token in a note. Tokens are shorter, but a forged dead letter can contain any
string."""


@dataclass(frozen=True)
class Note:
    """A note. The strings were written by others. Release 0.1 wrote notes without ``reason``, ``claim_id``, ``token``
    and ``size``.

    number, stored_at:  its sequence in the dead-letter stream, and when it was stored there.
    outcome:            what became of the dead letter.
    consumer, sequence: the consumer that had given the message up, and the message's sequence in the original stream,
                        both from the note's subject.
    subject:            the message's original subject; empty if it was too long for the note's subject.
    value:              the value of the note's header.
    reason, claim_id, token, size:  as in the dead letter.
    """

    number: int
    stored_at: str
    outcome: Outcome
    consumer: str
    sequence: int
    subject: str
    value: str
    reason: str = ""
    claim_id: str = ""
    token: str = ""
    size: int = 0

    @classmethod
    def of(cls, number: int, stored_at: str, address: str, headers: Mapping[str, list[str]]) -> Note | None:
        """Read a message of the dead-letter stream; None if it is not a note.

        number, stored_at:  its sequence, and when it was stored.
        address:            its subject.
        headers:            its headers.
        """
        outcome = next((each for each, header in HEADERS.items() if header in headers), None)
        if outcome is None:
            return None
        _, _, consumer, sequence, _, subject = [*address.split(".", 5), *[""] * 6][:6]
        known = sequence.isascii() and sequence.isdigit() and len(sequence) <= 20
        named = (consumer, int(sequence) if known else 0, "" if subject.startswith("sha256-") else subject)
        value = headers[HEADERS[outcome]][-1]
        return cls(number, stored_at, outcome, *named, value, **_was(headers.get(_WAS, [""])[-1]))


def note_lines(outcome: Outcome, value: str, head: Head) -> list[bytes]:
    """Return the header lines of a note. The token is cut, so that a forged dead letter can be replaced, too.

    outcome:  what became of the dead letter.
    value:    the value of the header in :data:`HEADERS`.
    head:     the dead letter whose place the note takes.
    """
    token = head.token[:LONGEST_TOKEN]
    was = {"reason": head.reason, "claim_id": head.claim_id, "token": token, "size": head.size}
    return [f"{HEADERS[outcome]}: {value}".encode(), f"{_WAS}: {json.dumps(was)}".encode()]


def _was(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text[:_LONGEST])
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    strings = {name: value[name] for name in ("reason", "claim_id", "token") if isinstance(value.get(name), str)}
    size = value.get("size")
    return {**strings, **({"size": size} if type(size) is int and 0 <= size < 2**63 else {})}
