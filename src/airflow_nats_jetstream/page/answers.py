# SPDX-License-Identifier: Apache-2.0
"""The JSON of the page's API: shapes of overviews, claims and dead letters, and of errors.

Strings that others wrote are sent unchanged, but cut. The script shows them as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from airflow_nats_jetstream.page.errors import status_of
from airflow_nats_jetstream.page.obstacles import OVER, UNTAKEN, Obstacle, Run, run_of
from jetstream_handoff.watch.timeline import milestones

if TYPE_CHECKING:
    from airflow_nats_jetstream.page.tasks import Tasks
    from jetstream_client.info import ConsumerInfo
    from jetstream_client.sequences import Sequences
    from jetstream_handoff.ledger.history import Owner
    from jetstream_handoff.take.barrier import Barrier
    from jetstream_handoff.watch.seen import Seen
    from jetstream_handoff.watch.view import ConsumerView, Overview, Symptom

LONGEST = 2_000
"""The largest number of characters of a string that others wrote."""
LARGEST_VALUE = 8 << 10
_EXACT = 15
"""The largest number of digits of an integer that JavaScript represents exactly in any case."""

ACTIONS = {
    "paused_consumer": "resume",
    "dead_holder": "release",
    "unheld": "release",
    "awaiting_retry": "release",
    "old_claim": "release",
    "full": "release",
    "dead_letters": "dead_letters",
    "stopped": "dead_letters",
    "given_up": "reset",
    "passed": "reset",
    "barrier": "task",
    "failing": "task",
    "unsettled": "task",
    "no_puller": "dag",
    "released": "dag",
    "growing": "dag",
}
"""The one action that the page offers for a kind of finding: an action of the page, or a link to dead letters, to the
task or to the DAG."""
WAITING = ("no_puller", "unheld", "released", "full", "growing")
"""The kinds of findings that a paused DAG explains."""


class Answer(Response):
    """JSON in ASCII, because a string that others wrote can contain characters that have no UTF-8 encoding. Browsers
    neither keep it nor guess its type."""

    media_type = "application/json"

    def __init__(self, content: Mapping[str, Any], status_code: int = 200) -> None:
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        super().__init__(content, status_code, headers)

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def error_answer(error: Exception) -> Answer:
    """Return the answer for an error that a route raised."""
    status = status_of(error)
    name, message = type(error).__name__, str(error)
    if isinstance(error, TimeoutError) and not message:
        name, message = "NoAnswer", "NATS did not answer in time; see whether the server runs and can be reached"
    if status == 500:
        name, message = "InternalError", "the page could not answer; the log of the api-server contains the reason"
    return Answer({"error": name, "message": cut(message)}, status)


def cut(text: str, longest: int = LONGEST) -> str:
    """Return a string, shortened to ``longest`` characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def owners_of_overview(found: Overview) -> Iterator[Owner]:
    """The owners that an overview names: of the claims that findings are about, that the next batches wait for, and of
    the newest claims."""
    for view in found.consumers:
        if view.barrier:
            yield view.barrier.by
        for finding in view.findings:
            yield from _owners(view, finding)


def overview_json(
    connection_id: str, found: Overview, tasks: Tasks, obstacles: Mapping[Run, Obstacle] | None = None
) -> dict[str, Any]:
    """Return an overview as JSON.

    obstacles:  as :func:`airflow_nats_jetstream.page.obstacles.obstacles` returns them.
    """
    obstacles = obstacles or {}
    return {
        "id": connection_id,
        "now": found.now,
        "server": cut(found.server),
        "version": cut(found.version),
        "domain": cut(found.domain),
        "ledger": found.ledger,
        "watched_since": found.since,
        "findings": [_finding(each, (), tasks, {}) for each in found.findings],
        "streams": [
            {
                "name": stream.name,
                "messages": int(stream.info.state.get("messages", 0)) if stream.info else None,
                "bytes": int(stream.info.state.get("bytes", 0)) if stream.info else None,
                "dead_letters": {
                    "stream": stream.dead_letters.stream,
                    "exists": stream.dead_letters.exists,
                    "count": stream.dead_letters.count,
                    "complete": stream.dead_letters.complete,
                },
                "consumers": [_consumer(view, tasks, obstacles) for view in stream.consumers],
            }
            for stream in found.streams
        ],
    }


def _consumer(view: ConsumerView, tasks: Tasks, obstacles: Mapping[Run, Obstacle]) -> dict[str, Any]:
    findings = (_finding(each, tuple(_owners(view, each)), tasks, obstacles) for each in view.findings)
    return {
        "name": view.consumer,
        **consumer_json(view.info, readable=view.readable),
        "open": view.open,
        "held": view.held,
        "claimed_messages": view.claimed_messages,
        "oldest": {"id": view.oldest.id, "age": view.oldest.age} if view.oldest else None,
        "usual": view.usual,
        "barrier": _barrier(view.barrier, tasks) if view.barrier else None,
        "stopped": view.stopped.count if view.stopped else 0,
        "unmatched": cut(view.unmatched),
        "findings": [each for each in findings if each],
    }


def _barrier(barrier: Barrier, tasks: Tasks) -> dict[str, Any]:
    """What the next batch of a consumer waits for; ``claim`` and ``task`` are of the claim that was taken first."""
    return {
        "claims": len(barrier.blocking),
        "of": barrier.of,
        "messages": barrier.waiting,
        "age": barrier.age,
        "claim": barrier.first,
        "task": tasks.task(barrier.by, attempt=barrier.held) or cut(tasks.name(barrier.by)),
    }


def consumer_json(info: ConsumerInfo | None, *, readable: bool = True) -> dict[str, Any]:
    """Return what the server says about a consumer as JSON. All values are null if it does not exist or could not be
    read; in the second case ``exists`` is null, too."""
    names = ("pending", "ack_pending", "redelivered", "waiting_pulls", "floor", "delivered", "ack_wait", "paused_until")
    if info is None:
        return {"exists": False if readable else None, **dict.fromkeys(names)}
    values = (
        info.pending,
        info.ack_pending,
        _number(info.raw.get("num_redelivered")),
        _number(info.raw.get("num_waiting")),
        info.floor,
        info.delivered,
        _number(info.config.get("ack_wait")) / 1e9,
        str(info.config.get("pause_until") or "") or None if info.paused else None,
    )
    return {"exists": True, **dict(zip(names, values, strict=True))}


def _finding(
    finding: Symptom, owners: tuple[Owner, ...], tasks: Tasks, obstacles: Mapping[Run, Obstacle]
) -> dict[str, Any] | None:
    """A finding as JSON; None if messages wait as planned. If Airflow knows the cause, such as a paused DAG, it
    explains the finding and leads to the remedy."""
    task = next((task for owner in owners if (task := tasks.task(owner))), None)
    dag = next((dag for owner in owners if (dag := tasks.dag(owner))), None)
    cause, effect, remedy, action = finding.cause, finding.effect, finding.remedy, ACTIONS.get(finding.kind)
    if finding.by and not tasks.task(finding.by):
        effect += f" It concerns {tasks.name(finding.by)}."
    explained = ""
    if dag and dag["paused"] and finding.kind in WAITING:
        explained, remedy, action = f"DAG {dag['dag_id']} is paused.", "Unpause it, so that its tasks start.", "dag"
    elif task and finding.kind == "unheld" and task["state"] in OVER:
        explained = f"Task {task['text']} {OVER[task['state']]} after it had taken the claim."
        remedy = (
            "Read its log, release the claim, so that its messages are redelivered, and then clear the task, so that "
            "it takes them again."
        )
    elif dag and (run := run_of(finding)) and run[0] == dag["dag_id"] and (obstacle := obstacles.get(run)):
        if obstacle.planned and finding.kind == "no_puller":
            return None
        explained, remedy = obstacle.cause, obstacle.remedy or remedy
    elif task and finding.kind == "dead_holder" and task["state"] == "running":
        remedy += (
            f" Airflow still shows task {task['text']} as running, and may start no other in its place before its "
            "heartbeat timeout: mark it as failed."
        )
    elif dag and finding.kind in UNTAKEN:
        remedy = f"Start a run of DAG {dag['dag_id']}; if one is running, read the log of its sensor."
    if explained:
        cause, effect = explained, f"{cause} {effect}"
    possible = {"release": bool(finding.claim), "task": task is not None, "dag": dag is not None}
    return {
        "kind": finding.kind,
        "level": finding.level,
        "cause": cut(cause),
        "effect": cut(effect.strip()),
        "remedy": cut(remedy),
        "claim": finding.claim,
        "action": action if action and possible.get(action, True) else None,
        "task": task,
        "dag": dag,
    }


def _owners(view: ConsumerView, finding: Symptom) -> Iterator[Owner]:
    """The owners that a finding is about: its task, and the owner of its claim. If it is about no claim, the owner of
    the newest claim of the consumer."""
    if finding.by:
        yield finding.by
    record = view.record
    if record is None:
        return
    entry = record.open.get(finding.claim)
    if entry is not None:
        yield entry.owner
    elif not finding.claim:
        newest = max(record.open.values(), key=lambda each: each.at, default=None)
        if newest is not None:
            yield newest.owner
        settled = max(record.done.values(), key=lambda each: each.at, default=None)
        if settled is not None and settled.history.owner:
            yield settled.history.owner


def owners_of_claim(seen: Seen) -> Iterator[Owner]:
    """The owners and attempts that the JSON of a claim names."""
    yield seen.history.owner
    for attempt in seen.history.attempts:
        yield attempt.by


def claim_json(seen: Seen, tasks: Tasks) -> dict[str, Any]:
    """Return a claim as a row of a list."""
    owner = seen.history.owner
    return {
        "id": seen.id,
        "state": seen.state,
        "stream": seen.stream,
        "consumer": seen.consumer,
        "count": seen.sequences.count,
        "bytes": seen.entry.bytes if seen.entry else None,
        "sequences": sequences_text(seen.sequences),
        "since": seen.since,
        "age": seen.age,
        "taken_by": (tasks.task(owner) or cut(tasks.name(owner))) if owner else "",
        "holder": _holder(seen, tasks),
        "current": seen.current,
    }


def _holder(seen: Seen, tasks: Tasks) -> dict[str, Any] | None:
    if not seen.holder:
        return None
    attempt = seen.history.attempt(seen.holder)
    return {
        "token": cut(seen.holder),
        "since": attempt.at,
        "task": (tasks.task(attempt.by, attempt=True) or cut(tasks.name(attempt.by))) if attempt.by else None,
    }


def whole_claim_json(seen: Seen, tasks: Tasks, revision: str, spark: dict[str, str] | None) -> dict[str, Any]:
    """Return everything about a claim. ``may_release`` says whether the claim can be released, not who may do it.

    The value is the return value of a task, so it is shown only to users who may see the DAG.
    """
    receipt = seen.receipt
    settled = receipt is not None and receipt.state == "done"
    return {
        **claim_json(seen, tasks),
        "timeline": [
            {
                "what": step.what,
                "at": step.at,
                "text": cut(step.text),
                "task": tasks.task(step.by, attempt=bool(step.token)),
            }
            for step in milestones(seen, tasks.name)
        ],
        "next": cut(seen.next),
        "alive": seen.alive,
        "silence": seen.silence,
        "attempt_id": cut(receipt.attempt_id) if settled and receipt else None,
        "value": value_json(receipt.value) if settled and receipt and tasks.dag(seen.history.owner) else None,
        "rejected": sequences_text(receipt.rejected) if receipt else "",
        "skipped": sequences_text(receipt.skipped) if receipt else "",
        "overlapping": list(seen.overlapping)[:20],
        "superseded_by": [cut(each, 100) for each in receipt.superseded_by[:20]] if receipt else [],
        "spark": spark,
        "consumer_info": consumer_json(seen.info) if seen.info else None,
        "revision": revision,
        "may_release": seen.entry is not None,
    }


def value_json(value: Any) -> Any:
    """Return the value of a settlement such that JavaScript can read it: numbers that are not finite, or that are too
    large for it, become strings, and so does a value of more than 8 KiB."""
    text = json.dumps(value)
    if len(text) > LARGEST_VALUE:
        return cut(text, LARGEST_VALUE)
    return json.loads(
        text, parse_constant=str, parse_int=lambda digits: digits if len(digits) > _EXACT else int(digits)
    )


def sequences_text(sequences: Sequences) -> str:
    """Return sequences for people, with an en dash: ``1-100, 105``. Only the first ranges are named."""
    return str(sequences).replace("-", "\u2013")


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
