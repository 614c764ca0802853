# SPDX-License-Identifier: Apache-2.0
"""Airflow's audit log: rows for each action on the page, also if it was refused."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from airflow.models.log import Log
from airflow.utils.session import create_session
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from airflow_nats_jetstream.page.errors import is_refusal

log = logging.getLogger(__name__)

BEGAN, DONE, REFUSED, FAILED = "began", "done", "refused", "failed, perhaps in part"
"""The outcomes. After a refusal nothing has changed. A row ``began`` without a later row shows that the api-server died
during the action."""
LONGEST = 300
"""The largest number of characters of a value that a user chose, and of an outcome."""


class AuditedRoute(APIRoute):
    """A route whose requests are written to the audit log: a row when the action begins, and a row when it ends, with
    its outcome. An action that is refused before it begins has one row.

    The name of the route is the name of the event. Requests of nobody (401) are not written.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def audited(request: Request) -> Response:
            request.state.jetstream_event = self.name
            try:
                response = await handle(request)
            except (Exception, asyncio.CancelledError) as error:
                failed = getattr(request.state, "jetstream_began", False) and not is_refusal(error)
                outcome = {"outcome": FAILED if failed else REFUSED, "error": type(error).__name__}
                await _write_end(request, outcome, str(error))
                raise
            done = json.loads(bytes(response.body))
            await _write_end(request, {"outcome": DONE}, str(done.get("text", "")))
            return response

        return audited


def asked(request: Request, values: Mapping[str, Any]) -> None:
    """Note the fields of an action, for its rows in the audit log."""
    request.state.jetstream_asked = dict(values)


async def began(request: Request, text: str) -> None:
    """Write the row of an action that begins now. If that fails, the action must not be carried out.

    text:  what the action will do.
    """
    await _write(request, {"outcome": BEGAN}, text)
    request.state.jetstream_began = True


async def _write_end(request: Request, outcome: Mapping[str, str], text: str) -> None:
    """Write the last row of an action. An error is only logged, because the answer must say what the action did."""
    try:
        await _write(request, outcome, text)
    except Exception:
        log.exception("the audit log has no row of %s that %s", request.state.jetstream_event, outcome["outcome"])


async def _write(request: Request, outcome: Mapping[str, str], text: str) -> None:
    user = getattr(request.state, "jetstream_user", None)
    if user is None:
        return
    fields = {**request.path_params, **getattr(request.state, "jetstream_asked", {})}
    extra = {**{name: _short(value) for name, value in fields.items()}, **outcome, "text": text[:LONGEST]}
    await run_in_threadpool(_insert, request.state.jetstream_event, str(user.get_name()), json.dumps(extra))


def _short(value: Any) -> Any:
    return value[:LONGEST] if isinstance(value, str | list) else value


def _insert(event: str, name: str, extra: str) -> None:
    with create_session(scoped=False) as session:
        session.add(Log(event=event, owner=name, owner_display_name=name, extra=extra))
