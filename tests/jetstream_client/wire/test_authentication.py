"""A matrix on real servers: every way to authenticate, every mode of TLS, both connections, right and wrong.

The server reports the user (``$SYS.REQ.USER.INFO``). Wrong settings raise a typed error at once, with a remedy.
"""

import asyncio
import json
import sys
import time
import traceback
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, cast

import pytest

from demo.service import free_port
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import (
    AuthenticationFailed,
    ConnectionDenied,
    ConnectionFailed,
    InvalidValue,
    TlsFailed,
    TlsNotOffered,
)
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.credential import check_credentials
from tests.jetstream_client.world import COMBINATIONS, KINDS, MODES, Fields, World, presented


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path_factory.mktemp("access"), stack)


@pytest.fixture(params=["connection", "wire"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def entered(driver: str, settings: ConnectionSettings) -> dict[str, Any]:
    """Connect, and ask the server for the user."""

    async def controlled() -> bytes:
        async with connect(settings) as js:
            return (await js.connection.request("$SYS.REQ.USER.INFO")).data

    if driver == "connection":
        answer = asyncio.run(controlled())
    else:
        with Wire.open(settings) as wire:
            answer = wire.request("$SYS.REQ.USER.INFO").data
    return dict(json.loads(answer)["data"])


def denied(driver: str, settings: ConnectionSettings, error: type[ConnectionFailed], words: str) -> None:
    """Check that connecting fails at once, with a remedy and without secrets."""
    start = time.monotonic()
    with pytest.raises(error, match=words) as refused:
        entered(driver, settings)
    assert time.monotonic() - start < settings.connect_timeout
    shown = "".join(traceback.format_exception(refused.value))
    for secret in (settings.password, settings.token, settings.nkey_seed, settings.tls_private_key):
        assert not secret or secret not in shown
    if settings.credentials:
        assert not any(secret in shown for secret in check_credentials(settings.credentials))


@pytest.mark.parametrize(("kind", "mode"), COMBINATIONS)
def test_who_is_known_comes_in(world: World, driver: str, kind: str, mode: str) -> None:
    settings = ConnectionSettings(servers=world.url(kind, mode), **world.tls(mode), **world.who(kind))
    known = {
        "user": "airflow",
        "nkey": world.nkey.public,
        "credentials": world.user.public,
        "verify_and_map": "airflow",
    }
    seen = entered(driver, settings)
    assert seen["user"] == known.get(kind, seen["user"])
    assert seen["account"]


@pytest.mark.parametrize(("kind", "mode"), COMBINATIONS)
def test_a_stranger_is_refused_at_once(world: World, driver: str, kind: str, mode: str) -> None:
    for fields, words in world.strangers(kind).values():
        settings = ConnectionSettings(servers=world.url(kind, mode), **world.tls(mode), **fields)
        denied(driver, settings, ConnectionDenied, words)


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("kind", ["user", "nkey", "credentials"])
def test_a_server_that_cannot_show_who_it_is_hears_no_secret(world: World, driver: str, kind: str, mode: str) -> None:
    def settings(url: str, **changes: Any) -> ConnectionSettings:
        return ConnectionSettings(servers=url, **{**world.tls(mode), **world.who(kind), **changes})

    url = world.url(kind, mode)
    denied(driver, settings(url, tls_ca=world.stranger.ca.read_text()), TlsFailed, "not accepted.*set tls_ca")
    denied(driver, settings(url, tls_ca=None, tls=True), TlsFailed, "not accepted.*set tls_ca")
    denied(driver, settings(url.replace("localhost", "127.0.0.1")), TlsFailed, "not accepted.*tls_hostname")
    denied(driver, settings(url, tls_hostname="elsewhere"), TlsFailed, "not accepted.*tls_hostname")
    entered(driver, settings(url.replace("localhost", "127.0.0.1"), tls_hostname="localhost"))
    expired = world.authority.issue("localhost", timedelta(minutes=-1))
    first = "handshake_first: true" if mode == "handshake first" else ""
    late = world.server(world.config(kind, "plain") + world.authority.config(first, files=expired))
    denied(driver, settings(f"nats://localhost:{late.port}"), TlsFailed, "expired; renew")
    denied(driver, settings(world.url(kind, "plain")), TlsNotOffered, "so no secret was sent")


@pytest.mark.parametrize("kind", KINDS[:5])
def test_a_server_that_requires_tls_is_told_nothing_without_it(world: World, driver: str, kind: str) -> None:
    denied(
        driver, ConnectionSettings(servers=world.url(kind, "tls"), **world.who(kind)), TlsFailed, "requires TLS; set"
    )


@pytest.mark.parametrize("tls", [False, True])
def test_a_server_that_waits_for_tls_is_named(world: World, driver: str, tls: bool) -> None:
    fields: Fields = {"tls_ca": world.authority.ca.read_text()} if tls else {}
    settings = ConnectionSettings(servers=world.url("none", "handshake first"), connect_timeout=0.5, **fields)
    with pytest.raises(ConnectionFailed, match="set tls_handshake_first"):
        entered(driver, settings)


def test_tls_that_is_offered_and_not_required_is_taken(world: World, driver: str) -> None:
    monitor = free_port()
    config = (
        world.config("user", "plain") + world.authority.config() + f'allow_non_tls: true\nhttp: "127.0.0.1:{monitor}"'
    )
    url = f"nats://localhost:{world.server(config).port}"

    def tls_version(**fields: Any) -> str:
        """The TLS version that the server reports for an open connection."""
        settings = ConnectionSettings(servers=url, name=f"{driver}-{len(fields)}", **world.who("user"), **fields)

        def listed() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{monitor}/connz") as page:
                open_now = json.load(page)["connections"]
            return str(next(each for each in open_now if each["name"] == settings.name).get("tls_version", ""))

        async def controlled() -> str:
            async with connect(settings):
                return listed()

        if driver == "connection":
            return asyncio.run(controlled())
        with Wire.open(settings):
            return listed()

    assert tls_version() == ""
    assert tls_version(**world.tls("tls")) == "1.3"


@pytest.mark.parametrize("ends", ["\r\n", "\r", " ", "\n\n"], ids=["CRLF", "CR", "one line", "blank lines"])
def test_credentials_may_have_any_line_ends(world: World, driver: str, ends: str) -> None:
    credentials = world.operator.credentials(world.user).replace("\n", ends)
    settings = ConnectionSettings(servers=world.url("credentials", "plain"), credentials=credentials)
    assert entered(driver, settings)["user"] == world.user.public


def test_certificates_may_have_lost_their_line_ends(world: World, driver: str) -> None:
    """This happens when they are pasted into a masked field, which has one line."""
    pasted = {name: text.replace("\n", " ") for name, text in presented(world.certificate).items()}
    for space in ("", " "):
        ca = world.authority.ca.read_text().replace("\n", space)
        settings = ConnectionSettings(servers=world.url("verify_and_map", "tls"), tls_ca=ca, **pasted)
        assert entered(driver, settings)["user"] == "airflow"


@pytest.mark.parametrize("field", ["nkey_seed", "credentials"])
def test_a_seed_with_a_changed_character_is_named_and_not_shown(world: World, driver: str, field: str) -> None:
    seed = world.user.seed
    changed = seed[:30] + ("B" if seed[30] == "A" else "A") + seed[31:]
    kind = "nkey" if field == "nkey_seed" else "credentials"
    value = changed if kind == "nkey" else world.operator.credentials(world.user).replace(seed, changed)
    with pytest.raises(InvalidValue, match="checksum is wrong") as refused:
        entered(driver, ConnectionSettings(servers=world.url(kind, "plain"), **cast("Fields", {field: value})))
    assert refused.value.field == field
    assert changed not in "".join(traceback.format_exception(refused.value))


def test_an_executor_without_the_package_that_signs_is_told_its_name(
    world: World, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    settings = ConnectionSettings(servers=world.url("nkey", "plain"), **world.who("nkey"))
    with pytest.raises(AuthenticationFailed, match="package 'cryptography'"):
        entered(driver, settings)
