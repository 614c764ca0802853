"""The JSON of the page's API: findings with their tasks and DAGs, payloads, addresses, strings that others wrote."""

import json
from dataclasses import replace
from typing import Any

import pytest

from airflow_nats_jetstream.page.answers import Answer, overview_json, owners_of_overview, sequences_text, value_json
from airflow_nats_jetstream.page.letters import LARGEST_SHOWN, shown
from airflow_nats_jetstream.page.obstacles import Obstacle
from airflow_nats_jetstream.page.tasks import HIDDEN, Dag, Tasks, key_of, web_address
from jetstream_client.info import ConsumerInfo
from jetstream_client.sequences import Sequences
from jetstream_handoff.ledger.history import Attempt, History, readable
from jetstream_handoff.ledger.order import Order
from jetstream_handoff.ledger.record import OpenEntry, Record
from jetstream_handoff.watch.view import ConsumerView, DeadLettersView, Overview, StreamView, Symptom

NOW = "2026-01-01T00:10:00Z"
OWNER = ("resting", "run", "take", -1, 0, "")
HOLDER = ("resting", "run", "work", 3, 2)
HELD = OpenEntry(
    Sequences.of([1, 2]), 2, 20, "2026-01-01T00:00:00Z", OWNER, "2-x", History(attempts=(Attempt("2-x", NOW, HOLDER),))
)


def found(
    kind: str,
    *,
    paused: bool = True,
    held: bool = True,
    claim: str = "5f0c9a7be21d",
    state: str = "success",
    obstacle: Obstacle | None = None,
) -> dict[str, Any]:
    """The JSON of a finding of this kind about a claim of a DAG; empty if there is none."""
    entry = HELD if held else replace(HELD, token=None)
    record = Record(NOW, open={"5f0c9a7be21d": entry})
    by = (HOLDER if held else OWNER) if claim or obstacle else ()
    symptom = Symptom(kind, "error", "It is so.", "It waits.", "Look at it.", claim, by)  # type: ignore[arg-type]
    view = ConsumerView("S", "c", NOW, record=record, findings=(symptom,))
    overview = Overview(NOW, "s", "2", "", "page", (StreamView("S", None, DeadLettersView("DEAD_S"), (view,)),))
    assert OWNER in list(owners_of_overview(overview))
    tries = {("resting", "run", "take", -1): (1, state), ("resting", "run", "work", 3): (2, "running")}
    tasks = Tasks(tries, {"resting": Dag("resting", paused)}, frozenset({"resting"}))
    obstacles = {("resting", "run", True): obstacle} if obstacle else {}
    findings = overview_json("id", overview, tasks, obstacles)["streams"][0]["consumers"][0]["findings"]
    return dict(*findings)


def test_a_paused_dag_explains_what_waits() -> None:
    """And not that the attempt that holds a claim is dead."""
    waits = found("unheld", held=False)
    assert (waits["cause"], waits["effect"]) == ("DAG resting is paused.", "It is so. It waits.")
    assert (waits["remedy"], waits["action"]) == ("Unpause it, so that its tasks start.", "dag")
    assert waits["dag"] == {"dag_id": "resting", "paused": True}
    assert found("no_puller", claim="")["cause"] == "DAG resting is paused."
    dead = found("dead_holder")
    assert (dead["action"], dead["task"]["task_id"]) == ("release", "work")
    assert dead["remedy"].startswith("Look at it. Airflow still shows task resting / run / work[3] as running, and may")


def test_messages_that_nobody_takes_need_a_run_of_the_dag() -> None:
    for kind in ("released", "no_puller"):
        remedy = found(kind, paused=False, held=False)["remedy"]
        assert remedy == "Start a run of DAG resting; if one is running, read the log of its sensor."


def test_what_airflow_knows_of_the_dag_is_the_cause() -> None:
    """It concerns only messages that a run would take."""
    failed = Obstacle("Run r of DAG resting has failed.", "Repair it.")
    for kind in ("released", "no_puller"):
        seen = found(kind, paused=False, claim="", obstacle=failed)
        assert (seen["cause"], seen["effect"], seen["remedy"]) == (failed.cause, "It is so. It waits.", failed.remedy)
    assert found("dead_letters", paused=False, claim="", obstacle=failed)["cause"] == "It is so."
    assert found("no_puller", claim="", obstacle=failed)["cause"] == "DAG resting is paused."


def test_messages_that_wait_for_the_next_run_are_no_finding() -> None:
    planned = Obstacle("The next run of DAG resting is due at 2026-01-01T01:00:00Z.", "", planned=True)
    assert found("no_puller", paused=False, claim="", obstacle=planned) == {}
    released = found("released", paused=False, claim="", obstacle=planned)
    assert (released["cause"], released["remedy"]) == (planned.cause, "Look at it.")


def test_a_sensor_that_failed_after_its_take_is_the_cause() -> None:
    sensor = found("unheld", paused=False, held=False, state="failed")
    assert sensor["cause"] == "Task resting / run / take failed after it had taken the claim."
    assert (sensor["effect"], sensor["action"], sensor["task"]["task_id"]) == ("It is so. It waits.", "release", "take")
    assert "then clear the task" in sensor["remedy"]
    assert found("unheld", paused=False, held=False)["cause"] == "It is so."


def test_a_finding_offers_one_action_that_repairs_it() -> None:
    assert found("unheld", paused=False, held=False)["action"] == "release"
    assert found("dead_holder", claim="")["action"] is None
    assert [found(kind)["action"] for kind in ("paused_consumer", "dead_letters", "stopped", "failing", "ledger")] == [
        "resume",
        "dead_letters",
        "dead_letters",
        "task",
        None,
    ]


@pytest.mark.parametrize("visible", [True, False])
def test_what_a_batch_waits_for_names_its_task_only_to_users_who_may_see_its_dag(visible: bool) -> None:
    order = Order("{2}", claims=8, stopped={"a": 17, "b": 9})
    ordered = Record(NOW, counter=2, open={"5f0c9a7be21d": HELD}, order=order)
    numbers = {"num_pending": 12_400, "num_ack_pending": 2, "config": {}, "created": NOW, "ts": NOW}
    places = {"delivered": {"consumer_seq": 2, "stream_seq": 2}, "ack_floor": {"stream_seq": 0}}
    view = ConsumerView("S", "c", NOW, ConsumerInfo({**numbers, **places}), ordered)
    overview = Overview(NOW, "s", "2", "", "page", (StreamView("S", None, DeadLettersView("DEAD_S"), (view,)),))
    assert list(owners_of_overview(overview)) == [HOLDER]
    tasks = Tasks({("resting", "run", "work", 3): (2, "running")}, {}, frozenset({"resting"} if visible else ()))
    row = overview_json("id", overview, tasks)["streams"][0]["consumers"][0]
    barrier = row["barrier"]
    assert row["stopped"] == 2
    named = barrier.pop("task")
    assert (named["text"] if visible else named) == ("resting / run / work[3]" if visible else HIDDEN)
    claim = {"claims": 1, "of": 8, "messages": 12_400, "age": 600.0, "claim": "5f0c9a7be21d"}
    assert barrier == claim


def test_strings_that_others_wrote_are_sent_unchanged() -> None:
    """Half of a surrogate pair, which JSON can contain, has no UTF-8 encoding."""
    hostile = "\ud800 \u202e <script> \x00 é"
    body = bytes(Answer({"text": hostile}).body)
    assert body.isascii()
    assert json.loads(body) == {"text": hostile}


def test_a_value_is_readable_for_javascript() -> None:
    value = {"a": [1, 0.5, None, True, 2**60, -(2**60)], "b": [float("nan"), float("inf")], "c": "\ud800"}
    shown = {"a": [1, 0.5, None, True, str(2**60), str(-(2**60))], "b": ["NaN", "Infinity"], "c": "\ud800"}
    assert json.loads(bytes(Answer({"value": value_json(value)}).body), parse_constant=pytest.fail)["value"] == shown
    assert len(value_json(["x" * 9_000])) == 8 << 10


def test_many_ranges_are_shortened() -> None:
    many = Sequences.of(range(1, 2_000, 2))
    assert sequences_text(Sequences.from_ranges([(1, 100), (105, 105)])) == "1\u2013100, 105"
    assert sequences_text(many) == "1, 3, 5, 7, 9, 11, 13, 15, 17, 19 and 990 more ranges"


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (b"", "text", ""),
        (b"a\tb\r\n", "text", "a\tb\r\n"),
        (b"\x00", "hex", "00"),
        (b"\xff\xfe", "hex", "ff fe"),
        ("\u202e".encode(), "hex", "e2 80 ae"),
        ("é".encode() * LARGEST_SHOWN, "text", "é" * (LARGEST_SHOWN // 2)),
        (b"x" + "é".encode() * LARGEST_SHOWN, "text", "x" + "é" * (LARGEST_SHOWN // 2 - 1)),
    ],
    ids=range(7),
)
def test_a_payload_is_text_only_if_nothing_in_it_is_invisible(data: bytes, form: str, text: str) -> None:
    """It is cut at 4 KiB, also in the middle of a character."""
    answer = shown(data)
    assert (answer["form"], answer["shown"], answer["size"]) == (form, text, len(data))
    assert answer["cut"] is (len(data) > LARGEST_SHOWN)


ADDRESSES = [
    "javascript:alert(1)",
    "//x",
    "http://",
    "http://u:p@x/",
    "ftp://x",
    "http://x y",
    "http://x\n",
    "http://[x",
]


@pytest.mark.parametrize("address", [*ADDRESSES, 7, None])
def test_what_is_not_the_address_of_a_page_is_not_shown(address: object) -> None:
    assert web_address(address) == ""
    assert web_address("https://spark.example.com:4040/jobs?id=1") == "https://spark.example.com:4040/jobs?id=1"


OWNERS: list[tuple[str | int, ...]] = [
    (),
    ("a",),
    ("a", "b", "c"),
    ("a", "b", "c", "d"),
    ("a", "b", 1, 2),
    ("", "b", "c", 1),
    ("a\x00", "b", "c", 1),
]
OWNERS += [("a" * 251, "b", "c", 1), ("a", "b", "c", -2), ("a", "b", "c", 1 << 40)]


@pytest.mark.parametrize("owner", OWNERS, ids=range(len(OWNERS)))
def test_an_owner_that_cannot_be_a_task_is_not_looked_up(owner: tuple[str | int, ...]) -> None:
    assert key_of(owner) is None
    assert Tasks().task(owner) is None


def test_a_task_is_named_only_to_users_who_may_see_its_dag() -> None:
    """Whether the DAG exists or not. An owner that cannot be a task of an Airflow is not one of its secrets."""
    may, must_not = Tasks(visible=frozenset({"a"})), Tasks({("a", "b", "c", 1): (1, "running")})
    for owner in (("a", "b", "c", 1), ("a", "b", "c"), ("a",), ("a", 7), ("a", "b\x00", "c", 1)):
        assert must_not.name(owner) == HIDDEN
        assert must_not.task(owner) is must_not.dag(owner) is None
        assert may.name(owner) == readable(owner)
    assert must_not.name(("a\u202e", "b", "c", 1)) == "a\u202e / b / c[1]"
    assert must_not.name(()) == ""
