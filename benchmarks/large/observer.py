"""The memory of each process and the size of the ledger, sampled every half second in a separate thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import psutil

from demo.service import Service
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import JetStreamError
from jetstream_handoff.ledger.buckets import Buckets
from tests.cluster.standalone import EXECUTOR

EVERY = 0.5  # seconds


@dataclass
class Peak:
    """The most that was seen of one role or bucket: processes or messages, and bytes.

    one:    of a role, the largest resident set of a single process.
    total:  the largest sum at one moment.
    last:   the last sum.
    """

    count: int = 0
    one: int = 0
    total: int = 0
    last: int = 0
    last_count: int = 0

    def seen(self, sizes: list[int], count: int | None = None) -> None:
        self.last, self.last_count = sum(sizes), len(sizes) if count is None else count
        self.count, self.total = max(self.count, self.last_count), max(self.total, self.last)
        self.one = max(self.one, *sizes)


class Observer:
    """Samples inside a `with` block.

    services:  what is sampled: services with all the processes that they start, and the role of their first process.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self.services: list[tuple[Service, str]] = []
        self.memory: defaultdict[str, Peak] = defaultdict(Peak)
        self.ledger: defaultdict[str, Peak] = defaultdict(Peak)
        self._settings = settings
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._observe()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    async def _observe(self) -> None:
        async with connect(self._settings) as js:
            await asyncio.gather(self._processes(), self._buckets(Buckets(js)))

    async def _processes(self) -> None:
        while not self._ended.is_set():
            self._sample()
            await asyncio.sleep(EVERY)

    async def _buckets(self, buckets: Buckets) -> None:
        ended = False
        while not ended:
            ended = self._ended.is_set()  # the last sample is of the end
            for bucket in buckets.names:
                with suppress(JetStreamError):  # the bucket does not exist yet, or has no leader
                    state = (await buckets.stream(bucket).info()).state
                    self.ledger[bucket].seen([state["bytes"]], state["messages"])
            await asyncio.sleep(EVERY)

    def _sample(self) -> None:
        sizes = defaultdict(list)
        roles = {leader: role for service, role in list(self.services) for leader in list(service.sessions)}
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                leader = os.getsid(process.pid)
                if leader in roles and (role := _role(process, leader, roles[leader])):
                    sizes[role].append(process.memory_info().rss)
        for role, found in sizes.items():
            self.memory[role].seen(found)


def _role(process: psutil.Process, leader: int, service: str) -> str:
    """The role of a process; empty if it only starts another one."""
    command = " ".join(process.cmdline())
    if "pyspark.daemon" in command:
        return "Python workers of the driver" if service.startswith("driver") else "Python workers of the executors"
    if process.pid == leader:
        return service
    if process.name() != "java" or "org.apache.spark.launcher" in command:
        return ""
    return "Spark executors" if EXECUTOR in command else "driver's JVM" if "SparkSubmit" in command else ""
