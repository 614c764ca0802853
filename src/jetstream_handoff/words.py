# SPDX-License-Identifier: Apache-2.0
"""The words with which messages tell a person what to do, as the settings of a connection carry them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_client import words

if TYPE_CHECKING:
    from jetstream_client.wire.settings import ConnectionSettings

PROGRAM = "python -m jetstream_handoff"


@dataclass(frozen=True, kw_only=True)
class Words(words.Words):
    """The words of the client, and those of the hand-off. The package of an orchestrator puts its own into the settings
    of its connections.

    program:    the program that has the commands.
    options:    options that each command needs, such as that of the connection. Default: none.
    pipeline:   the orchestrator's word for a graph of tasks that it runs.
    obstacles:  what to check if a task does not run.
    taker:      the place in the owner of a claim of the name that tells apart what takes claims: graphs, or their
                steps. Default: unknown.
    """

    program: str = PROGRAM
    options: str = ""
    pipeline: str = "pipeline"
    obstacles: str = "whether its run is queued or was ended"
    taker: int | None = None

    def command(self, arguments: str) -> str:
        """Return a command of the program, in backquotes.

        arguments:  the name of the command and its arguments.
        """
        return f"`{' '.join(filter(None, (self.program, arguments, self.options)))}`"


OF_HANDOFF = Words()
"""The words without an orchestrator."""


def words_of(settings: ConnectionSettings) -> Words:
    """Return the words of a connection; those without an orchestrator if its settings have none of the hand-off."""
    return settings.words if isinstance(settings.words, Words) else OF_HANDOFF
