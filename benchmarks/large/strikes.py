"""Kills with SIGKILL, each while a claim is being worked on: one in each third of the messages."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.large.journal import Step, steps
from benchmarks.large.messages import leader
from jetstream_client import ConnectionSettings

if TYPE_CHECKING:
    from demo.service import Service
    from tests.cluster.standalone import Standalone
    from tests.jetstream_client.cluster import Cluster

LEADER, EXECUTOR, DRIVER = "nats-server that leads the stream", "Spark executor", "driver"
DOWN = 5.0  # seconds until the killed nats-server is started again


@dataclass(frozen=True)
class Kill:
    """A process that was killed.

    what:   its role.
    pid:    its process id.
    claim:  the claim that was being worked on.
    at:     when, in seconds since 1970.
    """

    what: str
    pid: int
    claim: str
    at: float


class Strikes:
    """The kills of a run.

    journals:  the folder of the drivers' journals.
    messages:  how many messages the job has; 0 if nothing is to be killed.
    """

    def __init__(self, nats: Cluster, spark: Standalone, journals: Path, messages: int) -> None:
        self.made: list[Kill] = []
        self.left = [LEADER, EXECUTOR, DRIVER] if messages else []
        """What is still to be killed."""
        self._nats = nats
        self._spark = spark
        self._journals = journals
        self._due = [messages * (third + 0.25) / 3 for third in range(3)]
        self._restart: threading.Timer | None = None

    def strike(self, driver: Service) -> None:
        """Kill the next process if it is time to."""
        known = steps(self._journals)
        settled = sum(step.count for step in known)
        if not self.left or settled < self._due[len(self.made)] or not _working(known):
            return
        service, pid = driver, driver.pid
        if self.left[0] == LEADER:
            service = self._nats.named(asyncio.run(leader(ConnectionSettings(servers=self._nats.url))))
            pid = service.pid
        elif self.left[0] == EXECUTOR:
            pid = self._spark.executors()[0].pid
        if len(steps(self._journals)) > len(known):
            return  # this claim is no longer worked on: kill during the next one
        os.kill(pid, signal.SIGKILL)
        self.made.append(Kill(self.left.pop(0), pid, known[-1].claim, time.time()))
        if service is not driver:
            self._restart = threading.Timer(DOWN, service.restart)
            self._restart.start()

    def end(self) -> None:
        """Wait until the nats-server runs again."""
        if self._restart:
            self._restart.join()


def _working(known: list[Step]) -> bool:
    """Whether a claim has been worked on for half of the time that the quickest one took."""
    quickest = min((step.seconds for step in known if step.name == "worked"), default=0.0)
    return bool(known) and known[-1].name == "held" and time.time() - known[-1].at > quickest / 2
