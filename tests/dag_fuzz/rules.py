"""The rules that the judge applies to what was observed of one DAG. They know nothing of our own code."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.dag_fuzz.shape import Shape, work_id

CLEAN_UP = "clean-up"
"""The task in the evidence of the script that processes the rest."""


@dataclass(frozen=True)
class Instance:
    """A task instance as Airflow's database has it in the end. Times are in seconds since 1970."""

    run: str
    task: str
    index: int
    state: str | None
    tries: int
    began: float = 0.0
    ended: float = 0.0

    @property
    def key(self) -> tuple[str, str, int]:
        return self.run, self.task, self.index

    @property
    def name(self) -> str:
        return self.task if self.index < 0 else f"{self.task}[{self.index}]"


@dataclass
class Seen:
    """What was observed of a DAG when nothing ran any more.

    runs:       the state of each run.
    tasks:      the task instances.
    claims:     the ids of the claims that a task of a run gets now, in the order of its map indices.
    handed_on:  when the task that hands these claims on ended.
    evidence:   the lines that the bodies wrote.
    done:       the claims that the ledger calls done, each with its sequences.
    acked:      the sequences whose acknowledgement the server got.
    published:  how many messages the stream got.
    waiting:    how many messages the server has to deliver, or has delivered without an acknowledgement.
    marked:     the task instances that a person marked as successful, each with the number of its try at that moment.
    """

    runs: dict[str, str] = field(default_factory=dict)
    tasks: list[Instance] = field(default_factory=list)
    claims: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    handed_on: dict[tuple[str, str], float] = field(default_factory=dict)
    evidence: list[dict[str, Any]] = field(default_factory=list)
    done: dict[str, list[int]] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    published: int = 0
    waiting: int = 0
    marked: dict[tuple[str, str, int], int] = field(default_factory=dict)


def violations(of: Shape, seen: Seen) -> Iterator[str]:
    """Yield every violation, in words."""
    yield from _every_done_claim_has_its_work(of, seen)
    yield from _every_green_task_did_its_work(of, seen)
    yield from _nothing_is_lost(seen)


def _every_done_claim_has_its_work(of: Shape, seen: Seen) -> Iterator[str]:
    """Whatever the run's state: a claim that is done was processed by somebody."""
    for claim in seen.done:
        if _lines(seen, "done", claim, CLEAN_UP):
            continue
        if of["kind"] != "settle":
            # A mark does not settle a claim. A task that holds one has to work on it.
            skipping = [work_id(of, part["id"]) for part in of["tasks"] if part["on_skip"] == "settle"]
            lines = [line for line in seen.evidence if line["claim"] == claim]
            if not any(line["what"] == "done" or line["task"] in skipping for line in lines):
                yield f"claim {claim} is done, but no task has completed its work on it"
            stage = work_id(of, "stage")
            if of.get("stage") and not _lines(seen, "done", claim, stage) and not _vouched(seen, stage):
                yield f"claim {claim} is done with what its stage has made of another claim"
            continue
        missing = [part["id"] for part in of["tasks"] if not _accounted(of, seen, part["id"], claim)]
        if missing:
            yield f"claim {claim} is settled, but the work of {', '.join(missing)} on it was not completed"


def _accounted(of: Shape, seen: Seen, name: str, claim: str) -> bool:
    """Whether a plain task completed its work on the claim, or a person or the DAG's author vouches for it."""
    task = work_id(of, name)
    if _lines(seen, "done", claim, task) or _vouched(seen, task):
        return True
    handled = any(part["rule"] == "all_done" for part in of["tasks"])
    before = {"load": ["load"], "check": ["load", "check"], "audit": ["audit"]}[name]
    if handled and name == "load":
        return True  # the author lets `check` handle its failure
    return of["settle"]["skipped"] and any(_lines(seen, "skip", claim, work_id(of, each)) for each in before)


def _vouched(seen: Seen, task: str) -> bool:
    """Whether a person marked an instance of a task as successful."""
    return any(marked[1] == task for marked in seen.marked)


def _every_green_task_did_its_work(of: Shape, seen: Seen) -> Iterator[str]:
    """In a green run, a successful task that says that it worked on a claim did so."""
    working = {work_id(of, part["id"]) for part in of["tasks"]}
    settling = work_id(of, "settle")
    for task in seen.tasks:
        claims = seen.claims.get((task.run, task.task), [])
        place = max(task.index, 0)
        if seen.runs[task.run] != "success" or task.state != "success" or place >= len(claims):
            continue
        if task.task not in working | {settling} or task.tries <= seen.marked.get(task.key, -1):
            continue
        claim = claims[place]
        present = task.began > seen.handed_on[task.run, task.task]  # otherwise it may have worked on an earlier claim
        done = claim in seen.done
        own = [line for line in _lines(seen, "done", claim, task.task) if line["index"] == task.index]
        if task.task in working and not own and (done or present):
            what = "is done" if done else "is not done"
            yield f"the run is green, but its task {task.name} has not worked on its claim {claim}, which {what}"
        if (task.task == settling or of["kind"] != "settle") and present and not done:
            yield f"the run is green and {task.name} succeeded, but its claim {claim} is not done"


def _nothing_is_lost(seen: Seen) -> Iterator[str]:
    """An acknowledged message is in a claim that is done, and every other message waits at the server."""
    done = {each for sequences in seen.done.values() for each in sequences}
    if lost := seen.acked - done:
        yield f"acknowledged, but in no claim that is done: {sorted(lost)}"
    if len(seen.acked) + seen.waiting != seen.published:
        yield (
            f"{seen.published} messages were published, {len(seen.acked)} were acknowledged, and {seen.waiting} wait "
            "at the server"
        )


def _lines(seen: Seen, what: str, claim: str, task: str) -> list[dict[str, Any]]:
    return [line for line in seen.evidence if (line["what"], line["claim"], line["task"]) == (what, claim, task)]
