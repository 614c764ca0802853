# SPDX-License-Identifier: Apache-2.0
"""Finding claims: those that are open in the shared overview of a connection, and all others in the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_nats_jetstream.page.errors import UnknownClaim
from jetstream_handoff.claim import is_claim_id
from jetstream_handoff.errors import LedgerUnavailable
from jetstream_handoff.ledger.buckets import never_used
from jetstream_handoff.repair.release import Which
from jetstream_handoff.watch import inspection
from jetstream_handoff.watch.overview import Survey
from jetstream_handoff.watch.seen import Seen

if TYPE_CHECKING:
    from airflow_nats_jetstream.page.pool import Line
    from jetstream_client.context import JetStream
    from jetstream_handoff.watch.view import ConsumerView, Overview


@dataclass(frozen=True)
class Filter:
    """Which open claims are listed. An empty field selects all.

    held:      ``yes`` for the claims that an attempt holds, ``no`` for the others.
    dag, run:  the DAG and the run that took a claim, or whose task holds it.
    """

    stream: str = ""
    consumer: str = ""
    held: str = ""
    dag: str = ""
    run: str = ""

    def fits(self, seen: Seen) -> bool:
        """Whether a claim is listed."""
        held = "yes" if seen.holder else "no"
        return self.held in ("", held) and Which(self.stream, self.consumer, self.dag, self.run).fits(seen)

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


def open_claims(found: Overview, wanted: Filter) -> list[Seen]:
    """Return the selected open claims, the oldest first."""
    claims = (seen for view in found.consumers if wanted.of(view) for seen in view.claims if wanted.fits(seen))
    return sorted(claims, key=lambda seen: (seen.since, seen.sequences.first, seen.id))


async def one(line: Line, claim_id: str) -> Seen:
    """Return a claim, open or not. An open one is in the shared overview, unless it is newer, or its record could not
    be read for the overview. Any other claim is looked up in the ledger.

    Raises:
        UnknownClaim: the ledger does not know the claim.
        LedgerUnavailable: the ledger cannot be read.
    """
    if not is_claim_id(claim_id):
        raise UnknownClaim(claim_id)

    async def look_up(js: JetStream) -> Seen | None:
        try:
            return await inspection.find(js, claim_id)
        except LedgerUnavailable as error:
            if never_used(error):
                return None
            raise

    for view in (await snapshot(line)).consumers:
        if view.record is not None and claim_id in view.record.open:
            return next(seen for seen in view.claims if seen.id == claim_id)
    seen = await line.ask(("claim", claim_id), look_up)
    if seen is None:
        raise UnknownClaim(claim_id)
    return seen
