"""Ways of doing the same thing, timed in turn."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

ROUNDS = 5
LARGE = 5_000
"""Messages of the largest sensible ``fetch`` of nats-py: its subscription gets at most 128 MiB without being read."""
HEAD = """\
| Messages a second | this package | simple alternative | ratio | best alternative | ratio | required | of the limit |
|---|---|---|---|---|---|---|---|"""


@dataclass
class Comparison:
    """Rates in messages per second. A ratio is that of medians.

    baseline:  how most users would do it.
    best:      how somebody who knows the libraries well would do it; empty if the baseline already is that.
    limit:     a rate that no way can exceed.
    required, aim:  ratios to the baseline.
    """

    what: str
    required: float
    aim: float
    ours: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return statistics.median(self.ours) / statistics.median(self.baseline)

    def run(
        self,
        ours: Callable[[], int],
        baseline: Callable[[], int],
        limit: Callable[[], int] | None = None,
        best: Callable[[], int] | None = None,
    ) -> "Comparison":
        """Time functions that return how many messages they handled. The functions take turns, so that a slow moment of
        the machine affects all of them."""
        for _ in range(ROUNDS):
            self.baseline.append(rate(baseline))
            self.ours.append(rate(ours))
            if best:
                self.best.append(rate(best))
            if limit:
                self.limit.append(rate(limit))
        return self

    def row(self) -> str:
        """A row of :data:`HEAD`."""
        ours = statistics.median(self.ours)
        cells = [self.what, f"{ours:,.0f}"]
        for rates in (self.baseline, self.best):
            cells += [f"{(its := statistics.median(rates)):,.0f}", f"{ours / its:.2f}"] if rates else ["", ""]
        cells += [f"{self.required:g}", f"{ours / statistics.median(self.limit):.0%}" if self.limit else ""]
        return f"| {' | '.join(cells)} |"


def rate(work: Callable[[], int]) -> float:
    """Return the messages per second."""
    start = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - start)
