"""A connection of type nats connects as the same user, wherever it comes from and wherever its secrets are."""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from airflow import settings as airflow_settings
from airflow.cli import cli_parser
from airflow.models.base import Base
from airflow.sdk import Connection
from airflow.sdk._shared.secrets_masker import redact, reset_secrets_masker
from airflow.sdk.log import mask_secret

from airflow_nats_jetstream.airflow_connection import CREDENTIAL_FOLDERS
from airflow_nats_jetstream.get_provider_info import get_provider_info
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.masks import masks
from jetstream_client.errors import InvalidValue
from jetstream_client.wire.settings import ConnectionSettings
from tests.airflow_versions import forget_secrets_backends
from tests.jetstream_client.servers import PASSWORD
from tests.jetstream_client.world import World

EXTRA = {"nkey_seed": "nkey_secret", "credentials": "creds_secret"}
KINDS = {
    "user": ["password"],
    "token": ["token"],
    "nkey": ["nkey_seed"],
    "credentials": ["credentials"],
    "verify_and_map": ["tls_ca", "tls_certificate", "tls_private_key"],
}
"""One way to authenticate, and the settings that are credentials."""


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
    """The hook's settings, with the connection from this source."""
    connection = Connection(conn_id="c", **fields)
    with monkeypatch.context() as patched:
        forget_secrets_backends(patched)
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
        if written == "one line":  # a masked field of the form turns pasted line breaks into spaces
            settings[name] = settings[name].replace("\n", " ")
        elif written != "content":
            if written == "path" and name in ("password", "token"):
                return  # any string can be a password
            file = tmp_path / name
            file.write_text(f"{settings[name]}\n")
            settings[name] = f"file://{file}" if written == "file" else str(file)
    monkeypatch.setenv("AIRFLOW__NATS__CREDENTIAL_FOLDERS", str(tmp_path))
    expected = ConnectionSettings(**settings, credential_folders=str(tmp_path), ledger="airflow")
    for source in ("JSON", "URI", "backend"):
        assert settings_from(source, described(settings), tmp_path, monkeypatch) == expected

    monkeypatch.setenv("AIRFLOW_CONN_NATS_SOMEWHERE", Connection(conn_id="c", **described(settings)).get_uri())
    assert who("nats_somewhere") == known(world, kind)


def test_a_connection_names_no_file_that_the_deployer_did_not_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Airflow's process and, because it is part of the settings, in Spark's processes."""
    file = tmp_path / "token"
    file.write_text("hidden")
    monkeypatch.setenv(
        "AIRFLOW_CONN_NATS_SOMEWHERE", json.dumps({"conn_type": "nats", "extra": {"token": f"file://{file}"}})
    )
    for folders, allowed in ((None, False), ("", False), ("/nowhere", False), (f"/nowhere:{tmp_path}", True)):
        if folders is not None:
            monkeypatch.setenv("AIRFLOW__NATS__CREDENTIAL_FOLDERS", folders)
        settings = JetStreamHook("nats_somewhere").settings
        for each in (settings, ConnectionSettings.from_json(settings.to_json())):
            if allowed:
                assert each.credential("token") == "hidden"
            else:
                with pytest.raises(InvalidValue, match="credential_folders") as refused:
                    each.credential("token")
                assert str(tmp_path) not in str(refused.value)


def test_a_connection_does_not_allow_itself_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_NATS_SOMEWHERE", '{"conn_type": "nats", "extra": {"credential_folders": "/"}}')
    with pytest.raises(InvalidValue, match="a connection of type 'nats' has no field of this name; its fields are"):
        JetStreamHook("nats_somewhere").settings  # noqa: B018


@pytest.mark.parametrize(
    "secret",
    [
        "a\"b'c\\d\\n-%/é hidden",
        "\\hidden\\",
        "-----BEGIN PRIVATE KEY-----\nhiddenMIGHAgEAMBMGByqG+SM49/AgE\nhiddenHz==\n-----END PRIVATE KEY-----\n",
        "-----BEGIN USER NKEY SEED----- hiddenSUABQZBV5SPF7YBE5UE3JQCWZSXCR ------END USER NKEY SEED------",
    ],
)
def test_airflow_hides_a_secret_however_it_is_written(secret: str) -> None:
    reset_secrets_masker()
    field = "tls_private_key" if "KEY" in secret else "token"
    connection = Connection(
        conn_id="c", conn_type="nats", password=secret, extra=json.dumps({field: secret, "tls": False})
    )
    mask_secret(masks(connection))
    json_twice = json.dumps({"extra": json.dumps({field: secret})})
    written = [
        secret,
        secret.strip(),
        *secret.split("\n"),
        repr(secret),
        str([secret]),
        json.dumps(secret),
    ]
    written += [json.dumps({field: secret}, ensure_ascii=False), json_twice]
    written += [
        str(connection.extra),
        repr(connection.extra),
        repr({"SHOWN": json.dumps({field: secret})}),
        connection.as_json(),
    ]
    if field == "token":  # not for keys, which have many lines
        written += [connection.get_uri(), quote(secret)]
    written += [repr(f"{secret}'{secret}"), secret.replace("\\", "\\\\").replace("\n", "\\n")]  # the last: py4j
    for text in written:
        assert "hidden" not in redact(text), text
    assert redact("-----BEGIN PRIVATE KEY-----") == "-----BEGIN PRIVATE KEY-----"
    reset_secrets_masker()


def known(world: World, kind: str) -> str:
    """The server's name for the user of this kind."""
    names = {"none": "", "token": "[REDACTED]", "nkey": world.nkey.public, "credentials": world.user.public}
    return names.get(kind, "airflow")


def who(connection: str) -> str:
    """The user's name on the server that the hook connects to."""
    reply = JetStreamHook(connection).run(lambda js: js.connection.request("$SYS.REQ.USER.INFO"))
    return str(json.loads(reply.data)["data"].get("user", ""))


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "connection.md"
EXAMPLES = dict(re.findall(r"^### ([^\n]+)\n\n```sh\n(.+?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
TITLES = {
    "User and password": "user",
    "Token": "token",
    "NKey": "nkey",
    "Credentials": "credentials",
    "Client certificate": "verify_and_map",
    "No authentication": "none",
}


def run(statement: str) -> tuple[str, list[str]]:
    """Read a shell line of the page: the exported variable and its value, or ``airflow`` and its arguments."""
    exported = re.match(r"export (\w+)=", statement)
    show = f'; printf %s "${exported[1]}"' if exported else ""
    script = f'airflow() {{ printf "%s\\0" "$@"; }}; {statement}{show}'
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    return exported[1] if exported else "airflow", done.stdout.rstrip("\0").split("\0")


def airflow(arguments: list[str]) -> None:
    """Airflow's command line, with separate tables in the tests' database."""
    Base.metadata.create_all(airflow_settings.engine)
    parser = cli_parser.get_parser()
    with suppress(SystemExit):  # there is none yet
        delete = parser.parse_args(["connections", "delete", arguments[2]])
        delete.func(delete)
    add = parser.parse_args(arguments)
    add.func(add)


@pytest.mark.filterwarnings("ignore:ProvidersManager.hooks is deprecated")  # Airflow's command line uses it itself
@pytest.mark.parametrize("title", EXAMPLES)
def test_the_examples_of_the_page_are_one_connection_each(
    world: World, title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = TITLES[title]
    files = {"ca.pem": world.authority.ca, "airflow.pem": world.certificate[0], "airflow.key": world.certificate[1]}
    contents = {name: path.read_text() for name, path in files.items()}
    contents |= {"password": PASSWORD, "token": PASSWORD, "airflow.nk": world.nkey.seed}
    contents["airflow.creds"] = world.operator.credentials(world.user)
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(files["ca.pem"]))  # whom this machine trusts
    monkeypatch.setenv("AIRFLOW__DATABASE__CHECK_MIGRATIONS", "False")
    monkeypatch.setenv("AIRFLOW__NATS__CREDENTIAL_FOLDERS", str(tmp_path))
    port = world.url(kind, "plain" if kind == "none" else "tls").rpartition(":")[2]
    here = {
        "nats.example.com": "localhost",
        "4222": port,
        CREDENTIAL_FOLDERS: str(tmp_path),
        quote(CREDENTIAL_FOLDERS, safe=""): quote(str(tmp_path), safe=""),
    }

    found = []
    for statement in EXAMPLES[title].strip().split("\n\n"):
        for there, mine in here.items():
            statement = statement.replace(there, mine)  # noqa: PLW2901
        name, values = run(statement)
        with monkeypatch.context() as patched:
            if name == "airflow":
                airflow(values)
                connection = values[2]
                patched.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")  # which reads the database
            else:
                patched.setenv(name, *values)
                connection = name.removeprefix("AIRFLOW_CONN_").lower()
            found.append((connection, JetStreamHook(connection).settings))
            assert who(connection) == known(world, kind)
    assert len(found) == 3
    assert found == [found[0]] * 3


def test_the_page_has_an_example_for_each_way_to_authenticate() -> None:
    assert set(EXAMPLES) == set(TITLES)


def test_the_page_has_every_field_of_the_form() -> None:
    page = PAGE.read_text()
    info: Any = get_provider_info()
    for name, field in info["connection-types"][0]["conn-fields"].items():
        assert f"**{field['label']}** (`{name}`)" in page, name
