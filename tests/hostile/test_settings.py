"""Connections as a form, an API or a variable can contain them; a secret in the wrong field is not shown."""

import contextlib
import json
from typing import Any

from airflow.sdk import Connection
from hypothesis import strategies as st

from airflow_nats_jetstream.airflow_connection import settings_of
from jetstream_client.errors import InvalidValue
from jetstream_client.wire.settings import ConnectionSettings
from tests.hostile.attack import attack
from tests.hostile.values import DEEP, Json, Texts, changed

SECRET = "hidden-9c4"
FIELDS = ["servers", "token", "nkey_secret", "creds_secret", "domain", "api_prefix", "ledger", "tls", "tls_hostname"]
FIELDS += ["tls_ca", "tls_certificate", "tls_private_key", "tls_handshake_first"]
FIELDS += ["connect_timeout", "request_timeout", "shortest_ack_wait"]
EXTRA = {"servers": "nats://a:4222,tls://b", "token": "t", "connect_timeout": 3, "tls": "true", "ledger": "airflow"}
Server = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["nats://", "tls://", "", "http://", "nats:", "//", "nats:///"]),
    st.sampled_from(
        [
            *("", f"user:{SECRET}@", f"{SECRET}@", f"u:{SECRET}[@", f"u:{SECRET}@x@", f"u:{SECRET}/@", f"u:{SECRET}?@"),
            *(f"u:1,{SECRET}@", f"u:{SECRET},2@", f"u:p,{SECRET},@", f"u:[,{SECRET}@"),
        ]
    ),
    st.sampled_from(
        [
            "host",
            "127.0.0.1",
            "[::1]",
            "[",
            "",
            "a b",
            "\x00",
            "\ud800",
            "h\r\nPUB a 1",
            "h\r1",
            "h\t",
            "x" * 300,
            "%00",
        ]
    ),
    st.sampled_from(
        [
            "",
            ":4222",
            ":0",
            ":99999999",
            ":x",
            ":-1",
            "/path",
            "?q",
            "#f",
            ",",
            f"?token={SECRET}",
            f"/{SECRET}",
            f":{SECRET}",
        ]
    ),
)


def connection(extra: str | None, **fields: Any) -> Connection:
    return Connection(conn_id="c", conn_type="nats", extra=extra, **fields)


def settled(extra: str | None, **fields: Any) -> ConnectionSettings | None:
    try:
        settings = settings_of(connection(extra, **fields))
    except InvalidValue as error:
        shown = str(error)
        if SECRET in shown or len(shown) > 6_000:
            raise AssertionError(shown) from None
        return None
    assert SECRET not in repr(settings)
    usable(settings)
    return settings


def usable(settings: ConnectionSettings) -> None:
    assert all(host and 0 < port < 65_536 for host, port in settings.addresses)
    "".join(settings.servers).encode()
    assert not any(letter.isspace() for server in settings.servers for letter in server)
    assert 0 < settings.connect_timeout < 10**6
    assert ConnectionSettings.from_json(settings.to_json()) == settings
    assert settings.prefix


@attack(changed(EXTRA), weight=2)
def test_any_extra(extra: Any) -> None:
    settled(json.dumps(extra))


@attack(st.dictionaries(st.sampled_from([*FIELDS, "other"]), Json | st.just(SECRET), max_size=4), weight=2)
def test_any_fields(extra: Any) -> None:
    for name, value in extra.items():
        if value == SECRET and name in ("servers", "domain", "api_prefix", "ledger", "tls_hostname"):
            return  # names that errors and logs show
    settled(json.dumps(extra))


@attack(st.text(max_size=40) | st.just(DEEP.decode()) | st.just("[1]") | st.just("{"))
def test_any_text_as_extra(extra: str) -> None:
    try:
        made = connection(extra)
    except Exception:  # noqa: BLE001 - Airflow's own refusal
        return
    with contextlib.suppress(InvalidValue):
        settings_of(made)


@attack(Server | st.lists(Server, max_size=3).map(",".join), weight=2)
def test_any_servers(servers: str) -> None:
    try:
        settings = ConnectionSettings(servers=servers)
    except InvalidValue as error:
        shown = str(error)
        if SECRET in shown:
            raise AssertionError(shown) from None
        return
    assert SECRET not in repr(settings)
    usable(settings)


@attack(Texts, Texts, st.none() | st.integers(-1, 10**6))
def test_any_login_password_host_and_port(login: str, password: str, port: int | None) -> None:
    settled(None, login=login, password=f"{SECRET}{password}", host=login, port=port)


@attack(changed({"servers": ["nats://a:1"], "user": "u", "password": "p", "request_timeout": 2.5}) | Json)
def test_any_variable(value: Any) -> None:
    try:
        settings = ConnectionSettings.from_json(json.dumps(value))
    except InvalidValue:
        return
    usable(settings)


@attack(st.text(max_size=30) | st.just(DEEP.decode()))
def test_any_text_in_the_variable(text: str) -> None:
    try:
        ConnectionSettings.from_json(text)
    except InvalidValue:
        return


@attack(
    st.sampled_from(["tls_ca", "tls_certificate", "tls_private_key"]),
    Texts | st.sampled_from(["~nobody-of-this-name/x", "/", "-----BEGIN"]),
)
def test_any_certificate(name: str, text: str) -> None:
    files = {"tls_certificate": text, "tls_private_key": text} if name != "tls_ca" else {name: text}
    try:
        ConnectionSettings(servers="tls://a", **files).ssl_context()  # type: ignore[arg-type]
    except InvalidValue:
        return
    assert not text.strip()  # none of them is a certificate
