# SPDX-License-Identifier: Apache-2.0
"""Tables of :mod:`jetstream_tables` by an Airflow connection."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from airflow_nats_jetstream.template import absent
from jetstream_client.errors import InvalidValue
from jetstream_tables import S3, DeltaTable, IcebergTable, SqlTable
from jetstream_tables.described import table_of
from jetstream_tables.secrets import in_address, values_of

if TYPE_CHECKING:
    from airflow.sdk import Connection

_OF_THE_HOOK = frozenset(
    ("cursor", "enable_log_db_messages", "iam", "json", "redshift", "sqlalchemy_query", "sqlalchemy_scheme")
)
"""The fields of a connection's extra that are parameters of Airflow's hook, and not of Postgres."""
_STORES = {"delta": "storage_options", "iceberg": "s3"}
"""By the type of a table, the parameter that has its object store."""
_OF_S3 = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region_name", "endpoint_url")


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
                an Airflow connection, instead of ``url``. Tables of the other types may have one, of type ``aws``,
                instead of ``storage_options`` or ``s3``.

    Raises:
        InvalidValue: a value is missing, unknown or invalid, or secret.
    """
    if isinstance(described, Mapping):  # a template renders None as a string
        described = {name: value for name, value in described.items() if not (isinstance(value, str) and absent(value))}
    if isinstance(described, Mapping) and described.get("type") in _STORES:
        return table_of(_with_store(described, _STORES[described["type"]]))
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


def _with_store(described: Mapping[str, Any], store: str) -> dict[str, Any]:
    """A description whose object store is that of its connection."""
    given = dict(described)
    for name in ("storage_options", "catalog"):  # which Airflow would show as a template field
        value = given.get(name)
        given_here = value.items() if isinstance(value, Mapping) else ()
        if secret := [each for each, text in given_here if values_of({each: str(text)}) or in_address(str(text))]:
            remedy = "give conn_id, the id of an Airflow connection, or a catalog's name in pyiceberg's configuration"
            raise InvalidValue("table", f"{name} with {', '.join(secret)}", remedy)
    if "conn_id" in given:
        if store in given:
            raise InvalidValue("table", f"conn_id and {store}", "give one of them")
        given[store] = partial(_s3, str(given.pop("conn_id")))
    return given


def delta_table(conn_id: str, uri: str) -> DeltaTable:
    """Return a table of Delta Lake in S3 that contains each message once, for ``claim.append_to``.

    conn_id:  the id of an Airflow connection of type ``aws``, as for :func:`s3_of`. It is read when the table is used,
              in the task.
    uri:      as for :class:`jetstream_tables.DeltaTable`.
    """
    return DeltaTable(uri, partial(_s3, conn_id))


def iceberg_table(conn_id: str, catalog: str | Mapping[str, str], name: str) -> IcebergTable:
    """Return a table of Apache Iceberg with its files in S3 that contains each message once, for ``claim.append_to``.

    conn_id:  the id of an Airflow connection of type ``aws``, as for :func:`s3_of`. It is read when the table is used,
              in the task.
    catalog:  the name or the properties of a catalog, as for :class:`jetstream_tables.IcebergTable`.
    name:     the table with its namespace: ``sales.orders``.

    Raises:
        InvalidValue: the name has no namespace, or the catalog is not one of these.
    """
    return IcebergTable(catalog, name, partial(_s3, conn_id))


def _s3(conn_id: str) -> S3:
    from airflow.sdk.bases.hook import BaseHook

    return s3_of(BaseHook.get_connection(conn_id))


def s3_of(connection: Connection) -> S3:
    """Return the object store that an Airflow connection of type ``aws`` describes, with its access key, the secret one
    and the session token, region and endpoint. Without an access key, the credentials are those of the environment.

    connection:  the connection.

    Raises:
        InvalidValue: it is of another type, or has fields for which Airflow's hook is needed, such as ``role_arn``.
    """
    named = f"connection {connection.conn_id!r}"
    if connection.conn_type != "aws":
        raise InvalidValue("conn_type", connection.conn_type, f"{named} must have the type aws")
    extra = {name: value for name, value in connection.extra_dejson.items() if value not in ("", None, {})}
    endpoint = _endpoint_of(extra.pop("service_config", {}), named)
    if unknown := sorted(extra.keys() - set(_OF_S3)):
        remedy = (
            f"{named} needs Airflow's hook for this; get the credentials with it, in a function that returns a "
            "jetstream_tables.S3, and give this function to DeltaTable or IcebergTable"
        )
        raise InvalidValue(unknown[0], "…", remedy)
    key = connection.login or extra.get("aws_access_key_id")
    secret = connection.password or extra.get("aws_secret_access_key")
    if bool(key) != bool(secret):
        lacking = "an access key (login)" if secret else "a secret access key (password)"
        raise InvalidValue("password" if key else "login", None, f"{named} lacks {lacking}; give both or neither")
    token, region = extra.get("aws_session_token"), extra.get("region_name")
    return S3(key or None, secret or None, token, region, endpoint or extra.get("endpoint_url"))


def _endpoint_of(service_config: Any, named: str) -> Any:
    of_s3 = service_config.get("s3", {}) if isinstance(service_config, Mapping) else None
    if not isinstance(of_s3, Mapping):
        remedy = f'{named} needs an object here, such as {{"s3": {{"endpoint_url": "https://s3.example.com"}}}}'
        raise InvalidValue("service_config", "…", remedy)
    return of_s3.get("endpoint_url")


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
    options = {name: value for name, value in extra.items() if name not in _OF_THE_HOOK and value not in ("", None)}
    if nested := [name for name, value in options.items() if isinstance(value, dict | list)]:
        remedy = f"connection {connection.conn_id!r}: a parameter of Postgres is a text or a number; leave this one out"
        raise InvalidValue(nested[0], "…", remedy)
    user = ":".join(quote(each, safe="") for each in (connection.login or "", connection.password) if each is not None)
    host = connection.host or ""
    host = f"[{host}]" if ":" in host else quote(host, safe="")
    port = f":{connection.port}" if connection.port else ""
    address = f"postgresql://{user}@{host}{port}" if user else f"postgresql://{host}{port}"
    return f"{address}/{quote(connection.schema or '', safe='')}{'?' if options else ''}{urlencode(options)}"
