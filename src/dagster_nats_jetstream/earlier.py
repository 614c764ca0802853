# SPDX-License-Identifier: Apache-2.0
"""Earlier tries of an asset's step that have settled a claim, but died before Dagster has recorded their success.

The messages are acknowledged. A try that took other messages would replace the output of these before a step downstream
has read it, and a try that took nothing would let Dagster skip the steps downstream, in a run that is green.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import dagster as dg

from dagster_nats_jetstream import runs
from dagster_nats_jetstream.between import downstream

if TYPE_CHECKING:
    from dagster_nats_jetstream.resource import JetStreamResource
    from jetstream_client.context import JetStream

_SUCCESS, _STORED = dg.DagsterEventType.STEP_SUCCESS, dg.DagsterEventType.HANDLED_OUTPUT
_MATERIALIZED = dg.DagsterEventType.ASSET_MATERIALIZATION


def settled(context: dg.OpExecutionContext, jetstream: JetStreamResource) -> tuple[str, dg.DagsterRun] | None:
    """Return the claim that an earlier try has settled, and the run of this try; None if there is none.

    The try belongs to this run, or to one of which this run is a re-execution. If the step has succeeded there, a
    re-execution processes new messages.
    """
    for run in runs.lineage(context.instance, context.run):
        if run.run_id == context.run_id and not context.retry_number:
            continue
        if runs.events(context, run, _SUCCESS):
            return None
        if claim := _settled(jetstream, _attempts(context, run)):
            return claim, run
    return None


def _attempts(context: dg.OpExecutionContext, run: dg.DagsterRun) -> dict[str, str]:
    """Return the claims from which tries of this step have materialized the asset in a run, with their attempts."""
    events = runs.events(context, run, _MATERIALIZED)
    reported = [each.step_materialization_data.materialization.metadata for each in events]
    known = [each for each in reported if runs.CLAIM in each and runs.ATTEMPT in each]
    return {str(each[runs.CLAIM].value): str(each[runs.ATTEMPT].value) for each in known}


def _settled(jetstream: JetStreamResource, attempts: Mapping[str, str]) -> str:
    """Return the first of these claims that its attempt has settled; empty if there is none."""

    async def find(js: JetStream) -> str:
        from jetstream_handoff.watch import inspection

        for claim_id, attempt in attempts.items():
            seen = await inspection.find(js, claim_id)
            if seen is not None and seen.receipt and (seen.state, seen.receipt.attempt_id) == ("done", attempt):
                return claim_id
        return ""

    return jetstream.run(find) if attempts else ""


def again(context: dg.OpExecutionContext, claim: str, run: dg.DagsterRun) -> Iterator[dg.MaterializeResult[None]]:
    """Yield the materialization once more, if steps downstream wait for it and Dagster does not have it in this run.

    claim, run:  as :func:`settled` returns them.

    Raises:
        Failure: they need a value that the I/O manager has stored in an earlier run.
    """
    after = sorted(downstream(context))
    context.log.info("claim %s was settled by an earlier try, in run %s, so no messages are taken", claim, run.run_id)
    if run.run_id == context.run_id or not after:
        return
    if runs.events(context, run, _STORED):
        raise dg.Failure(
            f"claim {claim} was settled in run {run.run_id}, which ended before steps downstream ({', '.join(after)}) "
            "had read its output, and new messages would replace the output. Execute these steps without this one, "
            "and materialize this asset in a new run, not in a re-execution",
            allow_retries=False,
        )
    yield dg.MaterializeResult()
