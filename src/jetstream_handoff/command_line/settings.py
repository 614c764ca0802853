# SPDX-License-Identifier: Apache-2.0
"""The options with which the commands connect, and the settings that they describe.

Importing this file loads no connection.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import InvalidValue
from jetstream_handoff.command_line.table import Argument

if TYPE_CHECKING:
    from jetstream_client.wire.settings import ConnectionSettings


def server_options(ledger: str, instead: str = "") -> tuple[Argument, ...]:
    """Return ``--server``, and the options that go with it.

    ledger:   the default of ``--ledger``.
    instead:  the end of the help text of ``--server``. Default: none.
    """
    return (
        Argument("--server", metavar="URL", help=f"address of a server, nats://host:port{instead}"),
        Argument(
            "--credentials", metavar="FILE", help="with --server: path of the .creds file that authenticates the user"
        ),
        Argument("--ledger", metavar="NAME", help=f"with --server: prefix of the ledger's buckets (default: {ledger})"),
        Argument("--domain", metavar="NAME", help="with --server: the JetStream domain"),
    )


def refuse_server_options(args: argparse.Namespace, remedy: str) -> None:
    """Raise InvalidValue if an option is given that goes with ``--server``.

    args:    the parsed arguments.
    remedy:  the reason for the refusal, and what to do.
    """
    for name in ("credentials", "ledger", "domain"):
        if getattr(args, name) is not None:
            raise InvalidValue(f"--{name}", "…" if name == "credentials" else getattr(args, name), remedy)


def server_settings(args: argparse.Namespace, ledger: str) -> ConnectionSettings:
    """Return the settings that ``--server`` and the options that go with it describe. Raises InvalidValue.

    args:    the parsed arguments.
    ledger:  the default of ``--ledger``.
    """
    from jetstream_client.wire.settings import ConnectionSettings

    given: dict[str, Any] = {"servers": args.server, "ledger": args.ledger or ledger}
    if args.domain:
        given["domain"] = args.domain
    if args.credentials:
        try:
            given["credentials"] = Path(args.credentials).expanduser().read_text()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            remedy = f"the file cannot be read ({why}); give the path of a .creds file"
            raise InvalidValue("--credentials", "…", remedy) from None
    return ConnectionSettings(**given)


CONNECT = (
    Argument(
        "--connection",
        metavar="NAME",
        help="name of a connection whose settings are in the environment, in JETSTREAM_SECRET_<NAME> or in a file in "
        "the folder that JETSTREAM_SECRETS names",
    ),
    *server_options("jetstream"),
)
"""The options of a program without an orchestrator."""


def settings(args: argparse.Namespace) -> ConnectionSettings:
    """Return the settings that the options :data:`CONNECT` describe. Raises InvalidValue.

    args:  the parsed arguments.
    """
    from jetstream_client.wire.settings import ConnectionSettings

    if args.connection is None:
        if args.server is None:
            raise InvalidValue("--server", None, "give the address of a server, or --connection")
        return server_settings(args, "jetstream")
    if args.server is not None:
        raise InvalidValue("--server", "…", "give either --connection or --server, not both")
    refuse_server_options(
        args, "this option works only with --server; leave it out, because the connection contains this setting"
    )
    return ConnectionSettings.from_environment(args.connection)
