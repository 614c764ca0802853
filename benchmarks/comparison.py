"""Two ways of doing the same thing, timed in turn."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

ROUNDS = 3


@dataclass
class Comparison:
    """Rates in messages per second. The ratio is that of the medians. ``limit`` is a rate that no way can exceed."""

    what: str
    required: float
    aim: float
    ours: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return statistics.median(self.ours) / statistics.median(self.baseline)

    def run(
        self, ours: Callable[[], int], baseline: Callable[[], int], limit: Callable[[], int] | None = None
    ) -> "Comparison":
        """Time functions that return how many messages they handled. The functions take turns, so that a slow moment of
        the machine affects all of them."""
        for _ in range(ROUNDS):
            self.baseline.append(rate(baseline))
            self.ours.append(rate(ours))
            if limit:
                self.limit.append(rate(limit))
        return self

    def __str__(self) -> str:
        share = statistics.median(self.ours) / statistics.median(self.limit) if self.limit else 0
        of_the_limit = f"; {share:.0%} of the limit" if self.limit else ""
        return (
            f"{self.what}: {statistics.median(self.ours):,.0f}/s against {statistics.median(self.baseline):,.0f}/s, "
            f"{self.ratio:.2g} times (required {self.required:g}, aim {self.aim:g}){of_the_limit}"
        )


def rate(work: Callable[[], int]) -> float:
    """Return the messages per second."""
    start = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - start)
