# SPDX-License-Identifier: Apache-2.0
"""The Spark Connect server of an Airflow connection, for ``spark_session()`` in a task.

The connection has the type ``spark_connect`` and the fields of Airflow's Spark provider. That provider need not be
installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseHook

from airflow_nats_jetstream.compat import mask_secret
from jetstream_client.errors import InvalidValue

if TYPE_CHECKING:
    from airflow.sdk import Connection

_ADDRESS = re.compile(r"(?:sc://)?((?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::[0-9]{1,5})?)/?", re.ASCII)
_REMOTE, _TOKEN = "SPARK_REMOTE", "SPARK_CONNECT_AUTHENTICATE_TOKEN"


@contextmanager
def spark_connect(conn_id: str | None) -> Iterator[None]:
    """Let ``spark_session()`` use a Spark Connect server inside the block. Nothing changes if there is no ``conn_id``.

    PySpark reads the address and the token from two environment variables. If the address contained the token, errors
    would show the token.

    conn_id:  the id of an Airflow connection of type ``spark_connect``.

    Raises:
        InvalidValue: a field of the connection is invalid.
    """
    if not conn_id:
        yield
        return
    connection = BaseHook.get_connection(conn_id)
    if connection.password:
        mask_secret(connection.password)
    named = {_REMOTE: address_of(connection), _TOKEN: connection.password or None}
    before = {name: os.environ.get(name) for name in named}
    try:
        _set(named)
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def address_of(connection: Connection) -> str:
    """Return the address of a connection's server, ``sc://host:port/;user_id=…;use_ssl=…``, without the token.

    Raises:
        InvalidValue: the connection has another type, or a field is invalid. The error shows no secret.
    """
    if (connection.conn_type or "").replace("-", "_") != "spark_connect":
        remedy = "set spark_conn_id to the id of an Airflow connection of type 'spark_connect'"
        raise InvalidValue("conn_type", connection.conn_type, remedy)
    host = _ADDRESS.fullmatch(connection.host or "")
    if host is None or (connection.port and host[1].rpartition(":")[2].isdigit()):
        remedy = (
            "give host and port in separate fields, for example localhost and 15002; user, token and use_ssl also have "
            "separate fields"
        )
        raise InvalidValue("host", "…" if connection.host else None, remedy)
    address = f"{host[1]}:{connection.port}" if connection.port else host[1]
    parameters = [f"user_id={quote(connection.login, safe='')}"] if connection.login else []
    use_ssl = connection.extra_dejson.get("use_ssl")
    if use_ssl is not None:
        if str(use_ssl).lower() not in ("true", "false"):
            raise InvalidValue("use_ssl", "…", "give true or false")
        parameters.append(f"use_ssl={str(use_ssl).lower()}")
    return f"sc://{address}/;{';'.join(parameters)}" if parameters else f"sc://{address}"
