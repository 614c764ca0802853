# SPDX-License-Identifier: Apache-2.0
"""Airflow's connections of type ``nats``, as the api-server sees them: their ids and their settings."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.models.connection import Connection
from airflow.secrets.environment_variables import CONN_ENV_PREFIX
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_nats_jetstream.airflow_connection import settings_of
from airflow_nats_jetstream.compat import AirflowException, connection_from_secrets, mask_secret
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.masks import masks
from airflow_nats_jetstream.page.errors import UnknownConnection, Unusable
from jetstream_client.errors import InvalidValue

if TYPE_CHECKING:
    from jetstream_client.wire.settings import ConnectionSettings

CONNECT_WITHIN = 4.0
ANSWERED_WITHIN = 2.0
"""Seconds for one request to the server, at most. People wait for the page, so it gives up earlier than a task."""

_ID = re.compile(r"[A-Za-z0-9][\w.\-]{0,249}", re.ASCII)
"""The ids that Airflow's form accepts, except those that begin with ``_``, ``.`` or ``-``. Other ids are refused: a
secrets backend could read them as a path, and a variable for the connection of a team begins with ``_``."""


def ids() -> list[str]:
    """Return the ids of the connections in Airflow's database and in environment variables, sorted.

    Connections in other secrets backends cannot be listed.
    """
    with create_session(scoped=False) as session:
        found = set(session.scalars(select(Connection.conn_id).where(Connection.conn_type == JetStreamHook.conn_type)))
    found.update(
        name.removeprefix(CONN_ENV_PREFIX).lower()
        for name, value in os.environ.items()
        if name.startswith(CONN_ENV_PREFIX) and _type(value) == JetStreamHook.conn_type
    )
    return sorted(each for each in found if is_id(each))


def is_id(text: str) -> bool:
    """Whether this string can be the id of a connection."""
    return _ID.fullmatch(text) is not None


def listed(connection_id: str) -> str:
    """Return an id as :func:`ids` lists it: Airflow finds a connection in an environment variable by its id in any
    case, so that a right on ``orders`` must also be asked for ``ORDERS``."""
    return connection_id.lower() if f"{CONN_ENV_PREFIX}{connection_id.upper()}" in os.environ else connection_id


def team_of(connection_id: str) -> str | None:
    """Return the team that a connection belongs to; None without a team, or if Airflow has no teams."""
    return Connection.get_team_name(connection_id) if conf.getboolean("core", "multi_team", fallback=False) else None


def settings(connection_id: str) -> ConnectionSettings:
    """Look up the settings of a connection, with shorter timeouts than those of tasks.

    Raises:
        UnknownConnection: Airflow has no connection of this id and of type ``nats``.
        Unusable: a field of the connection is invalid.
    """
    try:
        found = connection_from_secrets(connection_id, team_of(connection_id))
    except AirflowException:
        raise UnknownConnection(connection_id) from None
    if found.conn_type != JetStreamHook.conn_type:
        raise UnknownConnection(connection_id)
    mask_secret(masks(found))
    try:
        given = settings_of(found)
    except InvalidValue as wrong:
        raise Unusable(f"the Airflow connection {connection_id!r} cannot be used: {wrong}") from None
    return replace(
        given,
        connect_timeout=min(given.connect_timeout, CONNECT_WITHIN),
        request_timeout=min(given.request_timeout, ANSWERED_WITHIN),
        name="Airflow's page JetStream",
    )


def _type(value: str) -> str:
    """Return the type of a connection in an environment variable, which contains JSON or a URI."""
    try:
        return str(json.loads(value).get("conn_type")) if value.lstrip().startswith("{") else urlsplit(value).scheme
    except (ValueError, AttributeError, RecursionError):
        return ""
