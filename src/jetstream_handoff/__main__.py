# SPDX-License-Identifier: Apache-2.0
"""List, show and release claims, list, replay and discard dead letters, and examine a setup: ``python -m
jetstream_handoff``."""

import sys

from jetstream_handoff.command_line.parser import CommandLine
from jetstream_handoff.command_line.settings import CONNECT, settings
from jetstream_handoff.command_line.table import commands
from jetstream_handoff.words import PROGRAM


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, run the command, and return its exit code.

    arguments:  the arguments without the program's name. Default None: the arguments of this process.
    """
    return CommandLine(commands(), CONNECT, settings).main(PROGRAM, arguments)


if __name__ == "__main__":
    sys.exit(main())
