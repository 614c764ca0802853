"""The commands: which claims are open, which attempt holds one, release it, list and replay dead letters.

Written down once, in :data:`COMMANDS`; :mod:`~airflow_nats_jetstream.command_line` makes parsers of them. Loading this
file loads neither Airflow nor nats-py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import InvalidValue
from jetstream_handoff.roles import ROLES

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.errors import JetStreamError
    from jetstream_client.sequences import Sequences
    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.findings import Finding
    from jetstream_handoff.inspection import Seen

TO_DO = 1
"""Exit code of an examination that found something to do."""
UNKNOWN, REFUSED = 3, 4
"""Exit codes: no such claim; not without ``--yes``, or not possible."""


@dataclass(frozen=True)
class Answer:
    """What a command says: for machines, for people, and the exit code."""

    data: Any
    text: str
    code: int = 0


class Argument:
    """One argument, in the words that argparse and Airflow's parser share."""

    def __init__(self, *flags: str, **options: Any) -> None:
        self.flags = flags
        self.options = options


@dataclass(frozen=True)
class Command:
    """One command.

    run:       called with a JetStream context and the parsed arguments.
    connects:  ``False``: ``run`` connects for itself. Instead of a context it is called with the settings of the
               connection, or with the error that says why they cannot be used.
    """

    name: str
    help: str
    run: Callable[[Any, argparse.Namespace], Coroutine[Any, Any, Answer]]
    arguments: tuple[Argument, ...] = ()
    connects: bool = True


@dataclass(frozen=True)
class Group:
    name: str
    help: str
    commands: tuple[Command | Group, ...]


def flag(name: str, words: str) -> Argument:
    return Argument(name, action="store_true", help=words)


async def _claims(js: JetStream, args: argparse.Namespace) -> Answer:
    from jetstream_handoff import inspection

    found = await inspection.open_claims(js, args.stream, args.consumer, whatever_can_be_read=True)
    if not found:
        await inspection.check_known(js, args.stream, args.consumer)
    if args.listen:
        found = await inspection.listen(js, found, args.listen)
    header = ["CLAIM", "STREAM", "CONSUMER", "MESSAGES", "SEQUENCES", "SINCE", "TAKEN", "HELD BY", "TAKEN BY"]
    rows = [
        [
            seen.id,
            seen.stream,
            seen.consumer,
            f"{seen.sequences.count:,}",
            _short(str(seen.sequences), 32),
            seen.since[:19] + "Z",
            age(seen.age),
            _holder(seen),
            seen.entry.taken_by if seen.entry else "",
        ]
        for seen in found
    ]
    of = [f"{kind} {name}" for kind, name in (("consumer", args.consumer), ("stream", args.stream)) if name]
    text = _table(header, rows) if rows else " of ".join(["no open claims", *of])
    return Answer([inspection.plain(seen) for seen in found], text)


async def _claim(js: JetStream, args: argparse.Namespace) -> Answer:
    from jetstream_handoff import inspection

    seen = await inspection.find(js, args.id)
    if seen is None:
        return _unknown(args.id)
    if args.listen:
        (seen,) = await inspection.listen(js, [seen], args.listen)
    lines = {
        "claim": seen.id,
        "state": seen.state,
        "consumer": f"{seen.consumer} of stream {seen.stream}",
        "messages": f"{seen.sequences.count:,}: {seen.sequences}",
    }
    if seen.since:
        lines["taken" if seen.entry else "settled"] = f"{seen.since} ({age(seen.age)})"
    if seen.entry:
        lines["taken by"] = seen.entry.taken_by
        lines["held by"] = _holder(seen)
    if seen.receipt and seen.receipt.state == "done":
        lines["output of"] = seen.receipt.attempt_id
        lines["value"] = json.dumps(seen.receipt.value)
        if seen.receipt.rejected:
            lines["dead letters"] = str(seen.receipt.rejected)
    if seen.info:
        info = seen.info
        lines["consumer now"] = (
            f"delivered up to {info.delivered} in {info.counter} deliveries, acknowledged up to {info.floor}, "
            f"{info.ack_pending} unacknowledged, {info.pending} to come, {info.raw['num_waiting']} pulls waiting, "
            f"ack_wait {info.config['ack_wait'] / 1e9:g} s"
        )
    else:
        lines["consumer now"] = "does not exist"
    lines["next"] = seen.next
    width = max(map(len, lines)) + 2
    return Answer(
        inspection.plain(seen), "\n".join(f"{name:<{width}}{visible(value)}" for name, value in lines.items())
    )


async def _release(js: JetStream, args: argparse.Namespace) -> Answer:
    from jetstream_handoff import inspection

    seen = await inspection.find(js, args.id)
    if seen is None:
        return _unknown(args.id)
    if seen.entry is None:
        text = f"claim {seen.id} is not open, there is nothing to release. {seen.next}"
        return Answer({"released": False, **inspection.plain(seen)}, visible(text), REFUSED)
    if seen.entry.token and not args.yes:
        (seen,) = await inspection.listen(js, [seen], seen.silence)
        if seen.alive:
            text = (
                f"attempt {seen.holder} of claim {seen.id} is alive: its heartbeat was just heard. With --yes it loses "
                "the claim: its work is stopped and its output does not count; the messages are delivered again at "
                "once and processed from the beginning."
            )
            return Answer({"released": False, **inspection.plain(seen)}, visible(text), REFUSED)
    await inspection.release(js, seen)
    text = f"claim {seen.id} is released: its {seen.sequences.count:,} messages are delivered again at once."
    return Answer({"released": True, "id": seen.id, "count": seen.sequences.count}, text)


async def _dead_letters(js: JetStream, args: argparse.Namespace) -> Answer:
    from jetstream_handoff.dead_letters import DeadLetters
    from jetstream_handoff.replay import select

    header = ["LETTER", "MESSAGE", "SUBJECT", "CONSUMER", "SINCE", "FAILED", "CLAIM", "CONFIRMED", "REASON"]
    data, rows = [], []
    async for number, stored_at, letter, confirmed, problem in select(
        DeadLetters(js, args.stream, args.name), _selection(args, listing=True)
    ):
        if letter is None:
            data.append({"number": number, "since": stored_at, "confirmed": False, "problem": problem})
            rows.append([str(number), *[""] * 3, stored_at[:19] + "Z", "", "", "no", f"no dead letter: {problem}"])
            continue
        shown = {
            "number": letter.number,
            "stream": letter.stream,
            "sequence": letter.sequence,
            "subject": letter.subject,
            "time": letter.time,
            "consumer": letter.consumer,
            "reason": letter.reason,
            "failures": letter.failures,
            "attempt": f"{letter.claim_id}-{letter.token}",
            "since": letter.stored_at,
            "bytes": letter.size,
            "confirmed": confirmed,
        }
        data.append(shown)
        row = [letter.number, letter.sequence, letter.subject, letter.consumer, letter.stored_at[:19] + "Z"]
        row += [letter.failures, letter.claim_id, "yes" if confirmed else "no", _short(letter.reason, 60)]
        rows.append([str(each) for each in row])
    return Answer(data, _table(header, rows) if rows else f"no dead letters of stream {args.stream}")


async def _replay(js: JetStream, args: argparse.Namespace) -> Answer:
    from jetstream_handoff.dead_letters import DeadLetters
    from jetstream_handoff.replay import replay

    done = await replay(DeadLetters(js, args.stream, args.name), _selection(args, listing=False), args.into)
    lines = [f"{done.published} dead letters of {args.stream} are published again"]
    if done.found:
        lines[0] += f"; {done.found} had been by a replay that was killed"
    if done.unconfirmed:
        lines.append(
            f"{done.unconfirmed} are left: the ledger does not say that their messages were given up. "
            "Replay them with --unconfirmed"
        )
    lines += [f"dead letter {number} is left: {visible(reason)}" for number, reason in done.refused.items()]
    data = {
        "published": done.published,
        "found": done.found,
        "unconfirmed": done.unconfirmed,
        "refused": [{"number": number, "reason": reason} for number, reason in done.refused.items()],
    }
    return Answer(data, "\n".join(lines), REFUSED if done.refused else 0)


async def _doctor(settings: ConnectionSettings | JetStreamError, args: argparse.Namespace) -> Answer:
    from jetstream_handoff.doctor import Scope, examine
    from jetstream_handoff.versions import check_versions

    scope = Scope(args.stream, args.consumer, tuple(args.role or ()), args.subject)
    with _silent():
        sections = {
            "Versions": list(check_versions(_DISTRIBUTION, _PACKAGES)),
            **await examine(settings, scope),
            "Python of Spark's workers": await asyncio.to_thread(_of_spark),
        }
    found = [finding for findings in sections.values() for finding in findings]
    to_do = sum(finding.state == "to do" for finding in found)
    data = {title: [asdict(finding) for finding in findings] for title, findings in sections.items()}
    return Answer({"to_do": to_do, "sections": data}, _report(sections, to_do), TO_DO if to_do else 0)


def _of_spark() -> list[Finding]:
    from jetstream_handoff.findings import not_checked

    try:
        from pyspark_jetstream import interpreter
    except ImportError:
        return [not_checked("pyspark", "it is not installed here; only tasks that use Spark need it")]
    return list(interpreter.check())


@contextmanager
def _silent() -> Iterator[None]:
    """Keep what is logged below errors to itself: an examination asks for what may be refused, and reports it."""
    loggers = [logging.getLogger(name) for name in ("jetstream_client", "jetstream_handoff")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _report(sections: Mapping[str, list[Finding]], to_do: int) -> str:
    """One line for each finding, below the title of its section, and one that sums them up."""
    lines = []
    for title, findings in sections.items():
        lines.append(title)
        for finding in findings:
            mark, text = {
                "fine": (" ", "fine" + (f" ({finding.text})" if finding.text else "")),
                "to do": ("!", finding.text),
                "not checked": ("-", f"not checked: {finding.text}"),
            }[finding.state]
            lines.append(f"{mark} {visible(f'{finding.what}: {text}')}")
        lines.append("")
    missed = sum(finding.state == "not checked" for findings in sections.values() for finding in findings)
    lines.append(f"{to_do} to do, marked with !" if to_do else "Nothing to do.")
    if missed:
        lines[-1] += f"{',' if to_do else ''} {missed} not checked, marked with -"
    return "\n".join(lines)


def _unknown(claim_id: str) -> Answer:
    text = f"no claim {claim_id!r}: the ledger keeps what became of a claim for 90 days"
    return Answer({"id": claim_id, "state": None}, text, UNKNOWN)


def _selection(args: argparse.Namespace, *, listing: bool) -> Any:
    from jetstream_handoff.replay import Selection

    chosen = {
        "sequences": _ranges(args.sequences) if args.sequences else None,
        "subject": args.subject,
        "consumer": args.consumer,
        "reason": args.reason,
    }
    everything = args.everything if not listing else all(each is None for each in chosen.values())
    return Selection(everything=everything, unconfirmed=args.unconfirmed or listing, **chosen)


def _ranges(text: str) -> Sequences:
    from jetstream_client.sequences import Sequences

    try:
        ranges = [
            (int(first), int(last or first)) for first, _, last in (part.partition("-") for part in text.split(","))
        ]
    except ValueError:
        ranges = []
    if not ranges or any(not 0 < first <= last for first, last in ranges):
        raise InvalidValue("--sequences", text, "numbers and ranges of numbers, for example 7,10-20")
    return Sequences.from_ranges(ranges)


def _holder(seen: Seen) -> str:
    if not seen.holder:
        return "nobody"
    return seen.holder + {True: ", alive", False: ", not heard", None: ""}[seen.alive]


def age(seconds: float | None) -> str:
    """In words, such as ``3 minutes ago``. The clocks of this machine and the server may differ a little."""
    import pendulum

    if seconds is None:
        return ""
    return pendulum.now("UTC").subtract(seconds=max(0.0, seconds)).diff_for_humans(locale="en")


def duration(text: str) -> float:
    """Seconds, given as a number or as an ISO 8601 duration. Raises ValueError."""
    from airflow_nats_jetstream import times

    return float(text) if text.replace(".", "", 1).isdigit() else times.duration(text).total_seconds()


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def visible(text: str) -> str:
    """On one line and without control characters: what others wrote must not steer a terminal, nor look like a row."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _table(header: list[str], rows: list[list[str]]) -> str:
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows))
    return "\n".join(line.rstrip() for line in lines)


_ID = Argument("id", help="the claim's id, as `claims` and the task's log show it")
_LISTEN = Argument(
    "--listen",
    type=duration,
    default=0.0,
    metavar="DURATION",
    help="how long to listen for the heartbeats of attempts: seconds, or an ISO 8601 duration such as PT5S",
)
_LETTERS = (
    Argument("stream", help="the stream that the messages came from"),
    Argument("--name", help="the dead-letter stream, by default DEAD_<stream>"),
    Argument("--sequences", metavar="RANGES", help="of these messages only, for example 7,10-20"),
    Argument("--subject", help="whose original subject matches this filter"),
    Argument("--consumer", help="of this consumer"),
    Argument("--reason", help="whose reason contains this text"),
    flag("--unconfirmed", "also those of which the ledger does not say that their messages were given up"),
)
_DISTRIBUTION = "airflow-provider-nats-jetstream"
_PACKAGES = ("apache-airflow", "nats-py", "pyspark", "pyarrow")
COMMANDS: tuple[Command | Group, ...] = (
    Command(
        "doctor",
        "check versions, connection, permissions, ledger, consumers, clock and Spark's Python; nothing is changed",
        _doctor,
        (
            Argument("--stream", help="check this stream, and of its consumers those that the ledger knows"),
            Argument("--consumer", help="check this consumer, also if the ledger does not know it (with --stream)"),
            Argument(
                "--role",
                action="append",
                choices=ROLES,
                help="a role of this connection's user, may be repeated; by default sensor and processor",
            ),
            Argument("--subject", help="for the role publisher: a subject on which it publishes"),
        ),
        connects=False,
    ),
    Command(
        "claims",
        "list the open claims",
        _claims,
        (Argument("--stream", help="of this stream"), Argument("--consumer", help="of this consumer"), _LISTEN),
    ),
    Command("claim", "show one claim, open or not, and what happens to it next", _claim, (_ID, _LISTEN)),
    Command(
        "release",
        "let an open claim go: its messages are delivered again at once",
        _release,
        (_ID, flag("--yes", "also from an attempt that is alive: its work is stopped and does not count")),
    ),
    Group(
        "dead-letters",
        "messages that could not be processed",
        (
            Command("list", "list them", _dead_letters, _LETTERS),
            Command(
                "replay",
                "publish them to their original subjects again; every consumer of the stream gets them",
                _replay,
                (
                    *_LETTERS,
                    flag("--everything", "all of them"),
                    Argument("--into", metavar="STREAM", help="into this stream, by default the one they came from"),
                ),
            ),
        ),
    ),
)
