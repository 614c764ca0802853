"""The nats-server on which the tests run. `make matrix` also runs them on older ones."""

import re
import subprocess
from functools import cache

from jetstream_testing.nats_server import nats_server_program


def has(version: str) -> bool:
    """Whether the installed nats-server is of this version, for example ``2.14``, or newer."""
    return _numbers(version) <= _installed()


def again(first: int) -> str:
    """What a message tells to do so that the server delivers messages from ``first`` on again."""
    return f"reset the consumer to sequence {first}," if has("2.14") else f"opt_start_seq={first};"


@cache
def _installed() -> tuple[int, ...]:
    said = subprocess.run([nats_server_program(), "--version"], check=True, capture_output=True, text=True)
    return _numbers(said.stdout)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
