"""The pipelines: their streams, their DAGs, and their connections."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

CONSUMER = "work"


@dataclass(frozen=True)
class Pipeline:
    """One DAG with a separate stream.

    servers:  a single server with one replica, or a cluster of three with three.
    proxied:  Airflow connects through the proxy; the judge never does.
    ack_wait: seconds. With a short one the redelivery races with Airflow's retry, with a long one the retry wins.
    spark:    whether Spark reads and writes instead of the task's process.
    held:     whether an operator that knows nothing of claims does the work, and defers in its middle.
    runs:     how many runs there are at the same time; two race for one consumer.
    """

    name: str
    servers: Literal["one", "three"]
    proxied: bool
    ack_wait: float
    spark: bool = False
    held: bool = False
    runs: int = 1

    @property
    def stream(self) -> str:
        return self.name.upper()

    @property
    def connection(self) -> str:
        return f"chaos_{self.servers}_proxied" if self.proxied else f"chaos_{self.servers}"

    @property
    def replicas(self) -> int:
        return 1 if self.servers == "one" else 3


PIPELINES = (
    Pipeline("one_direct", "one", proxied=False, ack_wait=8, runs=2),
    Pipeline("one_proxied", "one", proxied=True, ack_wait=6),
    Pipeline("three_direct", "three", proxied=False, ack_wait=8, runs=2),
    Pipeline("three_proxied", "three", proxied=True, ack_wait=20),
    Pipeline("one_held", "one", proxied=True, ack_wait=8, held=True),
    Pipeline("three_held", "three", proxied=False, ack_wait=12, held=True, runs=2),
    Pipeline("three_spark", "three", proxied=False, ack_wait=12, spark=True),
)


def write(pipelines: Iterable[Pipeline], file: Path) -> None:
    """For the DAG file, which makes a DAG of each."""
    file.write_text(json.dumps([asdict(pipeline) for pipeline in pipelines]))


def read(file: Path) -> list[Pipeline]:
    """The reverse."""
    return [Pipeline(**each) for each in json.loads(file.read_text())]
