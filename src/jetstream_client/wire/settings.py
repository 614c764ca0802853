# SPDX-License-Identifier: Apache-2.0
"""The settings of a connection: servers, authentication, TLS, and where to find JetStream and the ledger."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jetstream_client.errors import InvalidValue, SettingsMissing
from jetstream_client.names import check_subject
from jetstream_client.quantities import check_count
from jetstream_client.wire import credential
from jetstream_client.words import Words

log = logging.getLogger(__name__)

CREDENTIALS = (
    "user",
    "password",
    "token",
    "nkey_seed",
    "credentials",
    "tls_ca",
    "tls_certificate",
    "tls_private_key",
)
"""The fields that are looked up again when a server refuses them."""
DEFAULT_SERVER = "nats://127.0.0.1:4222"
ENVIRONMENT_PREFIX = "JETSTREAM_SECRET_"
FOLDER = "JETSTREAM_SECRETS"
"""The environment variable that names a folder. The folder has a file for each connection, with the name of the
connection's variable."""
MOST_LEARNED = 64
"""The largest number of learned addresses, because a hostile server could name very many."""
_KINDS = {"learned": dict, "words": Words}
_LONGEST_TIMEOUT = 86_400.0
_LONGEST_PREFIX = 128  # bytes of inbox_prefix, which shares a protocol line with the subjects of published messages
_SERVER = re.compile(r"[^\s\x00-\x20\x7f\ud800-\udfff]+")
_HOST = re.compile(r"[^\s\x00-\x20\x7f\ud800-\udfff%]{1,253}")
_PLAIN = re.compile(r"[a-z0-9_]")
_HARMLESS = re.compile(r"(?:[a-z]+://)?(?:[\w.-]*|\[[0-9a-fA-F:.]*\])(?::[0-9]{1,5})?/?", re.ASCII)
"""An address of scheme, host and port only, which cannot contain a secret."""


def shown_address(address: str) -> str:
    """An address as an error shows it: ``…`` if it could contain a secret."""
    return address if _HARMLESS.fullmatch(address) else "…"


def _secret() -> Any:
    return field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """An immutable description of a connection. Its ``repr`` shows no secret.

    servers:              ``nats://host:port`` or ``tls://host:port``. Set several as a tuple, or separated by commas.
                          User information in the URL is refused because logs would show it.
    user, password / token / nkey_seed / credentials:
                          one way to authenticate, or none. ``credentials`` is the content of a ``.creds`` file, with
                          the line ends of any system. Each secret may also be the path of a file that contains it, see
                          :mod:`jetstream_client.wire.credential`: ``file:///…`` for any of them, the plain path for a
                          seed or a ``.creds`` file.
    credential_folders:   folders, separated by ``:``. The file of a secret must be in one of them, after links are
                          resolved. Default None: any file that this process may read, which is right if the owner of
                          the process writes the settings. In Airflow, the settings of a connection contain the folders
                          of the configuration, and Spark's workers get the same folders.
    tls:                  use TLS or fail. Implied by ``tls://`` and by the other ``tls_`` fields. Default False.
    tls_ca, tls_certificate, tls_private_key:
                          PEM, or the path of a file. Without ``tls_ca`` the system's authorities are trusted.
    tls_hostname:         the name that the server's certificate must contain. Default: the host of the URL.
    tls_handshake_first:  begin with TLS before the server's INFO line, as the server's ``handshake_first`` requires.
    inbox_prefix:         first tokens of the subjects on which answers arrive, default ``_INBOX``. With a separate
                          prefix for each user, no user can listen to the answers of another user, see
                          docs/reference/permissions.md.
    domain / api_prefix:  set at most one of them, to use the JetStream of another domain or account. The prefix may end
                          with a dot.
    ledger:               prefix of the two key-value buckets of the hand-off, ``<ledger>_claims`` and
                          ``<ledger>_receipts``. Default ``jetstream``.
    connect_timeout:      seconds for connecting, including all servers and attempts. Default 10.
    max_reconnects:       attempts to reconnect to each server, after which a lost connection has ended for good; 0 for
                          none. Default None: without limit, which is right for a task that holds claims. This does not
                          apply to the bulk connection, which is not reconnected but opened again.
    request_timeout:      seconds to wait for one answer of the JetStream API. Default 5, as in nats.go and async-nats.
    shortest_ack_wait:    seconds; a consumer with a shorter ``ack_wait`` is refused for claims. Default 60, because a
                          failover of a replicated stream took up to 8 s, and a lease must outlive several heartbeats.
                          Tests lower it.
    name:                 the connection's name in NATS monitoring.
    source:               returns these settings as they are now, for example from a secrets backend. It is called in a
                          separate thread when a server refuses to connect again, and only the credentials of its result
                          are used. Equal settings may have different sources, and no JSON contains them. Default None.
    learned:              addresses that servers have named, for each value of ``servers``, see :meth:`learn`. Copies of
                          these settings share this memory. It does not count when settings are compared, and no JSON
                          contains it.
    words:                how messages name what their reader can use, for example what creates a stream. An
                          orchestrator's package sets its own. It does not count when settings are compared, and no JSON
                          contains it.
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
    ledger: str = "jetstream"
    connect_timeout: float = 10.0
    max_reconnects: int | None = None
    request_timeout: float = 5.0
    shortest_ack_wait: float = 60.0
    name: str = "airflow-provider-nats-jetstream"
    source: Callable[[], ConnectionSettings] | None = field(default=None, repr=False, compare=False)
    learned: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict, repr=False, compare=False)
    words: Words = field(default_factory=Words, repr=False, compare=False)

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
            # Checked before the commas, which may be part of a password. Nothing around the @ is shown.
            remedy = "set the user and password in their own fields, not in the URL"
            raise InvalidValue("servers", "…@…", remedy)
        servers = tuple(_check_server(text.strip()) for text in texts if text.strip())
        if not servers:
            raise InvalidValue("servers", self.servers, f"set at least one server, for example {DEFAULT_SERVER}")
        return servers

    def _check_authentication(self) -> None:
        ways = [way for way in ("user", "token", "nkey_seed", "credentials") if getattr(self, way)]
        if len(ways) > 1:
            raise InvalidValue("authentication", " and ".join(ways), "set only one of these ways to authenticate")
        if bool(self.user) != bool(self.password):
            raise InvalidValue("user" if self.password else "password", None, "set 'user' and 'password' together")
        if self.nkey_seed and not credential.path_of("nkey_seed", self.nkey_seed):
            object.__setattr__(self, "nkey_seed", credential.check_seed(self.nkey_seed))
        if self.credentials and not credential.path_of("credentials", self.credentials):
            credential.check_credentials(self.credentials)
        if bool(self.tls_certificate) != bool(self.tls_private_key):
            missing = "tls_private_key" if self.tls_certificate else "tls_certificate"
            raise InvalidValue(missing, None, "set tls_certificate and tls_private_key together")

    def _check_subjects(self) -> None:
        if self.domain and self.api_prefix:
            raise InvalidValue("domain", self.domain, "set either 'domain' or api_prefix, not both")
        check_subject(self.inbox_prefix, "inbox_prefix")
        if len(self.inbox_prefix.encode()) > _LONGEST_PREFIX:
            raise InvalidValue("inbox_prefix", self.inbox_prefix, f"must have at most {_LONGEST_PREFIX} bytes")
        if self.domain:
            check_subject(self.domain, "domain")
        if self.api_prefix:
            check_subject(self.api_prefix.removesuffix("."), "api_prefix")
        if not self.ledger.replace("-", "").replace("_", "").isalnum():
            raise InvalidValue("ledger", self.ledger, "must consist of letters, digits, - and _")

    def _check_numbers(self) -> None:
        for timeout in ("connect_timeout", "request_timeout", "shortest_ack_wait"):
            if not 0 < getattr(self, timeout) <= _LONGEST_TIMEOUT:
                raise InvalidValue(timeout, getattr(self, timeout), "must be more than 0 seconds and at most a day")
        if self.max_reconnects is not None:
            check_count("max_reconnects", self.max_reconnects, 0)

    def _check_types(self) -> None:
        """Raises InvalidValue without the value, which may be a secret in the wrong field."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "servers":
                fits = isinstance(value, str) or (
                    isinstance(value, list | tuple) and all(isinstance(server, str) for server in value)
                )
            elif each.name == "source":
                fits = value is None or callable(value)
            elif each.name in _KINDS:
                fits = isinstance(value, _KINDS[each.name])
            elif each.name == "max_reconnects":
                fits = value is None or type(value) is int
            elif isinstance(each.default, bool):
                fits = isinstance(value, bool)
            elif isinstance(each.default, float):
                fits = isinstance(value, int | float) and not isinstance(value, bool)
            else:
                fits = isinstance(value, str) or (value is None and each.default is None)
            if not fits:
                raise InvalidValue(each.name, "…", f"must be of type {each.type}, not {type(value).__name__}")

    @property
    def prefix(self) -> str:
        """The subject prefix of the JetStream API, without a trailing dot."""
        if self.api_prefix:
            return self.api_prefix.removesuffix(".")
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"

    def sent_to(self, subject: str) -> str:
        """The subject to publish to, so that the message is stored on ``subject`` in a bucket of this JetStream.

        subject:  a subject that begins with ``$KV.`` or ``$O.``.
        """
        # A message to a plain subject would be stored in the connected server's bucket of that name. With the prefix,
        # only servers of the domain map it to the bucket (generateJSMappingTable in nats-server's
        # server/jetstream_api.go).
        return f"{self.prefix}.{subject}" if self.domain else subject

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each configured server."""
        return _addresses(self.servers)

    @property
    def named(self) -> tuple[str, ...]:
        """The addresses that servers have named, for the same ``servers``."""
        return self.learned.get(tuple(self.servers), ())

    @property
    def named_addresses(self) -> list[tuple[str, int]]:
        """Host and port of each server that was named and is not configured."""
        own = self.addresses
        return [each for each in _addresses(self.named) if each not in own]

    @property
    def follows(self) -> bool:
        """Whether addresses that a server names in INFO are used.

        INFO arrives before TLS, so an attacker in the network can change it. With TLS, addresses are used only if every
        certificate must have the name ``tls_hostname``: otherwise an attacker could choose the name to check, and get
        the credentials. Without TLS, such an attacker sees the credentials anyway.
        """
        return not self.tls or bool(self.tls_hostname)

    def learn(self, urls: Iterable[str] | None) -> None:
        """Remember the servers that a server names in INFO (``connect_urls``), in addition to those that are
        configured. The last list replaces earlier ones. Invalid addresses are left out, and the rest of a long list.

        urls:  addresses as INFO contains them, such as ``10.0.0.2:4222``; None or an empty list changes nothing.
        """
        if urls and self.follows:
            self.learned[tuple(self.servers)] = tuple(filter(None, map(_named, islice(urls, MOST_LEARNED))))

    @property
    def kind(self) -> str:
        """The kind of authentication, in the words of error messages."""
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
        """The secret in a field, read from the file if the field names one. Raises InvalidValue.

        name:  name of the field, for example ``password``.
        """
        return credential.read(name, getattr(self, name) or "", self.credential_folders, self.words)

    def renewed(self) -> ConnectionSettings | None:
        """The settings with the credentials that ``source`` returns now; None if they are the same, or if there is no
        ``source`` or it fails, which is logged. Blocking."""
        if self.source is None:
            return None
        try:
            now = self.source()
        except Exception as error:  # noqa: BLE001 - the connection goes on with what it has
            log.warning("the settings of the connection cannot be looked up again: %s", error)
            return None
        renewed = replace(self, **{name: getattr(now, name) for name in CREDENTIALS})
        if renewed == self:
            return None
        log.info("the credentials of the connection have changed since they were looked up; the new ones are used")
        return renewed

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context, which checks host names; None without TLS.

        Raises:
            InvalidValue: a certificate or key cannot be read. The message does not show its content.
        """
        if not self.tls:
            return None
        how = self.credential_folders, self.words
        ca = credential.read_pem("tls_ca", self.tls_ca, "CERTIFICATE", *how) if self.tls_ca else None
        try:
            context = ssl.create_default_context(cadata=ca)
        except (ssl.SSLError, ValueError):
            remedy = "this is not a PEM certificate, because part of it is missing or changed; copy it again"
            raise InvalidValue("tls_ca", "…", remedy) from None
        if self.tls_certificate and self.tls_private_key:
            certificate = credential.read_pem("tls_certificate", self.tls_certificate, "CERTIFICATE", *how)
            key = credential.read_pem("tls_private_key", self.tls_private_key, "PRIVATE KEY", *how)
            try:
                _load_client_certificate(context, certificate, key)
            except (ssl.SSLError, ValueError, OSError):
                remedy = (
                    "certificate and private key must be complete and belong together, and the key must have no "
                    "passphrase"
                )
                raise InvalidValue("tls_certificate", "…", remedy) from None
        return context

    def to_json(self) -> str:
        """The fields that differ from their defaults, including secrets. Pass the JSON on only in an environment
        variable."""
        return json.dumps(
            {
                each.name: getattr(self, each.name)
                for each in fields(self)
                if each.compare and getattr(self, each.name) != each.default
            }
        )

    @classmethod
    def from_json(cls, text: str) -> ConnectionSettings:
        """Read ``text``, which :meth:`to_json` wrote. Raises InvalidValue, which shows no secret."""
        try:
            values = json.loads(text)
            if "servers" in values and not isinstance(values["servers"], str):
                values["servers"] = tuple(values["servers"])
            known = {each.name: each.name for each in fields(cls) if each.compare}
            return cls(**{known[name]: value for name, value in values.items()})
        except InvalidValue:
            raise  # it names the field
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            remedy = "must be the JSON that ConnectionSettings.to_json() returned"
            raise InvalidValue("connection settings", "…", remedy) from None

    def to_environment(self, connection: str) -> str:
        """Let programs that this process starts, such as Spark's JVM and its local Python workers, find these settings,
        with their secrets, by the name of the connection: the reverse of :meth:`from_environment`. Returns the name."""
        os.environ[environment_name(connection)] = self.to_json()  # its name makes Spark redact the value
        return connection

    @classmethod
    def from_environment(cls, connection: str) -> ConnectionSettings:
        """The settings of the connection with the name ``connection``, from its environment variable, see
        :func:`environment_name`. In Airflow, the name is the id of the connection.

        The variable contains the JSON of :meth:`to_json`, or the absolute path of a file with this JSON. Without the
        variable, a file with the variable's name is read, from the folder that ``JETSTREAM_SECRETS`` names. A file is
        read at every call. On a cluster, the executors can have such a file while the task that starts the job has the
        JSON.

        Raises:
            SettingsMissing: there is neither the variable nor a file, or the file cannot be read.
            InvalidValue: the content is invalid.
        """
        name = environment_name(connection)
        text, folder = os.environ.get(name), os.environ.get(FOLDER)
        cannot = f"the environment variable {name} names a file that cannot"
        if text is None and folder:
            text = str(Path(folder, name).absolute())
            cannot = f"the file {name} in the folder that {FOLDER} names cannot"
        if text is None:
            remedy = (
                f"the environment variable {name} is not set here. A task or step that holds a claim sets it before "
                "its function runs. spark_session() sends it to the executors. A Spark session that was started "
                "earlier or in another way does not have the variable; stop that session, and start one with "
                "spark_session() where the variable is set. A Spark Connect server reads the file "
                f"{name} in the folder that {FOLDER} names in its environment"
            )
            raise SettingsMissing("connection", connection, remedy)
        if text.startswith("/"):  # JSON of settings begins with a brace
            source = functools.partial(cls.from_environment, connection)
            try:
                return replace(cls.from_json(credential.read_file(Path(text))), source=source)
            except credential.Unreadable as wrong:
                remedy = (
                    f"{cannot} be read here ({wrong}); the file must exist at that path, and be readable, on every "
                    "machine that runs the driver or an executor"
                )
                raise SettingsMissing("connection", connection, remedy) from None
        return cls.from_json(text)


def environment_name(connection: str) -> str:
    """``JETSTREAM_SECRET_<CONNECTION>``: Spark redacts names that contain "secret" (spark.redaction.regex).

    ``nats_default`` becomes ``NATS_DEFAULT``. A character other than ``a`` to ``z``, a digit or ``_`` becomes its
    hexadecimal code between two ``x``, so that two connections never share a variable: ``nats-prod`` becomes
    ``NATSx2dxPROD``.

    Raises:
        InvalidValue: ``connection`` is an address, which may contain a password. A name contains no ``@``.
    """
    if "@" in connection:
        raise InvalidValue("connection", "…@…", "must be the name of a connection, not an address")
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
        or not _SERVER.fullmatch(text)  # urlsplit removes line breaks and tabs before it parses
        or url.path.strip("/")
        or url.query
        or url.fragment
        or port == 0
    ):
        remedy = f"must have the form nats://host:port or tls://host:port, for example {DEFAULT_SERVER}"
        if url is not None and url.scheme in ("ws", "wss"):
            remedy = (
                "this client does not use WebSocket; use nats://host:port or tls://host:port with the server's port "
                "for clients (4222 by default) instead of the port in its block websocket. If only that port can be "
                "reached, open the port for clients, or run a nats-server nearby as a leaf node, whose remotes may be "
                "ws:// and wss:// addresses"
            )
        raise InvalidValue("servers", shown_address(server), remedy)
    return text.rstrip("/")


def _addresses(servers: Iterable[str]) -> list[tuple[str, int]]:
    return [(url.hostname or "", url.port or 4222) for url in map(urlsplit, servers)]


def _named(url: str) -> str | None:
    """A server's address from INFO; None if it is invalid."""
    try:
        return None if "@" in url else _check_server(url)
    except InvalidValue:
        return None


def _load_client_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load the certificate from temporary files, because the ssl module reads certificates only from files. They exist
    during this call, and only this user can read them."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, "certificate.pem"), Path(folder, "key.pem")]
        for path, text in zip(files, (certificate, key), strict=True):
            path.touch(mode=0o600)
            path.write_text(text)
        context.load_cert_chain(files[0], files[1], password="")
