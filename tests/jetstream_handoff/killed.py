"""A separate process that rejects a message or replays dead letters, and is killed at a given point."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from jetstream_client import ConnectionSettings, connect
from jetstream_client.sequences import Sequences
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger import ledger
from jetstream_handoff.letters import dead_letters, replay, selection


def run(point: str, settings: ConnectionSettings, **arguments: Any) -> None:
    """Start the process and wait until it was killed at this point."""
    work = [sys.executable, "-m", "tests.jetstream_handoff.killed", point, settings.to_json(), json.dumps(arguments)]
    ended = subprocess.run(work, check=False, timeout=60, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _after(owner: Any, name: str) -> None:
    function: Callable[..., Any] = getattr(owner, name)

    async def dying(*arguments: Any, **named: Any) -> Any:
        await function(*arguments, **named)
        _die()

    setattr(owner, name, dying)


def _before(owner: Any, name: str) -> None:
    async def dying(*arguments: Any, **named: Any) -> None:
        _die()

    setattr(owner, name, dying)


async def _work(point: str, settings: ConnectionSettings, arguments: dict[str, Any]) -> None:
    async with connect(settings) as js:
        if point in ("marked", "published"):
            if point == "marked":
                _after(replay, "_mark")
            else:
                _before(replay, "_finish")
            letters = dead_letters.DeadLetters(js, arguments["stream"])
            await replay.replay(letters, selection.Selection(everything=True))
            return
        async with Hold.begin(js, Claim.from_json(arguments["claim"]), try_number=1) as hold:
            if point == "held":
                _die()
            await hold.reject(Sequences.of(arguments["rejected"]), "killed")
            if point == "copied":
                _after(dead_letters.DeadLetters, "copy")
            if point == "decided":
                _after(ledger.Ledger, "decide")
            await hold.settle("killed")


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1], ConnectionSettings.from_json(sys.argv[2]), json.loads(sys.argv[3])))
