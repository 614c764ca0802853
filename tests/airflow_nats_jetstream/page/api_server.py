"""The real application of Airflow on a temporary SQLite database, as a program with two arguments: its port, and the
number of workers of ``airflow api-server``, or 0 for the application without that command.

It knows a DAG that runs, a DAG that is paused, one with a hostile name, and a mapped task of each.
"""

import json
import os
import sys
import sysconfig
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import uvicorn

RUN = "manual__1"
HOSTILE = "<script>globalThis.harmed=1</script>'\"><img src=x onerror='globalThis.harmed=1'>/../?#%2e"
"""The name of a DAG and of a task in each DAG. The page looks only for printable names."""
SPARK = {"application": "app-20260101-0001", "url": "http://worker.example.com:4040"}
FORGED = {"application": "<script>", "url": "javascript:alert(1)"}


def fill() -> None:
    """Create the tables, DAGs, runs and task instances."""
    from airflow.models.connection import Connection
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.team import Team
    from airflow.models.xcom import XComModel
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session
    from sqlalchemy import insert

    initdb()
    with create_session(scoped=False) as session:
        teams = [Team(name=name) for name in json.loads(os.environ["TEAMS"])]
        session.add_all(teams)
        session.flush()
        for conn_id, given in json.loads(os.environ["STORED"]).items():
            session.add(Connection(conn_id=conn_id, **{**given, "extra": json.dumps(given["extra"])}))
        bundle = DagBundleModel(name="orders")
        bundle.teams = teams[:1]
        session.add_all([bundle, DagBundleModel(name="others")])
        session.flush()
        for dag_id, paused in (("orders", False), ("resting", True), (HOSTILE, False)):
            limits = {"max_active_tasks": 1, "max_active_runs": 1, "max_consecutive_failed_dag_runs": 0}
            owner = "orders" if dag_id == "orders" else "others"
            flags = {"is_paused": paused, "has_task_concurrency_limits": False, "is_stale": False}
            session.execute(insert(DagModel).values(dag_id=dag_id, bundle_name=owner, **flags, **limits))
            session.add(DagRun(dag_id=dag_id, run_id=RUN, run_type="manual", logical_date=datetime.now(UTC)))
            session.flush()
            for task_id, map_index in (("take", -1), ("work", 0), ("work", 1), (HOSTILE, -1)):
                row = {"dag_id": dag_id, "run_id": RUN, "task_id": task_id, "map_index": map_index}
                session.execute(
                    insert(TaskInstance).values(
                        **row, pool="default_pool", pool_slots=1, try_number=2, max_tries=3, state="running"
                    )
                )
                if task_id == "work":
                    run = session.query(DagRun).filter_by(dag_id=dag_id, run_id=RUN).one()
                    value = json.dumps(FORGED) if map_index else SPARK  # some XCom backends store strings
                    session.add(XComModel(dag_run_id=run.id, key="jetstream_spark", value=value, **row))


WAITS = ("past", "downstream", "pool", "ended", "sensor", "gone", "later")
"""For each of these, the DAG ``waits_<name>`` has a run whose task ``work`` does not start for this reason. With
``sensor``, its task ``take`` has failed. ``gone`` has no file any more; the next run of ``later`` is due in 2100."""


def fill_waiting() -> None:
    """Create DAGs whose claims wait: a task that was taken has succeeded, and the next one does not start."""
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.models.pool import Pool
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk import DAG, BaseOperator
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from sqlalchemy import insert

    options: dict[str, dict[str, Any]] = {
        "past": {"depends_on_past": True},
        "downstream": {"wait_for_downstream": True},
        "pool": {"pool": "narrow"},
        "ended": {},
        "sensor": {},
        "gone": {},
        "later": {},
    }
    before = {"past": ("failed", "success"), "downstream": ("success", "failed"), "pool": ("running", None)}
    with create_session(scoped=False) as session:
        session.add(Pool(pool="narrow", slots=1, description="", include_deferred=False))
        for name in WAITS:
            with DAG(f"waits_{name}", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
                (
                    BaseOperator(task_id="take")
                    >> BaseOperator(task_id="work", **options[name])
                    >> BaseOperator(task_id="end")
                )
            flags = {"is_paused": False, "is_stale": name == "gone", "has_task_concurrency_limits": False}
            limits = {"max_active_tasks": 16, "max_active_runs": 16, "max_consecutive_failed_dag_runs": 0}
            due = datetime(2100, 1, 1, tzinfo=UTC) if name == "later" else None
            session.execute(
                insert(DagModel).values(
                    dag_id=dag.dag_id, bundle_name="others", next_dagrun_create_after=due, **flags, **limits
                )
            )
            session.flush()
            SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), bundle_name="others", session=session)
            now = ("scheduled" if name == "pool" else None, None)
            for day, run_id, states in ((1, "before", before.get(name, (None, None))), (2, RUN, now)):
                at = datetime(2026, 1, day, tzinfo=UTC)
                state = {"ended": "failed", "sensor": "failed", "later": "success"}.get(name, "running")
                session.add(
                    DagRun(
                        dag_id=dag.dag_id, run_id=run_id, run_type="manual", logical_date=at, state=DagRunState(state)
                    )
                )
                session.flush()
                for task_id, of in zip(
                    ("take", "work", "end"), ("failed" if name == "sensor" else "success", *states), strict=True
                ):
                    row = {"dag_id": dag.dag_id, "run_id": run_id, "task_id": task_id, "map_index": -1, "state": of}
                    pool = "narrow" if (name, task_id) == ("pool", "work") else "default_pool"
                    session.execute(
                        insert(TaskInstance).values(**row, pool=pool, pool_slots=1, try_number=1, max_tries=3)
                    )


def add_users() -> None:
    """Create the users of FAB's auth manager: one for each of its roles that Airflow creates, and one who may only read
    plugins and connections."""
    utils = import_module("airflow.providers.fab.auth_manager.cli_commands.utils")
    with utils.get_application_builder() as appbuilder:
        readable = [("can_read", each) for each in ("Website", "Plugins", "Connections")]
        appbuilder.sm.bulk_sync_roles([{"role": "Reader", "perms": readable}])
        for role in ("Reader", "Viewer", "User", "Op", "Admin"):
            name, found = role.lower(), appbuilder.sm.find_role(role)
            appbuilder.sm.add_user(name, name, name, f"{name}@example.com", found, os.environ["PASSWORD"])


def main() -> None:
    fill()
    fill_waiting()
    if ".fab." in os.environ["AIRFLOW__CORE__AUTH_MANAGER"]:
        add_users()
    port, workers = sys.argv[1:]
    if workers != "0":
        airflow = str(Path(sysconfig.get_path("scripts")) / "airflow")
        os.execv(airflow, [airflow, "api-server", "--host", "127.0.0.1", "--port", port, "--workers", workers])

    from airflow.api_fastapi.app import create_app

    uvicorn.run(create_app(apps="core"), host="127.0.0.1", port=int(port))


if __name__ == "__main__":
    main()
