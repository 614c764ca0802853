"""The pipelines: their streams, their DAGs or Dagster definitions, and their connections."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

CONSUMER = "work"
KEYS = 7
"""How many keys the messages of a pipeline have."""


def key_of(number: int) -> int:
    """The key of the message with this number."""
    return number % KEYS


@dataclass(frozen=True)
class Pipeline:
    """One DAG, or one asset or job of Dagster, with a separate stream.

    servers:  a single server with one replica, or a cluster of three with three.
    proxied:  the pipeline connects through the proxy; the judge never does.
    ack_wait: seconds. With a short one the redelivery races with Airflow's retry, with a long one the retry wins.
    spark:    whether Spark reads and writes instead of the task's process.
    held:     whether an operator that knows nothing of claims does the work, and defers in its middle.
    runs:     how many runs of a DAG there are at the same time; two race for one consumer.
    dagster:  whether Dagster runs it: an asset of one claim for each run, or a job that drains the consumer.
    table:    the kind of table to which the work also appends, each message once.
    ordered:  whether the messages of each key are processed in order, in transactions of the table.
    query:    whether a streaming query of Spark that acknowledges does the work, which only appends to the table.
    """

    name: str
    servers: Literal["one", "three"]
    proxied: bool
    ack_wait: float
    spark: bool = False
    held: bool = False
    runs: int = 1
    dagster: Literal["", "asset", "drain"] = ""
    table: Literal["", "delta", "iceberg", "sql"] = ""
    ordered: bool = False
    query: bool = False

    @property
    def stream(self) -> str:
        return self.name.upper()

    @property
    def in_airflow(self) -> bool:
        return not self.dagster and not self.query

    @property
    def connection(self) -> str:
        return f"chaos_{self.servers}_proxied" if self.proxied else f"chaos_{self.servers}"

    @property
    def ledger(self) -> str:
        """The prefix of the ledger's buckets: the default of Airflow's connections, or of Dagster's resource."""
        return "jetstream" if self.dagster else "airflow"

    @property
    def place(self) -> tuple[str, str]:
        """The servers and the ledger, which an observer reads."""
        return self.servers, self.ledger

    @property
    def replicas(self) -> int:
        return 1 if self.servers == "one" else 3


PIPELINES = (
    Pipeline("one_direct", "one", proxied=False, ack_wait=8, runs=2, table="delta"),
    Pipeline("one_proxied", "one", proxied=True, ack_wait=6, table="sql"),
    Pipeline("three_direct", "three", proxied=False, ack_wait=8, runs=2, table="iceberg"),
    Pipeline("three_ordered", "three", proxied=False, ack_wait=8, runs=2, table="sql", ordered=True),
    Pipeline("three_proxied", "three", proxied=True, ack_wait=20),
    Pipeline("one_held", "one", proxied=True, ack_wait=8, held=True),
    Pipeline("three_held", "three", proxied=False, ack_wait=12, held=True, runs=2),
    Pipeline("three_spark", "three", proxied=False, ack_wait=12, spark=True),
    Pipeline("three_query", "three", proxied=False, ack_wait=8, table="delta", query=True),
    Pipeline("one_asset", "one", proxied=True, ack_wait=8, dagster="asset", table="delta"),
    Pipeline("three_drain", "three", proxied=False, ack_wait=12, dagster="drain"),
)


def write(pipelines: Iterable[Pipeline], file: Path) -> None:
    """For the DAG file and the Dagster definitions, which make a DAG, an asset or a job of each."""
    file.write_text(json.dumps([asdict(pipeline) for pipeline in pipelines]))


def read(file: Path) -> list[Pipeline]:
    """The reverse."""
    return [Pipeline(**each) for each in json.loads(file.read_text())]
