"""Other users of the machine can reach the stack's ports, but get nothing from them without its password."""

import stat
from pathlib import Path

import httpx
import pytest

from demo.stack import USER, Stack

TEST = {"connection_id": "c", "conn_type": "nats", "host": "127.0.0.1", "port": 4222}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v2/connections/test", TEST),
        ("GET", "/api/v2/connections", None),
        ("POST", "/api/v2/dags/handoff/dagRuns", {"logical_date": None}),
        ("GET", "/auth/token", None),
        ("GET", "/auth/token/login", None),
        ("POST", "/auth/token", {"username": USER, "password": "guessed"}),
        ("GET", "/execution/connections/nats_default", None),
    ],
)
def test_nobody_gets_in_without_the_password(stack: Stack, method: str, path: str, body: object) -> None:
    answer = httpx.request(method, f"{stack.airflow.url}{path}", json=body, timeout=60)
    assert answer.status_code in (401, 403), answer.text
    assert "set-cookie" not in answer.headers


def test_the_test_button_works_for_who_has_logged_in(stack: Stack) -> None:
    body = {**TEST, "port": stack.nats.port, "extra": "{}"}
    assert stack.airflow._answer("POST", "connections/test", body)["status"]


def test_files_and_sockets_are_closed_to_other_users(stack: Stack) -> None:
    (socket,) = (path for path in stack.postgres._socket_folder.iterdir() if path.is_socket())
    private = [socket.parent, *(stack.folder / name for name in ("airflow", "nats", "postgres", "stack.json"))]
    assert [path for path in private if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
    assert not any(name in Path(f"/proc/{stack.nats.pid}/cmdline").read_text() for name in (stack.password, "password"))
