# SPDX-License-Identifier: Apache-2.0
"""The lag of every consumer of a ledger, as numbers for metrics and for alerts. No I/O: an overview contains them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jetstream_handoff.watch.view import Overview, Symptom


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLag:
    """How far a consumer is behind its stream. A number that is unknown is None.

    stream, consumer:  the names.
    pending:           number of messages that were never delivered.
    unacknowledged:    number of messages that were delivered and are not acknowledged, including those in claims.
    open_claims:       number of open claims.
    held_claims:       number of open claims that an attempt holds.
    dead_letters:      number of its dead letters; if not all of them could be counted, of those that were.
    oldest_seconds:    for how many seconds the oldest message has waited that is neither acknowledged nor in a claim at
                       work, from when the stream stored it; 0 if no message waits.
    barrier_claims:    with ``ordered_by``, number of open claims that the next batch waits for; 0 without.
    barrier_seconds:   for how many seconds the oldest of these claims has been open while messages wait for the next
                       batch; 0 if none wait.
    stopped_keys:      number of keys that have stopped (``on_poison="stop_key"``).
    errors, warnings:  number of findings about the consumer, the same as on the page *JetStream*.
    unknown:           how many of the numbers are unknown or incomplete.
    """

    stream: str
    consumer: str
    pending: int | None
    unacknowledged: int | None
    open_claims: int | None
    held_claims: int | None
    dead_letters: int | None
    oldest_seconds: float | None
    barrier_claims: int | None
    barrier_seconds: float | None
    stopped_keys: int | None
    errors: int
    warnings: int
    unknown: int

    @property
    def names(self) -> tuple[str, str]:
        """The names of the stream and of the consumer."""
        return self.stream, self.consumer

    @property
    def numbers(self) -> dict[str, int | float]:
        """The numbers that are known, by the names of the fields."""
        known = asdict(self)
        return {name: known[name] for name in NUMBERS if known[name] is not None}


NUMBERS = tuple(name for name in ConsumerLag.__slots__ if name not in ("stream", "consumer"))
"""The names of the fields that are numbers."""


def lags(overview: Overview) -> Iterator[ConsumerLag]:
    """Return the lag of each consumer.

    overview:  what a :class:`~jetstream_handoff.watch.overview.Survey` with ``ages`` has seen.
    """
    for stream in overview.streams:
        counted = stream.dead_letters.complete
        for view in stream.consumers:
            errors, warnings = levels(view.findings)
            barrier, blind = view.barrier, view.info is None or view.record is None
            lag = ConsumerLag(
                stream=view.stream,
                consumer=view.consumer,
                pending=None if view.info is None else view.info.pending,
                unacknowledged=None if view.info is None else view.info.ack_pending,
                open_claims=None if view.record is None else view.open,
                held_claims=None if view.record is None else view.held,
                dead_letters=view.dead_letters if counted or view.dead_letters else None,
                oldest_seconds=view.waited,
                barrier_claims=None if blind else len(barrier.blocking) if barrier else 0,
                barrier_seconds=None if blind else barrier.age if barrier and barrier.waiting else 0.0,
                stopped_keys=None if view.record is None else view.stopped.count if view.stopped else 0,
                errors=errors,
                warnings=warnings,
                unknown=int(not counted and view.dead_letters > 0),
            )
            yield replace(lag, unknown=lag.unknown + len(NUMBERS) - len(lag.numbers))


def levels(findings: Iterable[Symptom]) -> tuple[int, int]:
    """Return how many of the findings are errors, and how many are warnings."""
    found = [symptom.level for symptom in findings]
    return found.count("error"), found.count("warning")
