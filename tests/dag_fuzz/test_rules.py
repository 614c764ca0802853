"""The judge finds each kind of violation, and none where a person or the DAG's author vouches for the work."""

from dataclasses import replace
from typing import Any

import pytest

from tests.dag_fuzz.rules import CLEAN_UP, Instance, Seen, violations
from tests.dag_fuzz.shape import shape
from tests.dag_fuzz.strikes import strikes

HELD: dict[str, Any] = {"kind": "two", "tasks": [{"id": each, "on_skip": "release"} for each in ("work", "again")]}
NAMES = ("work", "again", "load", "check", "settle")
PARTS = [{"id": "load", "rule": "all_success"}, {"id": "check", "rule": "all_success"}]
SETTLED: dict[str, Any] = {"kind": "settle", "grouped": False, "tasks": PARTS, "settle": {"skipped": False}}


def line(task: str, claim: str = "c", what: str = "done", index: int = 0) -> dict[str, Any]:
    return {"what": what, "task": task, "claim": claim, "run": "r", "index": index}


def seen(*evidence: dict[str, Any], **other: Any) -> Seen:
    """A green run with one claim of two messages that is done; its tasks succeeded and left this evidence."""
    known = Seen(
        runs={"r": "success"},
        tasks=[Instance("r", name, 0, "success", 1, began=20, ended=30) for name in NAMES],
        claims={("r", name): ["c"] for name in NAMES},
        handed_on={("r", name): 10 for name in NAMES},
        evidence=list(evidence),
        done={"c": [1, 2]},
        acked={1, 2},
        published=3,
        waiting=1,
    )
    return replace(known, **other)


def found(of: dict[str, Any], what: Seen) -> str:
    return "\n".join(violations(of, what))


def test_complete_work_is_no_violation() -> None:
    assert not found(HELD, seen(line("work"), line("again")))
    assert not found(SETTLED, seen(line("load"), line("check")))
    assert not found(SETTLED, seen(line(CLEAN_UP), runs={"r": "failed"}))


def test_two_tasks_over_one_claim() -> None:
    assert found(HELD, seen(line("work"))) == (
        "the run is green, but its task again[0] has not worked on its claim c, which is done"
    )
    assert not found(HELD, seen(line("work"), runs={"r": "failed"}))
    assert not found(HELD, seen(line("work"), marked={("r", "again", 0): 1}))
    assert found(HELD, seen(line("work"), marked={("r", "again", 0): 0}))  # it was cleared after the mark, and ran


def test_another_instance_of_a_cross_product() -> None:
    crossed = {"kind": "cross", "tasks": HELD["tasks"][:1]}
    two = {("r", "work"): ["c", "c"]}
    both = [Instance("r", "work", each, "success", 1, 20, 30) for each in (0, 1)]
    assert "work[1] has not worked" in found(crossed, seen(line("work"), tasks=both, claims=two))
    assert not found(crossed, seen(line("work"), line("work", index=1), tasks=both, claims=two))


def test_a_claim_that_nobody_worked_on() -> None:
    assert "claim c is done, but no task has completed its work on it" in found(HELD, seen())
    assert "the work of load, check on it" in found(SETTLED, seen(line("load", "earlier"), line("check", "earlier")))


@pytest.mark.parametrize("grouped", [False, True])
def test_a_stage_of_another_claim(grouped: bool) -> None:
    of = {"kind": "group" if grouped else "first", "tasks": HELD["tasks"][:1], "stage": {"id": "stage"}}
    work, stage = ("each.work", "each.stage") if grouped else ("work", "stage")
    assert not found(of, seen(line(stage), line(work)))
    assert "claim c is done with what its stage has made of another claim" in found(
        of, seen(line(stage, "earlier"), line(work), runs={"r": "failed"})
    )
    assert not found(of, seen(line(stage, "earlier"), line(work), marked={("r", stage, -1): 1}))
    assert not found(of | {"stage": None}, seen(line(work)))


@pytest.mark.parametrize("skipped", [False, True])
def test_a_skipped_task(skipped: bool) -> None:
    of = SETTLED | {"settle": {"skipped": skipped}}
    assert bool(found(of, seen(line("load", what="skip"), tasks=[]))) is not skipped
    held = {"kind": "one", "tasks": [{"id": "work", "on_skip": "settle" if skipped else "release"}]}
    assert bool(found(held, seen(line("work", what="skip"), tasks=[]))) is not skipped
    assert found(of, seen(line("load"), tasks=[]))  # check did not run, and nobody skipped it


def test_success_without_a_settled_claim() -> None:
    open_claim = {"done": {}, "acked": set(), "waiting": 3}
    assert "work[0] succeeded, but its claim c is not done" in found(HELD, seen(line("work"), **open_claim))
    assert "settle[0] succeeded, but" in found(SETTLED, seen(line("load"), line("check"), **open_claim))
    assert not found(
        HELD, seen(line("work"), **open_claim, handed_on={("r", name): 25 for name in NAMES})
    )  # the sensor was cleared after it


def test_lost_messages() -> None:
    assert "in no claim that is done: [3]" in found(HELD, seen(line("work"), line("again"), acked={1, 2, 3}, waiting=0))
    assert "3 messages were published, 2 were" in found(HELD, seen(line("work"), line("again"), waiting=0))


def test_the_seed_decides() -> None:
    assert [shape(1, each) for each in range(50)] == [shape(1, each) for each in range(50)]
    assert shape(1, 7) != shape(2, 7)
    assert strikes(3, shape(3, 5)) == strikes(3, shape(3, 5))
    kinds = {shape(1, each)["kind"] for each in range(100)}
    assert kinds == {"one", "first", "two", "group", "cross", "settle"}
    assert {shape(1, each)["kind"] for each in range(100) if shape(1, each).get("stage")} == {"first", "group"}
