"""Run each scenario several times, and print what became of the messages: `make dagster-kills REPEAT=10`.

An argument selects the scenarios whose names contain it.
"""

import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.dagster_system.scenarios import SCENARIOS, WATCHED
from tests.dagster_system.world import World


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    repeat = int(os.environ.get("REPEAT", "10"))
    wanted = [name for name in SCENARIOS if all(word in name for word in sys.argv[1:])]
    failed = 0
    say(f"{'scenario':44}{'runs':>6}{'well':>6}{'seconds':>12}  measured")
    for name in wanted:
        took: list[float] = []
        measured: list[float] = []
        well = 0
        with tempfile.TemporaryDirectory() as folder, World(Path(folder), WATCHED.get(name, ())).running() as world:
            for _ in range(repeat):
                world.wait_for_runs()
                began = time.monotonic()
                try:
                    SCENARIOS[name](world)
                    well += 1
                except (AssertionError, TimeoutError):
                    traceback.print_exc()
                    world.keep(Path("build/dagster-kills") / name.replace(" ", "-").replace(",", ""))
                    break  # what is left of it would spoil the next one
                took.append(time.monotonic() - began)
                measured += world.measured.values()
        failed += well < repeat
        span = f"{min(took):.0f}-{max(took):.0f}" if took else ""
        shown = f"{min(measured):.1f}-{max(measured):.1f} s until released" if measured else ""
        say(f"{name:44}{repeat:6}{well:6}{span:>12}  {shown}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
