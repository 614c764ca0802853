# SPDX-License-Identifier: Apache-2.0
"""The page's application, which Airflow's api-server mounts at ``/jetstream``: its files and its API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from airflow_nats_jetstream.page import action_routes, connections, views
from airflow_nats_jetstream.page.answers import Answer, error_answer
from airflow_nats_jetstream.page.errors import BadInput, NotLoggedIn, Refused, UnknownPath
from airflow_nats_jetstream.page.files import FOREVER, files
from airflow_nats_jetstream.page.pool import Pool
from jetstream_client.errors import JetStreamError
from jetstream_client.wire.settings import ConnectionSettings


def application() -> FastAPI:
    """Return the application. Its pages of documentation are switched off, because they would need no login."""
    app = FastAPI(
        title="JetStream", docs_url=None, redoc_url=None, openapi_url=None, lifespan=_lifespan, redirect_slashes=False
    )
    app.state.pool = Pool(_settings)
    app.include_router(views.router, prefix="/api")
    app.include_router(action_routes.previews, prefix="/api")
    app.include_router(action_routes.router, prefix="/api")
    app.add_api_route("/static/{digest}/{name:path}", _file, methods=["GET", "HEAD"])
    for kind in (Refused, JetStreamError, TimeoutError, Exception):
        app.add_exception_handler(kind, _failed)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await app.state.pool.close()


async def _settings(connection_id: str) -> ConnectionSettings:
    return await run_in_threadpool(connections.settings, connection_id)


async def _file(digest: str, name: str) -> Response:
    content, kind = files().contents.get(name, (b"", ""))
    if digest != files().digest or not kind:
        raise UnknownPath("the page has no such file; reload the page, because Airflow may have been upgraded")
    return Response(content, media_type=kind, headers={"Cache-Control": FOREVER, "X-Content-Type-Options": "nosniff"})


async def _failed(_: Request, error: Exception) -> Answer:
    return error_answer(error)


async def _refused(_: Request, error: Any) -> Answer:
    """The answer for an error that Airflow's login or the router raised.

    Airflow answers 403 to a token that it cannot read. The page's own checks of rights raise Forbidden.
    """
    status = {403: 401}.get(error.status_code, error.status_code)
    kinds: dict[int, type[Refused]] = {401: NotLoggedIn, 404: UnknownPath}
    said = "the page has no such path" if status == 404 else str(error.detail)
    return Answer({"error": kinds.get(status, BadInput).__name__, "message": f"nothing was done: {said}"}, status)


async def _invalid(_: Request, error: Any) -> Answer:
    first = error.errors()[0]
    field = ".".join(str(each) for each in first["loc"][1:])
    return error_answer(BadInput(f"the parameter {field!r} is invalid: {first['msg']}"))
