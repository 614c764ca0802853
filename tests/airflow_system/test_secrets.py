"""Secrets of every kind in Airflow's connections appear nowhere but in the encrypted rows of the connections.

The test searches every file of the stack (logs of tasks and services, and the files of the database itself), every row
of every table, and Spark's event log.
"""

import asyncio
import json
import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from psycopg2 import sql

from demo.nats_server import NatsServer
from demo.service import free_port
from demo.stack import Stack
from jetstream_client import ConnectionSettings, connect
from tests.airflow_system.conftest import database
from tests.jetstream_client.servers import Authority, Nkey, Operator

COUNT = 20


@dataclass(frozen=True)
class Planted:
    """A kind of secret: its server, the fields of its connection, and the text that must not be found anywhere."""

    server: NatsServer
    fields: dict[str, Any]
    secrets: tuple[str, ...]

    def connection(self, url: str) -> dict[str, Any]:
        """The body of the API's request that makes the connection."""
        extra = {name: value for name, value in self.fields.items() if name not in ("login", "password")}
        extra |= {"servers": url, "shortest_ack_wait": 1, "connect_timeout": 3}
        plain: dict[str, Any] = {name: self.fields[name] for name in ("login", "password") if name in self.fields}
        return {"conn_type": "nats", "extra": json.dumps(extra), **plain}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Planted]]:
    """A server for each kind, outside of the folder that is searched: a server's configuration holds its password."""
    folder = tmp_path_factory.mktemp("planted")
    # The test searches for the digits, because no escaping, complete or partial, changes them.
    digits = {kind: secrets.token_hex(12) for kind in ("password", "token")}
    word = {kind: f'planted "\'{kind}\\ \\\\n-{each}"\\' for kind, each in digits.items()}
    nkey, user, operator, authority = Nkey(), Nkey(), Operator(), Authority(folder / "authority")
    creds = operator.credentials(user)
    certificate, key = (path.read_text() for path in authority.issue("airflow"))
    configs = {
        "password": f"authorization {{ user: airflow, password: {json.dumps(word['password'])} }}",
        "token": f"authorization {{ token: {json.dumps(word['token'])} }}",
        "nkey": f"authorization {{ users: [{{nkey: {nkey.public}}}] }}",
        "credentials": operator.config,
        "certificate": authority.config(f'ca_file: "{authority.ca}", verify: true'),
    }
    fields: dict[str, tuple[dict[str, Any], list[str]]] = {
        "password": ({"login": "airflow", "password": word["password"]}, [digits["password"]]),
        "token": ({"token": word["token"]}, [digits["token"]]),
        "nkey": ({"nkey_secret": nkey.seed}, [nkey.seed]),
        "credentials": ({"creds_secret": creds}, [user.seed, creds.splitlines()[1]]),
        "certificate": (
            {"tls_ca": authority.ca.read_text(), "tls_certificate": certificate, "tls_private_key": key},
            key.splitlines()[1:-1],
        ),
    }
    servers = {kind: NatsServer(folder / kind, config) for kind, config in configs.items()}
    try:
        for server in servers.values():
            server.start()
        yield {
            kind: Planted(servers[kind], known, tuple(each for each in words if len(each) > 20))
            for kind, (known, words) in fields.items()
        }
    finally:
        for server in servers.values():
            server.stop()


def address(each: Planted) -> str:
    return f"{'tls' if 'tls_ca' in each.fields else 'nats'}://localhost:{each.server.port}"


def settings_of(each: Planted) -> ConnectionSettings:
    names = {"login": "user", "nkey_secret": "nkey_seed", "creds_secret": "credentials"}
    return ConnectionSettings(
        servers=address(each), **{names.get(name, name): value for name, value in each.fields.items()}
    )


async def publish(each: Planted) -> None:
    async with connect(settings_of(each)) as js:
        await js.create_stream({"name": "PLANTED", "subjects": ["PLANTED.>"], "allow_direct": True})
        for number in range(COUNT):
            await js.publish("PLANTED.a", b"%d" % number)


def make_connections(stack: Stack, planted: dict[str, Planted]) -> None:
    kinds = list(planted)
    for position, (kind, each) in enumerate(planted.items()):
        other = planted[kinds[position - 1]]  # of another kind: it refuses
        urls = {f"secret_{kind}": address(each), f"refused_{kind}": f"nats://localhost:{other.server.port}"}
        if kind == "password":
            urls["unreachable_password"] = f"nats://127.0.0.1:{free_port()}"
        for connection_id, url in urls.items():
            stack.airflow._answer("POST", "connections", {"connection_id": connection_id, **each.connection(url)})


def make_lake(stack: Stack) -> dict[str, str]:
    """The connection of an object store that does not answer, and what must not be found anywhere."""
    digits = {secrets.token_hex(12): "secret access key", secrets.token_hex(13): "session token"}
    secret, token = (f"planted/+{each}==" for each in digits)
    extra = {"aws_session_token": token, "region_name": "us-east-1", "endpoint_url": f"http://127.0.0.1:{free_port()}"}
    body = {"connection_id": "secret_lake", "conn_type": "aws", "login": "lake", "password": secret}
    stack.airflow._answer("POST", "connections", {**body, "extra": json.dumps(extra)})
    return digits


def make_written(stack: Stack) -> dict[str, str]:
    """Connections that the task itself prints, and the text that must not be found in its log."""
    digits, user = secrets.token_hex(12), Nkey()
    connections: dict[str, dict[str, Any]] = {
        "written_password": {"login": "airflow", "password": f'planted "\'\\ \\\\n-{digits}"\\ %&'},
        "written_credentials": {"extra": json.dumps({"creds_secret": Operator().credentials(user)})},
    }
    for connection_id, fields in connections.items():
        stack.airflow._answer("POST", "connections", {"connection_id": connection_id, "conn_type": "nats", **fields})
    return {digits: "password", user.seed: "credentials"}


def rows(stack: Stack) -> dict[str, list[str]]:
    """Every row of every table as text."""
    with closing(database(stack)) as connection, connection.cursor() as cursor:
        cursor.execute("select table_name from information_schema.tables where table_schema = 'public'")
        tables = [name for (name,) in cursor.fetchall()]
        found = {}
        for table in tables:
            cursor.execute(sql.SQL("select t::text from {} t").format(sql.Identifier(table)))
            found[table] = [text for (text,) in cursor.fetchall()]
        return found


def search(folder: Path, words: dict[str, str]) -> list[tuple[str, str]]:
    """Which secrets are in which files."""
    found = []
    for path in folder.rglob("*"):
        try:
            content = path.read_bytes() if path.is_file() else b""
        except OSError:
            continue  # a file of the database that was removed just now
        found += [(kind, str(path)) for word, kind in words.items() if word.encode() in content]
    return found


@pytest.mark.slow
def test_no_secret_is_found_anywhere(stack: Stack, planted: dict[str, Planted]) -> None:
    stack.airflow.wait_for_dag("planted")
    for each in planted.values():
        asyncio.run(publish(each))
    make_connections(stack, planted)
    lake, written = make_lake(stack), make_written(stack)
    events = Path(stack.environment["PLANTED_EVENTS"])

    run_id = stack.airflow.trigger("planted")
    assert stack.airflow.wait("planted", run_id, 270) == "failed"  # some connections are refused

    # Everything that was planned has happened.
    states = {(task.task_id, task.map_index): task for task in stack.airflow.tasks("planted", run_id)}
    assert [states["shown", index].state for index in range(5)] == ["success"] * 5
    assert [states["refused", index].state for index in range(3)] == ["failed"] * 3
    assert (states["work", 0].state, states["work", 0].try_number) == ("success", 2)
    (log,) = stack.folder.rglob(f"run_id={run_id}/task_id=work/map_index=0/attempt=1.log")
    shown = log.read_text()
    assert shown.count("read by Spark with secret_") == 3
    assert shown.count("shown: ") == 11
    assert "the body fails with what it has" in shown
    assert "in a worker: ConnectionSettings(" in shown
    assert shown.count("written out: ") == 15
    assert "py4j is heard: True" in shown
    event_log = b"".join(path.read_bytes() for path in events.rglob("*") if path.is_file())
    assert b"JETSTREAM_SECRET_SECRET_NKEY" in event_log
    assert b"redacted" in event_log

    assert "table s3://lake/orders" in shown
    words = {word: kind for kind, each in planted.items() for word in each.secrets} | lake
    assert len(words) >= 9
    tables = rows(stack)
    # The search itself works: it finds the secrets in the decrypted rows.
    fernet = Fernet(stack.environment["AIRFLOW__CORE__FERNET_KEY"])
    with closing(database(stack)) as connection, connection.cursor() as cursor:
        cursor.execute("select password, extra from connection where conn_id like 'secret_%'")
        encrypted = [text for row in cursor.fetchall() for text in row if text]
    decrypted = "".join(fernet.decrypt(text.encode()).decode() for text in encrypted)
    assert all(word in decrypted for word in words)

    held = [
        (table, kind) for table, texts in tables.items() for word, kind in words.items() if word in "\n".join(texts)
    ]
    assert held == []
    assert search(stack.folder.parent, words) == []
    assert search(events, words) == []
    # What the task itself prints is masked in its log, but only there: Airflow 3.3.2's LocalExecutor copies the lines
    # of tasks unmasked to the scheduler's output.
    assert search(stack.folder / "airflow" / "logs", written) == []
