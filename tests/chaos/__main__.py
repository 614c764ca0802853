"""`python -m tests.chaos --seed 1`: 200 strikes on real pipelines in at most 40 minutes, and a report."""

import json
import signal
import sys
from argparse import ArgumentParser
from pathlib import Path

from tests.chaos.broken import BREAKS
from tests.chaos.run import Run

FOLDER = Path(__file__).parent.parent.parent / "build" / "chaos"


def main() -> int:
    parser = ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="decides strikes, targets, pauses and messages")
    parser.add_argument("--minutes", type=float, default=40, help="for everything, recovery included")
    parser.add_argument("--strikes", type=int, default=200)
    parser.add_argument("--break", dest="breaking", choices=BREAKS, default="", help="break settlement on purpose")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    run = Run(FOLDER, seed=asked.seed, strikes=asked.strikes, minutes=asked.minutes, breaking=asked.breaking)
    report = run()
    print(json.dumps(report, indent=1))
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
