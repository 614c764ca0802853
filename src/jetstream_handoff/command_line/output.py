# SPDX-License-Identifier: Apache-2.0
"""What the commands print: tables, claims, and the report of the doctor.

Importing this file loads no connection.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jetstream_handoff.watch.timeline import milestones

if TYPE_CHECKING:
    from jetstream_handoff.watch.findings import Finding
    from jetstream_handoff.watch.seen import Seen


@dataclass(frozen=True)
class Answer:
    """The result of a command.

    data:  the result for ``--json``.
    text:  the result for people.
    code:  the exit code. Default 0.
    """

    data: Any
    text: str
    code: int = 0


def claims_text(found: Sequence[Seen]) -> str:
    """Return open claims as a table, and below it what the next batches of consumers with ``ordered_by`` wait for."""
    waits = {(seen.stream, seen.consumer): seen.barrier.text for seen in found if seen.barrier}
    below = [f"The next batch of consumer {each[1]} of stream {each[0]} {text}." for each, text in waits.items()]
    return "\n\n".join([_claims_table(found), *map(visible, below)])


def _claims_table(found: Sequence[Seen]) -> str:
    header = ["CLAIM", "STREAM", "CONSUMER", "MESSAGES", "SEQUENCES", "SINCE", "TAKEN", "HELD BY", "TAKEN BY"]
    rows = [
        [
            seen.id,
            seen.stream,
            seen.consumer,
            f"{seen.sequences.count:,}",
            short(str(seen.sequences), 32),
            seen.since[:19] + "Z",
            age(seen.age),
            _holder(seen),
            seen.entry.taken_by if seen.entry else "",
        ]
        for seen in found
    ]
    return _table(header, rows)


def claim_text(seen: Seen) -> str:
    """Return a claim in lines, each with a name, and its history."""
    lines = {
        "claim": seen.id,
        "state": seen.state,
        "consumer": f"{seen.consumer} of stream {seen.stream}",
        "messages": f"{seen.sequences.count:,} (sequences {seen.sequences})",
    }
    if times := seen.history.stored_at:
        lines["stored"] = " to ".join(dict.fromkeys(times))
    if seen.since:
        lines["taken" if seen.entry else "ended"] = f"{seen.since} ({age(seen.age)})"
    if seen.entry:
        lines["taken by"] = seen.entry.taken_by
        lines["held by"] = _holder(seen)
        if seen.why_unsettled:
            lines["note"] = seen.why_unsettled
    if seen.receipt and seen.receipt.state == "done":
        lines["settled by"] = seen.receipt.attempt_id
        lines["value"] = json.dumps(seen.receipt.value)
        if seen.receipt.rejected:
            lines["dead letters"] = str(seen.receipt.rejected)
        if seen.receipt.skipped:
            lines["skipped"] = str(seen.receipt.skipped)
    if seen.info:
        info = seen.info
        lines["consumer now"] = (
            f"{info.counter} deliveries up to sequence {info.delivered}; all messages are acknowledged up to sequence "
            f"{info.floor}; messages: {info.ack_pending} unacknowledged, {info.pending} pending; "
            f"{info.raw['num_waiting']} pull requests waiting; ack_wait {info.config['ack_wait'] / 1e9:g} s"
        )
    else:
        lines["consumer now"] = "does not exist"
    lines["next"] = seen.next
    if seen.entry and seen.entry.token and seen.alive is None:
        lines["next"] += f" To see whether the attempt is alive, add `--listen {math.ceil(seen.silence)}`."
    rows = [*lines.items(), *_history(seen)]
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"{name:<{width}}{visible(value)}" for name, value in rows)


def _history(seen: Seen) -> Iterator[tuple[str, str]]:
    """One line for each step in the life of a claim."""
    for position, step in enumerate(milestones(seen)):
        yield "" if position else "history", f"{step.at[:19] + 'Z' if step.at else 'unknown time':<20}  {step.text}"
    if seen.overlapping:
        yield "", f"{'now':<20}  Open claims contain its messages: {', '.join(seen.overlapping)}."


def letters_table(rows: list[list[str]]) -> str:
    """Return dead letters as a table."""
    header = ["NUMBER", "MESSAGE", "SUBJECT", "CONSUMER", "SINCE", "FAILED", "CLAIM", "CONFIRMED", "REASON"]
    return _table(header, rows)


def report(sections: Mapping[str, list[Finding]], to_do: int) -> str:
    """Return one line for each finding, below the title of its section, and a summary."""
    lines = []
    for title, findings in sections.items():
        lines.append(title)
        for finding in findings:
            mark, text = {
                "fine": (" ", "fine" + (f" ({finding.text})" if finding.text else "")),
                "to do": ("!", finding.text),
                "advice": ("~", finding.text),
                "not checked": ("-", f"not checked: {finding.text}"),
            }[finding.state]
            lines.append(f"{mark} {visible(f'{finding.what}: {text}')}")
        lines.append("")
    states = Counter(finding.state for findings in sections.values() for finding in findings)
    lines.append(f"To do: {to_do} (marked with !)." if to_do else "Nothing to do.")
    if advised := states["advice"]:
        lines[-1] += f" Advice: {advised} (marked with ~)."
    if missed := states["not checked"]:
        lines[-1] += f" Not checked: {missed} (marked with -)."
    return "\n".join(lines)


def _holder(seen: Seen) -> str:
    if not seen.holder:
        return "nobody" + (f" ({seen.unsettled} times unsettled)" if seen.why_unsettled else "")
    return seen.holder + {True: ", alive", False: ", no heartbeat", None: ""}[seen.alive]


def age(seconds: float | None) -> str:
    """Return an age in words, such as ``3 minutes ago``.

    seconds:  the age. It can be slightly negative, because the clocks of this machine and of the server may differ.
    """
    import pendulum

    if seconds is None:
        return ""
    return pendulum.now("UTC").subtract(seconds=max(0.0, seconds)).diff_for_humans(locale="en")


def short(text: str, width: int) -> str:
    """Return a text, shortened to ``width`` characters."""
    return text if len(text) <= width else text[: width - 1] + "…"


def visible(text: str) -> str:
    """Return a text with its line breaks and control characters escaped.

    Text from the server must not control the terminal, and must not look like another row of the output.

    text:  the text.
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _table(header: list[str], rows: list[list[str]]) -> str:
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (header, *rows))
    return "\n".join(line.rstrip() for line in lines)
