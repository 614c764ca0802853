"""The four windows, seen and stretched from inside the processes of the system under test.

Only the chaos DAGs, the Dagster definitions next to them and test_broken import this; `src` does not know it. Each
process reports with marks when a pipeline enters and leaves a window. In a short window it waits for as long as the
control file says.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jetstream_handoff.errors import AlreadyDone, HeldByAnother, HoldLost, Superseded
from jetstream_handoff.hold import answers, settle
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.take.take import Take
from tests.chaos.record import Record

FETCH, HAND_OFF, WORK, ACKNOWLEDGE = WINDOWS = (
    "fetch to event",
    "event to hold",
    "middle of the job",
    "done to acknowledged",
)

FOLDER = "CHAOS_FOLDER"
"""The environment variable with the folder of marks and control file."""
OWN: dict[str, Any] = {}
"""What each mark of this process says in addition."""

LEASE = timedelta(seconds=60)
"""For a task that is deferred, until its trigger or its worker holds the claim."""
FENCED = (AlreadyDone, Superseded, HeldByAnother, HoldLost)


def folder() -> Path:
    return Path(os.environ[FOLDER])


def mark(window: str, edge: str, stream: str, key: str, **more: Any) -> None:
    """Write a mark. `edge` is enter, leave or fenced; `key` names the claim, or the run if there is no claim yet."""
    line = {"at": time.time(), "pid": os.getpid(), "window": window, "edge": edge, "stream": stream, "key": key}
    Record(folder() / "marks.jsonl", durable=False).append({**line, **OWN, **more})


def pause(window: str, key: str) -> float:
    """Return the seconds to wait in this window according to the control file; 0 without one."""
    try:
        control = json.loads((folder() / "control.json").read_text())
    except (FileNotFoundError, ValueError):
        return 0.0
    longest: float = control["seconds"].get(window, 0)
    return random.Random(f"{control['seed']} {window} {key}").uniform(0.3, 1) * longest


def ask(folder: Path, seed: int, seconds: dict[str, float]) -> None:
    """Write the control file with the longest wait in each window."""
    new = folder / "control.new"
    new.write_text(json.dumps({"seed": seed, "seconds": seconds}))
    new.replace(folder / "control.json")


def install() -> None:
    """Mark and stretch the windows in this process. Call it once."""
    if hasattr(Take, "chaos"):
        return
    Take.chaos = True  # type: ignore[attr-defined]
    Take._enter = _entering(Take._enter)  # type: ignore[method-assign]
    Ledger.decide = _fenced(Ledger.decide, lambda ledger, _, claim_id, *_work: (ledger.stream.name, claim_id))  # type: ignore[method-assign]
    Hold.settle = _fenced(Hold.settle, lambda hold, *_: (hold.claim.stream, hold.claim.id))  # type: ignore[method-assign]
    Hold.hand_over = _briefly(Hold.hand_over)  # type: ignore[method-assign]
    # Only for settling: the acknowledgements that a take repeats belong to another window.
    settle.answers = SimpleNamespace(**{**vars(answers), "acknowledge": _acknowledging})  # type: ignore[assignment,attr-defined]


def _entering(enter: Callable[..., Any]) -> Callable[..., Any]:
    """The window between fetching and entering in the ledger."""

    @wraps(enter)
    async def entering(take: Take, *arguments: Any) -> Any:
        run = str(take.taking.owner[1])
        ranges = take._window.batch.sequences.to_json() if take._window else []
        mark(FETCH, "enter", take.taking.stream, run, ranges=ranges)
        await asyncio.sleep(pause(FETCH, f"{run} fetched {ranges}"))
        return await enter(take, *arguments)

    return entering


def _fenced(function: Callable[..., Any], name: Callable[..., tuple[str, str]]) -> Callable[..., Any]:
    """Count refusals by the ledger."""

    @wraps(function)
    async def fenced(*arguments: Any, **keywords: Any) -> Any:
        try:
            return await function(*arguments, **keywords)
        except FENCED as error:
            if not hasattr(error, "counted"):
                vars(error)["counted"] = True  # settling raises the error of the ledger again
                mark("", "fenced", *name(*arguments), reason=type(error).__name__)
            raise

    return fenced


def _briefly(hand_over: Callable[..., Any]) -> Callable[..., Any]:
    """Lease what is handed over for a shorter time than 15 minutes, after which a run would be over."""

    async def briefly(hold: Hold, lease: timedelta = LEASE) -> None:
        await hand_over(hold, min(lease, LEASE))

    return briefly


async def _acknowledging(ledger: Ledger, delivered: answers.Delivered, *arguments: Any, **keywords: Any) -> Any:
    key, ranges = str(delivered.sequences), delivered.sequences.to_json()
    mark(ACKNOWLEDGE, "enter", ledger.stream.name, key, ranges=ranges)
    await asyncio.sleep(pause(ACKNOWLEDGE, key))
    left = await answers.acknowledge(ledger, delivered, *arguments, **keywords)
    mark(ACKNOWLEDGE, "leave", ledger.stream.name, key)
    return left


async def event(stream: str, run: str, produce: Callable[[], Any]) -> dict[str, Any]:
    """The window between entering in the ledger and the trigger's event."""
    result: dict[str, Any] = await produce()
    await asyncio.sleep(pause(FETCH, f"{run} entered"))
    return result


async def handing_on(stream: str, run: str, events: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Pass the trigger's events on. With them the messages go from the first window to the second."""
    async for each in events:
        for claim in each.payload.get("claims", ()):
            mark(HAND_OFF, "enter", stream, claim["id"], run=run, ranges=claim["ranges"])
        mark(FETCH, "leave", stream, run)
        yield each
