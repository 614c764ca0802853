# SPDX-License-Identifier: Apache-2.0
"""``python -m airflow_nats_jetstream`` and ``airflow jetstream``: the commands of
:mod:`jetstream_handoff.command_line`, which can also connect through an Airflow connection.

Parsing loads neither Airflow nor a connection, and a command with ``--server`` does not load Airflow.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_nats_jetstream.airflow_connection import DEFAULT_CONN_ID
from airflow_nats_jetstream.get_provider_info import DEFAULT_LEDGER
from airflow_nats_jetstream.words import OF_AIRFLOW
from jetstream_client.errors import InvalidValue
from jetstream_handoff.command_line.parser import DESCRIPTION, CommandLine
from jetstream_handoff.command_line.settings import refuse_server_options, server_options, server_settings
from jetstream_handoff.command_line.table import Argument, Command, Group, commands

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.cli.cli_config import ActionCommand, CLICommand, GroupCommand

    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.watch.findings import Finding


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line, run the command, and return its exit code.

    arguments:  the arguments without the program's name. Default None: the arguments of this process.
    """
    return _PROGRAM.main(f"python -m {__package__}", arguments)


def airflow_commands() -> list[CLICommand]:
    """Return the commands as a group of Airflow's command line. Airflow finds this function in the provider info."""
    return [_airflow_group(Group("jetstream", DESCRIPTION, _PROGRAM.commands))]


def _settings(args: argparse.Namespace) -> ConnectionSettings:
    if "@" in (args.conn_id or ""):
        remedy = "give the id of an Airflow connection; for an address, use --server"
        raise InvalidValue("--conn-id", "…@…", remedy)
    if args.server is None:
        refuse_server_options(
            args,
            "this option works only with --server; leave it out, because the Airflow connection contains this setting",
        )
        return _of_airflow(args.conn_id or DEFAULT_CONN_ID)
    if args.conn_id is not None:
        raise InvalidValue("--conn-id", args.conn_id, "give either --conn-id or --server, not both")
    return replace(server_settings(args, DEFAULT_LEDGER), words=OF_AIRFLOW)


def _of_airflow(conn_id: str) -> ConnectionSettings:
    # ``airflow connections test`` also sets this variable. Without it, Airflow looks for connections in environment
    # variables only.
    os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
    try:
        from airflow_nats_jetstream.compat import AirflowNotFoundException
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


def _of_spark() -> Iterator[Finding]:
    from pyspark_jetstream import interpreter

    return interpreter.check()


def _airflow_group(group: Group) -> GroupCommand:
    from airflow.cli.cli_config import GroupCommand

    members = [_airflow_group(one) if isinstance(one, Group) else _airflow_action(one) for one in group.commands]
    return GroupCommand(name=group.name, help=group.help, subcommands=members)


def _airflow_action(command: Command) -> ActionCommand:
    from airflow.cli.cli_config import ActionCommand, Arg

    def act(args: argparse.Namespace) -> None:
        sys.exit(_PROGRAM.run(command, args))

    arguments = [
        Arg(one.flags, **one.options)  # type: ignore[no-untyped-call]
        for one in (*command.arguments, *_PROGRAM.options)
    ]
    return ActionCommand(name=command.name, help=command.help, func=act, args=arguments)


_PROGRAM = CommandLine(
    commands(("apache-airflow", "cryptography", "pyspark", "pyarrow"), {"Python of Spark's workers": _of_spark}),
    (
        Argument("--conn-id", help="id of the Airflow connection (default: nats_default)"),
        *server_options(DEFAULT_LEDGER, ", to use instead of an Airflow connection; Airflow is not needed"),
    ),
    _settings,
)
