"""The judge of order per key: it reads what the ledger says is committed, in the order in which it was decided."""

from bisect import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from jetstream_handoff.ledger.record import Receipt


class Life(NamedTuple):
    """A new life of the consumer, which a reset began.

    at:     claims that were taken later belong to it.
    first:  the first sequence that is delivered again.
    """

    at: datetime
    first: int


class Stops(NamedTuple):
    """What is known of keys that stop at a message that became a dead letter.

    origins:  of which message each message is a copy, by its sequence.
    lifts:    when stopped keys went on: claims that were taken later belong to the time after it.
    """

    origins: Mapping[int, int]
    lifts: Sequence[datetime] = ()


def judge(
    keys: Mapping[int, str],
    receipts: Iterable[Receipt],
    removed: Collection[int] = (),
    lives: Iterable[Life] = (),
    stops: Stops | None = None,
) -> list[str]:
    """Return what is wrong with the committed order.

    keys:      the key of each message, by its sequence.
    receipts:  the settled claims.
    removed:   messages that were removed from the stream at some time.
    lives:     the lives that resets have begun, in order. Each is judged alone.
    stops:     if keys stop at a message that became a dead letter: no later one of them is processed then, unless a
               reset delivers the dead letter's message again, or the key goes on. Default: they do not stop.
    """
    resets = list(lives)
    of: list[list[Receipt]] = [[] for _ in range(len(resets) + 1)]
    for each in sorted(receipts, key=lambda each: datetime.fromisoformat(each.at)):
        of[bisect([life.at for life in resets], datetime.fromisoformat(each.history.taken))].append(each)
    stopped: dict[str, int] = {}
    wrong: list[str] = []
    for number, some in enumerate(of):
        end = resets[number].at if number < len(resets) else None
        wrong += [
            f"late: claim {each.claim_id} was settled after its life"
            for each in some
            if end is not None and datetime.fromisoformat(each.at) > end
        ]
        first = resets[number - 1].first if number else 1
        stopped = {key: at for key, at in stopped.items() if at < first}
        wrong += _of_life(keys, some, {*removed, *(each for each in keys if each < first)}, {*removed})
        if stops is not None:
            wrong += _overtaken(keys, some, stops, stopped)
    return wrong


def _overtaken(keys: Mapping[int, str], receipts: list[Receipt], stops: Stops, stopped: dict[str, int]) -> list[str]:
    """What was processed although its key had stopped, or before an earlier message. ``stopped`` is changed."""
    wrong: list[str] = []
    last: dict[str, int] = {}
    lifts = sorted(stops.lifts)
    for receipt in receipts:
        while lifts and datetime.fromisoformat(receipt.history.taken) >= lifts[0]:
            lifts.pop(0)
            stopped.clear()
        for sequence in receipt.sequences:
            key, what = keys[sequence], f"{sequence} in claim {receipt.claim_id}"
            origin = stops.origins.get(sequence, sequence)
            if sequence in receipt.rejected:
                stopped[key] = min(sequence, stopped.get(key, sequence))
                continue
            if sequence > stopped.get(key, sequence):
                wrong.append(f"key {key} stopped at {stopped[key]}, but processed: {what}")
            if stops.origins and origin < last.get(key, 0):
                wrong.append(f"out of order: {what}, a copy of {origin}, after {last[key]}")
            last[key] = max(origin, last.get(key, 0))
    return wrong


def _of_life(keys: Mapping[int, str], receipts: list[Receipt], done: set[int], removed: set[int]) -> list[str]:
    """What is wrong in one life. ``done`` is changed."""
    wrong: list[str] = []
    last: dict[str, int] = {}
    seen: set[int] = set()
    for receipt in receipts:
        for sequence in receipt.sequences:
            key, what = keys[sequence], f"{sequence} in claim {receipt.claim_id}"
            if sequence in seen:
                wrong.append(f"twice: {what}")
            seen.add(sequence)
            if sequence in removed:
                continue  # it has no order any more
            if sequence < last.get(key, 0):
                wrong.append(f"out of order: {what}, after {last[key]}")
            last[key] = max(sequence, last.get(key, 0))
        done |= {*receipt.sequences}
        for key in {keys[sequence] for sequence in receipt.sequences} & last.keys():
            wrong += [
                f"gap: {each} of key {key} before {last[key]} in claim {receipt.claim_id}"
                for each in keys
                if each < last[key] and keys[each] == key and each not in done
            ]
    return wrong
