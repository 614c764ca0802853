# SPDX-License-Identifier: Apache-2.0
"""Authentication: the CONNECT line of the control connection and of the bulk connection, including signatures.

An NKey is an Ed25519 key: base32 of a prefix, the 32 bytes and a checksum (nats-io/nkeys, ``strkey.go``). A ``.creds``
file contains a JWT and its seed. The server sends a nonce in INFO, which the client signs.
"""

from __future__ import annotations

import base64
import binascii
import json
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import (
    AuthenticationFailed,
    ConnectionDenied,
    ConnectionFailed,
    ConnectionLost,
    InvalidValue,
    TlsNotOffered,
)
from jetstream_client.wire.credential import check_credentials, check_seed
from jetstream_client.wire.protocol import is_authentication_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from jetstream_client.wire.settings import ConnectionSettings

_PREFIX_USER = 20 << 3


def connect_line(settings: ConnectionSettings, server: Mapping[str, Any], *, encrypted: bool) -> bytes:
    """The CONNECT line that answers a server's INFO. Both connections send this line, and no secret is sent in any
    other way.

    Raises:
        TlsNotOffered: TLS is set, and the connection is not encrypted.
        AuthenticationFailed: a seed or credentials are set, and the server sent no nonce or the package
            ``cryptography`` is not installed.
        InvalidValue: the checksum of a seed is wrong, or the file of a credential cannot be read or is invalid.
    """
    if settings.tls and not encrypted:
        raise TlsNotOffered(
            f"TLS is set here, but the server at {', '.join(settings.servers)} does not offer it, so no secret was "
            "sent. Enable TLS on the server, or connect without TLS"
        )
    fields = {
        "verbose": False,
        "pedantic": False,
        "headers": True,
        "no_responders": True,
        "lang": "python",
        "version": _version(),
        "protocol": 1,
        "name": settings.name,
    }
    fields |= who(settings, str(server.get("nonce", "")))
    return b"CONNECT " + json.dumps(fields).encode() + b"\r\n"


def unreachable(settings: ConnectionSettings, reason: str) -> ConnectionFailed:
    """The error when the connection to every server failed or took too long."""
    return ConnectionFailed(
        f"no NATS server accepted a connection at {', '.join(settings.servers)} within {settings.connect_timeout:g} s: "
        f"{reason}; correct the addresses and ports, or make sure that the server there runs and accepts connections"
    )


def refused(settings: ConnectionSettings, words: str) -> AuthenticationFailed:
    """The error when the server refused the connection, with its ``words`` and a remedy for the kind of credentials."""
    try:
        remedy = _remedy(settings)
    except InvalidValue as unreadable:  # the file has been removed or changed since it was read for this connection
        remedy = str(unreadable)
    return AuthenticationFailed(f"the NATS server refused the connection (with {settings.kind}): {words}; {remedy}")


def ended_by_server(settings: ConnectionSettings, text: str, *, accepted: bool) -> ConnectionFailed:
    """The error when the server ended the connection with ``-ERR``.

    accepted:  whether it had accepted the credentials before. If they expire later, they may have been renewed in their
               file, so that another connection can be opened.
    """
    if is_authentication_error(text) and not accepted:
        return refused(settings, text)
    if "maximum control line" in text.lower():
        return ConnectionDenied(
            f"the NATS server ended the connection: {text}; use shorter subjects, or raise the server's "
            "max_control_line to its default of 4096 bytes"
        )
    return ConnectionLost(f"the NATS server ended the connection: {text}")


def who(settings: ConnectionSettings, nonce: str) -> dict[str, str | None]:
    """The fields of CONNECT that authenticate: with a secret, or with a signature of the server's ``nonce``. Raises
    AuthenticationFailed, InvalidValue."""
    if settings.user:
        return {"user": settings.user, "pass": settings.credential("password")}
    if settings.token:
        return {"auth_token": settings.credential("token")}
    if not (settings.nkey_seed or settings.credentials):
        return {}
    if not nonce:
        raise AuthenticationFailed(
            f"the NATS server does not accept {settings.kind}: it sent no nonce to sign; set up NKey users or an "
            "operator on the server, or authenticate in another way"
        )
    if settings.nkey_seed:
        key = _key("nkey_seed", check_seed(settings.credential("nkey_seed")))
        return {"nkey": _public(key), "sig": _signature(key, nonce)}
    jwt, seed = check_credentials(settings.credential("credentials"))
    return {"jwt": jwt, "sig": _signature(_key("credentials", seed), nonce)}


def _key(field: str, seed: str) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise AuthenticationFailed(
            "the Python package 'cryptography' is missing; an NKey seed or credentials need it, so install it here "
            "and on every Spark executor"
        ) from None
    raw = base64.b32decode(seed.strip() + "======")  # 36 bytes: two of prefix, the key, two of checksum
    if binascii.crc_hqx(raw[:-2], 0).to_bytes(2, "little") != raw[-2:]:
        remedy = "the seed's checksum is wrong, because a character is missing or changed; copy the seed again"
        raise InvalidValue(field, "…", remedy)
    return Ed25519PrivateKey.from_private_bytes(raw[2:-2])


def _public(key: Ed25519PrivateKey) -> str:
    raw = bytes([_PREFIX_USER]) + key.public_key().public_bytes_raw()
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).rstrip(b"=").decode()


def _signature(key: Ed25519PrivateKey, nonce: str) -> str:
    return base64.urlsafe_b64encode(key.sign(nonce.encode())).rstrip(b"=").decode()


def _remedy(settings: ConnectionSettings) -> str:
    if settings.user:
        return "correct the user or the password"
    if settings.token:
        return "correct the token"
    if settings.nkey_seed:
        seed = check_seed(settings.credential("nkey_seed"))
        return f"add the user {_public(_key('nkey_seed', seed))} to the server's configuration, or use another seed"
    if settings.credentials:
        expired = _expired(check_credentials(settings.credential("credentials"))[0])
        return (
            f"the credentials expired at {expired}, so renew them"
            if expired
            else "use credentials that the server's operator and account have issued"
        )
    if settings.tls_certificate:
        return "add a user for the name in the client certificate to the server's configuration"
    return "set user and password, a token, an NKey seed, credentials or a client certificate"


def _expired(jwt: str) -> str:
    try:
        claims = jwt.split(".")[1]
        expires = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))).get("exp") or 0
        end = datetime.fromtimestamp(expires, UTC)
    except (ValueError, TypeError, AttributeError, IndexError, OverflowError, OSError):
        return ""
    return f"{end:%Y-%m-%dT%H:%M:%SZ}" if expires and end < datetime.now(UTC) else ""


@cache  # reading the metadata takes 1.5 ms, which is as long as a connection takes
def _version() -> str:
    try:
        return version("airflow-provider-nats-jetstream")
    except PackageNotFoundError:  # shipped to an executor as plain files
        return "0"
