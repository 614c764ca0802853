"""The states and XComs of one run, for tasks that run in this process."""

from typing import Any


class OneRun:
    """The states and XComs of a run's tasks. Real ones need Airflow's API server: tests/airflow_system uses it."""

    def __init__(self) -> None:
        self.states: dict[str, Any] = {"claims": "success", "extract": "success", "load": "success"}
        self.asked: list[tuple[str, int | None]] = []
        self.xcoms: dict[tuple[str, str], list[Any]] = {}

    def __call__(
        self, dag_id: str, run_ids: list[str], task_ids: list[str], map_index: int | None = None
    ) -> dict[str, dict[str, Any]]:
        assert (dag_id, run_ids) == ("dag", ["run"])
        self.asked += [(task_id, map_index) for task_id in task_ids]
        return {"run": {key: state for key, state in self.states.items() if key.split("_")[0] in task_ids}}

    def pull(self, task_ids: list[str], key: str) -> list[Any]:
        (task_id,) = task_ids
        return self.xcoms.get((task_id, key), [None])

    def push(self, key: str, value: Any) -> None:
        self.xcoms["claims", key] = [value]
