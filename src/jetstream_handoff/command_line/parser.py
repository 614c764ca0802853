# SPDX-License-Identifier: Apache-2.0
"""The parser of the commands, and the function that runs a command.

Parsing loads no connection.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_client.errors import JetStreamError
from jetstream_handoff.command_line.output import Answer, visible
from jetstream_handoff.command_line.table import Argument, Command, Group, flag

if TYPE_CHECKING:
    from jetstream_client.wire.settings import ConnectionSettings

FAILED = 1
"""The exit code after an error. argparse exits with 2 for wrong arguments, and the commands also use 3 and 4."""
DESCRIPTION = "Claims and dead letters of NATS JetStream"
_JSON = flag("--json", "print JSON instead of text")


@dataclass(frozen=True)
class CommandLine:
    """A program with these commands, and its way to connect.

    commands:  the commands.
    connect:   the options that say how to connect.
    settings:  called with the parsed arguments; returns the settings. It may raise a JetStreamError.
    """

    commands: tuple[Command | Group, ...]
    connect: tuple[Argument, ...]
    settings: Callable[[argparse.Namespace], ConnectionSettings]

    @property
    def options(self) -> tuple[Argument, ...]:
        """The options of every command."""
        return (*self.connect, _JSON)

    def main(self, program: str, arguments: list[str] | None = None) -> int:
        """Parse the command line, run the command, and return its exit code.

        program:    the name of the program, for the help text.
        arguments:  the arguments without the program's name. Default None: the arguments of this process.
        """
        parser = argparse.ArgumentParser(program, description=f"{DESCRIPTION}.")
        self._add(parser, self.commands)
        args = parser.parse_args(arguments)
        return self.run(args.command, args)

    def run(self, command: Command, args: argparse.Namespace) -> int:
        """Connect, run a command, print its answer, and return its exit code. An error is printed as one line on
        standard error.

        command:  the command.
        args:     the parsed arguments.
        """
        try:
            answer = self._answer(command, args)
        except JetStreamError as error:
            sentence = visible(" ".join(str(error).split()))
            name = type(error).__name__
            failure = json.dumps({"error": name, "message": sentence}) if args.json else f"{name}: {sentence}"
            print(failure, file=sys.stderr)  # noqa: T201
            return FAILED
        except KeyboardInterrupt:
            return 130
        try:
            print(json.dumps(answer.data, indent=2) if args.json else answer.text, flush=True)  # noqa: T201
        except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return answer.code

    def _answer(self, command: Command, args: argparse.Namespace) -> Answer:
        if command.connects:
            return asyncio.run(_connected(self.settings(args), command, args))
        settings: ConnectionSettings | JetStreamError
        try:
            settings = self.settings(args)
        except JetStreamError as unusable:
            settings = unusable
        return asyncio.run(command.run(settings, args))

    def _add(self, parser: argparse.ArgumentParser, members: Iterable[Command | Group]) -> None:
        choices = parser.add_subparsers(required=True, metavar="COMMAND")
        for each in members:
            sub = choices.add_parser(each.name, help=each.help, description=each.help)
            if isinstance(each, Group):
                self._add(sub, each.commands)
                continue
            sub.set_defaults(command=each)
            for one in (*each.arguments, *self.options):
                sub.add_argument(*one.flags, **one.options)


async def _connected(settings: ConnectionSettings, command: Command, args: argparse.Namespace) -> Answer:
    from jetstream_client import connect

    async with connect(settings) as js:
        return await command.run(js, args)
