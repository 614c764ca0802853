"""Drive one DAG: trigger its runs, strike them, wait for their end, and judge what happened."""

import itertools
import json
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from demo.airflow import FINISHED, Airflow, TaskInstance
from demo.stack import USER, Stack
from tests.airflow_system.conftest import database
from tests.dag_fuzz import strikes as of_strikes
from tests.dag_fuzz.rest import process_the_rest
from tests.dag_fuzz.rules import Instance, Seen, violations
from tests.dag_fuzz.server import Server
from tests.dag_fuzz.shape import COUNTRIES, Shape, source, work_id
from tests.dag_fuzz.strikes import END, Strike

LONGEST_WAIT = 40.0
"""Seconds to wait for the moment of a strike."""
LONGEST = 240.0
"""Seconds after which the runs of a DAG are ended, and the DAG counts as one that did not end."""
ACTIVE = ("running", "queued", "scheduled", "restarting")


@dataclass
class Driven:
    """What became of a DAG: `refused`, `ended`, `did not end`, or `broken` if the fuzzer itself failed."""

    dag_id: str
    outcome: str
    events: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)
    acked: int = 0
    published: int = 0
    tries: int = 0
    green_tasks: int = 0
    reason: str = ""


class Driver:
    """Drives one DAG, in one thread. Airflow's database is read, and its API acts, as a person does."""

    def __init__(self, stack: Stack, server: Server, out: Path, of: Shape, plan: list[Strike]) -> None:
        self._stack, self._server, self._of, self._plan, self._out = stack, server, of, plan, out
        self._airflow = Airflow(stack.airflow.url, USER, stack.password)
        self._dag_id: str = of["dag_id"]
        self._runs: list[str] = []
        self._marked: dict[tuple[str, str, int], int] = {}
        self._began = time.monotonic()
        self.driven = Driven(self._dag_id, "ended")

    def __call__(self) -> Driven:
        with closing(database(self._stack)) as connection, connection.cursor() as self._cursor:
            try:
                if self._stored():
                    self._drive()
            finally:
                self._airflow.close()
        return self.driven

    def _drive(self) -> None:
        of, driven = self._of, self.driven
        self._server.publish(of["stream"], of["messages"], create=True)
        self._began = time.monotonic()
        self._runs = [self._airflow.trigger(self._dag_id) for _ in range(of["runs"])]
        self._tell(f"{of['messages']} messages, {of['runs']} runs")
        for strike in self._plan:
            self._strike(strike)
        if not self._until(lambda: self._ended() and self._quiet(), self._left()):
            driven.outcome = "did not end"
            for run in self._runs:
                with suppress(RuntimeError):
                    self._airflow._answer("PATCH", f"dags/{self._dag_id}/dagRuns/{run}", {"state": "failed"})
        self._until(self._quiet, 30)
        seen = self._seen()
        driven.runs, driven.acked, driven.published = seen.runs, len(seen.acked), seen.published
        driven.tries = sum(task.tries for task in seen.tasks)
        driven.green_tasks = sum(task.state == "success" for task in seen.tasks)
        driven.found = list(violations(of, seen))
        if not driven.found:
            seen.evidence += process_the_rest(self._stack.nats.url, of["stream"])
            self._count(seen)
            driven.found = [f"after the clean-up: {each}" for each in violations(of, seen)]
        self._tell(json.dumps({name: _plain(value) for name, value in vars(seen).items()}))

    def _stored(self) -> bool:
        """Whether Airflow has stored the DAG, or False if it refused its file."""
        answered = self._until(lambda: self._known() or self._refusal(), 300, every=1)
        if not answered:
            self.driven.outcome, self.driven.reason = "broken", "Airflow neither stored nor refused it"
        elif not self._known():
            self.driven.outcome = "refused"
            self.driven.reason = self._refusal().strip().splitlines()[-1]
        return self.driven.outcome == "ended"

    def _known(self) -> bool:
        return bool(self._rows("select 1 from serialized_dag where dag_id = %s", self._dag_id))

    def _refusal(self) -> str:
        rows = self._rows("select stacktrace from import_error where filename like %s", f"%{self._dag_id}.py")
        return str(rows[0][0]) if rows else ""

    def _strike(self, strike: Strike) -> None:
        moment, state = strike.moment
        if state == END:
            reached = self._until(self._ended, max(1.0, min(90.0, self._left() - 60)))
        else:
            reached = self._until(lambda: self._reached(moment, state) or self._ended(), LONGEST_WAIT)
        time.sleep(strike.delay)
        if strike.publish:
            self._server.publish(self._of["stream"], strike.publish)
        late = "" if reached else " (its moment did not come)"
        self._tell(f"{strike}{late}: {self._struck(strike)}")

    def _struck(self, strike: Strike) -> str:
        """Strike, and return what came of it."""
        run = self._runs[strike.run]
        before = {task.key: task for task in self._tasks()}
        try:
            done = self._act(strike, run, dict(strike.how))
        except (RuntimeError, httpx.TransportError) as refused:
            return f"refused: {type(refused).__name__} {str(refused)[:200]}"
        marks = {"mark", "mark run"}
        if strike.what in marks and "success" in dict(strike.how).values():
            for task in self._tasks():
                if task.run == run and task.state == "success":
                    earlier = before.get(task.key)
                    chosen = strike.task == task.task and strike.index in (None, task.index)
                    if chosen or earlier is None or earlier.state != "success":
                        self._marked[task.key] = task.tries
        return done

    def _act(self, strike: Strike, run: str, how: dict[str, Any]) -> str:
        airflow, dag = self._airflow, f"dags/{self._dag_id}"
        if strike.what == of_strikes.CLEAR:
            chosen: list[Any] = [strike.task] if strike.index is None else [[strike.task, strike.index]]
            body = {"dag_run_id": run, "task_ids": [*chosen, *strike.also], "dry_run": False, **how}
            answer = airflow._answer("POST", f"{dag}/clearTaskInstances", body)
            return "cleared " + ", ".join(sorted(_named(task) for task in answer["task_instances"]))
        if strike.what == of_strikes.CLEAR_RUN:
            airflow._answer("POST", f"{dag}/dagRuns/{run}/clear", {"dry_run": False, **how})
        elif strike.what == of_strikes.MARK:
            place = f"{strike.task}" + ("" if strike.index is None else f"/{strike.index}")
            airflow._answer("PATCH", f"{dag}/dagRuns/{run}/taskInstances/{place}", how)
        elif strike.what == of_strikes.MARK_RUN:
            airflow._answer("PATCH", f"{dag}/dagRuns/{run}", how)
        else:
            return self._kill(strike, run)
        return "done"

    def _kill(self, strike: Strike, run: str) -> str:
        rows = self._rows(
            "select id::text, map_index from task_instance where dag_id = %s and run_id = %s and task_id = %s and "
            "state = 'running'",
            *(self._dag_id, run, strike.task),
        )
        for ti, index in rows:
            task = TaskInstance(ti, strike.task, index, "running", 1)
            if strike.index not in (None, index) and len(rows) > 1:
                continue
            with suppress(LookupError, psutil.NoSuchProcess):
                if strike.what == of_strikes.KILL_WORKER:
                    self._stack.kill_worker(task)
                    return f"killed {task.name} and its supervisor"
                if process := self._stack.task_process(task):
                    process.kill()
                    return f"killed {task.name}"
        return "nothing to kill"

    def _seen(self) -> Seen:
        of = self._of
        tasks = self._tasks()
        seen = Seen(runs=self._states(), tasks=tasks, marked=self._marked)
        names = [part["id"] for part in of["tasks"]] + (["settle"] if of["kind"] == "settle" else [])
        for run, name in itertools.product(self._runs, names):
            taker, task = source(of, name), work_id(of, name)
            rows = self._rows(
                "select value from xcom where dag_id = %s and run_id = %s and task_id = %s and key = 'return_value'",
                *(self._dag_id, run, taker),
            )
            claims = [each for (value,) in rows for each in _claims(value)]
            if of["kind"] == "cross" and not of["hidden"]:
                claims = [claim for claim in claims for _ in COUNTRIES]
            seen.claims[run, task] = [claim["id"] for claim in claims]
            seen.handed_on[run, task] = max((each.ended for each in tasks if each.key[:2] == (run, taker)), default=0.0)
        lines = self._out / f"{self._dag_id}.jsonl"
        seen.evidence = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
        self._count(seen)
        return seen

    def _count(self, seen: Seen) -> None:
        stream = self._of["stream"]
        seen.published, seen.waiting = self._server.counts(stream)
        seen.acked = self._server.acked(stream)
        seen.done = self._server.done(stream)

    def _tasks(self) -> list[Instance]:
        began, ended = (f"coalesce(extract(epoch from {each}_date), 0)::float" for each in ("start", "end"))
        columns = f"run_id, task_id, map_index, state, try_number, {began}, {ended}"
        rows = self._rows(f"select {columns} from task_instance where dag_id = %s order by 1, 2, 3", self._dag_id)
        return [Instance(*row) for row in rows]

    def _states(self) -> dict[str, str]:
        return dict(self._rows("select run_id, state from dag_run where dag_id = %s", self._dag_id))

    def _ended(self) -> bool:
        states = self._states()
        return all(states.get(run) in FINISHED for run in self._runs)

    def _quiet(self) -> bool:
        """Whether no instance runs any more: one that is being killed still ends its hold."""
        busy = "select id::text from task_instance where dag_id = %s and state = any(%s)"
        return not self._rows(busy, self._dag_id, list(ACTIVE)) or self._ended_long_ago()

    def _ended_long_ago(self) -> bool:
        return time.monotonic() - self._began > LONGEST + 20

    def _reached(self, task: str, state: str) -> bool:
        found = "select 1 from task_instance where dag_id = %s and task_id = %s and state = %s"
        return bool(self._rows(found, self._dag_id, task, state))

    def _left(self) -> float:
        return max(1.0, LONGEST - (time.monotonic() - self._began))

    def _until(self, probe: Callable[[], Any], seconds: float, every: float = 0.3) -> Any:
        deadline = time.monotonic() + seconds
        while not (value := probe()) and time.monotonic() < deadline:
            time.sleep(every)
        return value

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        self._cursor.execute(query, values)
        return list(self._cursor.fetchall())

    def _tell(self, event: str) -> None:
        self.driven.events.append(f"{time.monotonic() - self._began:6.1f} s  {event}")


def _claims(value: Any) -> list[Any]:
    """The claims in an XCom: a list, one claim of the task `pick`, or the arguments of the task `pairs`."""
    value = json.loads(value) if isinstance(value, str) else value
    if isinstance(value, dict):
        return [value]
    return [each.get("claim", each) for each in value or [] if isinstance(each, dict)]


def _named(task: dict[str, Any]) -> str:
    return f"{task['task_id']}[{task['map_index']}]" if task["map_index"] >= 0 else str(task["task_id"])


def _plain(value: Any) -> Any:
    """As JSON can have it."""
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, Instance):
        return " ".join(map(str, (value.run, value.name, value.state, value.tries, value.began, value.ended)))
    if isinstance(value, dict):
        return {" ".join(map(str, key)) if isinstance(key, tuple) else key: each for key, each in value.items()}
    return value
