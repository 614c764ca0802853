# SPDX-License-Identifier: Apache-2.0
"""Previews: what an action will do, in numbers, and the action itself, which does what its preview says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from airflow_nats_jetstream.page.pool import Line


@dataclass(frozen=True)
class Preview:
    """What an action will do.

    revision:   a fingerprint of the state that the action depends on.
    text:       what it will do, in numbers.
    perform:    carries the action out, and says what was done. If that would no longer be what the text says, it does
                nothing and raises an error.
    dangerous:  whether work or messages may be lost by it.
    silence:    seconds for which the action first listens for the holder of a claim, at most.
    """

    revision: str
    text: str
    perform: Callable[[], Awaitable[str]] = field(repr=False)
    dangerous: bool = False
    silence: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "revision": self.revision,
            "text": self.text,
            "dangerous": self.dangerous,
            "silence": self.silence,
        }


class Action(Protocol):
    """An action with its parameters."""

    async def preview(self, line: Line) -> Preview:
        """Read the state that the action depends on, from the server, and say what the action will do."""
