"""The plan of strikes and their order, made from the seed. The moment decides which pipeline is struck."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.credential import VALID
from tests.chaos.windows import ACKNOWLEDGE, FETCH, HAND_OFF, WINDOWS, WORK

KILL, FREEZE, TERMINATE = "kill", "freeze", "terminate"
DELAY, RESET, HALF_OPEN_UP, HALF_OPEN_DOWN, DEAF = PROXY_FAULTS = (
    "delay",
    "reset",
    "half-open up",
    "half-open down",
    "half-open both",
)

ONE, ALL = "nats-server (one node)", "all three nats-servers"
LEADERS = {"stream leader": "stream", "consumer leader": "consumer", "ledger leader": "ledger"}
PROXY = "proxy"
CREDENTIAL, EXPIRE = "credential", "expire"
CONSUMER = "consumer's configuration"
EDITS: dict[str, dict[str, object]] = {
    "ack_wait": {"ack_wait": 500_000_000},
    "backoff": {"backoff": [300_000_000, 2_000_000_000]},
    "headers_only": {"headers_only": True},
    "inactive_threshold": {"inactive_threshold": 30_000_000_000},
    "max_ack_pending": {"max_ack_pending": 5},
    "max_deliver": {"max_deliver": 1_000},
}
"""What a stranger changes of a consumer, by the kind of the strike, in the server's terms."""
TRIGGERER, SCHEDULER = "triggerer", "scheduler"
WORKER, TASK, SUPERVISOR = "worker", "task process alone", "supervisor, task surviving"
DRIVER, EXECUTOR = "Spark driver", "Spark Python worker"
DAEMON, CODE_SERVER = "dagster-daemon", "code server"
RUN, RUN_WORKER, RUN_ALONE, STEP = DAGSTER_RUN = (
    "run",
    "run worker and its steps",
    "run worker, steps surviving",
    "step process",
)

CLUSTER = (*LEADERS, ALL)
SHARED = frozenset({ONE, PROXY, CREDENTIAL, TRIGGERER, SCHEDULER, DAEMON, CODE_SERVER, *CLUSTER})
"""Targets whose failure affects several pipelines."""
IN_AIRFLOW = frozenset({TRIGGERER, SCHEDULER, WORKER, TASK, SUPERVISOR})
IN_DAGSTER = frozenset({DAEMON, CODE_SERVER, *DAGSTER_RUN})


@dataclass(frozen=True)
class Blow:
    """One strike of the plan. `seconds` is how long a service stays down, frozen or cut off, a consumer edited, or a
    credential not renewed."""

    window: str
    target: str
    kind: str
    seconds: float


def plan(seed: int, strikes: int) -> list[Blow]:
    """Plan equally many strikes in each window, and of each target and kind of a window."""
    chance = random.Random(seed)
    decks = {window: _dealt(chance, window) for window in WINDOWS}
    blows = []
    for window in itertools.islice(itertools.cycle(WINDOWS), strikes):
        target, kind = next(decks[window])
        blows.append(Blow(window, target, kind, _seconds(chance, target, kind)))
    return blows


def _dealt(chance: random.Random, window: str) -> Iterator[tuple[str, str]]:
    cards = list(_cards(window))
    while True:
        chance.shuffle(cards)
        yield from cards


def _cards(window: str) -> Iterator[tuple[str, str]]:
    both = (KILL, FREEZE)
    yield from itertools.product((ONE, *CLUSTER), both)
    yield from ((PROXY, fault) for fault in PROXY_FAULTS)
    yield CREDENTIAL, EXPIRE
    yield from ((CONSUMER, edit) for edit in EDITS)
    yield SCHEDULER, KILL
    yield from itertools.product((DAEMON, STEP), both)
    yield from itertools.product((CODE_SERVER, RUN_WORKER, RUN_ALONE), (KILL,))
    yield RUN, TERMINATE
    if window == FETCH:
        yield from itertools.product((TRIGGERER,) * 2, both)
    else:
        yield from itertools.product((WORKER, TASK, SUPERVISOR), both)
    if window == HAND_OFF:
        yield from ((TRIGGERER, KILL), (SCHEDULER, FREEZE))
    if window == WORK:
        yield from itertools.product((DRIVER, EXECUTOR), both)
        yield from itertools.product((TASK, SUPERVISOR), both)
        yield from itertools.product((TRIGGERER,) * 2, both)  # while the task of a held operator is deferred
    if window == ACKNOWLEDGE:
        yield from itertools.product((WORKER, TASK, SUPERVISOR), both)


def _seconds(chance: random.Random, target: str, kind: str) -> float:
    """Choose a duration. Short ones are hiccups; long ones exceed Airflow's thresholds and the lease of a claim."""
    if kind in (RESET, TERMINATE):
        return 0
    if target == CREDENTIAL:
        return VALID + chance.uniform(0.5, 8)
    if target == SCHEDULER:
        return chance.uniform(0.2, 6)  # there is only one, and without it nothing proceeds
    if kind == KILL:
        return chance.uniform(0.2, 3)
    if target in (ONE, *CLUSTER, PROXY, CONSUMER):
        return chance.choice((chance.uniform(0.3, 3), chance.uniform(4, 9)))
    return chance.choice((chance.uniform(0.5, 4), chance.uniform(10, 22)))
