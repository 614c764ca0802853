# SPDX-License-Identifier: Apache-2.0
"""Rights: those of Airflow on a connection, and the checks that an action comes from Airflow's own pages.

The right GET on a connection shows its lists, and the right PUT shows payloads and permits actions. Airflow's own
dependency ``requires_access_connection`` is not used, because with teams it reads the body of every PUT.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import ConnectionDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.configuration import conf
from fastapi import Depends, Request

from airflow_nats_jetstream.page import connections
from airflow_nats_jetstream.page.errors import BadInput, CrossSite, Forbidden, UnknownConnection

Right = Literal["GET", "PUT"]

LARGEST_BODY = 64 << 10


def may(right: Right, connection_id: str, user: Any) -> bool:
    """Whether a user has a right on a connection, by the id as it is written and as it is listed."""
    manager = get_auth_manager()
    return all(
        manager.is_authorized_connection(
            method=right, details=ConnectionDetails(conn_id=each, team_name=connections.team_of(each)), user=user
        )
        for each in {connection_id, connections.listed(connection_id)}
    )


def _require(right: Right, connection_id: str, request: Request, user: Any) -> Any:
    request.state.jetstream_user = user
    if not may(right, connection_id, user):
        what = "change" if right == "PUT" else "read"
        raise Forbidden(
            f"you may not {what} the connection {connection_id[:250]!r}; ask an administrator of Airflow for that right"
        )
    if not connections.is_id(connection_id):
        raise UnknownConnection(connection_id)
    return user


def _reader(connection_id: str, request: Request, user: GetUserDep) -> Any:
    return _require("GET", connection_id, request, user)


def _editor(connection_id: str, request: Request, user: GetUserDep) -> Any:
    return _require("PUT", connection_id, request, user)


User = GetUserDep
"""Parameter of a route: the user, who is logged in."""
Reader = Annotated[Any, Depends(_reader)]
"""Parameter of a route: the user, who may read the connection ``connection_id`` of the path."""
Editor = Annotated[Any, Depends(_editor)]
"""Parameter of a route: the user, who may change the connection ``connection_id`` of the path."""


def _actor(request: Request, user: Editor) -> Any:
    if not _same_origin(request):
        raise CrossSite(
            "nothing was done, because the request does not come from a page of this Airflow; send the header "
            "Sec-Fetch-Site: same-origin, or an Origin that equals the address of Airflow"
        )
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise BadInput("nothing was done, because the body is not JSON; send Content-Type: application/json")
    return user


Actor = Annotated[Any, Depends(_actor)]
"""Parameter of a route: as :data:`Editor`, and the request is neither a form nor from another site."""


def _same_origin(request: Request) -> bool:
    """Whether a page of this Airflow sent the request.

    Browsers send Airflow's cookie with requests of pages of sibling domains, too. They send Sec-Fetch-Site with https
    and on localhost, and Origin with every POST. No Authorization header is an exemption, because browsers add Basic
    themselves.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    if origin is None:
        return False
    base = urlsplit(conf.get("api", "base_url", fallback=""))
    return origin in {f"{request.url.scheme}://{request.headers.get('host')}", f"{base.scheme}://{base.netloc}"}


async def body_of(request: Request) -> bytes:
    """Return the body of a request. Raises BadInput if it is too large."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:
            raise BadInput(f"nothing was done, because the body is larger than {LARGEST_BODY} bytes")
    return body
