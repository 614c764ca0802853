# SPDX-License-Identifier: Apache-2.0
"""The log lines of the hand-off in the log of the run, where a person looks for them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Forward(logging.Handler):
    def __init__(self, log: logging.Logger) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.log(record.levelno, "%s", record.getMessage())


@contextmanager
def forwarded(log: logging.Logger) -> Iterator[None]:
    """Write the log lines of the client and the hand-off to a step's log until the end of the block."""
    handler = _Forward(log)
    names = ("jetstream_arrow", "jetstream_client", "jetstream_handoff", "pyspark_jetstream")
    sources = [logging.getLogger(name) for name in names]
    levels = [source.level for source in sources]
    for source in sources:
        source.addHandler(handler)
        source.setLevel(min(source.getEffectiveLevel(), logging.INFO))
    try:
        yield
    finally:
        for source, level in zip(sources, levels, strict=True):
            source.removeHandler(handler)
            source.setLevel(level)
