# SPDX-License-Identifier: Apache-2.0
"""Dead letters: pages of a list without payloads, and one dead letter with its payload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_nats_jetstream.page.answers import cut
from airflow_nats_jetstream.page.claims import snapshot
from airflow_nats_jetstream.page.errors import UnknownDeadLetter
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.letters.listing import letter, listed

if TYPE_CHECKING:
    from airflow_nats_jetstream.page.pool import Line
    from jetstream_client.context import JetStream
    from jetstream_handoff.letters.listing import Page
    from jetstream_handoff.letters.stubs import Stub

MOST_HEADERS = 200
LARGEST_SHOWN = 4 << 10
"""Bytes of a payload that are shown."""


@dataclass(frozen=True)
class Wanted:
    """Which dead letters a page contains.

    after:     the number after which it begins.
    limit:     the largest number of dead letters.
    consumer:  the consumer that gave the messages up; empty for all.
    reason:    a string that the reason contains; empty for all.
    """

    after: int
    limit: int
    consumer: str
    reason: str


class Listing(NamedTuple):
    """A page of dead letters.

    total:     their number in the whole stream, without notes.
    complete:  whether all of them are counted. Otherwise ``total`` is too small, for a few seconds, or as long as the
               ledger does not know the stream.
    next:      the number after which the next page begins; None if this is the last page.
    ``letters``: the messages of the dead-letter stream.
    """

    total: int
    complete: bool
    next: int | None
    letters: list[dict[str, Any]]


async def page(line: Line, stream: str, wanted: Wanted) -> dict[str, Any]:
    """Return a page of the dead letters of a stream as JSON, with the fields of :class:`Listing`."""

    async def read(js: JetStream) -> Page:
        return await listed(
            DeadLetters(js, stream),
            after=wanted.after,
            limit=wanted.limit,
            consumer=wanted.consumer or None,
            reason=wanted.reason or None,
        )

    found = await line.ask(("dead_letters", stream, wanted), read)
    overview = await snapshot(line)
    counted = next((each.dead_letters for each in overview.streams if each.name == stream), None)
    total, complete = (counted.count, counted.complete) if counted else (0, False)
    return Listing(total, complete, found.next, [_row(stub) for stub in found.stubs])._asdict()


def _row(stub: Stub) -> dict[str, Any]:
    """A message of the dead-letter stream as JSON. A note says what became of the dead letter that was there."""
    head, note = stub.head, stub.note
    known = head or note
    return {
        "number": stub.number,
        "sequence": known.sequence if known else 0,
        "subject": cut(known.subject) if known else "",
        "consumer": known.consumer if known else "",
        "reason": cut(known.reason) if known else "",
        "failures": head.failures if head else 0,
        "claim": known.claim_id if known else "",
        "attempt": cut(f"{known.claim_id}-{known.token}") if known and known.claim_id else "",
        "stored_at": stub.stored_at,
        "size": known.size if known else 0,
        "confirmed": stub.confirmed,
        "problem": cut(stub.problem) or None,
        "outcome": note.outcome if note else None,
        "replayed": note.stored_at if note and note.outcome == "replayed" else None,
    }


async def content(line: Line, stream: str, number: int) -> dict[str, Any]:
    """Return the headers and the payload of a dead letter as JSON.

    Raises:
        UnknownDeadLetter: the dead-letter stream has no dead letter of this number.
    """

    async def read(js: JetStream) -> dict[str, Any] | str:
        found = await letter(DeadLetters(js, stream), number)
        if found is None:
            return "it may have been replayed or discarded in the meantime"
        if found.letter is None:
            return cut(found.problem)
        return {  # what is kept for other readers is cut, too
            "number": number,
            "headers": [[cut(name, 200), cut(value)] for name, value in _lines(found.letter.header)[:MOST_HEADERS]],
            "data": shown(found.letter.data),
        }

    found = await line.ask(("dead_letter", stream, number), read)
    if isinstance(found, str):
        raise UnknownDeadLetter(f"stream {stream!r} has no dead letter {number} that can be shown: {found}")
    return found


def _lines(header: bytes) -> list[tuple[str, str]]:
    """The names and values of a header block, in their order. Bytes that are not UTF-8 are replaced."""
    lines = (line.decode(errors="replace").partition(":") for line in header.split(b"\r\n")[1:] if line)
    return [(name, value.strip()) for name, _, value in lines]


def shown(data: bytes) -> dict[str, Any]:
    """Return a payload as JSON: as text if its beginning is UTF-8 without control characters, otherwise as hex."""
    part = data[:LARGEST_SHOWN]
    try:
        text = part.decode()
    except UnicodeDecodeError as wrong:
        halved = len(part) < len(data) and wrong.start >= len(part) - 3  # only the last character, by the cut
        text = part[: wrong.start].decode() if halved else ""
    is_text = bool(text or not data) and all(each.isprintable() or each in "\t\r\n" for each in text)
    form, view = ("text", text) if is_text else ("hex", part.hex(" "))
    return {"form": form, "shown": view, "size": len(data), "cut": len(part) < len(data)}
