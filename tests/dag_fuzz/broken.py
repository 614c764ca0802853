"""Rules broken on purpose, in the processes that run tasks. The judge must notice each of them."""

import os
from typing import Any

from airflow_nats_jetstream.dag import between
from airflow_nats_jetstream.operators import ending
from airflow_nats_jetstream.operators.settle import JetStreamSettleOperator
from jetstream_handoff.ledger.work import Work

BREAK = "DAG_FUZZ_BREAK"
"""The environment variable that names one of BREAKS."""

ANY_WORK, FAILED_WORK, STATES, STAGES = BREAKS = ("any-work", "failed-work", "states", "stages")
"""Another piece of work may take a claim over; a claim is settled although its work failed; the settling task does not
ask for the states of the other tasks; the sensor does not ask for those between it and a task that holds its claims."""


def install() -> None:
    """Break what the environment names; without the variable nothing changes."""
    asked = os.environ.get(BREAK)
    if asked == ANY_WORK:
        for check in ("check_open", "check_done"):
            setattr(Work, check, _nothing)
    elif asked == FAILED_WORK:
        ending.end = _settle  # type: ignore[assignment]
    elif asked == STATES:
        JetStreamSettleOperator._undone = _no_states  # type: ignore[method-assign,assignment]
    elif asked == STAGES:
        between.depending = between._settled
    elif asked:
        raise ValueError(f"{BREAK}={asked!r}: one of {', '.join(BREAKS)}")


def _nothing(*_: Any) -> None:
    """Accept another piece of work."""


def _settle(held: Any, *_: Any) -> None:
    if not held.killed and not held.ended and not held.lost:
        held.settle(None)


def _no_states(*_: Any) -> tuple[dict[str, str], bool]:
    return {}, False
