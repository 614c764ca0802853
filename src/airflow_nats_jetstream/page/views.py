# SPDX-License-Identifier: Apache-2.0
"""The routes that change nothing: connections, the overview of one, claims and dead letters."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from starlette.concurrency import run_in_threadpool

from airflow_nats_jetstream.page import access, connections, letters, obstacles, tasks
from airflow_nats_jetstream.page.access import Editor, Reader, User
from airflow_nats_jetstream.page.answers import (
    Answer,
    claim_json,
    overview_json,
    owners_of_claim,
    owners_of_overview,
    whole_claim_json,
)
from airflow_nats_jetstream.page.claims import Filter, one, open_claims, snapshot
from airflow_nats_jetstream.page.holders import heard
from airflow_nats_jetstream.page.pool import Pool
from jetstream_handoff.watch.seen import Seen, revision

router = APIRouter()

Name = Annotated[str, Query(max_length=255)]
Offset = Annotated[int, Query(ge=0, lt=1 << 53)]


def pool_of(request: Request) -> Pool:
    """Return the connections of the application."""
    pool: Pool = request.app.state.pool
    return pool


@router.get("/connections")
def list_connections(user: User) -> Answer:
    """The connections that the user may read, and whether the user may act on them."""
    readable = [each for each in connections.ids() if access.may("GET", each, user)]
    return Answer({"connections": [{"id": each, "may_act": access.may("PUT", each, user)} for each in readable]})


@router.get("/connections/{connection_id}/overview")
async def show_overview(connection_id: str, request: Request, user: Reader) -> Answer:
    """Streams, consumers and findings."""
    async with pool_of(request).use(connection_id) as line:
        found = await snapshot(line)
        runs = obstacles.runs_of(found)
        waits = await line.ask(("obstacles", runs), lambda js: obstacles.obstacles(runs)) if runs else {}  # noqa: ARG005
    shown = overview_json(connection_id, found, await tasks.known(owners_of_overview(found), user), waits)
    return Answer({**shown, "may_act": await run_in_threadpool(access.may, "PUT", connection_id, user)})


@router.get("/connections/{connection_id}/claims")
async def list_claims(
    connection_id: str,
    request: Request,
    user: Reader,
    *,
    offset: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
    stream: Name = "",
    consumer: Name = "",
    held: Literal["", "yes", "no"] = "",
    dag: Name = "",
    run: Name = "",
) -> Answer:
    """A page of the open claims, the oldest first."""
    async with pool_of(request).use(connection_id) as line:
        found = await snapshot(line)
    # A claim of a DAG that the user may not see must not be found by the name of that DAG.
    visible = not dag or await tasks.may_see(dag, user)
    claims = open_claims(found, Filter(stream, consumer, held, dag, run if dag else "")) if visible else []
    page = claims[offset : offset + limit]
    known = await tasks.known((owner for seen in page for owner in owners_of_claim(seen)), user)
    return Answer({"total": len(claims), "now": found.now, "claims": [claim_json(seen, known) for seen in page]})


@router.get("/connections/{connection_id}/claims/{claim_id}")
async def show_claim(
    connection_id: str,
    claim_id: str,
    request: Request,
    user: Reader,
    listen: Annotated[float, Query(ge=0, le=25, allow_inf_nan=False)] = 0,
) -> Answer:
    """One claim, open or not; with ``listen``, whether its holder is alive."""
    async with pool_of(request).use(connection_id) as line:
        seen = await one(line, claim_id)
        if listen:
            seen = await heard(line, seen, listen)
    known = await tasks.known(owners_of_claim(seen), user)
    spark = await _spark(seen, known)
    return Answer(whole_claim_json(seen, known, revision(seen), spark))


async def _spark(seen: Seen, known: tasks.Tasks) -> dict[str, str] | None:
    """The Spark application of the holder, if the user may see it and the holder is the newest try of its task."""
    by = seen.history.attempt(seen.holder).by
    return await tasks.spark_of(by) if known.is_newest_try(by) else None


@router.get("/connections/{connection_id}/dead-letters/{stream}")
async def list_dead_letters(
    connection_id: str,
    stream: str,
    request: Request,
    user: Reader,  # noqa: ARG001 - checks the right
    *,
    after: Offset = 0,
    limit: Annotated[int, Query(ge=1, le=50)] = 50,
    consumer: Name = "",
    reason: Name = "",
) -> Answer:
    """A page of dead letters, without their payloads."""
    async with pool_of(request).use(connection_id) as line:
        return Answer(await letters.page(line, stream, letters.Wanted(after, limit, consumer, reason)))


@router.get("/connections/{connection_id}/dead-letters/{stream}/{number}")
async def show_dead_letter(
    connection_id: str,
    stream: str,
    number: Annotated[int, Path(ge=1, lt=1 << 63)],
    request: Request,
    user: Editor,  # noqa: ARG001 - checks the right
) -> Answer:
    """The headers and the payload of a dead letter."""
    async with pool_of(request).use(connection_id) as line:
        return Answer(await letters.content(line, stream, number))
