"""How to reach NATS: servers, one way to authenticate, TLS, and where JetStream and the ledger are."""

from __future__ import annotations

import json
import os
import re
import ssl
import tempfile
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_subject
from jetstream_client.quantities import check_count
from jetstream_client.wire import credential
from jetstream_client.wire.authentication import check_credentials, check_seed

DEFAULT_SERVER = "nats://127.0.0.1:4222"
ENVIRONMENT_PREFIX = "JETSTREAM_SECRET_"
_LONGEST_TIMEOUT = 86_400.0
_LONGEST_PREFIX = 128  # bytes of inbox_prefix: it shares a line with the subjects of what is published
_SERVER = re.compile(r"[^\s\x00-\x20\x7f\ud800-\udfff]+")
_HOST = re.compile(r"[^\s\x00-\x20\x7f\ud800-\udfff%]{1,253}")
_PLAIN = re.compile(r"[a-z0-9_]")
_HARMLESS = re.compile(r"(?:[a-z]+://)?(?:[\w.-]*|\[[0-9a-fA-F:.]*\])(?::[0-9]{1,5})?/?", re.ASCII)
"""Scheme, host and port, and no more in which a secret could be."""


def shown_address(address: str) -> str:
    """What an error shows of an address that it refuses: ``…`` if a secret could be in it."""
    return address if _HARMLESS.fullmatch(address) else "…"


def _secret() -> Any:
    return field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """An immutable description of a connection. Its ``repr`` shows no secret.

    servers:              ``nats://host:port`` or ``tls://host:port``, several as a tuple or with commas between.
                          User information in the URL is refused: it would show in logs.
    user, password / token / nkey_seed / credentials:
                          one way to authenticate, or none. ``credentials`` is the content of a ``.creds`` file, with
                          the line ends of any system. Each secret may also be the path of a file that holds it, see
                          :mod:`jetstream_client.wire.credential`: ``file:///…`` for any of them, the bare
                          path for a seed and a ``.creds`` file.
    credential_folders:   folders with ``:`` between, below which such files must lie, links resolved. By default any
                          file that this process may read: right where its owner writes the settings. Settings of an
                          Airflow connection have those of Airflow's configuration, and Spark's workers keep to them.
    tls:                  speak TLS or fail; implied by ``tls://``, by the other ``tls_`` fields.
    tls_ca, tls_certificate, tls_private_key:
                          PEM text or the path of a file. Without ``tls_ca`` the system's authorities are trusted.
    tls_hostname:         the name that the server's certificate must carry, by default the host of the URL.
    tls_handshake_first:  the server expects TLS before its INFO line (nats-server ``handshake_first``).
    inbox_prefix:         first tokens of the subjects on which answers arrive. With a prefix for each user none can
                          listen to the answers of another, see docs/reference/permissions.md.
    domain / api_prefix:  which JetStream; one of them at most. A trailing dot of the prefix is forgiven.
    ledger:               prefix of the two key-value buckets of the hand-off, ``<ledger>_claims`` and ``_receipts``.
    connect_timeout:      seconds for one connection to be made, all servers and attempts together. Default 10.
    max_reconnects:       attempts to connect again to each server, after which a lost connection has ended for good;
                          0: none. Default None: without end, which is right for a task that holds claims. The bulk
                          connection is made anew by what uses it, and knows no such limit.
    request_timeout:      seconds for one answer of the JetStream API. Default 5, as nats.go and async-nats.
    shortest_ack_wait:    seconds; claims refuse consumers with a shorter lease. Default 60: a failover of a replicated
                          stream took up to 8 s, and a lease must outlive several heartbeats. Tests lower it.
    name:                 what NATS monitoring shows for the connection.
    """

    servers: str | tuple[str, ...] = DEFAULT_SERVER
    user: str | None = None
    password: str | None = _secret()
    token: str | None = _secret()
    nkey_seed: str | None = _secret()
    credentials: str | None = _secret()
    credential_folders: str | None = None
    tls: bool = False
    tls_ca: str | None = field(default=None, repr=False)
    tls_certificate: str | None = field(default=None, repr=False)
    tls_private_key: str | None = _secret()
    tls_hostname: str | None = None
    tls_handshake_first: bool = False
    inbox_prefix: str = "_INBOX"
    domain: str | None = None
    api_prefix: str | None = None
    ledger: str = "airflow"
    connect_timeout: float = 10.0
    max_reconnects: int | None = None
    request_timeout: float = 5.0
    shortest_ack_wait: float = 60.0
    name: str = "airflow-provider-nats-jetstream"

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "servers", self._checked_servers())
        if any(server.startswith("tls://") for server in self.servers) or any(
            (self.tls_ca, self.tls_certificate, self.tls_private_key, self.tls_hostname, self.tls_handshake_first)
        ):
            object.__setattr__(self, "tls", True)
        self._check_authentication()
        self._check_subjects()
        self._check_numbers()

    def _checked_servers(self) -> tuple[str, ...]:
        texts = self.servers.split(",") if isinstance(self.servers, str) else self.servers
        if any("@" in text for text in texts):
            # Before the commas count: one may be part of a password. What is around the @ is not shown at all.
            remedy = "put the user and password into their own fields, not into the URL"
            raise InvalidValue("servers", "…@…", remedy)
        servers = tuple(_check_server(text.strip()) for text in texts if text.strip())
        if not servers:
            raise InvalidValue("servers", self.servers, f"name at least one server, for example {DEFAULT_SERVER}")
        return servers

    def _check_authentication(self) -> None:
        ways = [way for way in ("user", "token", "nkey_seed", "credentials") if getattr(self, way)]
        if len(ways) > 1:
            raise InvalidValue("authentication", " and ".join(ways), "choose one way to authenticate")
        if bool(self.user) != bool(self.password):
            raise InvalidValue("user" if self.password else "password", None, "user and password belong together")
        if self.nkey_seed and not credential.path_of("nkey_seed", self.nkey_seed):
            object.__setattr__(self, "nkey_seed", check_seed(self.nkey_seed))
        if self.credentials and not credential.path_of("credentials", self.credentials):
            check_credentials(self.credentials)
        if bool(self.tls_certificate) != bool(self.tls_private_key):
            missing = "tls_private_key" if self.tls_certificate else "tls_certificate"
            raise InvalidValue(missing, None, "a client certificate needs its private key, and the reverse")

    def _check_subjects(self) -> None:
        if self.domain and self.api_prefix:
            raise InvalidValue("domain", self.domain, "give a domain or an API prefix, not both")
        check_subject(self.inbox_prefix, "inbox_prefix")
        if len(self.inbox_prefix.encode()) > _LONGEST_PREFIX:
            raise InvalidValue("inbox_prefix", self.inbox_prefix, f"give at most {_LONGEST_PREFIX} bytes")
        if self.domain:
            check_subject(self.domain, "domain")
        if self.api_prefix:
            check_subject(self.api_prefix.removesuffix("."), "api_prefix")
        if not self.ledger.replace("-", "").replace("_", "").isalnum():
            raise InvalidValue("ledger", self.ledger, "a bucket prefix has letters, digits, - and _ only")

    def _check_numbers(self) -> None:
        for timeout in ("connect_timeout", "request_timeout", "shortest_ack_wait"):
            if not 0 < getattr(self, timeout) <= _LONGEST_TIMEOUT:
                raise InvalidValue(timeout, getattr(self, timeout), "give seconds above 0, at most a day")
        if self.max_reconnects is not None:
            check_count("max_reconnects", self.max_reconnects, 0)

    def _check_types(self) -> None:
        """Raises InvalidValue without the value, which may be a secret in the wrong place."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "servers":
                fits = isinstance(value, str) or (
                    isinstance(value, list | tuple) and all(isinstance(server, str) for server in value)
                )
            elif each.name == "max_reconnects":
                fits = value is None or type(value) is int
            elif isinstance(each.default, bool):
                fits = isinstance(value, bool)
            elif isinstance(each.default, float):
                fits = isinstance(value, int | float) and not isinstance(value, bool)
            else:
                fits = isinstance(value, str) or (value is None and each.default is None)
            if not fits:
                raise InvalidValue(each.name, type(value).__name__, f"give a value as {each.type}")

    @property
    def prefix(self) -> str:
        """The subject prefix of the JetStream API, without a trailing dot."""
        if self.api_prefix:
            return self.api_prefix.removesuffix(".")
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each server."""
        return [(url.hostname or "", url.port or 4222) for url in map(urlsplit, self.servers)]

    @property
    def kind(self) -> str:
        """How the connection authenticates, in words for messages."""
        if self.user:
            return "user and password"
        if self.nkey_seed:
            return "an NKey seed"
        if self.credentials:
            return "credentials"
        if self.token:
            return "a token"
        return "a client certificate" if self.tls_certificate else "no authentication"

    def credential(self, name: str) -> str:
        """The content of a field that may name a file. Raises InvalidValue."""
        return credential.read(name, getattr(self, name) or "", self.credential_folders)

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context, host names checked; None without TLS.

        Raises:
            InvalidValue: a certificate or key that cannot be read; its content is not shown.
        """
        if not self.tls:
            return None
        folders = self.credential_folders
        ca = credential.read_pem("tls_ca", self.tls_ca, "CERTIFICATE", folders) if self.tls_ca else None
        try:
            context = ssl.create_default_context(cadata=ca)
        except (ssl.SSLError, ValueError):
            raise InvalidValue("tls_ca", "…", "this is no PEM certificate: a part of it was lost or changed") from None
        if self.tls_certificate and self.tls_private_key:
            certificate = credential.read_pem("tls_certificate", self.tls_certificate, "CERTIFICATE", folders)
            key = credential.read_pem("tls_private_key", self.tls_private_key, "PRIVATE KEY", folders)
            try:
                _load_client_certificate(context, certificate, key)
            except (ssl.SSLError, ValueError, OSError):
                remedy = "certificate and private key must be whole, belong together, and the key have no passphrase"
                raise InvalidValue("tls_certificate", "…", remedy) from None
        return context

    def to_json(self) -> str:
        """The fields that differ from their defaults, secrets included: for an environment variable only."""
        return json.dumps(
            {each.name: getattr(self, each.name) for each in fields(self) if getattr(self, each.name) != each.default}
        )

    @classmethod
    def from_json(cls, text: str) -> ConnectionSettings:
        """The reverse. Raises InvalidValue without showing the text."""
        try:
            values = json.loads(text)
            if "servers" in values and not isinstance(values["servers"], str):
                values["servers"] = tuple(values["servers"])
            return cls(**values)
        except (ValueError, TypeError, RecursionError):
            raise InvalidValue("connection settings", "…", "this is not the JSON of connection settings") from None

    @classmethod
    def from_environment(cls, connection: str) -> ConnectionSettings:
        """The settings of an Airflow connection id, from its environment variable, see :func:`environment_name`.

        The variable holds them as :meth:`to_json` writes them, or it is the absolute path of a file that does: on a
        cluster the executors may have such a file where the task that starts the work has the text.

        Raises:
            InvalidValue: the variable is not set, its file cannot be read, or what it holds is something else.
        """
        name = environment_name(connection)
        text = os.environ.get(name)
        if text is None:
            remedy = (
                f"the environment variable {name} is not set here. @task.jetstream sets it before its body runs, and "
                "spark_session() sends it to the executors; a Spark session that was started before, or otherwise, "
                "does not see it: stop that session and start it with spark_session() in the body"
            )
            raise InvalidValue("connection", connection, remedy)
        if text.startswith("/"):  # JSON of settings begins with a brace
            try:
                text = credential.read_file(Path(text))
            except credential.Unreadable as wrong:
                remedy = (
                    f"the environment variable {name} names a file that cannot be read here ({wrong}): it must lie at "
                    "that path wherever the driver or an executor runs, readable by the user that runs them"
                )
                raise InvalidValue("connection", connection, remedy) from None
        return cls.from_json(text)


def environment_name(connection: str) -> str:
    """``JETSTREAM_SECRET_<CONNECTION>``: Spark redacts names that contain "secret" (spark.redaction.regex).

    ``nats_default`` is ``NATS_DEFAULT``. What is not ``a`` to ``z``, a digit or ``_`` becomes its hexadecimal code
    between two ``x``, so that two connections never share a variable: ``nats-prod`` is ``NATSx2dxPROD``.

    Raises:
        InvalidValue: an address, which may hold a password. Airflow allows no ``@`` in an id.
    """
    if "@" in connection:
        raise InvalidValue("connection", "…@…", "give the id of an Airflow connection, not an address")
    letters = (each.upper() if _PLAIN.fullmatch(each) else f"x{ord(each):x}x" for each in connection)
    return ENVIRONMENT_PREFIX + "".join(letters)


def _check_server(server: str) -> str:
    text = server if "://" in server else f"nats://{server}"
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        url, port = None, None
    if (
        url is None
        or url.scheme not in ("nats", "tls")
        or not url.hostname
        or not _HOST.fullmatch(url.hostname)
        or not _SERVER.fullmatch(text)  # urlsplit takes line breaks and tabs out before it looks
        or url.path.strip("/")
        or url.query
        or url.fragment
        or port == 0
    ):
        remedy = f"a server is nats://host:port or tls://host:port, e.g. {DEFAULT_SERVER}"
        raise InvalidValue("servers", shown_address(server), remedy)
    return text.rstrip("/")


def _load_client_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """The ssl module reads certificates from files only; these exist, readable by us alone, for just this call."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, "certificate.pem"), Path(folder, "key.pem")]
        for path, text in zip(files, (certificate, key), strict=True):
            path.touch(mode=0o600)
            path.write_text(text)
        context.load_cert_chain(files[0], files[1], password="")
