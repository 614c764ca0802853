# SPDX-License-Identifier: Apache-2.0
"""Airflow connections of type ``nats``: read the settings and the field ``console``, and test the connection.

The form is in ``get_provider_info.py``, and docs/reference/connection.md describes it.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from ipaddress import AddressValueError, IPv6Address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from airflow_nats_jetstream.get_provider_info import CONNECTION_FIELDS, DEFAULT_LEDGER
from airflow_nats_jetstream.words import OF_AIRFLOW
from jetstream_client.account import no_inbox, without_jetstream
from jetstream_client.errors import (
    ConnectionFailed,
    InvalidValue,
    JetStreamError,
    JetStreamNotEnabled,
    PermissionDenied,
    RequestTimeout,
)
from jetstream_client.wire.settings import ConnectionSettings
from jetstream_handoff import portal
from jetstream_handoff.console import check_console

CREDENTIAL_FOLDERS = "/run/secrets/nats"
"""The default of the option ``credential_folders`` in the section ``[nats]``: a folder that exists only if somebody
created it for credentials. ``/run/secrets`` itself also contains other secrets, such as the token of a Kubernetes
service account."""

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from jetstream_client.context import JetStream
    from jetstream_handoff.words import Words

DEFAULT_CONN_ID = "nats_default"
"""The id of the connection that is used if none is given."""


def settings_of(
    connection: Connection, *, domain: str | None = None, api_prefix: str | None = None
) -> ConnectionSettings:
    """Return the settings that an Airflow connection describes. Empty fields count as absent.

    connection:  the Airflow connection.
    domain:      the JetStream domain to use instead of the connection's. Default None.
    api_prefix:  the prefix of the JetStream API to use instead of the connection's. Default None.

    Raises:
        InvalidValue: a field that is unknown, has the wrong type, or contradicts another. The error names the
            connection's field and shows no secret.
    """
    extra = {name: value for name, value in _extra(connection).items() if value is not None and value != ""}
    check_console(extra.pop("console", None))
    servers = extra.pop("servers", None)
    if servers is not None and connection.host:
        raise InvalidValue(
            "servers", "…", "the field 'host' also names a server; fill in either 'servers' or 'host', not both"
        )
    if servers is None:
        servers = connection.host or ("127.0.0.1" if connection.port else None)
    if isinstance(servers, str):
        addresses = [each.strip() for each in servers.split(",") if each.strip()]
        servers = ",".join(_address(each, connection.port) for each in addresses)
    values: dict[str, Any] = {"servers": servers} if servers is not None else {}
    values |= {"credential_folders": _credential_folders(), "ledger": DEFAULT_LEDGER}
    if connection.login:
        values["user"] = connection.login
    if connection.password:
        values["password"] = connection.password
    for name, value in extra.items():
        if name not in _FIELDS:
            known = ", ".join(sorted(_FIELDS))
            raise InvalidValue(
                "extra", name, f"a connection of type 'nats' has no field of this name; its fields are {known}"
            )
        convert = _CONVERSIONS[_FIELDS[name]["schema"]["type"][0]]
        values[_SETTINGS.get(name, name)] = convert(name, value)
    if domain or api_prefix:
        values["domain"], values["api_prefix"] = domain, api_prefix
    try:
        return ConnectionSettings(**values, words=_words(connection.conn_id))
    except InvalidValue as wrong:
        raise _named(wrong) from None


def _words(conn_id: str | None) -> Words:
    """The words of a connection: commands that are to be run need its id, unless it is the default one."""
    named = conn_id not in (None, "", DEFAULT_CONN_ID)
    return replace(OF_AIRFLOW, options=f"--conn-id {shlex.quote(str(conn_id))}") if named else OF_AIRFLOW


_lookups: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Task[Connection]]] = WeakKeyDictionary()


async def shared_lookup(conn_id: str, look_up: Callable[[str], Coroutine[Any, Any, Connection]]) -> Connection:
    """Return the result of ``look_up(conn_id)``. Concurrent callers share one lookup, and the result is not cached.

    For each lookup, the triggerer's supervisor receives several messages. It handles only one message in each round of
    its main loop (``TriggerRunnerSupervisor.run_once``), and each round includes database queries. So separate lookups
    for a thousand triggers would take minutes.

    conn_id:  the id of the Airflow connection.
    look_up:  called with the id; returns the connection.
    """
    lookups = _lookups.setdefault(asyncio.get_running_loop(), {})
    if conn_id not in lookups:

        def ended(lookup: asyncio.Task[Connection]) -> None:
            del lookups[conn_id]
            _ = lookup.cancelled() or lookup.exception()  # marks it as retrieved, because no caller may be left

        lookups[conn_id] = asyncio.create_task(look_up(conn_id))
        lookups[conn_id].add_done_callback(ended)
    return await asyncio.shield(lookups[conn_id])


def check_connection(settings: ConnectionSettings) -> tuple[bool, str]:
    """Return whether a connection works, and a message for the Test button, which gives the findings or a remedy.

    The connection works if JetStream answers and this user may request the account's limits. Nothing is changed on the
    server.

    settings:  the settings to connect with.
    """
    try:
        return True, portal.run(settings, _summary)
    except InvalidValue as wrong:
        return False, str(_named(wrong))
    except JetStreamNotEnabled as refusal:
        return False, f"connected, but {without_jetstream(settings, refusal)}"
    except PermissionDenied as refusal:
        return False, f"connected, but {_not_permitted(settings, refusal)}"
    except RequestTimeout as silence:
        return False, f"connected, but {silence}. If 'domain' or 'api_prefix' is set, check that it is correct"
    except (ConnectionFailed, JetStreamError) as error:
        return False, str(error)


async def _summary(js: JetStream) -> str:
    seconds = await js.connection.round_trip()
    account = await js.account_info()
    limits = account.limits
    return (
        f"nats-server {js.connection.server_version}, round trip {seconds * 1000:.1f} ms; JetStream: "
        f"{account.streams} streams ({_limit(limits.max_streams)}), "
        f"storage {account.storage} bytes ({_limit(limits.max_storage)}), "
        f"memory {account.memory} bytes ({_limit(limits.max_memory)})"
    )


def _not_permitted(settings: ConnectionSettings, refusal: PermissionDenied) -> str:
    if refusal.act == "publish on":
        return (
            f"{refusal}. Only this test needs that permission, so tasks can still work (docs/reference/permissions.md)"
        )
    return no_inbox(settings, refusal)


def _credential_folders() -> str:
    """Return the folders that must contain the files named in connections: the editor of a connection chooses the file,
    but the administrator of Airflow chooses the folders."""
    from airflow_nats_jetstream.compat import conf

    return str(conf.get("nats", "credential_folders", fallback=CREDENTIAL_FOLDERS))


def _limit(number: int) -> str:
    return "no limit" if number < 0 else f"limit {number}"


def _extra(connection: Connection) -> Mapping[str, Any]:
    """Return the extra as a mapping. Raises InvalidValue.

    Airflow's property ``extra_dejson`` alone would hide an extra that is not JSON, because it is empty in this case.
    """
    try:
        fields = connection.extra_dejson  # reading it also registers secrets that Airflow masks
        if not fields and connection.extra:
            fields = json.loads(connection.extra)
    except (ValueError, TypeError, AttributeError, RecursionError):
        fields = None
    if not isinstance(fields, Mapping):
        raise InvalidValue("extra", "…", "the field 'extra' of a connection must contain a JSON object")
    return fields


def _address(server: str, port: int | None) -> str:
    """Return a server's address. Add the connection's port if the address has none. Restore the brackets of an IPv6
    address, which are lost in the URI form of a connection."""
    with suppress(AddressValueError):
        server = f"[{IPv6Address(server)}]"
    if not port:
        return server
    try:
        alone = urlsplit(server if "://" in server else f"//{server}").port is None
    except ValueError:  # ConnectionSettings raises an error with the reason
        return server
    return f"{server.rstrip('/')}:{port}" if alone else server


def _named(wrong: InvalidValue) -> InvalidValue:
    """Return the same error with the name that the field has in an Airflow connection."""
    return InvalidValue(_NAMES.get(wrong.field, wrong.field), wrong.value, wrong.remedy)


def _text(name: str, value: Any) -> str:
    # The query of a URI has no types. Airflow reads token=123 as a number, even when the Test button sends it.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        remedy = (
            "a value of this type is not a string; give a string. In a URI, 1.5 and true are not strings, so put the "
            "field inside __extra__"
        )
        raise InvalidValue(f"extra[{name!r}]", type(value), remedy)
    return value


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in (0, 1, "0", "1") or (isinstance(value, str) and value.lower() in ("true", "yes", "false", "no")):
        return str(value).lower() in ("true", "1", "1.0", "yes")
    raise InvalidValue(
        f"extra[{name!r}]",
        type(value),
        "the value, which has this type, is neither true nor false; give true or false",
    )


def _seconds(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidValue(
            f"extra[{name!r}]",
            type(value),
            "the value, which has this type, cannot be read as a number; give a number of seconds",
        ) from None


_FIELDS: Mapping[str, Any] = CONNECTION_FIELDS

_CONVERSIONS: dict[str, Callable[[str, Any], Any]] = {"string": _text, "boolean": _flag, "number": _seconds}
"""For each type of field in the form, the function that converts a field of the extra to a value of the settings."""

_SETTINGS = {"nkey_secret": "nkey_seed", "creds_secret": "credentials"}
"""Fields whose name in the extra differs from the name of the setting. The name in the extra contains "secret", so that
Airflow masks the value."""

_NAMES = {"user": "login", **{field: name for name, field in _SETTINGS.items()}}
