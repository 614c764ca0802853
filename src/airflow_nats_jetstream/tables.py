# SPDX-License-Identifier: Apache-2.0
"""Tables of :mod:`jetstream_tables` by an Airflow connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from jetstream_client.errors import InvalidValue
from jetstream_tables import SqlTable
from jetstream_tables.described import table_of

if TYPE_CHECKING:
    from airflow.sdk import Connection

_OF_THE_HOOK = frozenset(
    ("cursor", "enable_log_db_messages", "iam", "json", "redshift", "sqlalchemy_query", "sqlalchemy_scheme")
)
"""The fields of a connection's extra that are parameters of Airflow's hook, and not of Postgres."""


def sql_table(conn_id: str, name: str) -> SqlTable:
    """Return a table in a Postgres database that contains each message once, for ``claim.append_to``.

    conn_id:  the id of an Airflow connection of type ``postgres``. It is read when the table is used, in the task. Its
              extra may have parameters of Postgres, such as ``sslmode``.
    name:     as for :class:`jetstream_tables.SqlTable`.

    Raises:
        InvalidValue: the name is not that of a table. Later, when the table is used: the connection is of another type.
    """

    def url() -> str:
        from airflow.sdk.bases.hook import BaseHook

        return url_of(BaseHook.get_connection(conn_id))

    return SqlTable(url, name)


def described_table(described: object) -> Any:
    """Return a table that is given as such, or as a mapping.

    described:  as for :func:`jetstream_tables.described.table_of`; a table of type ``sql`` has ``conn_id``, the id of
                an Airflow connection, instead of ``url``.

    Raises:
        InvalidValue: a value is missing, unknown or invalid.
    """
    if not (isinstance(described, Mapping) and described.get("type") == "sql"):
        return table_of(described)
    given = dict(described)
    if "url" in given:  # which Airflow would show as a template field
        raise InvalidValue("table", "url", "give conn_id, the id of an Airflow connection of type postgres")
    conn_id, name = given.pop("conn_id", None), given.get("name")
    if not conn_id or not name:
        raise InvalidValue("table", sorted(described), "a table of type 'sql' needs 'conn_id' and 'name'")
    if others := given.keys() - {"type", "name"}:
        raise InvalidValue("table", sorted(others), "a table of type 'sql' has only conn_id and name")
    return sql_table(str(conn_id), str(name))


def url_of(connection: Connection) -> str:
    """Return the address of the database that an Airflow connection describes.

    connection:  the connection.

    Raises:
        InvalidValue: it is not of type ``postgres``, or needs Airflow's hook to log in.
    """
    if connection.conn_type not in {"postgres", "postgresql"}:
        remedy = f"connection {connection.conn_id!r} must have the type postgres; only Postgres is supported"
        raise InvalidValue("conn_type", connection.conn_type, remedy)
    extra = connection.extra_dejson
    if extra.get("iam"):
        remedy = f"connection {connection.conn_id!r} logs in with IAM, which needs Airflow's hook; use a password"
        raise InvalidValue("iam", extra["iam"], remedy)
    options = {name: value for name, value in extra.items() if name not in _OF_THE_HOOK and value not in {"", None}}
    user = ":".join(quote(each, safe="") for each in (connection.login or "", connection.password) if each is not None)
    host = connection.host or ""
    host = f"[{host}]" if ":" in host else quote(host, safe="")
    port = f":{connection.port}" if connection.port else ""
    address = f"postgresql://{user}@{host}{port}" if user else f"postgresql://{host}{port}"
    return f"{address}/{quote(connection.schema or '', safe='')}{'?' if options else ''}{urlencode(options)}"
