"""Dagster as its users run it: an instance on SQLite, a code server, and the daemon, as child processes.

The daemon launches each run in a separate process, a child of the code server, and the multiprocess executor runs
each step in a child of the run's process.
"""

import json
import os
import signal
import socket
import subprocess
import sysconfig
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

import dagster as dg
import psutil

from demo.service import MARK, Service, ServiceFailed, alive, end, free_port, marked, session, until

SCRIPTS = Path(sysconfig.get_path("scripts"))
ENDS = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)


class CodeServer(Service):
    """A gRPC server with the definitions of one file. It keeps its port when it is killed and restarted."""

    def __init__(self, definitions: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self.port = free_port()
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--python-file", str(definitions)]
        command = [str(SCRIPTS / "dagster"), "api", "grpc", *where]
        super().__init__("code-server", command, folder=folder, environment=environment)

    def ready(self) -> bool:
        """Whether the server accepts connections, which it does after it has loaded the definitions."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


class DagsterStack:
    """An instance, a code server and the daemon in one folder. `stop` ends all processes that they started."""

    def __init__(
        self,
        folder: Path,
        definitions: Path,
        environment: Mapping[str, str] | None = None,
        *,
        max_runtime: int = 0,
        parallelism: int = 2,
    ) -> None:
        """Prepare a stack without starting it.

        definitions:  the Python file with the definitions.
        environment:  additional variables for all processes, for example the address of the nats-server.
        max_runtime:  a run fails after so many seconds; 0 (default): never.
        parallelism:  how many runs run at the same time.
        """
        self.folder = folder.absolute()
        self.mark = uuid.uuid4().hex
        self.environment = {**os.environ, MARK: self.mark, "DAGSTER_HOME": str(self.folder), **(environment or {})}
        self.code_server = CodeServer(definitions.absolute(), self.folder, self.environment)
        self._workspace = self.folder / "workspace.yaml"
        command = [str(SCRIPTS / "dagster-daemon"), "run", "--workspace", str(self._workspace)]
        self.daemon = Service("daemon", command, folder=self.folder, environment=self.environment)
        self._settings = {
            "telemetry": {"enabled": False},
            "nux": {"enabled": False},
            "storage": {"sqlite": {"base_dir": str(self.folder / "storage")}},
            "run_queue": {"max_concurrent_runs": parallelism, "dequeue_interval_seconds": 1},
            "run_monitoring": {"enabled": True, "poll_interval_seconds": 1, "max_runtime_seconds": max_runtime},
            "run_retries": {"enabled": True},
        }

    def start(self) -> None:
        """Start the code server and the daemon. Raises ServiceFailed, with the end of a log, if one cannot start."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # JSON is YAML as well.
        (self.folder / "dagster.yaml").write_text(json.dumps(self._settings))
        server = {"host": "127.0.0.1", "port": self.code_server.port, "location_name": "definitions"}
        self._workspace.write_text(json.dumps({"load_from": [{"grpc_server": server}]}))
        self.instance = dg.DagsterInstance.from_config(str(self.folder))
        try:
            self.code_server.start()
            self.daemon.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes, those of runs and steps included. The folder is kept."""
        while processes := self.processes:
            end(processes, patience=0)
        for service in (self.daemon, self.code_server):
            service.stop()  # collects its exit status
        self.instance.dispose()

    def launch(self, job: str, tags: Mapping[str, str] | None = None) -> str:
        """Put a run of a job into the queue, and return its id. The daemon launches it."""
        run_id = str(uuid.uuid4())
        options = ["--workspace", str(self._workspace), "--job", job, "--run-id", run_id]
        command = [str(SCRIPTS / "dagster"), "job", "launch", *options, "--tags", json.dumps(dict(tags or {}))]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServiceFailed(f"dagster job launch failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        return run_id

    def runs(self, job: str | None = None) -> list[dg.DagsterRun]:
        """Return the runs of a job, or all runs; the oldest first."""
        return list(reversed(self.instance.get_runs(dg.RunsFilter(job_name=job))))

    def status(self, run_id: str) -> dg.DagsterRunStatus:
        """Return what the instance knows about a run. A run whose process was killed may stay STARTED."""
        return self._run(run_id).status

    def finished(self, run_id: str, seconds: float = 300) -> dg.DagsterRunStatus:
        """Wait until the instance knows that a run has ended. Raises TimeoutError."""
        until(f"the end of run {run_id}", lambda: self.status(run_id) in ENDS, seconds)
        return self.status(run_id)

    def terminate(self, run_id: str) -> None:
        """Ask for the end of a run, as the UI does: its process is interrupted."""
        self.instance.run_coordinator.cancel_run(run_id)

    def mark_canceled(self, run_id: str) -> None:
        """Mark a run whose process is dead as canceled, as the UI does on request. Otherwise it occupies the queue."""
        self.instance.report_run_canceled(self._run(run_id))

    def _run(self, run_id: str) -> dg.DagsterRun:
        run = self.instance.get_run_by_id(run_id)
        if run is None:
            raise LookupError(f"the instance has no run {run_id}")
        return run

    @property
    def workers(self) -> list[psutil.Process]:
        """The processes of runs, and those of their steps, also if the process that started them was killed."""
        return [each for each in session(self.code_server.pid) if each.pid != self.code_server.pid and _works(each)]

    def step_processes(self, run_id: str) -> dict[str, psutil.Process]:
        """Return the processes of a run's steps that still run."""
        started = self.instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_WORKER_STARTED)
        found = {}
        for entry in started:
            event = entry.get_dagster_event()
            pid = event.engine_event_data.metadata.get("pid")
            if event.step_key and pid is not None and psutil.pid_exists(int(str(pid.value))):
                found[event.step_key] = psutil.Process(int(str(pid.value)))
        return {key: process for key, process in found.items() if alive(process)}

    def kill_workers(self) -> int:
        """Kill the processes of all runs and steps, as when a machine fails. Returns how many there were."""
        workers = self.workers
        end(workers, patience=0)
        return len(workers)

    def interrupt_workers(self) -> None:
        """Send SIGTERM to the processes of all runs and steps, as when a machine is shut down."""
        for worker in self.workers:
            with suppress(psutil.NoSuchProcess):
                worker.send_signal(signal.SIGTERM)

    @property
    def processes(self) -> list[psutil.Process]:
        """All processes of this stack."""
        found = {process.pid: process for process in marked(self.mark)}
        for service in (self.daemon, self.code_server):
            for leader in service.sessions:
                found.update({process.pid: process for process in session(leader)})
        return list(found.values())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _works(process: psutil.Process) -> bool:
    """Whether a process runs code of a pipeline, and is no helper of Dagster or of Python's multiprocessing."""
    try:
        command = " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
    return "multiprocessing" in command and "resource_tracker" not in command
