"""What belongs to services of a stack, in addition to the single service of the package."""

import time
from collections.abc import Callable
from typing import TypeVar

import psutil

from jetstream_testing.service import Service, ServiceFailed, alive, end, free_port, session

__all__ = ["MARK", "Service", "ServiceFailed", "alive", "end", "free_port", "marked", "session", "until"]

Value = TypeVar("Value")

MARK = "JETSTREAM_STACK"
"""The environment variable that every process of a stack inherits. Its value names the stack."""


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes whose environment names the stack.

    A process that sets its title, as those of Airflow and Postgres do, overwrites its environment. `session` finds
    such processes.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and alive(process):
                found.append(process)
        except psutil.Error:
            continue
    return found


def until(what: str, probe: Callable[[], Value | None], seconds: float, every: float = 0.2) -> Value:
    """Return the first true value of `probe`. Raises TimeoutError, which names `what`, after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        if value := probe():
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"Waiting for {what} timed out after {seconds:.0f} s")
        time.sleep(every)
