"""What the large job took, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.large.journal import Step
    from benchmarks.large.observer import Observer
    from benchmarks.large.strikes import Kill

STAGES = {"spark": "start Spark", "taken": "take", "held": "hold", "worked": "work", "settled": "settle"}
REST = "anything else: killed attempts, starts and ends of drivers"


@dataclass(frozen=True)
class Report:
    """A finished job.

    messages:    how many there are.
    publishing:  how many seconds it took to publish them.
    working:     how many seconds all other stages took together.
    disk:        bytes, by what they are.
    """

    messages: int
    publishing: float
    working: float
    steps: Sequence[Step]
    kills: Sequence[Kill]
    disk: Mapping[str, int]
    observer: Observer

    def __str__(self) -> str:
        tables = {
            "stage | seconds | share | messages/s": self._stages(),
            "memory | processes | largest, MiB | largest sum, MiB": self._memory(),
            "size | most | at the end": self._sizes(),
            "killed | worked on before, s | until settled, s | pause, s | attempts": self._kills(),
            "attempts of a claim | claims": self._often(),
        }
        return "\n".join(line for head, rows in tables.items() for line in _table(head, rows))

    @property
    def _attempts(self) -> Counter[str]:
        """How many attempts have begun to work on each claim."""
        return Counter(step.claim for step in self.steps if step.name == "held")

    def _stages(self) -> Iterator[Sequence[str]]:
        whole = self.publishing + self.working
        seconds = {"publish": self.publishing}
        for name, stage in STAGES.items():
            seconds[stage] = sum(step.seconds for step in self.steps if step.name == name)
        seconds |= {REST: whole - sum(seconds.values()), "whole": whole}
        for stage, its in seconds.items():
            rate = "" if stage in {REST, STAGES["spark"]} else f"{self.messages / its:,.0f}"
            yield stage, f"{its:.1f}", f"{its / whole:.1%}", rate

    def _memory(self) -> Iterator[Sequence[str]]:
        for role, peak in sorted(self.observer.memory.items()):
            yield role, str(peak.count), f"{peak.one / 2**20:,.0f}", f"{peak.total / 2**20:,.0f}"

    def _sizes(self) -> Iterator[Sequence[str]]:
        for what, size in self.disk.items():
            yield what, f"{size:,} B", ""
        takes = [step.claims for step in self.steps if step.claims]
        claims = {claim: size for each in takes for claim, size in each.items()}
        yield f"{len(claims)} claims of {len(takes)} takes, as JSON", f"{sum(claims.values()):,} B", ""
        for bucket, peak in self.observer.ledger.items():
            last = f"{peak.last_count} messages, {peak.last:,} B"
            yield f"bucket {bucket}", f"{peak.count} messages, {peak.total:,} B", last

    def _kills(self) -> Iterator[Sequence[str]]:
        """For each kill how long its claim was worked on before, how long it took from then until the claim was
        settled, and how much longer this claim and the next one took than two usual claims: the pause of the work."""
        began = {step.claim: step.at for step in reversed(self.steps) if step.name == "held"}
        ended = {step.claim: step.at for step in self.steps if step.name == "settled"}
        took = [after - before for before, after in pairwise([min(began.values()), *ended.values()])]
        for kill in self.kills:
            number = [*ended].index(kill.claim)
            disturbed = took[number : number + 2]
            pause = sum(disturbed) - len(disturbed) * median(took)
            seconds = (kill.at - began[kill.claim], ended[kill.claim] - kill.at, pause)
            yield kill.what, *(f"{each:.1f}" for each in seconds), str(self._attempts[kill.claim])

    def _often(self) -> Iterator[Sequence[str]]:
        for attempts, claims in sorted(Counter(self._attempts.values()).items()):
            yield str(attempts), str(claims)


def _table(head: str, rows: Iterator[Sequence[str]]) -> Iterator[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if lines:
        yield from ("", f"| {head} |", f"|{'---|' * len(head.split(' | '))}", *lines)
