"""The nats-server of `make up` and `make demo` requires the password that they print, and no other DAG runs there."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest

from demo.stack import Stack
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import AuthenticationFailed


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path, tmp_path / "dags", guarded=True)
    stack.nats.start()
    yield stack
    stack.nats.stop()


async def test_the_server_asks_for_the_password(stack: Stack) -> None:
    with pytest.raises(AuthenticationFailed):
        async with connect(ConnectionSettings(servers=stack.nats.url)):
            pass
    given = json.loads(stack.environment["AIRFLOW_CONN_NATS_DEFAULT"])
    settings = ConnectionSettings(servers=given["extra"]["servers"], user=given["login"], password=given["password"])
    async with connect(settings) as js:
        await js.account_info()
    other = await nats.connect(stack.nats_url)  # as the report connects
    await other.close()


def test_the_password_is_in_no_file_that_others_can_read(stack: Stack) -> None:
    holding = [path for path in stack.folder.rglob("*") if path.is_file() and stack.password in path.read_text()]
    assert holding == [stack.folder / "nats" / "nats-server.conf"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (*holding, holding[0].parent)] == [0o600, 0o700]


def test_examples_are_paused_until_somebody_asks_for_them(stack: Stack) -> None:
    """Some have a schedule, and one starts when messages arrive: they would slow down the DAG that is shown."""
    assert stack.environment["AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION"] == "True"
