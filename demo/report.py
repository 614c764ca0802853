"""What the demo did, asked of those who keep it: the stream, the consumer, the ledger and the Parquet files.

Nothing here comes from the code that did the work, nor through our client: nats-py and pyarrow read for themselves.
"""

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

STREAM, CONSUMER = "FLIGHTS", "delays"


@dataclass(frozen=True)
class Counts:
    """The state of stream, consumer and ledger at one moment. Zero is also what is not there yet."""

    messages: int = 0
    pending: int = 0
    ack_pending: int = 0
    receipts: tuple[dict[str, Any], ...] = ()
    """The ledger's receipts of this consumer, each with its claim's `id`; format in docs/handoff.md."""

    @property
    def done(self) -> list[dict[str, Any]]:
        return [receipt for receipt in self.receipts if receipt["state"] == "done"]

    @property
    def settled_twice(self) -> int:
        """How many sequences lie in more than one receipt that says done."""
        edges: list[tuple[int, int]] = []
        for receipt in self.done:
            if isinstance(receipt["ranges"], str):
                raise NotImplementedError(f"Claim {receipt['id']} is too scattered for this report: packed ranges")
            for first, last in receipt["ranges"]:
                edges += [(first, 1), (last + 1, -1)]
        twice = depth = since = 0
        for sequence, step in sorted(edges):
            twice += sequence - since if depth > 1 else 0
            depth, since = depth + step, sequence
        return twice


async def counts(url: str) -> Counts:
    """Ask the server."""
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
        receipts = await _receipts(jetstream)
        return Counts(stream.state.messages, consumer.num_pending or 0, consumer.num_ack_pending or 0, tuple(receipts))
    finally:
        await connection.close()


async def _receipts(jetstream: JetStreamContext) -> Iterable[dict[str, Any]]:
    # Not by nats-py's keys(): it leaves a consumer behind each time, and now and then says that there are none.
    bucket, prefix = "KV_airflow_receipts", "$KV.airflow_receipts."
    try:
        keys = (await jetstream.stream_info(bucket, subjects_filter=f"{prefix}>")).state.subjects or {}
    except NotFoundError:
        return []
    stored = {key.removeprefix(prefix): await jetstream.get_last_msg(bucket, key) for key in keys}
    receipts = [{"id": key, **json.loads(message.data or b"")} for key, message in stored.items()]
    return [receipt for receipt in receipts if (receipt["stream"], receipt["consumer"]) == (STREAM, CONSUMER)]


def committed(receipts: Iterable[dict[str, Any]], out: Path) -> list[Path]:
    """The Parquet files of the attempts that the ledger has as done."""
    folders = (out / f"attempt={receipt['id']}-{receipt['token']}" for receipt in receipts)
    return sorted(file.absolute() for folder in folders for file in folder.glob("*.parquet"))


def departures(files: Iterable[Path]) -> pa.Table:
    """The rows of these files, with the columns that the report needs."""
    columns = {"sequence": pa.int64(), "carrier": pa.string(), "dep_time": pa.int32(), "dep_delay": pa.int32()}
    none = pa.schema(columns.items()).empty_table()
    return pa.concat_tables([none, *(pq.read_table(file, columns=list(columns)).cast(none.schema) for file in files)])


def delays(rows: pa.Table) -> list[dict[str, Any]]:
    """By carrier, the busiest first: `flights`, `cancelled`, `mean_dep_delay`.

    Cancelled are those without a departure time; the mean, in minutes, is over those that have a delay.
    """
    table = rows.group_by("carrier").aggregate(
        [("sequence", "count"), ("dep_time", "count"), ("dep_delay", "mean")],
    )
    return [
        {
            "carrier": row["carrier"],
            "flights": row["sequence_count"],
            "cancelled": row["sequence_count"] - row["dep_time_count"],
            "mean_dep_delay": row["dep_delay_mean"],
        }
        for row in table.sort_by([("sequence_count", "descending")]).to_pylist()
    ]


def distinct(rows: pa.Table) -> int:
    """How many different sequences the rows have."""
    found: int = pc.count_distinct(rows["sequence"]).as_py()
    return found


def write_csv(table: list[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["carrier", "flights", "cancelled", "mean_dep_delay"])
        writer.writeheader()
        writer.writerows(table)


def draw(table: list[dict[str, Any]], path: Path) -> None:
    """Carriers by mean delay as horizontal bars."""
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
