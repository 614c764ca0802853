# SPDX-License-Identifier: Apache-2.0
"""The commands: examine a setup, list open claims, show and release a claim, list, replay and discard dead letters.

:mod:`~jetstream_handoff.command_line.table` has their names and arguments, and
:mod:`~jetstream_handoff.command_line.output` what they print. Importing this file loads no connection.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import InvalidValue
from jetstream_handoff.command_line.output import (
    Answer,
    claim_text,
    claims_text,
    letters_table,
    report,
    short,
    visible,
)

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.errors import JetStreamError
    from jetstream_client.sequences import Sequences
    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.letters.dead_letters import DeadLetters
    from jetstream_handoff.letters.selection import Selection
    from jetstream_handoff.repair.release import Which
    from jetstream_handoff.watch.findings import Finding
    from jetstream_handoff.watch.stopped import StoppedKeys

TO_DO = 1
"""The exit code of ``doctor`` if it found something to do."""
UNKNOWN, REFUSED = 3, 4
"""Exit codes for an unknown claim, and for a request that was refused because it is impossible or needs ``--yes``."""

_DISTRIBUTION = "airflow-provider-nats-jetstream"


async def list_claims(js: JetStream, args: argparse.Namespace) -> Answer:
    """List the open claims."""
    from jetstream_handoff.watch import inspection
    from jetstream_handoff.watch.stopped import stopped_in

    looked = await inspection.look_at(js, args.stream, args.consumer, whatever_can_be_read=True)
    found = inspection.oldest_first(looked)
    if not looked:
        await inspection.check_known(js, args.stream, args.consumer)
    if args.listen:
        found = await inspection.listen(js, found, args.listen)
    of = [f"{kind} {name}" for kind, name in (("consumer", args.consumer), ("stream", args.stream)) if name]
    text = claims_text(found) if found else " of ".join(["There are no open claims", *of])
    stopped = stopped_in((ledger, record) for ledger, record, _ in looked)
    return Answer([inspection.plain(seen) for seen in found], text + _below(js, stopped))


async def show_claim(js: JetStream, args: argparse.Namespace) -> Answer:
    """Show one claim, open or not, and its next change if nobody intervenes."""
    from jetstream_handoff.watch import inspection

    seen = await inspection.find(js, args.id)
    if seen is None:
        return _unknown(args.id)
    if args.listen:
        (seen,) = await inspection.listen(js, [seen], args.listen)
    return Answer(inspection.plain(seen), claim_text(seen))


async def release_claims(js: JetStream, args: argparse.Namespace) -> Answer:
    """Release one open claim, or all open claims that are selected."""
    from jetstream_handoff.repair.release import Which
    from jetstream_handoff.words import words_of

    which = Which(args.stream or "", args.consumer or "", args.pipeline or "", args.run_id or "")
    if (args.id is None) == (which == Which()):
        pipeline = f"--{words_of(js.settings).pipeline.lower()}"
        remedy = f"either give the id of a claim, or select claims with --stream, --consumer, {pipeline} or --run"
        raise InvalidValue("id", args.id, remedy)
    return await _release_one(js, args) if which == Which() else await _release_selected(js, args, which)


async def _release_selected(js: JetStream, args: argparse.Namespace, which: Which) -> Answer:
    """Release all selected claims; without ``--yes`` only say in numbers what would be released."""
    from jetstream_client.quantities import number
    from jetstream_handoff.repair.release import chosen, described, release_all
    from jetstream_handoff.watch import inspection

    found = await chosen(js, which)
    if not found:
        return Answer({"released": 0, "selected": 0}, "There are no open claims to release.")
    if not args.yes:
        if held := [seen for seen in found if seen.holder]:
            found = await inspection.listen(js, found, max(seen.silence for seen in held))
        data = {"released": 0, "selected": len(found), "claims": [inspection.plain(seen) for seen in found]}
        return Answer(data, f"This would release {visible(described(found))} To release them, add --yes.", REFUSED)
    done = await release_all(js, found)
    messages = number(sum(seen.sequences.count for seen in done.claims), "message")
    text = f"Released: {number(len(done.claims), 'claim')}. Their {messages} are redelivered to the next take."
    if done.changed:
        ids = ", ".join(seen.id for seen in done.changed)
        text += f" Not released, because their state changed in the meantime: {ids}."
    data = {"released": len(done.claims), "selected": len(found), "changed": [seen.id for seen in done.changed]}
    return Answer(data, text, REFUSED if done.changed else 0)


async def _release_one(js: JetStream, args: argparse.Namespace) -> Answer:
    """Release an open claim, unless its attempt is alive; with ``--yes`` in any case."""
    from jetstream_handoff.errors import HolderAlive
    from jetstream_handoff.repair import release
    from jetstream_handoff.watch import inspection

    seen = await inspection.find(js, args.id)
    if seen is None:
        return _unknown(args.id)
    if seen.entry is None:
        text = f"Claim {seen.id} is not open, so there is nothing to release. {seen.next}"
        return Answer({"released": False, **inspection.plain(seen)}, visible(text), REFUSED)
    if seen.entry.token and not args.yes:
        (seen,) = await inspection.listen(js, [seen], seen.silence)
        try:
            release.check_holders([seen], f"add --yes: {release.STOPPED}")
        except HolderAlive as alive:
            text = f"{str(alive)[:1].upper()}{str(alive)[1:]}."
            return Answer({"released": False, **inspection.plain(seen)}, visible(text), REFUSED)
    await release.release(js, seen)
    return Answer({"released": True, "id": seen.id, "count": seen.sequences.count}, release.told(seen))


async def change_ledger(js: JetStream, args: argparse.Namespace) -> Answer:
    """Give a consumer to the ledger of the connection; without ``--yes`` only say which ledger it belongs to."""
    from jetstream_client.quantities import number
    from jetstream_handoff.repair.transfer import plan, transfer

    found = await (transfer if args.yes else plan)(js, args.stream, args.consumer)
    data = {"before": found.before, "open": found.open, "unacknowledged": found.unacknowledged}
    named = f"Consumer {found.consumer} of stream {found.stream}"
    belongs = f"belongs to ledger {found.before!r}" if found.before else "is not marked as belonging to a ledger"
    if found.before == found.after:
        return Answer({**data, "changed": False}, f"{named} {belongs}, which this connection has.")
    if not found.possible:
        text = (
            f"{named} {belongs}: {number(found.open, 'claim')} {'is' if found.open == 1 else 'are'} open in ledger "
            f"{found.before!r}, and {number(found.unacknowledged, 'message')} are unacknowledged. Ledger "
            f"{found.after!r} would process them again. Stop taking with ledger {found.before!r}, let its tasks settle "
            "their claims or release them, and try again."
        )
        return Answer({**data, "changed": False}, text, REFUSED)
    if not args.yes:
        text = f"{named} {belongs}. To give it to ledger {found.after!r}, add --yes."
        return Answer({**data, "changed": False}, text, REFUSED)
    return Answer({**data, "changed": True}, f"{named} now belongs to ledger {found.after!r}.")


async def end_reservation(js: JetStream, args: argparse.Namespace) -> Answer:
    """Show for which reader a consumer is reserved; with ``--yes`` end the reservation."""
    from jetstream_handoff.ledger.ledger import Ledger
    from jetstream_handoff.repair import reservation

    ledger = Ledger(js, args.stream, args.consumer)
    named = f"Consumer {args.consumer} of stream {args.stream}"
    if (found := await reservation.reserved(ledger)) is None:
        await ledger.info()  # its name may be wrong
        return Answer({"reader": None, "ended": False}, f"{named} is not reserved: everybody may take from it.")
    data = {**found.to_json(), "ended": False}
    reserved = (
        f"{named} is reserved for reader {found.reader} (a streaming query), whose last run began at {found.at}, and "
        f"whose checkpoint has committed {found.batch} batches."
    )
    if not args.yes:
        return Answer(data, f"{reserved} To end the reservation, stop the query and add --yes.")
    if not await reservation.end(ledger, found):
        return Answer(data, f"{named} is reserved for another reader by now. Nothing was changed.", REFUSED)
    return Answer({**data, "ended": True}, f"{named} is no longer reserved for reader {found.reader}.")


async def list_dead_letters(js: JetStream, args: argparse.Namespace) -> Answer:
    """List dead letters, and messages of the dead-letter stream that are not dead letters."""
    from jetstream_handoff.letters.dead_letters import DeadLetters
    from jetstream_handoff.letters.selection import select
    from jetstream_handoff.watch.stopped import stopped_keys

    data, rows = [], []
    async for stub in select(DeadLetters(js, args.stream, args.name), _selection(args, listing=True)):
        letter, at = stub.head, stub.stored_at
        if letter is None:
            data.append({"number": stub.number, "since": at, "confirmed": False, "problem": stub.problem})
            why = f"not a dead letter: {stub.problem}"
            rows.append([str(stub.number), *[""] * 3, at[:19] + "Z", "", "", "no", why])
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
            "confirmed": stub.confirmed,
        }
        data.append(shown)
        row = [letter.number, letter.sequence, letter.subject, letter.consumer, letter.stored_at[:19] + "Z"]
        row += [letter.failures, letter.claim_id, "yes" if stub.confirmed else "no", short(letter.reason, 60)]
        rows.append([str(each) for each in row])
    text = letters_table(rows) if rows else f"No dead letters of stream {args.stream} were found"
    return Answer(data, text + _below(js, await stopped_keys(js, args.stream, args.consumer)))


async def replay_dead_letters(js: JetStream, args: argparse.Namespace) -> Answer:
    """Publish dead letters to their original subjects again; without ``--sequences`` only if ``--yes`` is given,
    otherwise only say how many would be published."""
    from jetstream_handoff.letters.dead_letters import DeadLetters
    from jetstream_handoff.letters.replay import replay, target_of

    letters, selection = DeadLetters(js, args.stream, args.name), _selection(args, listing=False)
    if not args.sequences and not args.yes:
        target = await target_of(letters, args.into)
        does = f"be published to stream {target.name} again, where every consumer whose filter matches receives them"
        return await _preview(letters, selection, "published", f"would {does}. To replay them, add --yes.")
    done = await replay(letters, selection, args.into)
    lines = [f"{done.published} dead letters of stream {args.stream} were published again."]
    if done.found:
        lines[0] += f" {done.found} more had already been published by a replay that was killed."
    if done.unconfirmed:
        lines.append(
            f"{done.unconfirmed} dead letters were not replayed, because the ledger does not confirm that their "
            "messages were given up. To replay them, add --unconfirmed."
        )
    data = {"published": done.published, "found": done.found, "unconfirmed": done.unconfirmed}
    return _with_refused(data, lines, done.refused, "was not replayed")


async def discard_dead_letters(js: JetStream, args: argparse.Namespace) -> Answer:
    """Discard dead letters; without ``--yes`` only say how many would be discarded."""
    from jetstream_handoff.letters.dead_letters import DeadLetters
    from jetstream_handoff.letters.discard import discard

    letters, selection = DeadLetters(js, args.stream, args.name), _selection(args, listing=False)
    if not args.yes:
        does = "would be discarded. To delete their payloads for good, add --yes."
        return await _preview(letters, selection, "discarded", does)
    done = await discard(letters, selection)
    lines = [f"{done.count} dead letters of stream {args.stream} were discarded."]
    if done.unconfirmed:
        lines.append(
            f"{done.unconfirmed} dead letters were kept, because the ledger does not confirm that their messages were "
            "given up. To discard them, add --unconfirmed."
        )
    data = {"discarded": done.count, "unconfirmed": done.unconfirmed}
    return _with_refused(data, lines, done.refused, "was kept")


async def resume_keys(js: JetStream, args: argparse.Namespace) -> Answer:
    """Replay the dead letters of stopped keys in order, and let the keys go on."""
    from jetstream_handoff.letters.dead_letters import DeadLetters
    from jetstream_handoff.repair.resume import resume

    done = await resume(DeadLetters(js, args.stream, args.name), args.consumer, patience=args.wait)
    keys = f"{done.keys} {'key goes' if done.keys == 1 else 'keys go'} on"
    text = f"{done.published} dead letters of stream {args.stream} were published again, and {keys}."
    if not done.keys:
        text = f"No key of stream {args.stream}, consumer {args.consumer}, is stopped."
    return Answer({"keys": done.keys, "published": done.published}, text)


def _below(js: JetStream, stopped: Iterable[StoppedKeys]) -> str:
    """What to print below a list: a line for each consumer with keys that have stopped."""
    from jetstream_handoff.words import words_of

    return "".join(f"\n\n{visible(keys.text(words_of(js.settings)))}" for keys in stopped)


async def _preview(letters: DeadLetters, selection: Selection, done: str, does: str) -> Answer:
    """Say in numbers what would be done to the selected dead letters, without doing it.

    done:  what did not become of them, as the name of a number.
    does:  what would be done, and how to have it done.
    """
    from jetstream_handoff.letters.extent import Extent
    from jetstream_handoff.letters.selection import select

    extent = Extent(unconfirmed=selection.unconfirmed)
    async for each in select(letters, replace(selection, unconfirmed=True)):
        if each.head is not None:
            extent = extent.plus(each.head.size, confirmed=each.confirmed)
    data = {done: 0, "selected": extent.count, "bytes": extent.size, "unconfirmed": extent.doubtful}
    return Answer(data, f"{extent} of stream {letters.source.name} {does}{extent.doubt}", REFUSED)


def _with_refused(data: dict[str, Any], lines: list[str], refused: Mapping[int, str], kept: str) -> Answer:
    """Return the answer of a command that may leave out some dead letters.

    refused:  for the number of each of them, the reason.
    kept:     what happened to each of them, in words.
    """
    lines += [f"Dead letter {number} {kept}: {visible(why)}" for number, why in refused.items()]
    listed = [{"number": number, "reason": reason} for number, reason in refused.items()]
    return Answer({**data, "refused": listed}, "\n".join(lines), REFUSED if refused else 0)


async def check_setup(
    settings: ConnectionSettings | JetStreamError,
    args: argparse.Namespace,
    packages: Iterable[str],
    checks: Mapping[str, Callable[[], Iterable[Finding]]],
) -> Answer:
    """Check the versions and the server, and run the program's own checks. Nothing is changed.

    settings:  the settings, or the error that makes them unusable.
    args:      the parsed arguments.
    packages:  names of the packages whose versions are checked.
    checks:    more checks, each below the title of its section.
    """
    from jetstream_handoff.watch.doctor import Scope, examine
    from jetstream_handoff.watch.versions import check_versions

    scope = Scope(args.stream, args.consumer, tuple(args.role or ()), args.subject)
    with _silent():
        sections = {
            "Versions": list(check_versions(_DISTRIBUTION, packages)),
            **await examine(settings, scope),
            **{title: await asyncio.to_thread(list, check()) for title, check in checks.items()},
        }
    found = [finding for findings in sections.values() for finding in findings]
    to_do = sum(finding.state == "to do" for finding in found)
    data = {title: [asdict(finding) for finding in findings] for title, findings in sections.items()}
    return Answer({"to_do": to_do, "sections": data}, report(sections, to_do), TO_DO if to_do else 0)


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress log lines below ERROR: the doctor sends requests that may be refused, and reports refusals itself."""
    loggers = [logging.getLogger(name) for name in ("jetstream_client", "jetstream_handoff")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _unknown(claim_id: str) -> Answer:
    text = f"The ledger has no claim {claim_id!r}. After a claim has ended, the ledger keeps it for 90 days."
    return Answer({"id": claim_id, "state": None}, text, UNKNOWN)


def _selection(args: argparse.Namespace, *, listing: bool) -> Any:
    from jetstream_handoff.letters.selection import Selection

    chosen = {
        "sequences": _ranges(args.sequences) if args.sequences else None,
        "subject": args.subject,
        "consumer": args.consumer,
        "reason": args.reason,
    }
    conditions = any(each is not None for each in chosen.values())
    if not listing and args.everything == conditions:
        remedy = (
            "either give at least one of --sequences, --subject, --consumer and --reason, or add --everything to "
            "select all dead letters"
        )
        raise InvalidValue("--everything", args.everything, remedy)
    everything = not conditions if listing else args.everything
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
        raise InvalidValue("--sequences", text, "give sequences and ranges of sequences, for example 7,10-20")
    return Sequences.from_ranges(ranges)
