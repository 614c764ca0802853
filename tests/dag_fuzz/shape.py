"""A random DAG as JSON, made from a seed: its sensor, the tasks that work on its claims, and how their bodies end."""

import random
from typing import Any

Shape = dict[str, Any]

ON_SETTLED = ("return", "return", "fail", "reprocess")
COUNTRIES = ("FR", "DE")
FORMS = ("jetstream", "jetstream", "python", "bash")
KINDS = ("one", "one", "first", "two", "group", "cross", *("settle",) * 4)

FAILURES = ("raise", "raise", "raise", "fail", "skip", "exit 0", "exit 1")
"""How a try can end without having completed its work."""
UNUSUAL = ("generator", "lazy", "coroutine")
"""What a function can return instead of doing its work: only somebody who uses the value does the work."""


def shape(seed: int, number: int) -> Shape:
    """Return the DAG of this number."""
    chance = random.Random(f"{seed}/{number}")
    kind = chance.choice(KINDS)
    sensor = _sensor(chance)
    made: Shape = {
        "dag_id": f"f{number}",
        "stream": f"F{number}",
        "kind": kind,
        "messages": chance.randint(2, 6),
        "runs": 2 if chance.random() < 0.15 else 1,
        "past": chance.choice(("depends_on_past", "wait_for_downstream")) if chance.random() < 0.05 else "",
        "sensor": sensor,
    }
    if kind == "settle":
        return made | _settled(chance, sensor)
    made["stage"] = _stage(random.Random(f"{seed}/{number}/stage")) if kind in ("first", "group") else None
    if kind in ("one", "first", "group", "cross", "two"):
        count = 2 if kind == "two" or (kind == "group" and chance.random() < 0.2) else 1
        made["tasks"] = [_task(chance, ("work", "again")[each], chance.choice(FORMS)) for each in range(count)]
        made["parallel"] = chance.random() < 0.5
        # Airflow's parser sees two pieces of work over one claim, unless a plain task is in between.
        made["hidden"] = kind in ("two", "cross") and chance.random() < 0.8
        made["after"] = chance.random() < 0.3
    return made


def _sensor(chance: random.Random) -> Shape:
    return {
        "mapped": chance.choice((1, 2)) if chance.random() < 0.12 else 0,
        "per_claim": chance.randint(1, 3),
        "most": chance.randint(2, 6),
        "deferrable": chance.random() < 0.5,
        "setup": chance.random() < 0.03,
        "retries": chance.randint(0, 2),
        "past": chance.random() < 0.7,  # whether only the sensor depends on the past
    }


def _task(chance: random.Random, task_id: str, form: str) -> Shape:
    usual = chance.random() < (0.85 if form in ("jetstream", "python") else 1)
    on_settled = chance.choice(ON_SETTLED)
    return {
        "id": task_id,
        "form": form,
        "on_settled": "return" if form in ("python", "bash") and on_settled == "reprocess" else on_settled,
        "retries": chance.choice((0, 1, 1, 2)),
        "tries": [chance.choice(FAILURES) if chance.random() < share else "ok" for share in (0.2, 0.07, 0.07)],
        "poison": chance.random() < 0.15,  # the first try fails if one of the messages is bad
        "body": "usual" if usual else chance.choice(UNUSUAL),
        "xcom": chance.random() < 0.7,
        "on_skip": chance.choice(("release", "release", "settle")),
        "seconds": round(chance.uniform(0.1, 1.5), 2),
    }


def _stage(chance: random.Random) -> Shape | None:
    """A plain task between the sensor and a task that holds the claim, or None. It has a separate source of chance, so
    that a seed's DAGs are otherwise the same as without it."""
    if chance.random() < 0.3:
        return None
    return _task(chance, "stage", "plain") | {"body": "usual", "rule": "all_success"}


def _settled(chance: random.Random, sensor: Shape) -> Shape:
    """Plain tasks, and a task that settles the claim after them."""
    names = ["load", "check"][: chance.choice((1, 2, 2))] + (["audit"] if chance.random() < 0.25 else [])
    tasks = [_task(chance, name, "plain") for name in names]
    for each in tasks:
        each["body"] = "usual"
        each["rule"] = "all_done" if each["id"] == "check" and chance.random() < 0.1 else "all_success"
    teardown = chance.random() < 0.12  # which Airflow refuses when it parses the DAG
    return {
        "tasks": tasks,
        "grouped": chance.random() < 0.6,
        "hold": chance.random() < 0.25,
        "settle": {
            "value": chance.random() < 0.5,
            "teardown": chance.choice(("of sensor", "of sensor", "alone")) if teardown else "",
            "fails_run": chance.random() < 0.2,
            "skipped": chance.random() < 0.5,
            "on_settled": chance.choice(("return", "return", "fail")),
            "rule": "" if teardown else chance.choice(("", "", "all_success", "none_failed", "all_done")),
            "retries": chance.choice((0, 1, 1)),
        },
        "sensor": sensor | ({"setup": False} if teardown else {}),
    }


def task_ids(of: Shape) -> dict[str, bool]:
    """The ids of the DAG's tasks as Airflow knows them, each with whether it is mapped."""
    mapped = of["kind"] != "first" and (of["kind"] != "settle" or of["grouped"])
    ids = {"claims": bool(of["sensor"]["mapped"])}
    if of["sensor"]["mapped"]:
        ids["flat"] = False
    if not mapped:
        ids["pick"] = False
    if of.get("hidden"):
        ids["copy" if of["kind"] == "two" else "pairs"] = False
    if of.get("stage"):
        ids[work_id(of, "stage")] = mapped
    ids |= {work_id(of, each["id"]): mapped for each in of["tasks"]}
    if of["kind"] == "settle":
        ids[work_id(of, "settle")] = mapped
        if of["hold"]:
            ids[work_id(of, "hold")] = mapped
    elif of["after"] or of["kind"] == "group":
        ids[work_id(of, "after")] = of["kind"] == "group"
    return ids


def work_id(of: Shape, name: str) -> str:
    """The id of a task that works on claims: with the name of its group, if it has one."""
    return f"each.{name}" if of["kind"] == "group" or of.get("grouped") else name


def source(of: Shape, name: str) -> str:
    """The id of the task whose XCom has the claims, or the one claim, that a task gets."""
    sources = ["copy"] if name == "again" else []
    return next(each for each in [*sources, "pairs", "pick", "flat", "claims"] if each in task_ids(of))
