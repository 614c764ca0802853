# SPDX-License-Identifier: Apache-2.0
"""Finding claims: those that are open in the shared overview of a connection, and all others by their receipts."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from airflow_nats_jetstream.page.errors import UnknownClaim
from jetstream_handoff import inspection
from jetstream_handoff.claim import is_claim_id
from jetstream_handoff.errors import LedgerUnavailable
from jetstream_handoff.inspection import Seen
from jetstream_handoff.ledger import Ledger, never_used
from jetstream_handoff.overview import Survey

if TYPE_CHECKING:
    from airflow_nats_jetstream.page.pool import Line
    from jetstream_client.context import JetStream
    from jetstream_handoff.record import Receipt
    from jetstream_handoff.view import ConsumerView, Overview


Found = TypeVar("Found")


@dataclass(frozen=True)
class Filter:
    """Which open claims are listed. An empty field selects all.

    held:  ``yes`` for the claims that an attempt holds, ``no`` for the others.
    dag:   the first name of the claim's owner.
    """

    stream: str = ""
    consumer: str = ""
    held: str = ""
    dag: str = ""

    def fits(self, seen: Seen) -> bool:
        """Whether a claim of a selected consumer is listed."""
        held = "yes" if seen.holder else "no"
        return self.held in ("", held) and self.dag in ("", *seen.history.owner[:1])

    def of(self, view: ConsumerView) -> bool:
        """Whether claims of a consumer are listed."""
        return self.stream in ("", view.stream) and self.consumer in ("", view.consumer)


async def snapshot(line: Line) -> Overview:
    """Return the overview that everybody who looks at the connection shares."""

    async def look(js: JetStream) -> Overview:
        async with line.looking:
            if line.survey is None:
                line.survey = Survey(js)
            return await line.survey.look()

    return await line.ask("overview", look)


def consumers(found: Overview) -> Iterator[ConsumerView]:
    """The consumers of an overview."""
    return (view for stream in found.streams for view in stream.consumers)


def open_claims(found: Overview, wanted: Filter) -> list[Seen]:
    """Return the selected open claims, the oldest first."""
    claims = (seen for view in consumers(found) if wanted.of(view) for seen in view.claims if wanted.fits(seen))
    return sorted(claims, key=lambda seen: (seen.since, seen.sequences.first, seen.id))


async def one(line: Line, claim_id: str) -> Seen:
    """Return a claim, open or not. An open one is in the shared overview, and any other takes one request.

    Raises:
        UnknownClaim: the ledger does not know the claim.
        LedgerUnavailable: the ledger cannot be read.
    """
    if not is_claim_id(claim_id):
        raise UnknownClaim(claim_id)
    found = await snapshot(line)
    for view in consumers(found):
        if view.record is not None and claim_id in view.record.open:
            return next(seen for seen in view.claims if seen.id == claim_id)

    kept = await line.ask(("receipt", claim_id), lambda js: _known(Ledger(js, "any", "any").receipt(claim_id)))
    for view in consumers(found):
        done = view.record.done.get(claim_id) if view.record else None
        if done is not None and (kept is None or kept.state != "done"):
            kept = Ledger(await line.js(), view.stream, view.consumer).done_receipt(claim_id, done)
    if kept is not None and found.now:
        return _closed(kept, found)
    # It may be newer than the shared overview, or in a record that could not be read for it.
    seen = await line.ask(("claim", claim_id), lambda js: _known(inspection.find(js, claim_id)))
    if seen is None:
        raise UnknownClaim(claim_id)
    return seen


async def _known(reading: Awaitable[Found | None]) -> Found | None:
    """Return what was found in the ledger; None if no sensor has ever used it."""
    try:
        return await reading
    except LedgerUnavailable as error:
        if never_used(error):
            return None
        raise


def _closed(receipt: Receipt, found: Overview) -> Seen:
    seen = Seen(
        receipt.claim_id,
        receipt.state,
        receipt.stream,
        receipt.consumer,
        receipt.sequences,
        found.now,
        receipt=receipt,
    )
    for view in consumers(found):
        if (view.stream, view.consumer) == (receipt.stream, receipt.consumer):
            entries = view.record.open.items() if view.record else ()
            others = tuple(each for each, entry in entries if entry.sequences & receipt.sequences)
            return replace(seen, info=view.info, overlapping=others)
    return seen
