# SPDX-License-Identifier: Apache-2.0
"""The name of the command-line program, for messages that tell a person which command to run."""

DEFAULT = "python -m jetstream_handoff"

name = DEFAULT
"""The program in which a person finds the commands. An orchestrator that has such a program sets this variable when its
package is imported."""


def command(arguments: str) -> str:
    """Return a command of this program, in backquotes.

    arguments:  the name of the command and its arguments.
    """
    return f"`{name} {arguments}`"
