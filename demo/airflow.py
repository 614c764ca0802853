"""The part of Airflow's REST API that the demo and the system tests use."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx

from demo.service import until

FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


@dataclass(frozen=True)
class TaskInstance:
    """One task instance of a run.

    `state` is None until the task is scheduled, `map_index` is -1 unless it is mapped, and `try_number` is 0 before the
    first try. `started` is when the newest try began, in seconds since 1970; None before that.
    """

    id: str
    task_id: str
    map_index: int
    state: str | None
    try_number: int
    started: float | None = None

    @property
    def name(self) -> str:
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"


class Airflow:
    """A client of one api-server, with the name and password of an administrator.

    A refused request raises RuntimeError with Airflow's message. A wait that takes too long raises TimeoutError.
    """

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url = url
        self._login = {"username": user, "password": password}
        self._http = self._client()

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30)

    def close(self) -> None:
        """Close the connection that is kept between requests. The next request opens another one."""
        self._http.close()
        self._http = self._client()

    def healthy(self) -> bool:
        """Whether the api-server answers, and scheduler, triggerer and DAG processor have reported that they are
        healthy."""
        try:
            answer = self._http.get("/api/v2/monitor/health")
        except httpx.TransportError:
            return False
        parts = ("metadatabase", "scheduler", "triggerer", "dag_processor")
        return answer.is_success and all(answer.json()[part]["status"] == "healthy" for part in parts)

    def wait_for_dag(self, dag_id: str, seconds: float = 60) -> None:
        """Wait until the DAG processor has stored the DAG. Raises RuntimeError with the traceback of a file that cannot
        be imported."""

        def stored() -> bool:
            if errors := self._get("importErrors")["import_errors"]:
                raise RuntimeError("\n".join(f"{error['filename']}\n{error['stack_trace']}" for error in errors))
            return self._request("GET", f"dags/{dag_id}").is_success

        until(f"the DAG {dag_id}", stored, seconds, every=0.5)

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None, *, paused: bool = False) -> str:
        """Start a run with `conf`. Returns the run's id.

        paused: leave the DAG as it is instead of unpausing it. A run of a paused DAG waits until it is unpaused.
        """
        if not paused:
            self.pause(dag_id, False)
        answer = self._answer("POST", f"dags/{dag_id}/dagRuns", {"logical_date": None, "conf": dict(conf or {})})
        run_id: str = answer["dag_run_id"]
        return run_id

    def pause(self, dag_id: str, paused: bool = True) -> None:
        """Pause or unpause the DAG, as the switch next to its name does. `trigger` unpauses it."""
        self._answer("PATCH", f"dags/{dag_id}", {"is_paused": paused})

    def pool(self, name: str, slots: int) -> None:
        """Create a pool with this number of slots, or change it. With 0 slots its tasks wait in the queue."""
        pool = {"slots": slots, "description": "", "include_deferred": False}
        if not self._request("PATCH", f"pools/{name}", {"pool": name, **pool}).is_success:
            self._answer("POST", "pools", {"name": name, **pool})

    def connection(self, name: str, extra: Mapping[str, Any], **fields: str) -> None:
        """Create a connection of type `nats` with these extra fields, and others such as `login`."""
        body = {"connection_id": name, "conn_type": "nats", "extra": json.dumps(extra), **fields}
        self._answer("POST", "connections", body)

    def state(self, dag_id: str, run_id: str) -> str:
        """The run's state: queued, running, success or failed."""
        state: str = self._get(f"dags/{dag_id}/dagRuns/{run_id}")["state"]
        return state

    def runs(self, dag_id: str) -> dict[str, str]:
        """Return the states of the DAG's runs by their ids, the oldest first."""
        runs = self._get(f"dags/{dag_id}/dagRuns?order_by=id&limit=100")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in runs}

    def asset_events(self, name: str) -> int:
        """Return the number of events that the asset of this name has had."""
        (asset,) = [each for each in self._get(f"assets?name_pattern={name}")["assets"] if each["name"] == name]
        events: int = self._get(f"assets/events?asset_id={asset['id']}&limit=1")["total_entries"]
        return events

    def notified(self, dag_id: str, run_id: str) -> list[float]:
        """Return the times at which the asset events that started the run were stored, in seconds since 1970."""
        found = self._get(f"dags/{dag_id}/dagRuns/{run_id}/upstreamAssetEvents")["asset_events"]
        return [at for event in found if (at := _moment(event["timestamp"])) is not None]

    def event_waits(self, dag_id: str) -> bool:
        """Whether an event of an asset waits for the DAG's next run."""
        return bool(self._get(f"dags/{dag_id}/assets/queuedEvents")["total_entries"])

    def tasks(self, dag_id: str, run_id: str) -> list[TaskInstance]:
        """Return all task instances of the run, with each mapped one separately."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances?limit=100"
        return [
            TaskInstance(
                task["id"],
                task["task_id"],
                task["map_index"],
                task["state"],
                task["try_number"],
                _moment(task["start_date"]),
            )
            for task in self._get(path)["task_instances"]
        ]

    def task(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> TaskInstance | None:
        """Return one task instance; None if it does not exist, such as a mapped one before its list is known."""
        found = (task for task in self.tasks(dag_id, run_id) if (task.task_id, task.map_index) == (task_id, map_index))
        return next(found, None)

    def wait(self, dag_id: str, run_id: str, seconds: float = 120) -> str:
        """Wait until the run ends, and return its state: success or failed."""

        def ended() -> str | None:
            state = self.state(dag_id, run_id)
            return state if state in FINISHED else None

        return until(f"the end of {dag_id} {run_id}", ended, seconds, every=0.5)

    def succeeds(self, dag_id: str, run_id: str, seconds: float = 120) -> None:
        """Wait until the run ends. Raises RuntimeError with its story if it fails."""
        if self.wait(dag_id, run_id, seconds) != "success":
            raise RuntimeError(self.story(dag_id, run_id))

    def story(self, dag_id: str, run_id: str) -> str:
        """Return the state of each task, what the scheduler noted about them, and the ends of the logs of failed
        ones."""
        tasks = self.tasks(dag_id, run_id)
        states = ", ".join(f"{task.name} {task.state}" for task in tasks)
        notes = self._get(f"eventLogs?dag_id={dag_id}&run_id={run_id}&limit=100")["event_logs"]
        noted = (f"{note['task_id']}: {note['event']}: {note['extra']}" for note in notes if note["task_id"])
        logs = (self.log(dag_id, run_id, task) for task in tasks if task.state == "failed")
        return "\n\n".join([f"{dag_id} {run_id}: {states}", *noted, *logs])

    def clear(
        self, dag_id: str, run_id: str, task_id: str, map_index: int | None = None, *, downstream: bool = False
    ) -> None:
        """Clear a task, one map index or all, as a user does in the UI. A running task is ended; then it runs again.

        downstream: clear the tasks downstream of it as well, which is the UI's default.
        """
        chosen = task_id if map_index is None else [task_id, map_index]
        body = {"dag_run_id": run_id, "task_ids": [chosen], "dry_run": False, "only_failed": False}
        body["include_downstream"] = downstream
        self._answer("POST", f"dags/{dag_id}/clearTaskInstances", body)

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int = -1) -> None:
        """Mark a task as success, failed or skipped, as a user does in the UI."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}" + (f"/{map_index}" if map_index >= 0 else "")
        self._answer("PATCH", path, {"new_state": state})

    def mark_run(self, dag_id: str, run_id: str, state: str) -> None:
        """Mark a run as success or failed, as a user does in the UI."""
        self._answer("PATCH", f"dags/{dag_id}/dagRuns/{run_id}", {"state": state})

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """Return the XCom of a task as JSON."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self._get(f"{path}?map_index={map_index}&stringify=false")["value"]

    def links(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, str | None]:
        """Return the links of a task instance to other sites, by name; None for a link without a target."""
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/links?map_index={map_index}"
        links: dict[str, str | None] = self._get(path)["extra_links"]
        return links

    def claim(self, connection_id: str, claim_id: str) -> dict[str, Any]:
        """Return what the page JetStream shows of a claim."""
        found: dict[str, Any] = self._get(f"/jetstream/api/connections/{connection_id}/claims/{claim_id}")
        return found

    def log(self, dag_id: str, run_id: str, task: TaskInstance, lines: int = 60) -> str:
        """Return the end of the log of the newest try, with the traceback of its error."""
        entries = self._entries(dag_id, run_id, task)
        text = [entry if isinstance(entry, str) else _line(entry) for entry in entries]
        return "\n".join("\n".join(text).splitlines()[-lines:])

    def told(self, dag_id: str, run_id: str, task: TaskInstance) -> list[tuple[float, str]]:
        """Return the log messages of the newest try, each with its time in seconds since 1970."""
        entries = [entry for entry in self._entries(dag_id, run_id, task) if not isinstance(entry, str)]
        return [(at, entry["event"]) for entry in entries if (at := _moment(entry.get("timestamp"))) is not None]

    def _entries(self, dag_id: str, run_id: str, task: TaskInstance) -> list[Any]:
        path = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task.task_id}/logs/{max(task.try_number, 1)}"
        entries: list[Any] = self._get(f"{path}?map_index={task.map_index}")["content"]
        return entries

    def _get(self, path: str) -> Any:
        return self._answer("GET", path)

    def _answer(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._request(method, path, body)
        if not answer.is_success:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json()

    def _request(self, method: str, path: str, body: Any = None) -> httpx.Response:
        if "Authorization" not in self._http.headers:
            token = self._http.post("/auth/token", json=self._login).raise_for_status().json()["access_token"]
            self._http.headers["Authorization"] = f"Bearer {token}"
        for attempt in range(5):
            try:
                return self._http.request(method, path if path.startswith("/") else f"/api/v2/{path}", json=body)
            except httpx.TransportError:
                # An api-server that was restarted has closed the connections.
                if method != "GET" or attempt == 4:
                    raise
                time.sleep(0.5)
        raise AssertionError("unreachable")


def _moment(time: str | None) -> float | None:
    return None if time is None else datetime.fromisoformat(time).timestamp()


def _line(entry: Mapping[str, Any]) -> str:
    line = f"{entry.get('timestamp') or ''} {entry.get('level', '')} {entry['event']}".strip()
    for error in entry.get("error_detail") or ():
        line += f"\n{error['exc_type']}: {error['exc_value']}"
        line += "".join(f"\n  {frame['filename']}:{frame['lineno']} in {frame['name']}" for frame in error["frames"])
    return line
