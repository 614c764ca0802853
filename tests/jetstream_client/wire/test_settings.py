"""Settings: contradictions are named, and no error shows a secret."""

import re
from pathlib import Path

import pytest

from jetstream_client import ConnectionSettings
from jetstream_client.errors import InvalidValue, SettingsMissing
from jetstream_client.wire.settings import environment_name

SEED = "SU" + "HIDDEN".ljust(56, "A")
CREDENTIALS = (
    "-----BEGIN NATS USER JWT-----\nhidden.jwt.x\n------END NATS USER JWT------\n"
    f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
)


def test_servers_in_every_form() -> None:
    assert ConnectionSettings().addresses == [("127.0.0.1", 4222)]
    assert ConnectionSettings(servers="a, nats://b:1234,tls://c/").servers == ("nats://a", "nats://b:1234", "tls://c")
    assert ConnectionSettings(servers=("nats://[::1]:5",)).addresses == [("::1", 5)]


@pytest.mark.parametrize("servers", ["", ",", "http://a", "nats://", "nats://a:0", "nats://a:99999", "nats://a/path"])
def test_servers_that_are_refused(servers: str) -> None:
    with pytest.raises(InvalidValue, match="servers="):
        ConnectionSettings(servers=servers)


@pytest.mark.parametrize(
    "servers",
    [
        "nats://u:hidden@a",
        "u:hidden@a:4222",
        "nats://a,nats://hidden@b",
        "nats://u:hidden,hidden@a",
        "nats://u:1,hidden@a",
        "nats://u:p@a?token=hidden",
        ("nats://u:hidden", "hidden@a"),
    ],
)
def test_user_information_in_an_address_is_refused_and_not_shown(servers: str | tuple[str, ...]) -> None:
    with pytest.raises(InvalidValue, match="own fields") as refused:
        ConnectionSettings(servers=servers)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "servers",
    ["nats://a?token=hidden", "nats://a/hidden", "nats://a#hidden", "nats://u:hidden", "//a hidden", "a%hidden"],
)
def test_what_follows_a_host_is_not_shown(servers: str) -> None:
    with pytest.raises(InvalidValue, match="nats://host:port") as refused:
        ConnectionSettings(servers=servers)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("servers", ["ws://a:443", "wss://a"])
def test_a_websocket_address_is_refused_with_what_to_use_instead(servers: str) -> None:
    with pytest.raises(InvalidValue, match=f"servers='{servers}': this client does not use WebSocket; use nats://host"):
        ConnectionSettings(servers=servers)


@pytest.mark.parametrize("servers", ["http://a:4222", "nats://a:99999", "nats://[::1]:0"])
def test_an_address_in_which_no_secret_can_be_is_shown(servers: str) -> None:
    with pytest.raises(InvalidValue, match="nats://host:port") as refused:
        ConnectionSettings(servers=servers)
    assert servers in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"user": "u"}, "password"),
        ({"password": "hidden"}, "user"),
        ({"user": "u", "password": "hidden", "token": "hidden"}, "authentication"),
        ({"nkey_seed": "hidden", "credentials": "hidden"}, "authentication"),
        ({"tls_certificate": "hidden"}, "tls_private_key"),
        ({"tls_private_key": "hidden"}, "tls_certificate"),
        ({"nkey_seed": "hidden"}, "nkey_seed"),
        ({"nkey_seed": "SA" + SEED[2:]}, "nkey_seed"),
        ({"nkey_seed": SEED.lower()}, "nkey_seed"),
        ({"credentials": "hidden"}, "credentials"),
        ({"credentials": CREDENTIALS.replace(SEED, "")}, "credentials"),
        ({"credentials": CREDENTIALS.replace("USER JWT", "JWT")}, "credentials"),
        ({"inbox_prefix": "_INBOX.>"}, "inbox_prefix"),
        ({"domain": "d", "api_prefix": "p"}, "domain"),
        ({"domain": "a b"}, "domain"),
        ({"api_prefix": "a.>"}, "api_prefix"),
        ({"ledger": "a.b"}, "ledger"),
        ({"connect_timeout": 0}, "connect_timeout"),
        ({"request_timeout": float("nan")}, "request_timeout"),
        ({"shortest_ack_wait": -1}, "shortest_ack_wait"),
        ({"max_reconnects": -1}, "max_reconnects"),
        ({"max_reconnects": True}, "max_reconnects"),
        ({"max_reconnects": 2.0}, "max_reconnects"),
        ({"max_reconnects": "hidden"}, "max_reconnects"),
    ],
)
def test_contradictions_are_named(fields: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        ConnectionSettings(**fields)  # type: ignore[arg-type]
    assert refused.value.field == named
    assert "hidden" not in str(refused.value).lower()


@pytest.mark.parametrize(
    "secret",
    [
        {"user": "u", "password": "hidden"},
        {"token": "hidden"},
        {"nkey_seed": SEED},
        {"credentials": CREDENTIALS},
        {"tls_certificate": "hidden", "tls_private_key": "hidden"},
    ],
)
def test_no_secret_is_shown_and_json_carries_it(secret: dict[str, str]) -> None:
    settings = ConnectionSettings(servers="nats://a:1,nats://b:2", domain="hub", **secret)  # type: ignore[arg-type]
    for hidden in ("hidden", "HIDDEN"):
        assert hidden not in repr(settings)
        assert hidden not in str(settings)
        assert hidden not in settings.kind
    assert ConnectionSettings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hidden",
        "[]",
        "7",
        "null",
        '"hidden"',
        '{"unknown": "hidden"}',
        '{"servers": 7}',
        '{"learned": {}}',
        '{"source": null}',
    ],
)
def test_other_texts_are_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        ConnectionSettings.from_json(text)
    assert "hidden" not in str(refused.value)


def test_json_with_an_invalid_field_names_the_field() -> None:
    with pytest.raises(InvalidValue, match="connect_timeout"):
        ConnectionSettings.from_json('{"servers": "nats://a", "connect_timeout": -1, "token": "hidden"}')


def test_the_environment_names_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ConnectionSettings(token="hidden")
    assert environment_name("nats_default") == "JETSTREAM_SECRET_NATS_DEFAULT"
    assert environment_name("my-nats.1") == "JETSTREAM_SECRET_MYx2dxNATSx2ex1"
    monkeypatch.setenv("JETSTREAM_SECRET_MYx2dxNATSx2ex1", settings.to_json())
    assert ConnectionSettings.from_environment("my-nats.1") == settings
    with pytest.raises(InvalidValue, match="JETSTREAM_SECRET_OTHER"):
        ConnectionSettings.from_environment("other")


def test_an_address_in_the_place_of_a_connection_is_not_shown() -> None:
    with pytest.raises(InvalidValue, match="name of a connection") as refused:
        ConnectionSettings.from_environment("nats://u:hidden@a")
    assert "hidden" not in str(refused.value).lower()


def test_two_connections_never_share_a_variable() -> None:
    others = [
        "nats-prod",
        "nats_prod",
        "nats.prod",
        "NATS_prod",
        "natsx2dxprod",
        "nats2dprod",
        "nats\u00e4prod",
        "nats\u00c4prod",
    ]
    names = {environment_name(each) for each in others}
    assert len(names) == len(others)
    assert all(re.fullmatch(r"JETSTREAM_SECRET_\w+", name, re.ASCII) for name in names)  # names that a shell can export


def test_the_environment_may_name_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = ConnectionSettings(servers="nats://a:1,nats://b:2", user="u", password="hidden")
    file = tmp_path / "settings.json"
    file.write_text(settings.to_json())
    monkeypatch.setenv("JETSTREAM_SECRET_X", str(file))
    assert ConnectionSettings.from_environment("x") == settings
    for content, named in ((b"hidden", "must be the JSON"), (b"\xff hidden", "not UTF-8"), (None, "No such file")):
        file.write_bytes(content) if content else file.unlink()
        with pytest.raises(InvalidValue, match=named) as refused:
            ConnectionSettings.from_environment("x")
        assert "hidden" not in str(refused.value)
    assert "JETSTREAM_SECRET_X" in str(refused.value)
    monkeypatch.setenv("JETSTREAM_SECRET_X", "/hidden")  # a token in the wrong field
    with pytest.raises(InvalidValue) as refused:
        ConnectionSettings.from_environment("x")
    assert "hidden" not in str(refused.value)


def test_the_environment_may_name_a_folder_with_a_file_for_each_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JETSTREAM_SECRETS", str(tmp_path))
    with pytest.raises(SettingsMissing, match=r"file JETSTREAM_SECRET_MYx2dxNATS in .* cannot be read.*No such file"):
        ConnectionSettings.from_environment("my-nats")
    for token in ("hidden", "changed"):  # the file is read again each time
        settings = ConnectionSettings(token=token)
        (tmp_path / "JETSTREAM_SECRET_MYx2dxNATS").write_text(settings.to_json())
        assert ConnectionSettings.from_environment("my-nats") == settings
    other = ConnectionSettings(token="of the variable")
    monkeypatch.setenv("JETSTREAM_SECRET_MYx2dxNATS", other.to_json())
    assert ConnectionSettings.from_environment("my-nats") == other
    monkeypatch.setenv("JETSTREAM_SECRETS", "")
    with pytest.raises(SettingsMissing, match="JETSTREAM_SECRET_X is not set here"):
        ConnectionSettings.from_environment("x")


def test_the_prefix_of_the_api() -> None:
    assert ConnectionSettings().prefix == "$JS.API"
    assert ConnectionSettings(domain="hub").prefix == "$JS.hub.API"
    assert ConnectionSettings(api_prefix="from.here.").prefix == "from.here"


@pytest.mark.parametrize("field", ["tls_ca", "tls_certificate"])
def test_certificates_that_cannot_be_read_are_named_and_not_shown(field: str) -> None:
    text = "-----BEGIN CERTIFICATE-----\nhidden\n-----END CERTIFICATE-----"
    key = text.replace("CERTIFICATE", "PRIVATE KEY")
    given = {"tls_ca": text} if field == "tls_ca" else {"tls_certificate": text, "tls_private_key": key}
    with pytest.raises(InvalidValue, match=field) as refused:
        ConnectionSettings(**given).ssl_context()  # type: ignore[arg-type]
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("text", ['{"learned": {}}', '{"source": null}'])
def test_what_belongs_to_a_process_is_not_read_from_json(text: str) -> None:
    with pytest.raises(InvalidValue, match="must be the JSON that"):
        ConnectionSettings.from_json(text)
