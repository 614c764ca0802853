"""The services under attack: the demo's stack, a cluster of three, proxies for all four servers, two triggerers, and a
Dagster instance with its daemon and code server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg2

from demo.dagster import DagsterStack
from demo.nats_server import NatsServer
from demo.service import MARK, Service, alive, end, free_port, session
from demo.stack import AIRFLOW, Stack
from jetstream_client import ConnectionSettings
from jetstream_client.wire.settings import environment_name
from tests.chaos import windows
from tests.chaos.credential import Credential
from tests.chaos.pipelines import PIPELINES
from tests.chaos.tables import POSTGRES

DAGS = Path(__file__).parent / "dags"
DEFINITIONS = Path(__file__).parent / "definitions.py"
ROOT = Path(__file__).parent.parent.parent
AT_ONCE = 6
"""How many tasks run at the same time. On two cores, more would only wait for each other."""
RUNS = 2
"""How many Dagster runs there are at the same time. A run whose process was killed is one of them until it has timed
out."""
LONGEST_RUN = 90
"""Seconds after which a Dagster run fails, because Dagster does not notice that its process was killed."""

# With Airflow's defaults a kill costs between half a minute (triggerer) and ten minutes (worker and retry).
IMPATIENT = {
    "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "1",
    # With shorter ones a scheduler on a busy machine considers itself dead and resets all its tasks again and again.
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "20",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "60",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "5",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
    "AIRFLOW__WORKERS__EXECUTION_API_RETRY_WAIT_MAX": "2",
}


class ChaosStack(Stack):
    """`one` is the single server, which wants a credential that expires, `three` are the cluster's nodes, which want
    none. Each has a proxy of the same name."""

    def __init__(self, folder: Path, chaos: Path, proxies: dict[str, int], environment: dict[str, str]) -> None:
        """`chaos`: the folder of record, marks and output; `proxies`: the port of each server's proxy, by its name."""
        self.credential = Credential(chaos / "credentials")
        super().__init__(folder, DAGS, IMPATIENT, parallelism=AT_ONCE, nats=self.credential.config)
        plain = {MARK: self.mark, "PATH": self.environment["PATH"]}
        routes = {name: free_port() for name in ("n1", "n2", "n3")}
        self.three = {
            name: NatsServer(self.folder / name, _clustered(name, routes), environment=plain) for name in routes
        }
        urls = {"one": [self.nats.url], "three": [node.url for node in self.three.values()]}
        behind = {
            "one_proxied": [f"nats://127.0.0.1:{proxies['one']}"],
            "three_proxied": [f"nats://127.0.0.1:{proxies[name]}" for name in self.three],
        }
        self.tables = self.postgres.uri("psycopg2")
        own = {windows.FOLDER: str(chaos), POSTGRES: self.tables, "PYTHONPATH": str(ROOT), **environment}
        self.environment |= own | {"AIRFLOW__NATS__CREDENTIAL_FOLDERS": str(self.credential.folder)}
        for name, servers in (urls | behind).items():
            extra: dict[str, Any] = {"servers": ",".join(servers), "shortest_ack_wait": 2}
            if name.startswith("one"):
                extra["creds_secret"] = str(self.credential.file)
            connection = {"conn_type": "nats", "extra": extra}
            self.environment[f"AIRFLOW_CONN_CHAOS_{name.upper()}"] = json.dumps(connection)
        self.urls = urls
        self.triggerer_2 = Service(
            "triggerer-2",
            [AIRFLOW, "triggerer", "--skip-serve-logs"],
            folder=self.folder / "airflow",
            environment=self.environment,
        )
        reached = {f"chaos_{name}".upper(): ",".join(servers) for name, servers in (urls | behind).items()}
        of_dagster = {**own, **reached, MARK: self.mark, "CHAOS_CREDENTIALS": str(self.credential.file)}
        home = self.folder / "dagster"
        self.dagster = DagsterStack(home, DEFINITIONS, of_dagster, max_runtime=LONGEST_RUN, parallelism=RUNS)
        settings = ConnectionSettings(servers=tuple(urls["three"]), ledger="airflow", shortest_ack_wait=2)
        of_query = {
            **own,
            MARK: self.mark,
            "PATH": self.environment["PATH"],
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_HOME": self.environment["JAVA_HOME"],
        }
        self.queries = [
            Service(
                each.name,
                [sys.executable, "-m", "tests.chaos.query", each.name],
                folder=self.folder / each.name,
                environment={**of_query, environment_name(each.connection): settings.to_json()},
            )
            for each in PIPELINES
            if each.query
        ]
        self._joined: tuple[Service, ...] = ()

    @property
    def services(self) -> tuple[Service, ...]:
        return *super().services, *self._joined

    def start(self) -> None:
        super().start()
        for service in (*self.three.values(), self.triggerer_2):
            service.launch()
            self._joined += (service,)
        self._record()
        for node in self.three.values():
            node.wait_ready()
        self.dagster.start()
        for service in self.queries:
            service.launch()
        self._joined += (self.dagster.code_server, self.dagster.daemon, *self.queries)
        self._record()

    def stop(self) -> None:
        super().stop()
        if self.dagster.daemon in self._joined:
            self.dagster.stop()

    def lasting(self, servers: str) -> str | None:
        """Return the credential for publishers to the single server or the cluster."""
        return str(self.credential.lasting) if servers == "one" else None

    def options(self, servers: str) -> dict[str, Any]:
        """Return nats-py's options for observers of the single server or the cluster."""
        return self.credential.options if servers == "one" else {}

    @property
    def servers(self) -> dict[str, NatsServer]:
        """Return the single server and the nodes, by name."""
        return {"one": self.nats, **self.three}

    def revive(self, service: Service) -> None:
        """Start a killed service, and store its session, so that it can be stopped even if this process dies."""
        if not service.running:
            service.launch()
            self._record()

    def has_workers(self, service: Service) -> bool:
        """Whether the service starts workers that outlive it."""
        return service in (self.scheduler, self.dagster.code_server)

    def processes(self, service: Service) -> list[psutil.Process]:
        """Return a service's processes, without the workers that outlive it."""
        if self.has_workers(service):
            return [psutil.Process(service.pid)]
        return session(service.pid)

    def task_with(self, ids: set[str]) -> psutil.Process | None:
        """Return a process that runs one of these task instances, a child of its supervisor."""
        for process in self._airflow_processes("airflow worker -- "):
            if _title(process).removeprefix("airflow worker -- ") in ids:
                return process
        return None

    def end_orphans(self) -> int:
        """End idle workers of killed schedulers, which would wait forever."""
        idle = [
            process
            for process in self._airflow_processes("airflow worker -- LocalExecutor")
            if "<idle>" in _title(process) and process.ppid() != self.scheduler.pid
        ]
        end(idle, patience=0)
        return len(idle)

    def _airflow_processes(self, title: str) -> Iterator[psutil.Process]:
        sessions = set(self.scheduler.sessions)
        for process in psutil.process_iter():
            if _title(process).startswith(title) and alive(process) and _session(process) in sessions:
                yield process

    def query(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """Return rows of Airflow's database."""
        connection = psycopg2.connect(host=str(self._sockets), user="postgres")
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, values)
                return list(cursor.fetchall())
        finally:
            connection.close()


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""


def _session(process: psutil.Process) -> int:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return -1


def _clustered(name: str, routes: dict[str, int]) -> str:
    # Without no_advertise the servers would tell clients the addresses of other servers, which bypass the proxies.
    urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes.values())
    listen = f'listen: "127.0.0.1:{routes[name]}"'
    return f"server_name: {name}\ncluster {{ name: chaos, {listen}, no_advertise: true, routes: [{urls}] }}\n"
