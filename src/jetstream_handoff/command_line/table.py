# SPDX-License-Identifier: Apache-2.0
"""The names, help texts and arguments of the commands. :mod:`~jetstream_handoff.command_line.parser` builds a parser.

Importing this file loads no connection.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from jetstream_handoff.command_line import actions
from jetstream_handoff.command_line.output import Answer
from jetstream_handoff.rules.roles import ROLES

if TYPE_CHECKING:
    from jetstream_handoff.watch.findings import Finding


class Argument:
    """One argument of a command, with its parameters for ``argparse``.

    flags:    the name, or the option strings.
    options:  the keyword arguments of ``ArgumentParser.add_argument``.
    """

    def __init__(self, *flags: str, **options: Any) -> None:
        self.flags = flags
        self.options = options


@dataclass(frozen=True)
class Command:
    """One command.

    name:       the name.
    help:       the help text.
    run:        called with a JetStream context and the parsed arguments.
    arguments:  the command's own arguments. Default: none.
    connects:   whether ``run`` needs a context. If False, ``run`` itself connects: instead of a context it receives the
                settings, or the error that makes the settings unusable. Default True.
    """

    name: str
    help: str
    run: Callable[[Any, argparse.Namespace], Coroutine[Any, Any, Answer]]
    arguments: tuple[Argument, ...] = ()
    connects: bool = True


@dataclass(frozen=True)
class Group:
    """Commands under a common name.

    name:      the name.
    help:      the help text.
    commands:  the commands, or other groups.
    """

    name: str
    help: str
    commands: tuple[Command | Group, ...]


def flag(name: str, words: str) -> Argument:
    """Return an option without a value, with its name and its help text."""
    return Argument(name, action="store_true", help=words)


def duration(text: str) -> float:
    """Return a duration in seconds. Raises ValueError if the text is not a duration.

    text:  a number of seconds, or an ISO 8601 duration.
    """
    from jetstream_handoff import times

    return float(text) if text.replace(".", "", 1).isdigit() else times.duration(text).total_seconds()


_ID = Argument("id", help="id of the claim, as shown by `claims` and in the log of a task")
_LISTEN = Argument(
    "--listen",
    type=duration,
    default=0.0,
    metavar="DURATION",
    help="how long to listen for heartbeats of attempts: seconds, or an ISO 8601 duration such as PT5S (default: 0)",
)
_LETTERS = (
    Argument("stream", help="name of the stream whose messages could not be processed"),
    Argument("--name", help="name of the dead-letter stream (default: DEAD_<stream>)"),
    Argument(
        "--sequences",
        metavar="RANGES",
        help="only dead letters of the messages with these stream sequences, for example 7,10-20",
    ),
    Argument("--subject", help="only dead letters whose original subject matches this filter"),
    Argument("--consumer", help="only dead letters of this consumer"),
    Argument("--reason", help="only dead letters whose reason contains this string"),
    flag("--unconfirmed", "include dead letters for which the ledger does not confirm that the message was given up"),
)
_SETUP = (
    Argument("--stream", help="check this stream, and all its consumers that the ledger knows"),
    Argument("--consumer", help="with --stream: check this consumer, even if the ledger does not know it"),
    Argument(
        "--role",
        action="append",
        choices=ROLES,
        help="role that this connection's user has; can be repeated (default: sensor and processor)",
    ),
    Argument("--subject", help="with --role publisher: a subject on which the user publishes"),
)
_OTHERS: tuple[Command | Group, ...] = (
    Command(
        "claims",
        "list the open claims",
        actions.list_claims,
        (
            Argument("--stream", help="only claims of this stream"),
            Argument("--consumer", help="only claims of this consumer"),
            _LISTEN,
        ),
    ),
    Command(
        "claim",
        "show the state of one claim, open or ended, and explain what happens to it next",
        actions.show_claim,
        (_ID, _LISTEN),
    ),
    Command(
        "release",
        "release an open claim, or all those of a consumer, a pipeline or a run, so that their messages are "
        "redelivered at once",
        actions.release_claims,
        (
            Argument("id", nargs="?", help="id of the claim, as shown by `claims` and in the log of a task"),
            Argument("--stream", help="release all open claims of this stream"),
            Argument("--consumer", help="release all open claims of this consumer"),
            Argument(
                "--pipeline",
                "--dag",
                "--job",
                help="release all open claims that runs of this pipeline have taken or hold",
            ),
            Argument(
                "--run",
                dest="run_id",
                help="release all open claims that the run with this id has taken or holds",
            ),
            flag(
                "--yes",
                "release a claim even if its attempt is alive, which is then stopped; without this option, selected "
                "claims are only counted",
            ),
        ),
    ),
    Command(
        "ledger",
        "show which ledger a consumer belongs to, or give it to the ledger of this connection",
        actions.change_ledger,
        (
            Argument("stream", help="name of the stream"),
            Argument("consumer", help="name of the consumer"),
            flag("--yes", "give the consumer to the ledger of this connection"),
        ),
    ),
    Command(
        "reader",
        "show for which reader (a streaming query) a consumer is reserved, or end the reservation",
        actions.end_reservation,
        (
            Argument("stream", help="name of the stream"),
            Argument("consumer", help="name of the consumer"),
            flag("--yes", "end the reservation: everybody may take from the consumer, and the query cannot go on"),
        ),
    ),
    Group(
        "dead-letters",
        "list, replay or discard dead letters: copies of messages that could not be processed",
        (
            Command("list", "list dead letters", actions.list_dead_letters, _LETTERS),
            Command(
                "replay",
                "publish dead letters again on their original subjects; every consumer of those subjects receives them",
                actions.replay_dead_letters,
                (
                    *_LETTERS,
                    flag("--everything", "replay all dead letters"),
                    Argument("--into", metavar="STREAM", help="stream to publish to (default: the original stream)"),
                    flag("--yes", "with --everything: replay them; without this option, they are only counted"),
                ),
            ),
            Command(
                "discard",
                "delete the payloads of dead letters that nobody needs; a note stays in the place of each",
                actions.discard_dead_letters,
                (
                    *_LETTERS,
                    flag("--everything", "discard all dead letters"),
                    flag("--yes", "discard them; without this option, they are only counted"),
                ),
            ),
            Command(
                "resume",
                "replay the dead letters of all keys of a consumer that have stopped (on_poison='stop_key'), in order, "
                "and let the keys go on; sensors must run meanwhile",
                actions.resume_keys,
                (
                    Argument("stream", help="name of the stream whose messages could not be processed"),
                    Argument("consumer", help="name of the consumer"),
                    Argument("--name", help="name of the dead-letter stream (default: DEAD_<stream>)"),
                    Argument(
                        "--wait",
                        type=duration,
                        default=60.0,
                        metavar="DURATION",
                        help="how long to wait until earlier messages are settled: seconds, or an ISO 8601 duration "
                        "(default: 60)",
                    ),
                ),
            ),
        ),
    ),
)


def commands(
    packages: Iterable[str] = ("cryptography",), checks: Mapping[str, Callable[[], Iterable[Finding]]] | None = None
) -> tuple[Command | Group, ...]:
    """Return all commands.

    packages:  names of the packages whose versions ``doctor`` checks. Default: cryptography, which signs with NKeys.
    checks:    checks that ``doctor`` adds, each with the title of its section. Default: none.
    """
    checks = checks or {}
    run = partial(actions.check_setup, packages=packages, checks=checks)
    subjects = ["versions", "connection", "permissions", "ledger", "consumers", "clock", *checks]
    words = f"check the setup without changing anything: {', '.join(subjects)}"
    return (Command("doctor", words, run, _SETUP, connects=False), *_OTHERS)
