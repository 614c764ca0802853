# SPDX-License-Identifier: Apache-2.0
"""A connection of nats-py with the settings of an Airflow connection, for its key-value and object stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import ConnectionFailed, InvalidValue
from jetstream_client.wire.authentication import who

if TYPE_CHECKING:
    from nats.js import JetStreamContext

    from jetstream_client.wire.settings import ConnectionSettings


@asynccontextmanager
async def connected(settings: ConnectionSettings) -> AsyncIterator[JetStreamContext]:
    """Connect, and yield a context. The errors are those of :meth:`JetStreamHook.nats_py`."""
    try:
        import nats
    except ModuleNotFoundError as missing:
        remedy = "JetStreamHook.nats_py() needs nats-py; install nats-py>=2.16 (with its extra nkeys for an NKey seed)"
        raise ModuleNotFoundError(remedy, name=missing.name) from missing
    options = _options(settings)
    try:
        # With its defaults, nats-py tries for minutes to reach a server that refuses connections.
        async with asyncio.timeout(settings.connect_timeout):
            client = await nats.connect(**options)
    except TimeoutError:
        raise ConnectionFailed(
            f"nats-py could not connect to {', '.join(settings.servers)} within {settings.connect_timeout:g} s"
        ) from None
    except (nats.errors.Error, OSError) as refused:
        raise ConnectionFailed(f"nats-py could not connect to {', '.join(settings.servers)}: {refused}") from refused
    try:
        yield client.jetstream(timeout=settings.request_timeout)
    finally:
        await client.close()


def _options(settings: ConnectionSettings) -> dict[str, Any]:
    """The parameters of nats-py's ``connect``. Raises InvalidValue for what nats-py would ignore."""
    for name in ("domain", "api_prefix"):
        if value := getattr(settings, name):
            remedy = "nats-py's stores would write outside it; use a connection without it, to a server that has them"
            raise InvalidValue(name, value, remedy)
    if settings.tls and not settings.tls_handshake_first:
        remedy = (
            "nats-py would send the credentials without TLS to a server that offers none; set it, and handshake_first "
            "in the server's tls block"
        )
        raise InvalidValue("tls_handshake_first", False, remedy)
    options: dict[str, Any] = {
        "servers": list(settings.servers),
        "name": settings.name,
        "inbox_prefix": settings.inbox_prefix,
        "connect_timeout": settings.connect_timeout,
        "max_reconnect_attempts": -1 if settings.max_reconnects is None else settings.max_reconnects,
    }
    if settings.tls:
        options |= {"tls": settings.ssl_context(), "tls_handshake_first": True}
        if settings.tls_hostname:
            options["tls_hostname"] = settings.tls_hostname
    if settings.user:
        options |= {"user": settings.user, "password": settings.credential("password")}
    elif settings.token:
        options["token"] = settings.credential("token")
    elif settings.nkey_seed:
        options["nkeys_seed_str"] = settings.credential("nkey_seed")
    elif settings.credentials:
        # With these, nats-py does not need the package nkeys.
        options["signature_cb"] = partial(_field, settings, "sig")
        options["user_jwt_cb"] = partial(_field, settings, "jwt")
    return options


def _field(settings: ConnectionSettings, name: str, nonce: str = "-") -> bytes:
    return str(who(settings, nonce)[name]).encode()
