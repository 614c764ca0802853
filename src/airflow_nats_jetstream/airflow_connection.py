"""An Airflow connection of type ``nats``: the settings that it describes, whether they work, and its console.

Its form is in ``get_provider_info.py``, its page is docs/reference/connection.md.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from ipaddress import AddressValueError, IPv6Address
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus, urlsplit
from weakref import WeakKeyDictionary

from airflow_nats_jetstream.get_provider_info import CONNECTION_FIELDS
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

CREDENTIAL_FOLDERS = "/run/secrets/nats"
"""The default of ``[nats] credential_folders``: a folder that exists only where somebody made it for this purpose.
``/run/secrets`` itself also holds what is not for NATS, as the token of a Kubernetes service account."""

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from jetstream_client.context import JetStream


def settings_of(
    connection: Connection, *, domain: str | None = None, api_prefix: str | None = None
) -> ConnectionSettings:
    """The settings that an Airflow connection describes. Empty fields count as absent.

    Raises:
        InvalidValue: a field that is unknown, has the wrong type, or contradicts another. It names the connection's
            field and shows no secret.
    """
    extra = {name: value for name, value in _extra(connection).items() if value is not None and value != ""}
    check_console(extra.pop("console", None))
    servers = extra.pop("servers", None)
    if servers is not None and connection.host:
        raise InvalidValue("servers", "…", "name the servers here or as host and port, not twice")
    if servers is None:
        servers = connection.host or ("127.0.0.1" if connection.port else None)
    if isinstance(servers, str):
        addresses = [each.strip() for each in servers.split(",") if each.strip()]
        servers = ",".join(_address(each, connection.port) for each in addresses)
    values: dict[str, Any] = {"servers": servers} if servers is not None else {}
    values["credential_folders"] = _credential_folders()
    if connection.login:
        values["user"] = connection.login
    if connection.password:
        values["password"] = connection.password
    for name, value in extra.items():
        if name not in _FIELDS:
            raise InvalidValue("extra", name, f"the fields of a nats connection are {', '.join(sorted(_FIELDS))}")
        convert = _CONVERSIONS[_FIELDS[name]["schema"]["type"][0]]
        values[_SETTINGS.get(name, name)] = convert(name, value)
    if domain or api_prefix:
        values["domain"], values["api_prefix"] = domain, api_prefix
    try:
        return ConnectionSettings(**values)
    except InvalidValue as wrong:
        raise _named(wrong) from None


def check_console(console: object) -> str:
    """The field ``console`` itself, empty for none. It is shown to everybody who sees the task.

    Raises:
        InvalidValue: no address of a page, one with a password in it, or with something else to fill in.
    """
    if console is None:
        return ""
    remedy = "an address such as https://nats.example.com/streams/{stream}?consumer={consumer}, without a password"
    rest = console_page(str(console), "", "", "")
    try:
        parts = urlsplit(rest)
        good = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    except ValueError:
        good = False
    if not good or {"{", "}"}.intersection(rest):
        raise InvalidValue("console", "…", f"give {remedy}")
    return str(console)


def console_page(console: str, stream: str, consumer: str, claim: str) -> str:
    """The address of the page about these in the field ``console``; empty without one."""
    for name, value in (("{stream}", stream), ("{consumer}", consumer), ("{claim}", claim)):
        console = console.replace(name, quote(value, safe=""))
    return console


_lookups: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Task[Connection]]] = WeakKeyDictionary()


async def shared_lookup(conn_id: str, look_up: Callable[[str], Coroutine[Any, Any, Connection]]) -> Connection:
    """Return the result of ``look_up(conn_id)``. Concurrent callers share one lookup; its result is not kept.

    A triggerer's supervisor receives several messages for each lookup and handles one of them in each round of its work
    in the database (``TriggerRunnerSupervisor.run_once``), so the lookups of a thousand triggers took minutes.
    """
    lookups = _lookups.setdefault(asyncio.get_running_loop(), {})
    if conn_id not in lookups:

        def ended(lookup: asyncio.Task[Connection]) -> None:
            del lookups[conn_id]
            _ = lookup.cancelled() or lookup.exception()  # retrieved here, because the callers may be gone

        lookups[conn_id] = asyncio.create_task(look_up(conn_id))
        lookups[conn_id].add_done_callback(ended)
    return await asyncio.shield(lookups[conn_id])


def masks(connection: Connection) -> list[Any]:
    """What Airflow must hide in logs: each secret of a connection in the forms in which code writes it out.

    Airflow itself registers a secret as it is, and finds neither a value that JSON or ``repr`` has escaped nor a single
    line of a key. For each form more it compiles all that it knows anew, so these are no more than it takes.
    """
    try:
        extra = json.loads(connection.extra or "{}")
    except (ValueError, RecursionError):
        extra = {}
    fields = extra if isinstance(extra, dict) else {}
    secrets = [connection.password, *(fields.get(name) for name in _SECRETS)]
    return sorted({form for secret in secrets if secret for part in _parts(str(secret)) for form in _forms(part)})


def _parts(secret: str) -> list[str]:
    """Its lines; of a key whose line ends a form's field has made spaces, the words that they were."""
    parts = []
    for line in re.split(r"[\r\n]+", secret):
        words = [word for word in line.split() if len(word) >= _LONG_WORD]
        parts += words if len(words) > 1 else [line]
    # The first and last line of PEM are the same for everybody.
    return [part for part in parts if not (part.startswith("-----") and part.endswith("-----"))][:_MOST_PARTS]


def _forms(text: str) -> set[str]:
    """As it is, and where that changes it escaped as JSON, ``repr`` and URLs do, also one inside another."""
    forms = {text}
    for _ in range(2):
        forms |= {escape(each) for each in forms for escape in _ESCAPES}
    if len(forms) == 1:
        return forms  # a line of a key, of which there may be fifty
    return forms | {escape(each) for each in (text, _as_json(text)) for escape in (quote, _quote_all, quote_plus)}


def _quote_all(text: str) -> str:
    return quote(text, safe="")


def _as_json(text: str) -> str:
    return json.dumps(text)[1:-1]


def _as_unicode_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _as_repr(text: str) -> str:
    return repr(f'"{text}')[2:-1]  # with the leading quotation mark repr always chooses the other one


def _as_repr_in_quotes(text: str) -> str:
    return _as_repr(text).replace("\\'", "'")


def check_connection(settings: ConnectionSettings) -> tuple[bool, str]:
    """What the Test button answers: whether the connection works, and what is there, or what is wrong and what to do.

    It works if JetStream answers and this user may request the account's limits. Nothing is changed on the server.
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
        return False, f"connected, but {silence}: check domain and API prefix, or raise request_timeout"
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
        return f"{refusal}. Only this test needs it: tasks may work without, see docs/reference/permissions.md"
    return no_inbox(settings, refusal)


def _credential_folders() -> str:
    """The folders that must contain the files named in connections: whoever may edit connections chooses the files, and
    Airflow's deployer the folders."""
    from airflow.sdk.configuration import conf

    return str(conf.get("nats", "credential_folders", fallback=CREDENTIAL_FOLDERS))


def _limit(number: int) -> str:
    return "unlimited" if number < 0 else f"at most {number}"


def _extra(connection: Connection) -> Mapping[str, Any]:
    """The extra as JSON; Airflow's ``extra_dejson`` is empty for a string that is not JSON."""
    try:
        fields = connection.extra_dejson  # which also tells Airflow what to mask
        if not fields and connection.extra:
            fields = json.loads(connection.extra)
    except (ValueError, TypeError, AttributeError, RecursionError):
        fields = None
    if not isinstance(fields, Mapping):
        raise InvalidValue("extra", "…", "the extra of a connection is a JSON object")
    return fields


def _address(server: str, port: int | None) -> str:
    """With brackets around an IPv6 address, which the URI form of a connection loses, and a port if it has none."""
    with suppress(AddressValueError):
        server = f"[{IPv6Address(server)}]"
    if not port:
        return server
    try:
        alone = urlsplit(server if "://" in server else f"//{server}").port is None
    except ValueError:  # the settings will say why
        return server
    return f"{server.rstrip('/')}:{port}" if alone else server


def _named(wrong: InvalidValue) -> InvalidValue:
    """The same refusal, by the name that the field has in an Airflow connection."""
    return InvalidValue(_NAMES.get(wrong.field, wrong.field), wrong.value, wrong.remedy)


def _text(name: str, value: Any) -> str:
    # The query of a URI has no types: Airflow takes token=123 for a number, also when the Test button sends it.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        remedy = "give a string; in a URI, where 1.5 and true are not strings, inside __extra__"
        raise InvalidValue(f"extra[{name!r}]", type(value).__name__, remedy)
    return value


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value in (0, 1, "0", "1") or (isinstance(value, str) and value.lower() in ("true", "yes", "false", "no")):
        return str(value).lower() in ("true", "1", "1.0", "yes")
    raise InvalidValue(f"extra[{name!r}]", type(value).__name__, "give true or false")


def _seconds(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidValue(f"extra[{name!r}]", type(value).__name__, "give seconds") from None


_FIELDS: Mapping[str, Any] = CONNECTION_FIELDS

_CONVERSIONS: dict[str, Callable[[str, Any], Any]] = {"string": _text, "boolean": _flag, "number": _seconds}
"""What makes a value of an extra's, for each type that the form has."""

_SETTINGS = {"nkey_secret": "nkey_seed", "creds_secret": "credentials"}
"""The fields of the settings that the extra calls otherwise: Airflow masks names with "secret"."""

_SECRETS = [name for name, field in _FIELDS.items() if field["schema"].get("format") == "password"]
"""The fields of the extra whose values no log may show."""

_ESCAPES = (_as_json, _as_unicode_json, _as_repr, _as_repr_in_quotes)

_MOST_PARTS = 100
"""Of a secret; a private key has some fifty lines."""

_LONG_WORD = 20
"""Letters of a word that is taken for a line of a key: those of PEM have 64, a seed has 58."""

_NAMES = {"user": "login", **{field: name for name, field in _SETTINGS.items()}}
