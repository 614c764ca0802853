# SPDX-License-Identifier: Apache-2.0
"""Events of claims, for listeners such as metrics and traces. The hand-off does not know its listeners.

An event is about a claim or a batch, never about a single message, and contains nothing of a message's content.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

log = logging.getLogger(__name__)

Name = Literal[
    "taken",  # entered in the ledger and leased; ``seconds`` since the first message of its batch arrived
    "held",  # an attempt began; ``seconds`` since the claim was taken
    "kept",  # held for other tasks (docs/several-tasks.md)
    "handed_over",  # the attempt continues in another process, which resumes the hold
    "lost",  # an attempt no longer holds the claim: its result does not count
    "done",  # recorded and acknowledged, except for dead letters; ``seconds`` that both steps took
    "dead_lettered",  # copied to the dead-letter stream and terminated
    "unconfirmed",  # done, but the acknowledgement is unconfirmed: the next take repeats it
    "failed",  # the work failed for the last time: the messages are redelivered
    "released",  # no longer held: between two attempts, because the work was skipped, or by hand
    "superseded",  # no longer open: its sensor or its task died, and its messages were delivered to another take
    "reprocessed",  # settled once more: the new attempt is now the committed one
    "repeated",  # messages that were redelivered although they are done: acknowledged, not processed again
    "given_back",  # pulled, but not handed on: negatively acknowledged
    "dropped",  # pulled too long ago to be entered in the ledger: the messages are redelivered
]


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    name:      the kind of event.
    messages:  number of messages.
    claim:     the id of the claim; empty for messages that are in no claim.
    seconds:   a duration, for some events (see :data:`Name`).
    origin:    the ``traceparent`` of the first message of the batch; empty if it has none.
    """

    name: Name
    stream: str
    consumer: str
    messages: int
    claim: str = ""
    seconds: float | None = None
    origin: str = ""


class Of(Protocol):
    """What an event is about: a claim, or the parameters of a take."""

    @property
    def stream(self) -> str: ...
    @property
    def consumer(self) -> str: ...


Listener = Callable[[Event], None]
_listeners: list[Listener] = []
_listening = threading.Lock()


def listen(listener: Listener) -> None:
    """Call ``listener`` with every event of this process, in the thread in which the event happens. A listener that is
    registered several times is called once for each event."""
    with _listening:
        if listener not in _listeners:
            _listeners.append(listener)


def tell(
    name: Name,
    of: Of,
    messages: int,
    *,
    claim: str = "",
    seconds: float | None = None,
    origin: str = "",
) -> None:
    """Call the listeners. An error of a listener is only logged, because a metric must not stop the hand-off."""
    event = Event(name, of.stream, of.consumer, messages, claim, seconds, origin)
    for listener in _listeners:
        try:
            listener(event)
        except Exception:
            log.exception("a listener failed for the event %r", name)
