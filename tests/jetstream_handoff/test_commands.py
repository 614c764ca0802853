"""The command line, run in a separate process against a real server."""

import asyncio
import contextlib
import io
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.wire.settings import environment_name
from jetstream_handoff.__main__ import main
from jetstream_handoff.command_line.output import age
from jetstream_handoff.errors import HoldLost, Superseded
from jetstream_handoff.hold import settle
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from tests.jetstream_handoff.steps import ACK_WAIT, CONSUMER, publish, reset_by_a_stranger, take, unacknowledged

MODULE = [sys.executable, "-m", "jetstream_handoff"]


class Said(NamedTuple):
    code: int
    out: str
    err: str


async def call(*command: str, **environment: str) -> Said:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, **environment}
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None
    assert b"Traceback" not in err
    return Said(process.returncode, out.decode(), err.decode())


def server_of(stream: Stream) -> str:
    return str(stream.js.settings.servers[0])


async def run(stream: Stream, *arguments: str) -> Said:
    """Run a command in a separate process."""
    return await call(*MODULE, *arguments, "--server", server_of(stream), "--ledger", stream.js.settings.ledger)


async def read(stream: Stream, *arguments: str) -> Any:
    """Run a command in this process, which is faster, and return the JSON that it prints."""
    command = [*arguments, "--json", "--server", server_of(stream), "--ledger", stream.js.settings.ledger]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert await asyncio.to_thread(main, command) == 0
    return json.loads(out.getvalue())


async def test_open_claims_are_listed(stream: Stream) -> None:
    said = await run(stream, "claims")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("LedgerUnavailable: the ledger's bucket")
    assert said.err.count("\n") == 1
    await publish(stream, 30)
    waiting, held = await take(stream, "a run", messages_per_claim=20)
    async with Hold.begin(stream.js, held, try_number=3) as hold:
        said = await run(stream, "claims")
        data = await read(stream, "claims", "--stream", stream.name, "--listen", "PT2S")
    header, first, second = said.out.splitlines()
    assert header.split("  ")[0] == "CLAIM"
    assert f"{waiting.id}  {stream.name}  {CONSUMER}      20        1-20 " in first
    assert "seconds ago  nobody" in first
    assert "dag / a run / sensor" in first
    assert f"{hold.token}  dag / a run / sensor" in second
    assert [(each["id"], each["count"], each["ranges"], each["alive"]) for each in data] == [
        (waiting.id, 20, [[1, 20]], None),
        (held.id, 10, [[21, 30]], True),
    ]
    assert (data[0]["taken_by"], data[0]["owner"]) == ("dag / a run / sensor", ["dag", "a run", "sensor", -1, 1])
    assert data[0]["since"] == waiting.taken_at
    assert 0 < data[0]["age_seconds"] < 60
    assert "It waits for its task" in data[0]["next"]
    assert "is alive" in data[1]["next"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, ""),
        (-0.5, "a few seconds ago"),  # the server's clock may differ from ours
        (200.5, "3 minutes ago"),
        (7_300, "2 hours ago"),
        (86_401, "1 day ago"),
        (15 * 86_400, "2 weeks ago"),
    ],
)
def test_ages_are_in_words(seconds: float | None, words: str) -> None:
    assert age(seconds) == words


@pytest.mark.parametrize("duration", ["soon", "-1", "nan", "PT", "P1M"])
def test_listening_takes_a_duration(duration: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["claims", "--server", "nats://127.0.0.1", f"--listen={duration}"])
    assert "argument --listen: invalid duration value" in capsys.readouterr().err


@pytest.mark.server("2.14")
async def test_what_became_of_a_claim(stream: Stream) -> None:
    await publish(stream, 30)
    done, failed, left = await take(stream, messages_per_claim=10)
    async with Hold.begin(stream.js, done, try_number=1, holder=("dag", "run", "work", -1, 1)) as hold:
        await hold.settle({"rows": 10})
    said = await run(stream, "claim", done.id)
    assert said.code == 0
    lines = dict(line.split("  ", 1) for line in said.out.splitlines())
    assert lines["state"].strip() == "done"
    assert lines["messages"].strip() == "10 (sequences 1-10)"
    assert lines["ended"].strip().endswith("Z (a few seconds ago)")
    assert lines["value"].strip() == '{"rows": 10}'
    assert lines["settled by"].strip() == hold.attempt_id
    assert "acknowledged up to sequence 10; messages: 20 unacknowledged" in lines["consumer now"]
    assert f"the output of attempt {hold.attempt_id} counts." in lines["next"]
    history = said.out[said.out.index("history") :].splitlines()
    assert [line.split("Z  ", 1)[1].split(".")[0] for line in history] == [
        "It was taken by dag / run / sensor",
        f"It was held by attempt {hold.token} of dag / run / work, try 1",
        f"Attempt {hold.token} settled it",
        "All acknowledgements were confirmed after 0",
    ]

    async with Hold.begin(stream.js, failed, try_number=1) as hold:
        await settle.settle_failed(Ledger(stream.js, stream.name, CONSUMER), failed, hold.token, "bad")
    shown = await read(stream, "claim", failed.id)
    assert (shown["state"], shown["value"]) == ("failed", None)
    assert [step["what"] for step in shown["history"]] == ["taken", "held", "failed"]
    assert shown["history"][-1]["text"] == f"Attempt {hold.token} failed: bad"
    assert shown["consumer_info"]["ack_floor"] == 10

    await reset_by_a_stranger(stream)
    shown = await read(stream, "claim", left.id)
    assert "cannot be settled, because its consumer was recreated or reset" in shown["next"]
    await stream.consumer(CONSUMER).delete()
    shown = await read(stream, "claim", left.id)
    assert shown["state"] == "open"
    assert "does not exist" in shown["next"]
    await take(stream, "other")  # creates the consumer again, and begins a new life
    shown = await read(stream, "claim", left.id)
    assert (shown["state"], shown["ranges"]) == ("superseded", [[21, 30]])
    (again,) = [each["id"] for each in await read(stream, "claims")]
    assert shown["overlapping"] == [again]
    assert f"Open claims contain its messages: {again}." in (await say(stream, "claim", left.id)).out
    unknown = await run(stream, "claim", "0123456789ab")
    assert (unknown.code, unknown.out[:39]) == (3, "The ledger has no claim '0123456789ab'.")


async def test_release_what_nobody_holds(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream, hand_off_timeout=timedelta(hours=1))
    assert await take(stream, "other", wait=0.3) == []
    said = await run(stream, "release", claim.id)
    told = f"Claim {claim.id} was released: the next sensor that pulls receives its 10 messages again.\n"
    assert (said.code, said.out) == (0, told)
    (again,) = await take(stream, "other", wait=2)
    assert again.sequences == claim.sequences
    said = await run(stream, "release", claim.id)
    assert said.code == 4
    assert "not open" in said.out


async def test_release_from_an_attempt(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    ledger = Ledger(stream.js, stream.name, CONSUMER)
    async with Hold.begin(stream.js, claim, try_number=1) as living:
        refused = await run(stream, "release", claim.id)
        assert refused.code == 4
        assert f"Attempt {living.token} of claim {claim.id} is alive" in refused.out
        record, _ = await ledger.read()
        assert record
        assert record.open[claim.id].token == living.token
        said = await run(stream, "release", claim.id, "--yes")
        assert said.code == 0
        (again,) = await take(stream, "other", wait=2)
        with pytest.raises((HoldLost, Superseded)):  # the attempt is alive, but has lost the claim
            await living.settle()
    assert again.sequences == claim.sequences
    async with Hold.begin(stream.js, again, try_number=1) as dead:
        await dead._stop_beats()  # as a killed worker does
        briefly = await read(stream, "claim", again.id, "--listen", "0.1")
        assert (briefly["alive"], "no heartbeat" in briefly["next"]) == (None, False)  # it may be silent for 0.3 s
        assert "add `--listen " in (await say(stream, "claim", again.id, "--listen", "0.1")).out
        shown = await read(stream, "claim", again.id, "--listen", "0.5")
        assert shown["alive"] is False
        assert f"redelivered {ACK_WAIT.total_seconds():g} s after" in shown["next"]
        assert (await read(stream, "release", again.id))["released"]
        record, _ = await ledger.read()
        assert record
        assert record.open[again.id].token is None


async def test_dead_letters_are_listed_and_replayed(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.reject(Sequences.of([3, 5]), "no JSON: a brace is missing")
        await hold.settle()
    said = await run(stream, "dead-letters", "list", stream.name)
    assert [line.split()[1] for line in said.out.splitlines()] == ["MESSAGE", "3", "5"]
    assert "yes        no JSON: a brace is missing" in said.out
    data = await read(stream, "dead-letters", "list", stream.name, "--sequences", "4-9")
    assert [(each["sequence"], each["attempt"], each["confirmed"]) for each in data] == [(5, hold.attempt_id, True)]
    refused = await run(stream, "dead-letters", "replay", stream.name)
    assert refused.code == 1
    assert "--everything=False: " in refused.err
    assert "or add --everything to select all dead letters" in refused.err
    replayed = {"published": 1, "found": 0, "unconfirmed": 0, "refused": []}
    assert await read(stream, "dead-letters", "replay", stream.name, "--sequences", "3") == replayed
    assert (await stream.info()).state["last_seq"] == 11
    filtered = await say(stream, "dead-letters", "replay", stream.name, "--reason", "a brace")
    assert (filtered.code, "would be published" in filtered.out) == (4, True)
    every = ["dead-letters", "replay", stream.name, "--everything"]
    shown = await say(stream, *every)
    assert (shown.code, shown.out.split(" again")[0]) == (
        4,
        f"1 dead letter (10 bytes) of stream {stream.name} would be published to stream {stream.name}",
    )
    assert "To replay them, add --yes." in shown.out
    assert (await stream.info()).state["last_seq"] == 11
    assert await read(stream, *every, "--yes") == replayed
    assert await unacknowledged(stream) == 0
    assert (await take(stream, "again"))[0].count == 2


async def test_dead_letters_are_discarded_only_when_that_is_confirmed(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.reject(Sequences.of([3, 5, 6]), "no date")
        await hold.settle()
    of = ["dead-letters", "discard", stream.name]
    assert "add --everything" in (await say(stream, *of)).err
    assert "--everything=True: " in (await say(stream, *of, "--everything", "--sequences", "3")).err
    said = await say(stream, *of, "--sequences", "3-5")
    assert (said.code, said.out.split(".")[0]) == (
        4,
        f"2 dead letters (20 bytes) of stream {stream.name} would be discarded",
    )
    assert len(await read(stream, "dead-letters", "list", stream.name)) == 3
    said = await say(stream, *of, "--sequences", "3-5", "--yes")
    assert (said.code, said.out) == (0, f"2 dead letters of stream {stream.name} were discarded.\n")
    discarded = {"discarded": 1, "unconfirmed": 0, "refused": []}
    assert await read(stream, *of, "--everything", "--yes") == discarded
    assert (await say(stream, "dead-letters", "list", stream.name)).out.startswith("No dead letters")
    await stream.js.publish(f"dead.{stream.name}.any", b"x")
    said = await say(stream, *of, "--everything", "--yes")
    assert said.code == 4
    assert "was kept: Nats-Dead" in said.out
    assert (await stream.info()).state["messages"] == 10


async def test_what_is_wrong_is_one_sentence_and_no_secret(stream: Stream, tmp_path: Path) -> None:
    server = server_of(stream)
    seed = "SUAOUWFXMQFZ2W7KZ4XKZ4CBPQEV5FVN3YIXTXNO3F7SZ2ZDDRQWDF5YRU"
    credentials = tmp_path / "a.creds"
    credentials.write_text(f"------BEGIN USER NKEY SEED------\n{seed}\n")
    for arguments, says in (
        (["--server", "nats://user:hidden-7d1@127.0.0.1"], "servers="),
        (["--server", "http://127.0.0.1"], "servers="),
        (["--server", server, "--connection", "x"], "not both"),
        (["--connection", "x", "--ledger", "x"], "the connection contains this setting"),
        (["--connection", "absent"], "JETSTREAM_SECRET_ABSENT is not set"),
        ([], "give the address of a server, or --connection"),
        (["--server", server, "--ledger", "a b"], "ledger="),
        (["--server", server, "--credentials", str(tmp_path / "none")], "cannot be read"),
        (["--server", server, "--credentials", "hidden-7d1"], "cannot be read"),
        (["--connection", "x", "--credentials", "hidden-7d1"], "this option works only with --server"),
        (["--connection", "nats://user:hidden-7d1@127.0.0.1"], "not an address"),
        (["--server", server, "--credentials", str(credentials)], ""),
    ):
        with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()) as out:
            assert await asyncio.to_thread(main, ["claims", *arguments]) == 1
        assert out.getvalue() == ""
        assert says in err.getvalue()
        assert err.getvalue().count("\n") == 1
        assert "hidden-7d1" not in err.getvalue()
        assert seed not in err.getvalue()
    said = await call(*MODULE, "claims", "--json", "--server", "http://127.0.0.1")
    assert json.loads(said.err)["error"] == "InvalidValue"
    assert (await call(*MODULE, "nothing")).code == 2


async def test_spark_is_not_loaded(stream: Stream) -> None:
    code = (
        "import sys; from jetstream_handoff.__main__ import main\n"
        f"main(['claims', '--server', '{server_of(stream)}', '--ledger', 'none'])\n"
        "assert not {name.partition('.')[0] for name in sys.modules} & {'airflow', 'pyspark', 'pyarrow'}"
    )
    said = await call(sys.executable, "-c", code)
    assert said.code == 0, said.err


async def test_a_connection_can_be_in_the_environment(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    settings = {environment_name("here"): stream.js.settings.to_json()}
    said = await call(*MODULE, "claim", claim.id, "--json", "--connection", "here", **settings)
    assert json.loads(said.out)["state"] == "open"


async def test_the_doctor_of_spark_examines_sparks_python(stream: Stream) -> None:
    where = ["--server", server_of(stream), "--ledger", stream.js.settings.ledger]
    said = await call(sys.executable, "-m", "pyspark_jetstream", "doctor", "--json", *where)
    sections = json.loads(said.out)["sections"]
    (python,) = sections.pop("Python of Spark's workers")
    assert python["state"] == "fine"
    assert sections.keys() == json.loads((await call(*MODULE, "doctor", "--json", *where)).out)["sections"].keys()


async def test_the_doctor_of_airflow_needs_no_spark(stream: Stream) -> None:
    where = ["--server", server_of(stream), "--ledger", stream.js.settings.ledger]
    without = (
        "import runpy, sys; sys.modules['pyspark'] = None; runpy.run_module('airflow_nats_jetstream', None, '__main__')"
    )
    said = await call(sys.executable, "-c", without, "doctor", "--json", *where)
    assert said.err == ""
    (python,) = json.loads(said.out)["sections"]["Python of Spark's workers"]
    assert (python["what"], python["state"]) == ("pyspark", "not checked")


async def say(stream: Stream, *arguments: str) -> Said:
    """Run a command in this process, and return what it prints for people."""
    command = [*arguments, "--server", server_of(stream), "--ledger", stream.js.settings.ledger]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = await asyncio.to_thread(main, command)
    return Said(code, out.getvalue(), err.getvalue())


async def test_nothing_that_others_wrote_steers_the_terminal(stream: Stream) -> None:
    await publish(stream, 10)
    hostile = "\x1b[2J\x9b31m\u202eno\rdate"
    (claim,) = await take(stream, f"run{hostile}\nforged row")
    shown = [await say(stream, "claims"), await say(stream, "claim", claim.id), await say(stream, "claim", hostile)]
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.reject(Sequences.of([3]), hostile)
        await hold.settle(hostile)
    shown += [await say(stream, "claim", claim.id), await say(stream, "dead-letters", "list", stream.name)]
    shown.append(await say(stream, "dead-letters", "list", f"S{hostile}"))
    assert [said.code for said in shown] == [0, 0, 3, 0, 0, 1]
    for said in shown:
        assert all(each.isprintable() for each in (said.out + said.err).replace("\n", ""))
    assert "\\x1b[2J\\x9b31m\\u202eno" in shown[0].out
    assert "\\x1b[2J\\x9b31m\\u202eno" in shown[4].out
    assert shown[0].out.count("\n") == 2


async def test_a_wildcard_is_no_claim(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()
    assert (await say(stream, "claim", claim.id)).code == 0
    for wildcard in ("*", ">", claim.id + ".>"):
        assert (await say(stream, "claim", wildcard)).code == 3
        assert (await say(stream, "release", wildcard)).code == 3


async def test_what_somebody_else_wrote_into_the_ledger_hides_no_claim(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    ledger = stream.js.settings.ledger
    for key in ("foreign", "a.b", "MFRGG.MFRGG", "MFRGG.MFRGG.MFRGG", "\x1b[2J.x"):
        await stream.js.publish(f"$KV.{ledger}_claims.{key}", b"x")
    for key in ("foreign", "a.b"):
        await stream.js.publish(f"$KV.{ledger}_receipts.{key}", b"x")
    assert [each["id"] for each in await read(stream, "claims")] == [claim.id]
    assert (await read(stream, "claim", claim.id))["state"] == "open"
    assert (await say(stream, "claim", "0123456789ab")).code == 3
    assert await Ledger(stream.js, stream.name, CONSUMER).committed() == []


async def test_nothing_there_and_nothing_of_that_name_are_told_apart(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()
    of = ["--stream", stream.name]
    assert (await say(stream, "claims", *of)).out == f"There are no open claims of stream {stream.name}\n"
    none = await say(stream, "claims", *of, "--consumer", CONSUMER)
    assert none.out == f"There are no open claims of consumer {CONSUMER} of stream {stream.name}\n"
    none = await say(stream, "dead-letters", "list", stream.name)
    assert none.out == f"No dead letters of stream {stream.name} were found\n"
    for error, name, arguments in (
        ("StreamNotFound", "TYPO", ["claims", "--stream", "TYPO"]),
        ("ConsumerNotFound", "typo", ["claims", *of, "--consumer", "typo"]),
        ("InvalidValue", "typo", ["claims", "--consumer", "typo"]),
        ("StreamNotFound", "TYPO", ["dead-letters", "list", "TYPO"]),
        ("StreamNotFound", "TYPO", ["dead-letters", "replay", "TYPO", "--everything"]),
        ("StreamNotFound", "TYPO", ["dead-letters", "list", stream.name, "--name", "TYPO"]),
    ):
        said = await say(stream, *arguments)
        assert (said.code, said.out) == (1, "")
        assert said.err.startswith(f"{error}: ")
        assert name in said.err


async def test_a_preview_counts_what_the_ledger_does_not_confirm(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(stream, 10)
    claims = await take(stream, messages_per_claim=5)
    async with Hold.begin(stream.js, claims[0], try_number=1) as hold:
        await hold.reject(Sequences.of([3]), "no date")
        await hold.settle()
    with monkeypatch.context() as patch, contextlib.suppress(OSError):
        patch.setattr(settle, "settle_done", _killed)
        async with Hold.begin(stream.js, claims[1], try_number=1) as hold:
            await hold.reject(Sequences.of([7, 8]), "no date")
            await hold.settle()
    for verb, done in (("replay", "published"), ("discard", "discarded")):
        said = await say(stream, "dead-letters", verb, stream.name, "--everything")
        assert said.code == 4
        assert said.out.startswith(f"1 dead letter (10 bytes) of stream {stream.name} would be {done}")
        assert "This leaves out 2 that the ledger does not confirm" in said.out
        said = await say(stream, "dead-letters", verb, stream.name, "--everything", "--unconfirmed", "--json")
        assert json.loads(said.out) == {done: 0, "selected": 3, "bytes": 30, "unconfirmed": 2}
    said = await say(stream, "dead-letters", "replay", stream.name, "--everything", "--into", "TYPO")
    assert (said.code, said.err.split(":")[0]) == (1, "StreamNotFound")
    assert len(await read(stream, "dead-letters", "list", stream.name)) == 3


async def _killed(*_: object, **__: object) -> None:
    raise OSError("killed")


async def test_a_replay_says_what_it_left(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.reject(Sequences.of([3]), "no date")
        await hold.settle()
    await stream.js.publish(f"dead.{stream.name}.any", b"x")
    said = await say(stream, "dead-letters", "list", stream.name)
    assert "not a dead letter: Nats-Dead-Letter-" in said.out
    said = await say(stream, "dead-letters", "replay", stream.name, "--everything", "--yes")
    assert said.code == 4
    assert said.out.startswith(
        f"1 dead letters of stream {stream.name} were published again.\nDead letter 2 was not replayed: Nats-Dead"
    )
