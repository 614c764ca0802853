"""The commands as Airflow has them: ``airflow jetstream`` and ``python -m airflow_nats_jetstream``."""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_nats_jetstream.command_line import airflow_commands, main
from airflow_nats_jetstream.hooks import JetStreamHook
from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.wire.settings import environment_name
from jetstream_handoff.__main__ import main as neutral
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.hold import Hold
from tests.jetstream_handoff.steps import publish, take

Said = subprocess.CompletedProcess[str]


def call(*command: str, **environment: str) -> Said:
    arguments = [sys.executable, "-m", *command]
    return subprocess.run(
        arguments, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **environment}
    )


async def claim_in(settings: ConnectionSettings) -> Claim:
    """A claim of a new stream."""
    async with connect(settings) as js:
        stream = await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
        await publish(stream, 10)
        return (await take(stream))[0]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server whose ledger ``airflow`` no other test uses."""
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop()


def test_both_programs_show_the_claims_of_a_connection(server: NatsServer) -> None:
    claim = asyncio.run(claim_in(ConnectionSettings(servers=server.url, shortest_ack_wait=0.5, ledger="airflow"))).id
    connection = json.dumps({"conn_type": "nats", "extra": {"servers": server.url}})
    command = ["claim", claim, "--json"]
    for said in (
        call("airflow", "jetstream", *command, "--conn-id", "nats_here", AIRFLOW_CONN_NATS_HERE=connection),
        call("airflow_nats_jetstream", *command, "--conn-id", "nats_here", AIRFLOW_CONN_NATS_HERE=connection),
        call("airflow_nats_jetstream", *command, "--server", server.url),
    ):
        assert said.returncode == 0, said.stderr
        shown = json.loads(said.stdout[said.stdout.index("{") :])
        assert (shown["id"], shown["state"]) == (claim, "open")
    assert call("jetstream_handoff", *command, "--server", server.url).returncode != 0  # it has another ledger


async def test_a_connection_without_a_ledger_uses_the_buckets_of_airflow(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the settings arrive as JSON, as in Spark's processes."""
    fields = {"conn_type": "nats", "extra": {"servers": server.url, "shortest_ack_wait": 0.5}}
    monkeypatch.setenv("AIRFLOW_CONN_NATS_HERE", json.dumps(fields))
    settings = JetStreamHook("nats_here").settings
    claim = await claim_in(settings)
    assert json.loads(settings.to_json())["ledger"] == "airflow"
    monkeypatch.setenv(environment_name("nats_here"), settings.to_json())
    async with connect(ConnectionSettings.from_environment("nats_here")) as js:
        assert [name async for name in js.stream_names() if name.startswith("KV_")] == [
            "KV_airflow_claims",
            "KV_airflow_receipts",
            "KV_airflow_reserve",
        ]
        async with Hold.begin(js, claim, try_number=1) as hold:
            await hold.settle()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--server", "nats://127.0.0.1", "--conn-id", "x"], "not both"),
        (["--credentials", "hidden-7d1"], "the Airflow connection contains this setting"),
        (["--ledger", "x"], "this option works only with --server"),
        (["--conn-id", "nats://user:hidden-7d1@127.0.0.1"], "id of an Airflow connection"),
        (["--conn-id", "nowhere"], "InvalidValue: --conn-id='nowhere': Airflow has no connection with this id"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_no_secret(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    assert main(["claims", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1
    assert "hidden-7d1" not in err


def test_airflow_is_not_loaded_for_a_server(nats_server: NatsServer) -> None:
    code = (
        "import sys; from airflow_nats_jetstream.command_line import main\n"
        f"main(['claims', '--server', '{nats_server.url}', '--ledger', 'none'])\n"
        "assert not {name.partition('.')[0] for name in sys.modules} & {'airflow', 'pyspark', 'pyarrow'}"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert said.returncode == 0, said.stderr


def test_airflow_has_the_same_commands(capsys: pytest.CaptureFixture[str]) -> None:
    (group,) = airflow_commands()
    names = [each.name for each in group.subcommands]  # type: ignore[union-attr]
    for program in (main, neutral):
        with pytest.raises(SystemExit):
            program(["--help"])
        shown = capsys.readouterr().out
        assert [line.split()[0] for line in shown.splitlines() if line.startswith("    ") and line[4] != " "] == names


def test_airflow_parses_the_conditions_of_a_release() -> None:
    """Airflow builds its own parser from the arguments."""
    (group,) = airflow_commands()
    (release,) = [each for each in group.subcommands if each.name == "release"]  # type: ignore[union-attr]
    parser = argparse.ArgumentParser()
    for each in release.args:
        each.add_to_parser(parser)
    args = parser.parse_args(["--dag", "flights", "--run", "manual__1", "--yes"])
    assert (args.id, args.pipeline, args.run_id, args.yes) == (None, "flights", "manual__1", True)
    assert parser.parse_args(["5f0c9a7be21d"]).id == "5f0c9a7be21d"
