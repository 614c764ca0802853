# SPDX-License-Identifier: Apache-2.0
"""The words with which messages tell a person what to do: a command, the name for a graph of tasks, and what may keep
a task from running.

The package of an orchestrator sets its own words when it is imported. This module imports nothing.
"""

PROGRAM = "python -m jetstream_handoff"

program = PROGRAM
"""The program that has the commands."""
pipeline = "pipeline"
"""The orchestrator's word for a graph of tasks that it runs."""
obstacles = "whether its run is queued or was ended"
"""What to check if a task does not run."""


def command(arguments: str) -> str:
    """Return a command of the program, in backquotes.

    arguments:  the name of the command and its arguments.
    """
    return f"`{program} {arguments}`"
