"""What a driver has done, and when: a file of JSON lines for each try, which outlives a kill."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FINISHED = "finished"


@dataclass(frozen=True)
class Step:
    """The end of a step of a driver.

    name:     what ended: `spark`, `taken`, `held`, `worked`, `settled` or `finished`.
    at:       when it ended, in seconds since 1970.
    seconds:  how long it took.
    claim:    the id of the claim; empty for a step of all claims.
    claims:   for `taken`, the size of each claim's JSON in bytes, by the claim's id.
    """

    name: str
    at: float
    seconds: float
    claim: str = ""
    count: int = 0
    claims: dict[str, int] | None = None


class Journal:
    """Writes the steps of one driver. A driver does one step after the other."""

    def __init__(self, folder: Path, try_number: int) -> None:
        self._file = folder / f"try-{try_number}.jsonl"
        self._last = time.time()

    def note(self, name: str, **values: Any) -> None:
        """Write that a step has ended, which began at the end of the previous one."""
        before, self._last = self._last, time.time()
        with self._file.open("a") as file:
            file.write(json.dumps({"name": name, "at": self._last, "seconds": self._last - before, **values}) + "\n")


def steps(folder: Path) -> list[Step]:
    """Return the steps of all tries, in their order. A line that a killed driver has not completed is left out."""
    texts = [file.read_text() for file in sorted(folder.glob("try-*.jsonl"))]
    return [Step(**json.loads(line)) for text in texts for line in text.rpartition("\n")[0].splitlines()]
