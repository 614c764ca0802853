"""Re-executions of some steps of a run: which messages are settled, and whether the work has been done on them."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import HeldClaim, JetStreamResource, claimed_op, take_claims
from tests.dagster_nats_jetstream.conftest import Line

QUICK = Line("", JetStreamResource()).quick()


@dg.op
def first(claims: list[dict[str, Any]]) -> dict[str, Any]:
    return claims[0]


@dg.op
def load(claim: dict[str, Any]) -> list[int]:
    """Work on a claim that does not hold it, as a job on a cluster."""
    note("loaded", claim["count"])
    fail_if("load fails")
    return [claim["count"]]


@claimed_op()
def settle(claim: HeldClaim, loaded: list[int]) -> int:
    note("settled", claim.count)
    fail_if("settle fails")
    return claim.count


def note(file: str, count: int) -> None:
    with (Path(os.environ["NOTES"]) / file).open("a") as notes:
        notes.write(f"{count}\n")


def fail_if(file: str) -> None:
    order = Path(os.environ["NOTES"]) / file
    if order.exists():
        order.unlink()
        raise RuntimeError(file)


def several_steps(stream: str, servers: str) -> Any:
    take = take_claims(**{**QUICK, "stream": stream})
    resources = {"jetstream": JetStreamResource(servers=servers, shortest_ack_wait=0.5)}

    @dg.job(executor_def=dg.in_process_executor, resource_defs=resources)
    def several() -> None:
        claim = first(take().collect())
        settle(claim, load(claim))

    return several


class Runs:
    """Runs of a job on a stream, and re-executions of some of its steps."""

    def __init__(self, line: Line, notes: Path, instance: dg.DagsterInstance) -> None:
        where: Any = (line.stream, line.resource.servers)
        self._job = dg.build_reconstructable_job(__name__, several_steps.__name__, where)
        self._notes = notes
        self._instance = instance
        self._last = ""
        self.failure = ""

    def order(self, what: str) -> None:
        (self._notes / what).touch()

    def noted(self, what: str) -> list[int]:
        file = self._notes / what
        return [*map(int, file.read_text().split())] if file.exists() else []

    def __call__(self, *steps: str) -> bool:
        """Run the job, or re-execute these steps of its last run. Return whether the run succeeded."""
        again = dg.ReexecutionOptions(self._last, step_selection=[*steps]) if steps else None
        with dg.execute_job(self._job, self._instance, reexecution_options=again) as result:
            self._last = result.run_id
            failures = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
            self.failure = "".join(map(str, failures))
            return bool(result.success)


@pytest.fixture
def runs(line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    notes, home = tmp_path / "notes", tmp_path / "dagster"
    notes.mkdir()
    home.mkdir()
    monkeypatch.setenv("NOTES", str(notes))
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        yield Runs(line, notes, instance)


def test_a_claim_that_the_steps_before_have_never_seen_is_not_settled(line: Line, runs: Runs) -> None:
    """A person re-executes the op that failed together with the take: the work between them was done on the messages of
    the earlier take."""
    line.publish(3)
    runs.order("settle fails")
    assert not runs()
    line.publish(2, first=3)
    assert not runs("take_claims", "first", "settle")
    assert "step load has not worked since step first ran again" in runs.failure
    assert (line.committed, line.floor) == ([], 0)
    assert runs("load", "settle")
    assert (runs.noted("loaded"), runs.noted("settled")) == ([3, 5], [3, 5])
    assert line.floor == 5


def test_the_same_if_the_step_before_was_executed_again_and_failed(line: Line, runs: Runs) -> None:
    """Dagster then takes the output of the run before."""
    line.publish(3)
    runs.order("settle fails")
    assert not runs()
    line.publish(2, first=3)
    runs.order("load fails")
    assert not runs("take_claims", "first", "load", "settle")
    assert not runs("settle")
    assert "step load has not worked since step first ran again" in runs.failure
    assert line.committed == []


def test_an_op_that_failed_is_re_executed_alone(line: Line, runs: Runs) -> None:
    """Its claim has failed. The messages are redelivered to the next take."""
    line.publish(3)
    runs.order("settle fails")
    assert not runs()
    assert not runs("settle")
    assert "Superseded" in runs.failure
    assert (line.committed, line.unacknowledged) == ([], 3)


def test_an_op_that_has_settled_its_claim_is_re_executed_alone(line: Line, runs: Runs) -> None:
    """It returns what it has recorded. It is not called, although new messages wait."""
    line.publish(3)
    assert runs()
    line.publish(2, first=3)
    assert runs("settle")
    assert (runs.noted("settled"), line.floor) == ([3], 3)


def test_a_take_that_is_re_executed_alone_acknowledges_nothing(line: Line, runs: Runs) -> None:
    line.publish(3)
    assert runs()
    line.publish(2, first=3)
    assert runs("take_claims")
    assert (line.floor, line.unacknowledged, len(line.open)) == (3, 2, 1)
    assert runs("first", "load", "settle")
    assert (runs.noted("settled"), line.floor) == ([3, 2], 5)
