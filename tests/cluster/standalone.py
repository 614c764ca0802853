"""A standalone Spark: a master and two workers, each in a separate session with the processes that it starts."""

import base64
import hashlib
import hmac
import json
import os
import secrets
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from demo.java import QUICK
from demo.service import Service, free_port, session, until

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class Standalone:
    """A master and two workers on 127.0.0.1 and free ports, in one folder: room for two applications at once."""

    def __init__(
        self, folder: Path, spark_home: Path, known: Mapping[str, str] | None = None, *, cores: int = 2
    ) -> None:
        """`spark_home` is where the workers have Spark; of the environment that we run in they know what is `known`.

        Each worker has so many `cores`.
        """
        self.folder = folder
        self.url = f"spark://127.0.0.1:{free_port()}"
        self.pages = [f"http://127.0.0.1:{free_port()}" for _ in range(3)]
        """The addresses of the user interfaces: the master's, and the workers'."""
        self.rest_port = free_port()
        """Where the master takes submissions, from who shows `token`."""
        key = _key()
        self.token = _signed({"sub": "airflow"}, key)
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
        environment |= {
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(spark_home),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        rest = {
            "master.rest.enabled": "true",
            "master.rest.host": "127.0.0.1",
            "master.rest.port": self.rest_port,
            "master.rest.filters": "org.apache.spark.ui.JWSFilter",
            "org.apache.spark.ui.JWSFilter.param.secretKey": _text(key),
        }
        host, port = self.url.removeprefix("spark://").split(":")
        self.services = []
        """The master and the workers."""
        for number, page in enumerate(self.pages):
            name = f"worker{number}" if number else "master"
            where = ["--host", host, "--webui-port", page.rpartition(":")[2]]
            if number:
                own = ["worker.Worker", *where, "--cores", str(cores), "--memory", "2g", self.url]
            else:
                own = ["master.Master", *where, "--port", port]
            command = [str(spark_home / "bin" / "spark-class"), f"org.apache.spark.deploy.{own[0]}", *own[1:]]
            if number:
                more = {"SPARK_WORKER_DIR": str(folder / name / "work"), **(known or {})}
            else:
                more = {"SPARK_MASTER_OPTS": " ".join(f"-Dspark.{each}={rest[each]}" for each in rest)}
            self.services.append(Service(name, command, folder=folder / name, environment=environment | more))

    def start(self) -> None:
        for service in self.services:
            service.launch()
        until("two workers", lambda: self._state() and self._state()["aliveworkers"] == 2, seconds=240)

    def stop(self) -> None:
        for service in reversed(self.services):
            service.stop()

    def connection(self) -> dict[str, Any]:
        """The Airflow connection to it."""
        host, port = self.url.rsplit(":", 1)
        extra = {"rest-port": self.rest_port, "webui": self.pages[0]}
        return {"conn_type": "spark", "host": host, "port": int(port), "password": self.token, "extra": extra}

    @property
    def drivers(self) -> list[dict[str, Any]]:
        """Every job that was submitted, as the master has it: id, state and so on."""
        state = self._state()
        return [*state["activedrivers"], *state["completeddrivers"]]

    @property
    def applications(self) -> list[str]:
        """The names of the applications that run."""
        return [each["name"] for each in self._state()["activeapps"]]

    def processes(self) -> list[psutil.Process]:
        """All of its processes, executors and Python workers included."""
        return [process for service in self.services for process in session(service.pid)]

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run tasks, and not what they started."""
        return [process for process in self.processes() if EXECUTOR in command(process)]

    def pythons(self) -> set[str]:
        """The Python programs that run on the executors."""
        commands = [command(process) for process in self.processes()]
        return {words[0] for words in commands if "pyspark.daemon" in words}

    def _state(self) -> dict[str, Any]:
        for service in self.services:
            assert service.running, service.tail()
        try:
            with urllib.request.urlopen(f"{self.pages[0]}/json/", timeout=30) as page:
                state: dict[str, Any] = json.load(page)
                return state
        except (OSError, ValueError):  # the page is there before what is to be on it
            return {}


def _key() -> bytes:
    """A random key. Spark refuses options that contain "Xmx", which one of 6,000 keys does."""
    key = secrets.token_bytes(32)
    return _key() if "Xmx" in _text(key) else key


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _signed(claims: dict[str, Any], key: bytes) -> str:
    """A JSON web signature (RFC 7515), which Spark's JWSFilter asks for."""
    said = ".".join(_text(json.dumps(each).encode()) for each in ({"alg": "HS256"}, claims))
    return f"{said}.{_text(hmac.digest(key, said.encode(), hashlib.sha256))}"


def command(process: psutil.Process) -> list[str]:
    """A process's command line; empty when it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []
