"""A connection of type nats: whatever it comes from, and wherever its secrets are, the server knows the same user."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Connection, configuration

from airflow_nats_jetstream.client.settings import ConnectionSettings
from airflow_nats_jetstream.hooks import JetStreamHook
from tests.client.world import World

EXTRA = {"nkey_seed": "nkey_secret", "credentials": "creds_secret"}
KINDS = {
    "user": ["password"],
    "token": ["token"],
    "nkey": ["nkey_seed"],
    "credentials": ["credentials"],
    "verify_and_map": ["tls_ca", "tls_certificate", "tls_private_key"],
}
"""How one can authenticate, and which of the settings are credentials then."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path_factory.mktemp("connections"), stack)


def described(settings: dict[str, Any]) -> dict[str, Any]:
    """The fields of an Airflow connection with these settings."""
    extra = {EXTRA.get(name, name): value for name, value in settings.items() if name not in ("user", "password")}
    return {
        "conn_type": "nats",
        "login": settings.get("user"),
        "password": settings.get("password"),
        "extra": json.dumps(extra),
    }


def settings_from(
    source: str, fields: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> ConnectionSettings:
    """The settings by the hook, whose connection comes from this source."""
    connection = Connection(conn_id="c", **fields)
    with monkeypatch.context() as patched:
        patched.setattr(configuration, "_secrets_backend_cache", {})  # Airflow keeps the backends of a process
        if source == "backend":
            file = folder / "connections.json"
            file.write_text(json.dumps({"nats_somewhere": fields}))
            backend = "airflow.secrets.local_filesystem.LocalFilesystemBackend"
            patched.setenv("AIRFLOW__SECRETS__BACKEND", backend)
            patched.setenv("AIRFLOW__SECRETS__BACKEND_KWARGS", json.dumps({"connections_file_path": str(file)}))
        else:
            text = connection.as_json() if source == "JSON" else connection.get_uri()
            patched.setenv("AIRFLOW_CONN_NATS_SOMEWHERE", text)
        return JetStreamHook("nats_somewhere").settings


@pytest.mark.parametrize("written", ["content", "one line", "path", "file"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_credential_from_every_source(
    world: World, kind: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = "tls" if kind == "verify_and_map" else "plain"
    settings = {"servers": world.url(kind, mode), **world.tls(mode), **world.who(kind)}
    for name in KINDS[kind]:
        if written == "one line":  # as a masked field of the form makes it of what is pasted
            settings[name] = settings[name].replace("\n", " ")
        elif written != "content":
            if written == "path" and name in ("password", "token"):
                return  # any text can be a password
            file = tmp_path / name
            file.write_text(f"{settings[name]}\n")
            settings[name] = f"file://{file}" if written == "file" else str(file)
    expected = ConnectionSettings(**settings)
    for source in ("JSON", "URI", "backend"):
        assert settings_from(source, described(settings), tmp_path, monkeypatch) == expected

    monkeypatch.setenv("AIRFLOW_CONN_NATS_SOMEWHERE", Connection(conn_id="c", **described(settings)).get_uri())
    reply = JetStreamHook("nats_somewhere").run(lambda js: js.connection.request("$SYS.REQ.USER.INFO"))
    user = {"token": "[REDACTED]", "nkey": world.nkey.public, "credentials": world.user.public}.get(kind, "airflow")
    assert json.loads(reply.data)["data"]["user"] == user
