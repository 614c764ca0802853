"""What the stand-in shows: three streams, claims in every state, findings of every kind, and hostile strings."""

import time
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from tests.script.standin import Answer, StandIn, rfc3339

HOSTILE = (
    '"><img src=x onerror="globalThis.harmed=1"></script><script>globalThis.harmed=1</script>\u202egpj.exe\u0000\u200b'
)
CONNECTION = "nats_default"
CLAIM, DONE, OLD = "3974c27a4e17", "9658eaaed4a9", "742d00c94f5e"
HELD_TOKEN = "3-3aee3f60"


def task(task_id: str = "process", state: str | None = "running", **changed: Any) -> dict[str, Any]:
    run = "scheduled__2026-11-22T10:40:00+00:00"
    return {
        "text": f"flight_delays / {run} / {task_id}",
        "dag_id": "flight_delays",
        "run_id": run,
        "task_id": task_id,
        "map_index": -1,
        "try_number": 1,
        "state": state,
    } | changed


def finding(kind: str, level: str, cause: str, effect: str, remedy: str, **changed: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "level": level,
        "cause": cause,
        "effect": effect,
        "remedy": remedy,
        "claim": "",
        "action": None,
        "task": None,
        "dag": None,
    } | changed


def consumer(name: str, **changed: Any) -> dict[str, Any]:
    return {
        "name": name,
        "exists": True,
        "paused_until": None,
        "pending": 2_482,
        "ack_pending": 220,
        "redelivered": 0,
        "waiting_pulls": 1,
        "floor": 300,
        "delivered": 520,
        "ack_wait": 30.0,
        "open": 5,
        "held": 1,
        "claimed_messages": 220,
        "oldest": {"id": CLAIM, "age": 41.0},
        "usual": 35.0,
        "barrier": None,
        "stopped": 0,
        "unmatched": "",
        "findings": [],
    } | changed


UNMATCHED = "none of the 55,513 messages of stream EVENTS matches the consumer's filter 'invoices.>'"

FINDINGS = [
    finding(
        "dead_holder",
        "error",
        "The worker of attempt 3-3aee3f60 is dead or cut off.",
        "It holds claim 742d00c94f5e of stream FLIGHTS, consumer delays, with 20 messages, but nothing has renewed the "
        "lease for 2 minutes.",
        "Release the claim, which listens for its holder first, to have its messages redelivered now.",
        claim=OLD,
        action="release",
        task=task(map_index=3, try_number=2),
    ),
    finding(
        "failing",
        "error",
        "Message 451 of stream FLIGHTS fails: ValueError.",
        "It has failed alone 4 times at consumer delays.",
        "Read the log of the task. Set max_failures, so that such a message becomes a dead letter.",
        action="task",
        task=task(state="failed"),
    ),
    finding(
        "dead_letters",
        "warning",
        "Consumer delays of stream FLIGHTS has 25 dead letters.",
        "The newest is message 77, at 2026-11-22T10:40:00Z: t: yesterday cannot be represented exactly as TIMESTAMP; "
        "expected a string like 2026-11-21T03:00:00Z.",
        "Read their reasons. Replay them when the cause is fixed.",
        action="dead_letters",
    ),
]
BARRIER = {"claims": 1, "of": 8, "messages": 12_400, "age": 720.0, "claim": CLAIM, "task": task(map_index=3)}
PAUSED = finding(
    "paused_consumer",
    "warning",
    "Consumer billing of stream ORDERS is paused until 2026-11-24T10:00:00Z.",
    "Until then no sensor receives its backlog of 540 messages.",
    "Resume the consumer if nobody else has paused it on purpose.",
    action="resume",
)
NO_PULLER = finding(
    "no_puller",
    "warning",
    "DAG ship_orders is paused.",
    "No sensor pulls from consumer shipping of stream ORDERS. A backlog of 750 messages waits.",
    "Unpause it, so that its tasks start.",
    action="dag",
    dag={"dag_id": "ship_orders", "paused": True},
)
PERMISSION = finding(
    "permission",
    "error",
    "The user of this connection is not permitted to publish on '$JS.API.STREAM.INFO.AUDIT'.",
    "So stream AUDIT cannot be shown.",
    "Add this subject to the user's permissions.",
)


def overview(beat: int = 0) -> dict[str, Any]:
    """The overview at a moment: the backlog of one consumer grows with each beat."""
    letters = {"stream": "DEAD_FLIGHTS", "exists": True, "count": 25, "complete": True}
    none = {"stream": "DEAD_ORDERS", "exists": False, "count": 0, "complete": True}
    return {
        "id": CONNECTION,
        "now": rfc3339(time.time()),
        "server": "nats-1",
        "version": "2.15.1",
        "domain": None,
        "ledger": "airflow",
        "watched_since": "2026-11-22T10:00:00Z",
        "findings": [PERMISSION],
        "streams": [
            {
                "name": "EVENTS",
                "messages": 55_513,
                "bytes": 4_613_734,
                "dead_letters": none,
                "consumers": [
                    consumer("audit", pending=47_513 + beat * 120, ack_pending=4_000, floor=4_000),
                    consumer("balances", pending=12_000, barrier=BARRIER, stopped=2),
                    consumer("invoices", pending=0, ack_pending=0, open=0, held=0, oldest=None, unmatched=UNMATCHED),
                ],
            },
            {
                "name": "FLIGHTS",
                "messages": 3_002,
                "bytes": 1_258_291,
                "dead_letters": letters,
                "consumers": [
                    consumer("delays", findings=FINDINGS),
                    consumer("punctuality", pending=max(0, 2_202 - beat * 20), oldest=None, usual=None, open=0, held=0),
                ],
            },
            {
                "name": "ORDERS",
                "messages": 900,
                "bytes": 76_288,
                "dead_letters": none,
                "consumers": [
                    consumer(
                        "billing", pending=540, paused_until="2026-11-24T10:00:00Z", findings=[PAUSED], waiting_pulls=0
                    ),
                    consumer("shipping", pending=750, findings=[NO_PULLER], waiting_pulls=0),
                    consumer(
                        "gone",
                        exists=False,
                        pending=None,
                        ack_pending=None,
                        waiting_pulls=None,
                        floor=None,
                        oldest=None,
                    ),
                ],
            },
        ],
    }


def claim(number: int, **changed: Any) -> dict[str, Any]:
    identity = [CLAIM, OLD, DONE][number] if number < 3 else f"{number:012x}"
    held = number % 3 == 0
    since = time.time() - 3_600 + number
    return {
        "id": identity,
        "state": "open",
        "stream": "FLIGHTS",
        "consumer": "delays",
        "count": 50,
        "bytes": 18_135,
        "sequences": f"{number * 50 + 1}\N{EN DASH}{number * 50 + 50}",
        "since": rfc3339(since),
        "age": time.time() - since,
        "taken_by": task("wait", "success", map_index=number % 4),
        "holder": {"token": HELD_TOKEN, "since": rfc3339(since + 5), "task": task()} if held else None,
        "current": number != 4,
    } | changed


def claims(request: Request, _body: Any) -> tuple[int, Any]:
    query: Mapping[str, str] = request.query_params
    rows = [claim(number) for number in range(1_000)]
    rows[5] |= {"taken_by": HOSTILE, "sequences": HOSTILE, "stream": HOSTILE, "consumer": HOSTILE}
    rows[6] |= {"taken_by": task(HOSTILE, HOSTILE, dag_id=HOSTILE, run_id=HOSTILE)}
    if query.get("held"):
        rows = [row for row in rows if (row["holder"] is not None) == (query["held"] == "yes")]
    if query.get("consumer"):
        rows = [row for row in rows if row["consumer"] == query["consumer"]]
    if query.get("dag"):
        rows = [row for row in rows if isinstance(row["taken_by"], dict) and row["taken_by"]["dag_id"] == query["dag"]]
    offset, limit = int(query.get("offset", 0)), int(query["limit"])
    return 200, {"total": len(rows), "now": rfc3339(time.time()), "claims": rows[offset : offset + limit]}


def moment(what: str, at: float, text: str, by: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"what": what, "at": rfc3339(at), "text": text, "task": by}


def detail(identity: str, **changed: Any) -> dict[str, Any]:
    now = time.time()
    taken = moment("taken", now - 3_600, "A sensor took 50 messages.", task("wait", "success"))
    held = moment("held", now - 3_590, f"Attempt {HELD_TOKEN} held it.", task())
    return (
        claim(0, id=identity)
        | {
            "timeline": [taken, held],
            "next": f"Attempt {HELD_TOKEN} holds it. It settles the claim when its work has succeeded.",
            "alive": None,
            "silence": 2.0,
            "attempt_id": None,
            "value": None,
            "rejected": "",
            "skipped": "",
            "overlapping": [],
            "superseded_by": [],
            "spark": {
                "application": "app-20261122104214-0007",
                "url": "http://spark-master:8080/app/?appId=app-20261122104214-0007",
            },
            "consumer_info": {"pending": 2_482, "ack_wait": 30.0, "delivered": 520},
            "revision": "r1",
            "may_release": True,
        }
        | changed
    )


def done(identity: str) -> dict[str, Any]:
    now = time.time()
    moments = [
        moment("taken", now - 3_600, "A sensor took 50 messages.", task("wait", "success")),
        moment("held", now - 3_590, "Attempt 1-79c7af85 held it.", task(state="success")),
        moment("done", now - 3_500, "The ledger recorded it as done.", task(state="success")),
        moment("acknowledged", now - 3_499, "All its messages are acknowledged."),
    ]
    return detail(
        identity,
        state="done",
        holder=None,
        timeline=moments,
        next=f"It is settled, and the output of attempt {identity}-1-79c7af85 counts.",
        attempt_id=f"{identity}-1-79c7af85",
        value={"rows": 50, "path": f"s3://lake/flights/{identity}"},
        rejected="51\N{EN DASH}54",
        may_release=False,
        spark={"application": HOSTILE, "url": "javascript:globalThis.harmed=1"},
    )


def letter(number: int, **changed: Any) -> dict[str, Any]:
    return {
        "number": number,
        "sequence": 50 + number,
        "subject": "flights.LGA",
        "consumer": "delays",
        "reason": "no carrier: line 1 column 1 (char 0)",
        "failures": 0,
        "claim": CLAIM,
        "attempt": "e588f1aa1f32-1-79c7af85",
        "stored_at": "2026-11-22T10:42:13Z",
        "size": 44,
        "confirmed": number != 2,
        "problem": "The header Nats-Dead-Letter-Sequence is missing." if number == 6 else None,
        "outcome": {4: "replayed", 5: "discarded"}.get(number),
        "replayed": "2026-11-22T12:00:00Z" if number == 4 else None,
    } | changed


def letters(request: Request, _body: Any) -> tuple[int, Any]:
    after, limit = int(request.query_params.get("after", 0)), int(request.query_params["limit"])
    rows = [letter(number) for number in range(after + 1, min(after + limit, 120) + 1)]
    if after == 0:
        rows[2] |= {"subject": HOSTILE, "reason": HOSTILE, "consumer": HOSTILE, "claim": HOSTILE}
    return 200, {
        "total": 120,
        "complete": True,
        "next": rows[-1]["number"] if rows and rows[-1]["number"] < 120 else None,
        "letters": rows,
    }


def payload(request: Request, _body: Any) -> tuple[int, Any]:
    number = int(request.path_params["path"].rpartition("/")[2])
    data = {"form": "text", "shown": '{"carrier": "",\n "delay": -1}', "size": 44, "cut": False}
    if number == 3:
        data = {"form": "text", "shown": HOSTILE, "size": len(HOSTILE), "cut": True}
    if number == 2:
        data = {"form": "hex", "shown": "00 01 02 ff fe", "size": 5, "cut": False}
    return 200, {"number": number, "headers": [["Nats-Msg-Id", "LGA-51"], [HOSTILE, HOSTILE]], "data": data}


def preview(text: str, **changed: Any) -> dict[str, Any]:
    return {"revision": "r1", "text": text, "dangerous": False} | changed


def fixed(content: Any, status: int = 200) -> Answer:
    """Answer each request with the same JSON."""
    return lambda _request, _body: (status, content)


def prepare(standin: StandIn, *, may_act: bool = True) -> None:
    """Let the stand-in show the ordinary state."""
    beats = iter(range(1_000_000))
    connections = [{"id": name, "may_act": may_act} for name in (CONNECTION, "nats_eu")]
    down = "The server nats.example.com:4222 cannot be reached: connection refused. Check whether it is running."
    release = "Its 50 messages of stream FLIGHTS are redelivered at once, to the next sensor."
    consumers = r"connections/[^/]+/consumers/[^/]+/[^/]+"
    dead = r"connections/[^/]+/dead-letters/[^/]+"
    one = r"connections/[^/]+/claims/[^/]+"
    standin.answers = {
        "connections": fixed({"connections": connections}),
        r"connections/nats_eu/.*": fixed({"error": "NoServers", "message": down}, 502),
        r"connections/[^/]+/overview": lambda *_: (200, overview(next(beats))),
        r"connections/[^/]+/claims": claims,
        rf"connections/[^/]+/claims/{DONE}": fixed(done(DONE)),
        r"connections/[^/]+/claims/[0-9a-f]{12}": lambda request, _: (200, detail(request.url.path.rpartition("/")[2])),
        r"connections/[^/]+/claims/release_all/preview": fixed(preview("This releases 1,000 open claims.")),
        r"connections/[^/]+/claims/release_all": fixed({"text": "Released: 1,000 claims."}),
        dead: letters,
        rf"{dead}/\d+": payload,
        rf"{one}/release/preview": fixed(preview(release, dangerous=True, silence=12.0)),
        rf"{one}/release": fixed({"text": "The claim is released. Its 50 messages are being redelivered."}),
        rf"{consumers}/\w+/preview": fixed(preview("540 waiting messages are delivered to the next sensor.")),
        rf"{consumers}/\w+": fixed({"text": "It is done."}),
        rf"{dead}/\w+/preview": fixed(preview("2 dead letters are published to stream FLIGHTS again.")),
        rf"{dead}/\w+": fixed({"text": "2 dead letters were published to stream FLIGHTS."}),
    }
