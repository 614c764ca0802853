"""The results of the demo, according to the stream, the consumer, the ledger and the table.

Everything is read with nats-py and with plain selects of Delta Lake. Nothing comes from this project's client.
"""

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

STREAM, CONSUMER = "FLIGHTS", "delays"
CHECK = "select count(*) as rows, count(distinct _sequence) as sequences from departures"
DELAYS = """
select carrier, count(*) as flights, count(*) - count(dep_time) as cancelled, avg(dep_delay) as mean_dep_delay
from departures group by carrier order by flights desc, carrier
"""
"""Flights without a departure time are cancelled. The mean delay, in minutes, is that of the flights whose delay is
known."""


@dataclass(frozen=True)
class Counts:
    """The state of stream, consumer and ledger at one moment. Counts are 0 for things that do not exist yet."""

    messages: int = 0
    pending: int = 0
    ack_pending: int = 0
    receipts: tuple[dict[str, Any], ...] = ()
    """The ledger's receipts of this consumer, each with its claim's `id`. docs/handoff.md describes their format."""

    @property
    def done(self) -> list[dict[str, Any]]:
        return [receipt for receipt in self.receipts if receipt["state"] == "done"]

    @property
    def settled_twice(self) -> int:
        """Number of sequences that are in more than one done receipt."""
        edges: list[tuple[int, int]] = []
        for receipt in self.done:
            if isinstance(receipt["ranges"], str):
                raise NotImplementedError(f"claim {receipt['id']} has packed ranges, which this report cannot read")
            for first, last in receipt["ranges"]:
                edges += [(first, 1), (last + 1, -1)]
        twice = depth = since = 0
        for sequence, step in sorted(edges):
            twice += sequence - since if depth > 1 else 0
            depth, since = depth + step, sequence
        return twice


async def counts(url: str, ledger: str = "airflow") -> Counts:
    """Return the counts as the server reports them.

    ledger:  the prefix of the ledger's buckets.
    """
    connection = await nats.connect(url, connect_timeout=5)
    try:
        jetstream = connection.jetstream()
        try:
            stream = await jetstream.stream_info(STREAM)
        except NotFoundError:
            return Counts()
        try:
            consumer = await jetstream.consumer_info(STREAM, CONSUMER)
        except NotFoundError:
            return Counts(stream.state.messages)
        receipts = await _receipts(jetstream, ledger)
        return Counts(stream.state.messages, consumer.num_pending or 0, consumer.num_ack_pending or 0, tuple(receipts))
    finally:
        await connection.close()


async def _receipts(jetstream: JetStreamContext, ledger: str) -> Iterable[dict[str, Any]]:
    # nats-py's keys() leaves a consumer behind each time, and sometimes reports that there are no keys.
    bucket, prefix = f"KV_{ledger}_receipts", f"$KV.{ledger}_receipts."
    try:
        keys = (await jetstream.stream_info(bucket, subjects_filter=f"{prefix}>")).state.subjects or {}
    except NotFoundError:
        return []
    stored = {key.removeprefix(prefix): await jetstream.get_last_msg(bucket, key) for key in keys}
    receipts = [{"id": key.rpartition(".")[2], **json.loads(message.data or b"")} for key, message in stored.items()]
    return [receipt for receipt in receipts if (receipt["stream"], receipt["consumer"]) == (STREAM, CONSUMER)]


class Departures:
    """The table that the demo has written in a folder."""

    def __init__(self, out: Path) -> None:
        self._uri = str(out / "departures")
        self._there = DeltaTable.is_deltatable(self._uri)

    @property
    def files(self) -> list[Path]:
        """The Parquet files of the table's newest version."""
        uris = DeltaTable(self._uri).file_uris() if self._there else []
        return sorted(Path(uri.removeprefix("file://")) for uri in uris)

    def select(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query; none if there is no table."""
        if not self._there:
            return []
        found = QueryBuilder().register("departures", DeltaTable(self._uri)).execute(query)
        rows: list[dict[str, Any]] = pa.table(found).to_pylist()
        return rows

    @property
    def check(self) -> tuple[int, int]:
        """The number of rows, and that of different sequences."""
        counts = self.select(CHECK) or [{"rows": 0, "sequences": 0}]
        return counts[0]["rows"], counts[0]["sequences"]

    def delays(self) -> list[dict[str, Any]]:
        """`flights`, `cancelled` and `mean_dep_delay` of each carrier, the busiest first."""
        return self.select(DELAYS)


def write_csv(table: list[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["carrier", "flights", "cancelled", "mean_dep_delay"])
        writer.writeheader()
        writer.writerows(table)


def draw(table: list[dict[str, Any]], path: Path) -> None:
    """Draw the mean delays of the carriers as horizontal bars."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    ranked = sorted((row for row in table if row["mean_dep_delay"] is not None), key=lambda row: row["mean_dep_delay"])
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    bars = axes.barh([row["carrier"] for row in ranked], [row["mean_dep_delay"] for row in ranked], color="#34568b")
    axes.bar_label(bars, fmt="%.1f", padding=3)
    axes.set_title("Mean departure delay from New York, 2013, by carrier", loc="left")
    axes.set_xlabel("minutes")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def show(table: list[dict[str, Any]]) -> str:
    lines = [f"{'carrier':<8}{'flights':>9}{'cancelled':>11}{'mean delay':>12}"]
    for row in table:
        mean = "" if row["mean_dep_delay"] is None else f"{row['mean_dep_delay']:.1f} min"
        lines.append(f"{row['carrier']:<8}{row['flights']:>9,}{row['cancelled']:>11,}{mean:>12}")
    return "\n".join(lines)
