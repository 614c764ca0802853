"""The striker: kills, freezes and cuts off services, and repairs them after a while."""

from __future__ import annotations

import heapq
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psutil
from dagster import DagsterError

from demo.service import Service
from tests.chaos.observer import Observer, Ranges, sequences
from tests.chaos.plan import (
    ALL,
    CLUSTER,
    CODE_SERVER,
    CONSUMER,
    CREDENTIAL,
    DAEMON,
    DELAY,
    DRIVER,
    EDITS,
    EXECUTOR,
    FREEZE,
    IN_AIRFLOW,
    IN_DAGSTER,
    KILL,
    LEADERS,
    ONE,
    PROXY,
    RESET,
    RUN,
    RUN_ALONE,
    RUN_WORKER,
    SCHEDULER,
    SHARED,
    STEP,
    SUPERVISOR,
    TASK,
    TRIGGERER,
    WORKER,
    Blow,
)
from tests.chaos.proxy import Proxy
from tests.chaos.scenes import Scene
from tests.chaos.stack import ChaosStack
from tests.chaos.windows import ACKNOWLEDGE, FETCH, WORK

GRACE = {
    **dict.fromkeys((SCHEDULER, TRIGGERER), 8.0),
    **dict.fromkeys((DAEMON, CODE_SERVER), 12.0),
    **dict.fromkeys(CLUSTER, 3.0),
    ONE: 2.0,
    PROXY: 1.0,
    CREDENTIAL: 2.0,
}
"""Seconds for which a shared target is left alone after its repair, so that pipelines can reach a window at all."""
AT_ONCE = 2
"""How many shared targets may be down at the same time."""


@dataclass
class Strike:
    """A strike, its target, and how long the messages in the window took to be settled."""

    window: str
    target: str
    kind: str
    seconds: float
    stream: str
    ranges: Ranges
    detail: str
    at: float = field(default_factory=time.time)
    recovered_after: float | None = None


@dataclass(order=True)
class _Repair:
    due: float
    number: int
    mend: Callable[[], Any] = field(compare=False)


class Striker:
    """`run` runs a coroutine in the proxies' loop."""

    def __init__(
        self,
        stack: ChaosStack,
        proxies: dict[str, Proxy],
        observers: dict[tuple[str, str], Observer],
        run: Callable[[Coroutine[Any, Any, Any]], Any],
        chance: random.Random,
    ) -> None:
        self._stack = stack
        self._proxies = proxies
        self._observers = observers
        self._run = run
        self._chance = chance
        self._repairs: list[_Repair] = []
        self._numbers = itertools.count()
        self._busy: dict[str, float] = {}
        self._down: set[Service] = set()
        self._edited: dict[str, dict[str, Any]] = {}
        """The configurations of the consumers that are edited, by stream, before they were."""
        self._names: dict[Service, str] = {server: name for name, server in stack.servers.items()}
        self.strikes: list[Strike] = []

    def suits(self, blow: Blow, scene: Scene) -> bool:
        """Whether the strike would affect this pipeline in its window, and the target is running."""
        if blow.window != scene.window:
            return False
        pipeline = scene.pipeline
        if blow.target in (IN_AIRFLOW if pipeline.dagster else IN_DAGSTER):
            return False
        in_a_task = blow.window == FETCH or not scene.deferred
        fitting = {
            TRIGGERER: blow.window != WORK or scene.deferred,
            **dict.fromkeys((WORKER, TASK, SUPERVISOR), in_a_task),
            ONE: pipeline.servers == "one",
            PROXY: pipeline.proxied,
            CREDENTIAL: pipeline.servers == "one",
            CONSUMER: pipeline.stream not in self._edited,
            DRIVER: pipeline.spark,
            EXECUTOR: pipeline.spark,
            **dict.fromkeys(CLUSTER, pipeline.servers == "three"),
        }
        if not fitting.get(blow.target, True):
            return False
        now = time.monotonic()
        busy = {name for name, until in self._busy.items() if until > now}
        return blow.target not in SHARED or (_name(blow.target) not in busy and len(busy) < AT_ONCE)

    def strike(self, blow: Blow, scene: Scene) -> Strike | None:
        """Strike if the servers agree that the pipeline is in the window, and the target exists."""
        observer = self._observers[scene.pipeline.place]
        try:
            if not self._run(scene.confirmed(observer)):
                return None
            detail = self._deal(blow, scene)
        except (TimeoutError, psutil.Error, ProcessLookupError, KeyError, DagsterError):
            return None  # no answer, or the target has just ended: no strike
        except Exception as error:
            if type(error).__module__.startswith("nats."):
                return None
            raise
        if not detail:
            return None
        if blow.target in SHARED:
            self._busy[_name(blow.target)] = time.monotonic() + blow.seconds + GRACE[blow.target]
        strike = Strike(
            blow.window, blow.target, blow.kind, round(blow.seconds, 2), scene.pipeline.stream, scene.ranges, detail
        )
        self.strikes.append(strike)
        return strike

    def mend(self, *, everything: bool = False) -> None:
        """Repair the targets whose time is over, or all."""
        while self._repairs and (everything or self._repairs[0].due <= time.monotonic()):
            heapq.heappop(self._repairs).mend()

    def revive_the_fallen(self) -> list[str]:
        """Restart services that ended unexpectedly, as a supervisor would. Returns their names."""
        fallen = [service for service in self._stack.services if not service.running and service not in self._down]
        for service in fallen:
            self._revive(service)
        return [self._names.get(service, service.name) for service in fallen]

    def recovered(self, stream: str, settled: set[int], floor: int) -> None:
        """Note strikes as recovered when the messages that were in the window are settled.

        In the last window they were settled before, and must be acknowledged: the consumer's floor is past them. It may
        also have waited for other messages.
        """
        for strike in self.strikes:
            if strike.stream != stream or strike.recovered_after is not None:
                continue
            struck = set(sequences(strike.ranges))
            if max(struck) <= floor if strike.window == ACKNOWLEDGE else settled >= struck:
                strike.recovered_after = time.time() - strike.at

    def _deal(self, blow: Blow, scene: Scene) -> str:
        """Strike, and return what exactly was struck; None if the target does not exist."""
        if blow.target == PROXY:
            return self._cut(blow, scene)
        if blow.target == CONSUMER:
            return self._edit(blow, scene)
        if blow.target == CREDENTIAL:
            self._stack.credential.expire()
            self._later(blow.seconds, self._stack.credential.return_to_life)
            return self._stack.credential.file.name
        services = self._services(blow, scene)
        if services:
            for service in services:
                self._hit(blow, self._stack.processes(service))
                if blow.kind == KILL:
                    self._down.add(service)
                    self._later(blow.seconds, lambda service=service: self._revive(service))  # type: ignore[misc]
            return ", ".join(self._names.get(service, service.name) for service in services)
        if blow.target == RUN:
            self._stack.dagster.terminate(scene.run)
            return scene.run
        of_pipeline = self._run_processes if scene.pipeline.dagster else self._task_processes
        processes = of_pipeline(blow.target, scene)
        self._hit(blow, processes)
        return ", ".join(str(process.pid) for process in processes)

    def _services(self, blow: Blow, scene: Scene) -> list[Service]:
        stack = self._stack
        if blow.target == ONE:
            return [stack.nats]
        if blow.target == ALL:
            return list(stack.three.values())
        if blow.target in LEADERS:
            leaders = self._run(self._observers[scene.pipeline.place].leaders(scene.pipeline.stream))
            return [stack.three[leaders[LEADERS[blow.target]]]]
        single = {SCHEDULER: stack.scheduler, DAEMON: stack.dagster.daemon, CODE_SERVER: stack.dagster.code_server}
        if blow.target in single:
            return [single[blow.target]]
        if blow.target == TRIGGERER:
            triggerers = [stack.triggerer, stack.triggerer_2]
            with suppress(ProcessLookupError):
                triggerers = [each for each in triggerers if each.pid == os.getsid(scene.pid)] or triggerers
            return [self._chance.choice(triggerers)]
        return []

    def _task_processes(self, target: str, scene: Scene) -> list[psutil.Process]:
        if scene.run:
            running = self._stack.query(
                "SELECT id::text FROM task_instance WHERE dag_id = %s AND run_id = %s AND state = 'running'",
                scene.pipeline.name,
                scene.run,
            )
            task = self._stack.task_with({str(each[0]) for each in running})
        else:
            task = psutil.Process(scene.pid)
        if task is None:
            return []
        supervisor = task.parent()
        below = task.children(recursive=True)
        java = [process for process in below if "java" in process.name()]
        if target == TASK:
            return [task]
        if target == SUPERVISOR:
            return [supervisor] if supervisor else []
        if target == WORKER:
            return [supervisor, task, *below] if supervisor else []
        if target == DRIVER:
            return java
        assert target == EXECUTOR
        workers = [process for each in java for process in each.children(recursive=True)]
        return [process for process in workers if not process.children()][:1]

    def _run_processes(self, target: str, scene: Scene) -> list[psutil.Process]:
        """The processes of a Dagster run."""
        if target == STEP:
            return [psutil.Process(scene.pid)]
        worker = psutil.Process(scene.worker)
        assert target in (RUN_WORKER, RUN_ALONE)
        return [worker, *worker.children(recursive=True)] if target == RUN_WORKER else [worker]

    def _hit(self, blow: Blow, processes: Iterable[psutil.Process]) -> None:
        processes = list(processes)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL if blow.kind == KILL else signal.SIGSTOP)
        if blow.kind == FREEZE:
            self._later(blow.seconds, lambda: _continue(processes))

    def _cut(self, blow: Blow, scene: Scene) -> str:
        names = ["one"] if scene.pipeline.servers == "one" else list(self._stack.three)
        for proxy in (self._proxies[name] for name in names):
            if blow.kind == RESET:
                self._in_loop(proxy.reset)
                continue
            if blow.kind == DELAY:
                proxy.delay = self._chance.uniform(0.05, 1.0)
            else:
                self._in_loop(proxy.hold, *(d for d in ("up", "down") if d in blow.kind or "both" in blow.kind))
            self._later(blow.seconds, lambda proxy=proxy: self._in_loop(proxy.heal))  # type: ignore[misc]
        return ", ".join(names)

    def _edit(self, blow: Blow, scene: Scene) -> str:
        observer, stream = self._observers[scene.pipeline.place], scene.pipeline.stream
        before = self._run(observer.edit(stream, EDITS[blow.kind]))
        if not before:
            return ""
        self._edited[stream] = before
        self._later(blow.seconds, lambda: self._put_right(observer, stream))
        return str(EDITS[blow.kind])

    def _put_right(self, observer: Observer, stream: str) -> None:
        try:
            # The whole configuration: what is not named would keep its edited value, or get the server's default.
            put_right = self._run(observer.edit(stream, self._edited[stream], whole=True))
        except Exception:  # noqa: BLE001 - the server is down or cut off
            put_right = {}
        if put_right:
            del self._edited[stream]
        else:
            self._later(1, lambda: self._put_right(observer, stream))

    def _in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        async def call() -> None:
            function(*arguments)

        self._run(call())

    def _revive(self, service: Service) -> None:
        if not self._stack.has_workers(service):
            service.kill()  # its remaining children
        self._stack.revive(service)
        self._down.discard(service)

    def _later(self, seconds: float, mend: Callable[[], Any]) -> None:
        heapq.heappush(self._repairs, _Repair(time.monotonic() + seconds, next(self._numbers), mend))


def _name(target: str) -> str:
    return "three" if target in CLUSTER else target


def _continue(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
