# SPDX-License-Identifier: Apache-2.0
"""The commands of ``python -m jetstream_handoff``, with a ``doctor`` that also examines Spark's Python: ``python -m
pyspark_jetstream``."""

import sys

from jetstream_handoff.command_line.parser import CommandLine
from jetstream_handoff.command_line.settings import CONNECT, settings
from jetstream_handoff.command_line.table import commands
from pyspark_jetstream import interpreter

if __name__ == "__main__":
    members = commands(("cryptography", "pyspark", "pyarrow"), {"Python of Spark's workers": interpreter.check})
    sys.exit(CommandLine(members, CONNECT, settings).main("python -m pyspark_jetstream"))
