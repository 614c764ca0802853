"""A state machine of one run: a claim is settled only if each task between sensor and settlement has worked on it.

People clear any tasks, with and without those downstream, mark tasks and the run, and tasks fail, skip and run again.
The decisions are those of the sensor and the settling task; the states are as Airflow gives them
(tests/airflow_system and `make dagfuzz` cause them on the real one).
"""

from types import SimpleNamespace
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from airflow_nats_jetstream.compat import AirflowFailException
from airflow_nats_jetstream.operators.settle import JetStreamSettleOperator
from airflow_nats_jetstream.sensors import JetStreamPullSensor, handed_on

ORDER = ("claims", "load", "check", "settle")
WORK = ("load", "check")
STARTS = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=5)
ENDED = ("success", "failed", "skipped", "upstream_failed")


class OneRun(RuleBasedStateMachine):
    """The run `claims >> load >> check >> settle`."""

    @initialize(settle_skipped=st.booleans())
    def begins(self, settle_skipped: bool) -> None:
        with DAG("dag", schedule=None):
            self.sensor = JetStreamPullSensor(task_id="claims", stream="S", consumer="c")
            load, check = (EmptyOperator(task_id=name) for name in WORK)
            self.settling = JetStreamSettleOperator(
                task_id="settle", claim=self.sensor.output, settle_skipped=settle_skipped
            )
            self.sensor >> load >> check >> self.settling
        self.states: dict[str, str | None] = dict.fromkeys(ORDER)
        self.clears = self.sensor_clears = self.taken = self.settled = 0
        self.xcoms: dict[str, Any] = {}
        self.seen: dict[str, str | None] = {}
        """The claim on which each running task works."""
        self.worked: set[tuple[str, str | None]] = set()
        """Which task has worked on which claim, or has decided to skip it."""
        self.marked: set[str] = set()
        """The tasks that count as successful because a person says so."""

    # What Airflow tells a task.

    def get_task_states(self, *, task_ids: list[str], **_: Any) -> dict[str, Any]:
        return {"run": {each: self.states[each] for each in task_ids}}

    def xcom_pull(self, *, task_ids: list[str], key: str) -> list[Any]:
        assert task_ids == ["claims"]
        return [self.xcoms.get(key)]

    def context(self, task: Any) -> Any:
        ti = SimpleNamespace(
            dag_id="dag",
            run_id="run",
            map_index=-1,
            max_tries=self.sensor_clears,
            task=task,
            get_task_states=self.get_task_states,
            xcom_pull=self.xcom_pull,
            xcom_push=self.xcoms.__setitem__,
        )
        return {"ti": ti, "dag_run": SimpleNamespace(clear_number=self.clears, conf={}, start_date=None)}

    # What tasks do.

    def upstream_has_ended(self, task_id: str) -> bool:
        return all(self.states[each] in ENDED for each in ORDER[: ORDER.index(task_id)][-1:])

    @rule(starts=STARTS)
    def tasks_start(self, starts: list[tuple[bool, bool]]) -> None:
        """Start one after another of the tasks that Airflow may start: the first or the last of them, which may not
        have ended when the next one starts."""
        for first, busy in starts:
            if ready := [each for each in ORDER if self.states[each] is None and self.upstream_has_ended(each)]:
                self.start(ready[0 if first else -1], busy)

    def start(self, task_id: str, busy: bool) -> None:
        self.marked.discard(task_id)
        before = ORDER[: ORDER.index(task_id)][-1:]
        if task_id in WORK and self.states[before[0]] != "success":
            self.states[task_id] = "skipped" if self.states[before[0]] == "skipped" else "upstream_failed"
        elif task_id == "claims":
            self.take()
        elif task_id == "settle":
            self.settle()
        else:
            self.states[task_id] = "running"
            self.seen[task_id] = self.claim
            if not busy:
                self.ends(task_id=task_id, how="success")

    @property
    def claim(self) -> str | None:
        claims = self.xcoms.get("return_value")
        return claims[0]["id"] if claims else None

    def take(self) -> None:
        self.xcoms.clear()
        context = self.context(self.sensor)
        try:
            self.sensor._check_begun(context)  # before it takes
            self.taken += 1
            claims = [{"id": f"claim {self.taken}", "taken_at": "2026-11-21T03:00:05Z"}]
            self.sensor._check_begun(context)  # before it hands on
        except AirflowFailException:
            self.states["claims"] = "failed"
            return
        handed_on.tell(context, claims)
        self.xcoms["return_value"] = claims
        self.states["claims"] = "success"

    def settle(self) -> None:
        if self.claim is None:
            self.states["settle"] = "failed"
            return
        self.settling.claim = self.xcoms["return_value"][0]
        undone, _ = self.settling._undone(self.context(self.settling))
        if undone:
            self.states["settle"] = "failed"
            return
        assert all(self.states[each] in ENDED for each in WORK), f"work had not ended: {self.states}"
        # A person who marks a task as success answers for what led to it.
        vouched = [each for each in WORK if self.marked.intersection(WORK[WORK.index(each) :])]
        left = [each for each in WORK if (each, self.claim) not in self.worked and each not in vouched]
        assert not left, f"{self.claim} was settled, but {left} never saw it: {self.states}"
        self.settled += 1
        self.states["settle"] = "success"

    @rule(task_id=st.sampled_from(WORK), how=st.sampled_from(["success", "failed", "skipped"]))
    def ends(self, task_id: str, how: str) -> None:
        state = self.states[task_id]
        if state == "restarting":
            self.states[task_id] = None  # its process was ended before it had done its work
        elif state == "running":
            self.states[task_id] = how
            if how != "failed":
                self.worked.add((task_id, self.seen[task_id]))

    # What people do.

    @rule(task_ids=st.sets(st.sampled_from(ORDER), min_size=1), downstream=st.booleans(), starts=STARTS)
    def people_clear(self, task_ids: set[str], downstream: bool, starts: list[tuple[bool, bool]]) -> None:
        first = min(map(ORDER.index, task_ids))
        chosen = set(ORDER[first:]) if downstream else task_ids
        self.clears += 1
        for task_id in chosen:
            if task_id == "claims" and self.states[task_id] is not None:
                self.sensor_clears += 1
            self.states[task_id] = "restarting" if self.states[task_id] in ("running", "restarting") else None
        self.tasks_start(starts=starts)

    @rule(task_id=st.sampled_from(WORK), state=st.sampled_from(["success", "failed"]), starts=STARTS)
    def people_mark(self, task_id: str, state: str, starts: list[tuple[bool, bool]]) -> None:
        self.states[task_id] = state
        if state == "success":
            self.marked.add(task_id)
        else:
            self.marked.discard(task_id)
        self.tasks_start(starts=starts)

    @precondition(lambda self: any(state not in ENDED for state in self.states.values()))
    @rule()
    def people_mark_the_run_as_failed(self) -> None:
        """Airflow fails what runs, and skips what has not begun."""
        for task_id, state in self.states.items():
            if state in ("running", "restarting"):
                self.states[task_id] = "failed"
            elif state is None:
                self.states[task_id] = "skipped"
                self.marked.discard(task_id)


def test_only_work_that_saw_a_claim_settles_it() -> None:
    run_state_machine_as_test(
        OneRun, settings=settings(max_examples=200, stateful_step_count=30, deadline=None, derandomize=True)
    )
