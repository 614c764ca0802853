"""The judge: compares the record, the servers, the ledger and the output after everything has come to rest."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.observer import Observer, sequences
from tests.chaos.pipelines import Pipeline, key_of
from tests.chaos.record import Record
from tests.chaos.work import output, parts

Faults = dict[str, list[int]]
"""The sequences of each stream."""


@dataclass
class Verdict:
    """The verdict. It lists sequences by stream, so that a fault can be found in the logs."""

    published: Faults = field(default_factory=dict)
    lost: Faults = field(default_factory=dict)
    settled_twice: Faults = field(default_factory=dict)
    committed_duplicates: Faults = field(default_factory=dict)
    in_tables: dict[str, int] = field(default_factory=dict)
    """The number of rows in each table."""
    lost_in_tables: Faults = field(default_factory=dict)
    duplicates_in_tables: Faults = field(default_factory=dict)
    out_of_order: Faults = field(default_factory=dict)
    """Messages that a table got after later ones of their key."""
    pending: dict[str, int] = field(default_factory=dict)
    redelivered: dict[str, int] = field(default_factory=dict)
    contradictions: list[str] = field(default_factory=list)
    """Other disagreements: between an attempt's output and its claim, or the stream and the record."""

    @property
    def faultless(self) -> bool:
        faults = (
            *(self.lost, self.settled_twice, self.committed_duplicates),
            *(self.lost_in_tables, self.duplicates_in_tables, self.out_of_order),
        )
        return not (any(map(count, faults)) or any(self.pending.values()) or self.contradictions)


def count(faults: Faults) -> int:
    return sum(map(len, faults.values()))


async def judge(folder: Path, pipelines: Mapping[Pipeline, Observer]) -> Verdict:
    """Judge each pipeline. None may be running."""
    verdict = Verdict()
    published: dict[str, dict[str, int]] = defaultdict(dict)
    for line in Record(folder / "record" / "published.jsonl").all():
        published[line["stream"]][line["id"]] = line["sequence"]
    settled: dict[str, dict[str, Any]] = {
        line["id"]: line for line in Record(folder / "record" / "settled.jsonl").all() if line["state"] == "done"
    }
    for observer in dict.fromkeys(pipelines.values()):
        observer.forget()
        settled.update({each["id"]: each for each in await observer.new_receipts() if each["state"] == "done"})
    for pipeline, observer in pipelines.items():
        stream = pipeline.stream
        done = {key: each for key, each in settled.items() if each["stream"] == stream}
        done.update(await observer.done(stream))
        await _judge_stream(verdict, folder, pipeline, observer, published[stream], done.values())
    return verdict


def judge_tables(folder: Path, verdict: Verdict, tables: Mapping[str, list[tuple[int, bytes]]]) -> None:
    """Compare the rows of each table, sequence and data, with what was published to its stream."""
    published: dict[str, dict[int, bytes]] = defaultdict(dict)
    for line in Record(folder / "record" / "published.jsonl").all():
        published[line["stream"]][line["sequence"]] = line["id"].rpartition("-")[2].encode()
    for stream, rows in tables.items():
        found = Counter(sequence for sequence, _ in rows)
        verdict.in_tables[stream] = len(rows)
        verdict.lost_in_tables[stream] = sorted(published[stream].keys() - found.keys())
        verdict.duplicates_in_tables[stream] = sorted(sequence for sequence, times in found.items() if times > 1)
        verdict.contradictions += [
            f"{stream}: the table has {data!r} as {sequence}, which is {published[stream].get(sequence)!r}"
            for sequence, data in rows
            if published[stream].get(sequence) != data
        ]


def judge_order(verdict: Verdict, stream: str, rows: Iterable[tuple[int, bytes]]) -> None:
    """Compare the rows of each key, in the order in which they were written."""
    last: Counter[int] = Counter()
    late = verdict.out_of_order[stream] = []
    for sequence, data in rows:
        key = key_of(int(data))
        if sequence < last[key]:
            late.append(sequence)
        last[key] = max(last[key], sequence)


async def _judge_stream(  # noqa: PLR0917 - what is compared
    verdict: Verdict,
    folder: Path,
    pipeline: Pipeline,
    observer: Observer,
    published: Mapping[str, int],
    done: Iterable[dict[str, Any]],
) -> None:
    stream = pipeline.stream
    info = await observer.consumer(stream)
    verdict.published[stream] = sorted(published.values())
    verdict.pending[stream] = info["num_pending"] + info["num_ack_pending"]
    verdict.redelivered[stream] = info["delivered"]["consumer_seq"] - info["delivered"]["stream_seq"]

    stored = await observer.stored(stream)
    contradictions = [
        f"the server answered {sequence} for {msg_id} and holds {stored.get(sequence)!r} there"
        for msg_id, sequence in published.items()
        if stored.get(sequence) != msg_id
    ]
    contradictions += [
        f"the server stored {msg_id} {times} times" for msg_id, times in Counter(stored.values()).items() if times > 1
    ]
    read = defaultdict(list)
    for line in Record(folder / "record" / "processed.jsonl").all():
        read[line["attempt"]].append(sorted(sequences(line["ranges"])))
    settled: Counter[int] = Counter()
    written: Counter[int] = Counter()
    for receipt in done:
        claimed = list(sequences(receipt["ranges"]))
        settled.update(claimed)
        if pipeline.query:  # its output is its table alone
            written.update(claimed)
            continue
        attempt = f"{receipt['id']}-{receipt['token']}"
        rows = parts(output(folder, stream, attempt))
        written.update(sequence for sequence, _ in rows)
        if claimed not in read[attempt]:
            contradictions.append(f"attempt {attempt} settled what it did not read")
        contradictions += _wrong_output(attempt, claimed, rows, stored)

    verdict.contradictions += [f"{stream}: {what}" for what in contradictions]
    verdict.settled_twice[stream] = sorted(sequence for sequence, times in settled.items() if times > 1)
    verdict.committed_duplicates[stream] = sorted(sequence for sequence, times in written.items() if times > 1)
    # Messages that still wait are not lost. But then not everything has come to rest, and the verdict is a failure.
    missing = sorted(set(published.values()) - set(written))
    verdict.lost[stream] = [] if verdict.pending[stream] >= len(missing) > 0 else missing


def _wrong_output(
    attempt: str, claimed: list[int], rows: list[tuple[int, str]], stored: Mapping[int, str]
) -> Iterator[str]:
    """How an attempt's rows differ from the messages that it settled."""
    if sorted(sequence for sequence, _ in rows) != claimed:
        yield f"attempt {attempt} settled {len(claimed)} messages and wrote {len(rows)} others or more"
    for sequence, msg_id in rows:
        if stored.get(sequence) != msg_id:
            yield f"attempt {attempt} wrote {msg_id} as {sequence}, which is {stored.get(sequence)!r}"
