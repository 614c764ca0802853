"""What happens to claims, told to whoever listens: metrics and traces, which the hand-off itself does not know.

One event for a claim or a batch, never one for a message; and nothing of what is in a message.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.taking import Taking

log = logging.getLogger(__name__)

Name = Literal[
    "taken",  # entered in the ledger and leased; ``seconds`` since the first message of its batch came
    "held",  # an attempt began; ``seconds`` since it was taken
    "kept",  # held for others (docs/several-tasks.md)
    "lost",  # an attempt does not hold it any more: what it did does not count
    "done",  # recorded and acknowledged, but for what is dead-lettered; ``seconds`` for both
    "dead_lettered",  # copied to the dead-letter stream and terminated
    "unconfirmed",  # done, and not known to be acknowledged: the next take sees to it
    "failed",  # given up: delivered again
    "released",  # let go between two attempts
    "superseded",  # open, until its messages were delivered to somebody else: its sensor or its task died
    "reprocessed",  # done once more; its attempt is now the committed one
    "repeated",  # delivered again although done: acknowledged, not processed
    "given_back",  # pulled and not handed on
    "dropped",  # pulled too long ago to be entered: delivered again
]


@dataclass(frozen=True, slots=True)
class Event:
    """``claim`` is its id, empty for messages that are in none. ``origin`` is the ``traceparent`` that the first
    message of the batch carries, empty without one."""

    name: Name
    stream: str
    consumer: str
    messages: int
    claim: str = ""
    seconds: float | None = None
    origin: str = ""


Listener = Callable[[Event], None]
_listeners: list[Listener] = []
_listening = threading.Lock()


def listen(listener: Listener) -> None:
    """Call it with every event of this process, where it happens; once, however often it is given."""
    with _listening:
        if listener not in _listeners:
            _listeners.append(listener)


def tell(
    name: Name, of: Claim | Taking, messages: int, *, claim: str = "", seconds: float | None = None, origin: str = ""
) -> None:
    """Tell the listeners. One that fails is logged: no message waits for a metric."""
    event = Event(name, of.stream, of.consumer, messages, claim, seconds, origin)
    for listener in _listeners:
        try:
            listener(event)
        except Exception:
            log.exception("a listener failed at %s", name)
