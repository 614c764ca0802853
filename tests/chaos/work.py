"""The work of the pipelines' tasks: reads the claimed messages, and writes what it read under the attempt's id."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from jetstream_client.read import direct
from jetstream_client.sequences import Sequences
from jetstream_client.wire.blocking import Wire
from tests.chaos import windows
from tests.chaos.record import Record

if TYPE_CHECKING:
    from jetstream_client import ConnectionSettings
    from pyspark_jetstream.held_claim import HeldClaim


def output(folder: Path, stream: str, attempt_id: str) -> Path:
    """Return the folder of an attempt's output, which may have any number of parts, as with Spark."""
    return folder / "out" / stream / f"attempt={attempt_id}"


def read_and_write(  # noqa: PLR0917 - what identifies the attempt
    settings: ConnectionSettings,
    stream: str,
    claim_id: str,
    attempt_id: str,
    wanted: Sequences,
    append: Callable[[], None] | None = None,
) -> int:
    """Read on the bulk connection, one half before a pause and the other after it. `append` comes last."""
    windows.mark(windows.HAND_OFF, "leave", stream, claim_id)
    half = next(wanted.windows(max(1, wanted.count // 2)))
    read = write_part(settings, stream, attempt_id, half)
    windows.mark(windows.WORK, "enter", stream, claim_id, ranges=wanted.to_json(), attempt=attempt_id)
    time.sleep(windows.pause(windows.WORK, attempt_id))
    read += write_part(settings, stream, attempt_id, wanted - half)
    if append:
        append()
    processed(stream, attempt_id, Sequences.of(read))
    windows.mark(windows.WORK, "leave", stream, claim_id)
    return len(read)


def write_part(settings: ConnectionSettings, stream: str, attempt_id: str, portion: Sequences) -> list[int]:
    """Read messages, write them as one part of the attempt's output, and return the sequences that were read."""
    with Wire.open(settings) as wire:
        created = wire.api(f"STREAM.INFO.{stream}")["created"]
    folder = output(windows.folder(), stream, attempt_id)
    folder.mkdir(parents=True, exist_ok=True)
    read: list[int] = []
    with (folder / f"part-{uuid4().hex}.jsonl").open("w") as part:
        for batch in direct.read(settings, stream, portion, created) if portion else ():
            for message in batch:
                part.write(json.dumps([message.sequence, _id(message.header)]) + "\n")
                read.append(message.sequence)
        part.flush()
        os.fsync(part.fileno())
    return read


def with_spark(claim: HeldClaim) -> int:
    """The same by Spark: its Python workers read and pause, and write parts; what they wrote is read again."""
    from pyspark_jetstream import spark_session

    windows.mark(windows.HAND_OFF, "leave", claim.stream, claim.id)
    folder = output(windows.folder(), claim.stream, claim.attempt_id)
    seconds = windows.pause(windows.WORK, claim.attempt_id)
    ranges = claim.sequences.to_json()
    spark = spark_session(master="local[1]", memory="512m", config={"spark.ui.enabled": "false"})
    messages = claim.read(spark).selectExpr("sequence", "headers['Nats-Msg-Id'][0] AS id")

    def slowly(batches: Any) -> Any:
        for batch in batches:
            time.sleep(seconds)
            yield batch

    windows.mark(windows.WORK, "enter", claim.stream, claim.id, ranges=ranges, attempt=claim.attempt_id)
    messages.mapInArrow(slowly, messages.schema).write.parquet(str(folder))
    read = Sequences.of(sequence for sequence, _ in parts(folder))
    processed(claim.stream, claim.attempt_id, read)
    windows.mark(windows.WORK, "leave", claim.stream, claim.id)
    return read.count


def processed(stream: str, attempt_id: str, sequences: Sequences) -> None:
    """Record in the attempt's process what it has read."""
    line = {"at": time.time(), "stream": stream, "attempt": attempt_id, "ranges": sequences.to_json()}
    Record(windows.folder() / "record" / "processed.jsonl").append(line)


def parts(folder: Path) -> list[tuple[int, str]]:
    """Return sequence and message id of everything that an attempt wrote. Spark's unfinished parts do not count."""
    rows: list[tuple[int, str]] = []
    for file in sorted(folder.glob("part-*")):
        if file.suffix == ".parquet":
            import pyarrow.parquet as pq

            table = pq.read_table(file)
            rows += zip(table["sequence"].to_pylist(), table["id"].to_pylist(), strict=True)
        else:
            rows += [(sequence, msg_id) for sequence, msg_id in map(json.loads, file.read_text().splitlines())]
    return rows


def _id(header: bytes) -> str:
    for line in header.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"Nats-Msg-Id":
            return value.strip().decode()
    return ""
