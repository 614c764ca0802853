# SPDX-License-Identifier: Apache-2.0
"""``python -m airflow_nats_jetstream`` and ``airflow jetstream``: two parsers for the same commands, and one function
that runs them.

Parsing loads neither Airflow nor nats-py, and a command with ``--server`` does not load Airflow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_nats_jetstream.command_output import Answer, visible
from airflow_nats_jetstream.command_table import COMMANDS, Argument, Command, Group, flag
from jetstream_client.errors import InvalidValue, JetStreamError

if TYPE_CHECKING:
    from airflow.cli.cli_config import ActionCommand, CLICommand, GroupCommand

    from jetstream_client.wire.settings import ConnectionSettings

FAILED = 1
"""The exit code after an error. argparse exits with 2 for wrong arguments, and the commands also use 3 and 4."""

_COMMON = (
    Argument("--conn-id", help="id of the Airflow connection (default: nats_default)"),
    Argument(
        "--server",
        metavar="URL",
        help="address of a server, nats://host:port, to use instead of an Airflow connection; Airflow is not needed",
    ),
    Argument(
        "--credentials", metavar="FILE", help="with --server: path of the .creds file that authenticates the user"
    ),
    Argument("--ledger", metavar="NAME", help="with --server: prefix of the ledger's buckets (default: airflow)"),
    Argument("--domain", metavar="NAME", help="with --server: the JetStream domain"),
    flag("--json", "print JSON instead of text"),
)


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, run the command, and return its exit code.

    arguments:  the arguments without the program's name. Default None: the arguments of this process.
    """
    parser = argparse.ArgumentParser(
        f"python -m {__package__}", description="Claims and dead letters of NATS JetStream."
    )
    _add(parser, COMMANDS)
    args = parser.parse_args(arguments)
    return run(args.command, args)


def airflow_commands() -> list[CLICommand]:
    """Return the commands as a group of Airflow's command line. Airflow finds this function in the provider info."""
    return [_airflow_group(Group("jetstream", "Claims and dead letters of NATS JetStream", COMMANDS))]


def run(command: Command, args: argparse.Namespace) -> int:
    """Connect, run a command, print its answer, and return its exit code. An error is printed as one line on standard
    error.

    command:  the command.
    args:     the parsed arguments.
    """
    try:
        answer = _answer(command, args)
    except JetStreamError as error:
        sentence = visible(" ".join(str(error).split()))
        name = type(error).__name__
        print(json.dumps({"error": name, "message": sentence}) if args.json else f"{name}: {sentence}", file=sys.stderr)  # noqa: T201
        return FAILED
    except KeyboardInterrupt:
        return 130
    try:
        print(json.dumps(answer.data, indent=2) if args.json else answer.text, flush=True)  # noqa: T201
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return answer.code


def _answer(command: Command, args: argparse.Namespace) -> Answer:
    if command.connects:
        return asyncio.run(_connected(_settings(args), command, args))
    settings: ConnectionSettings | JetStreamError
    try:
        settings = _settings(args)
    except JetStreamError as unusable:
        settings = unusable
    return asyncio.run(command.run(settings, args))


async def _connected(settings: ConnectionSettings, command: Command, args: argparse.Namespace) -> Answer:
    from jetstream_client import connect

    async with connect(settings) as js:
        return await command.run(js, args)


def _settings(args: argparse.Namespace) -> ConnectionSettings:
    if "@" in (args.conn_id or ""):
        remedy = "give the id of an Airflow connection; for an address, use --server"
        raise InvalidValue("--conn-id", "…@…", remedy)
    if args.server is None:
        for name in ("credentials", "ledger", "domain"):
            if getattr(args, name) is not None:
                shown = "…" if name == "credentials" else getattr(args, name)
                remedy = (
                    "this option works only with --server; leave it out, because the Airflow connection contains "
                    "this setting"
                )
                raise InvalidValue(f"--{name}", shown, remedy)
        return _of_airflow(args.conn_id or "nats_default")
    if args.conn_id is not None:
        raise InvalidValue("--conn-id", args.conn_id, "give either --conn-id or --server, not both")
    from jetstream_client.wire.settings import ConnectionSettings

    given = {name: getattr(args, name) for name in ("ledger", "domain") if getattr(args, name)}
    if args.credentials:
        try:
            given["credentials"] = Path(args.credentials).expanduser().read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            remedy = f"the file cannot be read ({why}); give the path of a .creds file"
            raise InvalidValue("--credentials", "…", remedy) from None
    return ConnectionSettings(servers=args.server, **given)


def _of_airflow(conn_id: str) -> ConnectionSettings:
    # ``airflow connections test`` also sets this variable. Without it, Airflow looks for connections in environment
    # variables only.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    try:
        from airflow.sdk.exceptions import AirflowNotFoundException

        from airflow_nats_jetstream.hooks import JetStreamHook
    except ImportError as missing:
        remedy = f"the connection cannot be read, because Airflow cannot be used here ({missing}); use --server instead"
        raise InvalidValue("--conn-id", conn_id, remedy) from None
    try:
        return JetStreamHook(conn_id).settings
    except AirflowNotFoundException:
        remedy = (
            "Airflow has no connection with this id; give an id that `airflow connections list` shows, or use --server"
        )
        raise InvalidValue("--conn-id", conn_id, remedy) from None


def _add(parser: argparse.ArgumentParser, commands: Iterable[Command | Group]) -> None:
    choices = parser.add_subparsers(required=True, metavar="COMMAND")
    for each in commands:
        sub = choices.add_parser(each.name, help=each.help, description=each.help)
        if isinstance(each, Group):
            _add(sub, each.commands)
            continue
        sub.set_defaults(command=each)
        for one in (*each.arguments, *_COMMON):
            sub.add_argument(*one.flags, **one.options)


def _airflow_group(group: Group) -> GroupCommand:
    from airflow.cli.cli_config import GroupCommand

    members = [_airflow_group(one) if isinstance(one, Group) else _airflow_action(one) for one in group.commands]
    return GroupCommand(name=group.name, help=group.help, subcommands=members)


def _airflow_action(command: Command) -> ActionCommand:
    from airflow.cli.cli_config import ActionCommand, Arg

    def act(args: argparse.Namespace) -> None:
        sys.exit(run(command, args))

    arguments = [
        Arg(one.flags, **one.options)  # type: ignore[no-untyped-call]
        for one in (*command.arguments, *_COMMON)
    ]
    return ActionCommand(name=command.name, help=command.help, func=act, args=arguments)
