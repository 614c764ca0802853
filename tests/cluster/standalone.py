"""A standalone Spark: a master and two workers, each a process with what it started in a session of its own."""

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from demo.java import QUICK
from demo.service import Service, free_port, session, until

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Standalone:
    """A master and two workers on 127.0.0.1 and free ports, in one folder: room for two applications at once."""

    def __init__(self, folder: Path, spark_home: Path) -> None:
        """`spark_home` is where the workers have Spark; they know nothing of the environment that we run in."""
        self.folder = folder
        self.url = f"spark://127.0.0.1:{free_port()}"
        self.pages = [f"http://127.0.0.1:{free_port()}" for _ in range(3)]
        """The addresses of the user interfaces: the master's, and the workers'."""
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
        environment |= {
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # it would listen on a port of its own
        }
        host, port = self.url.removeprefix("spark://").split(":")
        self._services = []
        for number, page in enumerate(self.pages):
            name = f"worker{number}" if number else "master"
            where = ["--host", host, "--webui-port", page.rpartition(":")[2]]
            if number:
                own = ["worker.Worker", *where, "--cores", "2", "--memory", "2g", self.url]
            else:
                own = ["master.Master", *where, "--port", port]
            command = [str(spark_home / "bin" / "spark-class"), f"org.apache.spark.deploy.{own[0]}", *own[1:]]
            known = environment | {"SPARK_WORKER_DIR": str(folder / name / "work")}
            self._services.append(Service(name, command, folder=folder / name, environment=known))

    def start(self) -> None:
        for service in self._services:
            service.launch()
        until("two workers", lambda: self._state() and self._state()["aliveworkers"] == 2, seconds=240)

    def stop(self) -> None:
        for service in reversed(self._services):
            service.stop()

    def processes(self) -> list[psutil.Process]:
        """All of its processes, executors and Python workers included."""
        return [process for service in self._services for process in session(service.pid)]

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run tasks, and not what they started."""
        return [process for process in self.processes() if EXECUTOR in command(process)]

    def pythons(self) -> set[str]:
        """The Python programs that run on the executors."""
        commands = [command(process) for process in self.processes()]
        return {words[0] for words in commands if "pyspark.daemon" in words}

    def _state(self) -> dict[str, Any]:
        for service in self._services:
            assert service.running, service.tail()
        try:
            with urllib.request.urlopen(f"{self.pages[0]}/json/", timeout=30) as page:
                state: dict[str, Any] = json.load(page)
                return state
        except (OSError, ValueError):  # the page is there before what is to be on it
            return {}


def command(process: psutil.Process) -> list[str]:
    """A process's command line; empty when it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []
