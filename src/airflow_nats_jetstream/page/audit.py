# SPDX-License-Identifier: Apache-2.0
"""Airflow's audit log: a row for each action on the page, also if it was refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from airflow.models.log import Log
from airflow.utils.session import create_session
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

LONGEST = 300
"""The largest number of characters of a value that a user chose, and of an outcome."""


class AuditedRoute(APIRoute):
    """A route whose requests are written to the audit log, with their outcome.

    The name of the route is the name of the event. Requests of nobody (401) are not written.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def audited(request: Request) -> Response:
            try:
                response = await handle(request)
            except Exception as error:
                await _write(self.name, request, {"outcome": "refused", "error": type(error).__name__}, str(error))
                raise
            done = json.loads(bytes(response.body))
            await _write(self.name, request, {"outcome": "done"}, str(done.get("text", "")))
            return response

        return audited


def asked(request: Request, values: Mapping[str, Any]) -> None:
    """Note the fields of an action, for its row in the audit log."""
    request.state.jetstream_asked = dict(values)


async def _write(event: str, request: Request, outcome: Mapping[str, str], text: str) -> None:
    user = getattr(request.state, "jetstream_user", None)
    if user is None:
        return
    fields = {**request.path_params, **getattr(request.state, "jetstream_asked", {})}
    extra = {**{name: _short(value) for name, value in fields.items()}, **outcome, "text": text[:LONGEST]}
    await run_in_threadpool(_insert, event, str(user.get_name()), json.dumps(extra))


def _short(value: Any) -> Any:
    return value[:LONGEST] if isinstance(value, str | list) else value


def _insert(event: str, name: str, extra: str) -> None:
    with create_session(scoped=False) as session:
        session.add(Log(event=event, owner=name, owner_display_name=name, extra=extra))
