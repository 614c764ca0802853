"""The stack: nats-server, Postgres, Airflow's four processes and optionally a Spark Connect server, as child processes.

All files are in one folder. Its file `stack.json` names the sessions that were started, so that another process can
stop them.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import psutil

from demo.airflow import Airflow, TaskInstance
from demo.java import QUICK, java_home
from demo.nats_server import NatsServer
from demo.postgres import Postgres
from demo.service import MARK, Service, ServiceFailed, end, free_port, marked, session, until
from demo.spark_connect import CLOSED, SparkConnect, write_config
from demo.spark_home import spark_home
from jetstream_client import ConnectionSettings

LOCAL_SETTINGS = Path(__file__).parents[1] / "docker" / "airflow" / "airflow_local_settings.py"
AIRFLOW = str(Path(sysconfig.get_path("scripts")) / "airflow")
CONNECTION = "nats_default"
USER = "airflow"
"""The user for Airflow, and for a nats-server that requires one."""


class Stack:
    """All services of one folder. `stop` ends all processes that they started, and no others.

    They listen on 127.0.0.1, which other users of this machine can reach. So Airflow requires `password`, and the
    database's socket and all files are closed to other users.
    """

    def __init__(
        self,
        folder: Path,
        dags: Path,
        environment: Mapping[str, str] | None = None,
        *,
        parallelism: int = 4,
        guarded: bool = False,
        warm: bool = False,
        nats: str = "",
    ) -> None:
        """Prepare a stack without starting it.

        environment:  additional variables for Airflow's environment.
        parallelism:  how many tasks run at the same time.
        guarded:      whether the nats-server also requires the password. Tests do not need that.
        nats:         more of the nats-server's configuration.
        warm:         whether tasks share one Spark Connect server, instead of a Spark for each of them. Airflow has
                      then imported PySpark before it starts them.
        """
        self.folder = folder.absolute()
        self.password = secrets.token_hex(16)
        self._guarded = guarded
        self.mark = secrets.token_hex(8)
        self._sockets = _socket_folder(self.mark)
        port = free_port()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        plain = {**inherited, MARK: self.mark}
        authorization = f'authorization {{ user: {USER}, password: "{self.password}" }}' if guarded else ""
        self.nats = NatsServer(self.folder / "nats", authorization + nats, environment=plain)
        self.postgres = Postgres(self.folder / "postgres", self._sockets, environment=plain)
        options = (environment or {}).get("SPARK_SUBMIT_OPTS", QUICK)
        python = {"PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": options}
        self.spark = SparkConnect(self.folder / "warm", spark_home(), environment=plain | python) if warm else None
        settings = self._settings(dags.absolute(), port, parallelism) | (self.spark.clients if self.spark else {})
        self.environment = {**plain, **settings, **(environment or {})}
        self.airflow = Airflow(f"http://127.0.0.1:{port}", USER, self.password)
        self.api_server = self._component("api-server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1")
        self.scheduler = self._component("scheduler", "--skip-serve-logs")
        self.dag_processor = self._component("dag-processor")
        self.triggerer = self._component("triggerer", "--skip-serve-logs")

    @property
    def nats_url(self) -> str:
        """The nats-server's address, with user and password for clients other than this project's."""
        return self.nats.url.replace("://", f"://{USER}:{self.password}@") if self._guarded else self.nats.url

    @property
    def services(self) -> tuple[Service, ...]:
        return self.nats, self.postgres, *self._components, *([self.spark] if self.spark else [])

    @property
    def _components(self) -> tuple[Service, ...]:
        return self.api_server, self.scheduler, self.dag_processor, self.triggerer

    def start(self) -> None:
        """Start the stack, and return when Airflow reports that it is healthy.

        An earlier stack in the same folder is stopped and removed first. Raises ServiceFailed, with the end of a log,
        if a service cannot be started.
        """
        stop(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._record()
        self._configure()
        try:
            with ThreadPoolExecutor() as pool:
                starts = [pool.submit(each) for each in (self.nats.start, self._migrated, self._warmed)]
                for started in starts:
                    started.result()
            for service in self._components:
                service.launch()
            self._record()
            until("Airflow to be healthy", self._healthy, 300)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes of the stack, children included. The folder is kept."""
        self.airflow.close()
        self._record()
        stop(self.folder)
        for service in self.services:
            service.stop()  # collects its exit status

    def check(self) -> None:
        """Raise ServiceFailed, with the end of its log, if a service has ended unexpectedly."""
        for service in self.services:
            if not service.running:
                raise ServiceFailed(f"{service.name} ended:\n{service.tail()}")

    def task_process(self, task: TaskInstance) -> psutil.Process | None:
        """Return the process that runs the task's code, a child of its supervisor; None if there is none."""
        title = f"airflow worker -- {task.id}"
        for process in session(self.scheduler.pid):
            try:
                if title in " ".join(process.cmdline()):
                    return process
            except psutil.NoSuchProcess:
                continue
        return None

    def kill_worker(self, task: TaskInstance) -> None:
        """Kill the task, its supervisor and their children, as when a machine fails. Raises LookupError if the task is
        not running."""
        process = self.task_process(task)
        supervisor = process.parent() if process else None
        if supervisor is None:
            raise LookupError(f"no process runs the task {task.name}")
        end([supervisor, *supervisor.children(recursive=True)], patience=0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _component(self, *command: str) -> Service:
        return Service(command[0], [AIRFLOW, *command], folder=self.folder / "airflow", environment=self.environment)

    def _migrated(self) -> None:
        self.postgres.start()
        command = [AIRFLOW, "db", "migrate"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServiceFailed(f"airflow db migrate failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")

    def _warmed(self) -> None:
        if self.spark:
            self.spark.launch()
            user, password = (USER, self.password) if self._guarded else (None, None)
            settings = ConnectionSettings(servers=self.nats.url, user=user, password=password)
            self.spark.connection(CONNECTION, settings)
            self.spark.wait_ready(240)

    def _healthy(self) -> bool:
        self.check()
        return self.airflow.healthy()

    def _record(self) -> None:
        """Store the sessions of this stack, for `stop`, and how to log in."""
        sessions = {leader: began for service in self.services for leader, began in service.sessions.items()}
        state = {"mark": self.mark, "url": self.airflow.url, "nats": self.nats.url, "sessions": sessions}
        _write_private(self.folder / "stack.json", json.dumps({**state, "password": self.password}))

    def _configure(self) -> None:
        for folder in (self.folder / "airflow", self.folder / "spark"):
            folder.mkdir(mode=0o700)
        _write_private(self._passwords, json.dumps({USER: self.password}))
        write_config(self.folder / "spark", CLOSED)
        if self.spark:
            (self.folder / "airflow" / "config").mkdir()
            shutil.copy(LOCAL_SETTINGS, self.folder / "airflow" / "config")

    @property
    def _passwords(self) -> Path:
        return self.folder / "airflow" / "passwords.json"

    def _settings(self, dags: Path, port: int, parallelism: int) -> dict[str, str]:
        sections: dict[str, dict[str, object]] = {
            "core": {
                "dags_folder": dags,
                "executor": "LocalExecutor",
                "parallelism": parallelism,
                "load_examples": False,
                "dags_are_paused_at_creation": True,  # Airflow's default: only DAGs that somebody unpaused run
                "execution_api_server_url": f"http://127.0.0.1:{port}/execution/",
                "fernet_key": urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "simple_auth_manager_all_admins": False,
                "simple_auth_manager_users": f"{USER}:admin",
                "simple_auth_manager_passwords_file": self._passwords,
                "test_connection": "Enabled",
            },
            "database": {
                "sql_alchemy_conn": self.postgres.uri("psycopg2"),
                "sql_alchemy_conn_async": self.postgres.uri("asyncpg"),
            },
            "api": {"base_url": f"http://127.0.0.1:{port}", "secret_key": secrets.token_hex(16)},
            "api_auth": {"jwt_secret": secrets.token_hex(32)},
            "scheduler": {"scheduler_idle_sleep_time": 0.5},
            "usage_data_collection": {"enabled": False},
        }
        settings = {
            f"AIRFLOW__{section}__{name}".upper(): str(value)
            for section, values in sections.items()
            for name, value in values.items()
        }
        connection: dict[str, Any] = {"conn_type": "nats", "extra": {"servers": self.nats.url}}
        if self._guarded:
            connection |= {"login": USER, "password": self.password}
        return {
            **settings,
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            f"AIRFLOW_CONN_{CONNECTION}".upper(): json.dumps(connection),
            "JAVA_HOME": str(java_home()),
            "PATH": f"{Path(AIRFLOW).parent}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(self.folder / "spark"),
            # Otherwise Spark looks up the address of the machine's name, which may have none.
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": QUICK,
        }


def addresses(folder: Path) -> dict[str, str] | None:
    """Return `url`, `nats` and `password` of the stack that runs in this folder; None if none does."""
    state = _state(folder)
    return {name: state.get(name, "") for name in ("url", "nats", "password")} if state and _processes(state) else None


def stop(folder: Path) -> int:
    """End the processes of the stack in this folder, even if another process started it. Returns their number."""
    state = _state(folder)
    if not state:
        return 0
    ended = 0
    # Repeat this until none is left, because a process may just have started another one.
    while processes := _processes(state):
        ended += len(processes)
        end(processes, patience=3)
    shutil.rmtree(_socket_folder(state["mark"]), ignore_errors=True)
    (folder / "stack.json").unlink()
    return ended


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _state(folder: Path) -> dict[str, Any] | None:
    try:
        state: dict[str, Any] = json.loads((folder / "stack.json").read_text())
    except FileNotFoundError:
        return None
    return state


def _processes(state: Mapping[str, Any]) -> list[psutil.Process]:
    found = {process.pid: process for process in marked(state["mark"])}
    for leader, began in state["sessions"].items():
        # If the process with this pid was started at another time, the pid was reused by a foreign process.
        if not psutil.pid_exists(int(leader)) or psutil.Process(int(leader)).create_time() == began:
            found.update({process.pid: process for process in session(int(leader))})
    return list(found.values())


def _socket_folder(mark: str) -> Path:
    return Path(tempfile.gettempdir()) / f"jetstream-{mark}"
