"""dags/changes_to_table.py, run by Airflow's task runner on a real database: each kind of change, and workers that die.

`make changes` kills twenty of the attempts that apply 100,000 changes of 5,000 rows.
"""

import json
import os
import re
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import task

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.sensors import JetStreamPullSensor
from demo.nats_server import NatsServer
from demo.postgres import Postgres
from jetstream_client.publish.bulk import publish_all
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import HandoffError
from pyspark_jetstream.held_claim import HeldClaim
from tests.airflow_nats_jetstream.changes import DAG_ID, SUBJECT, Changes, envelope, quick, run, warehouse
from tests.airflow_nats_jetstream.steps import execute
from tests.dag_file import DAGS, dag_of
from tests.jetstream_tables.conftest import postgres
from tests.jetstream_tables.formats import Sql
from tests.snippets import sections

__all__ = ["postgres"]

CHANGES, KEYS, KILLS = (int(os.environ.get(name, few)) for name, few in (("CHANGES", 1000), ("KEYS", 50), ("KILLS", 2)))
PAGE = DAGS.parent / "docs" / "how-to" / "order-per-key.md"
CONNECTIONS = ("AIRFLOW_CONN_WAREHOUSE", "AIRFLOW_CONN_NATS_DEFAULT")


@pytest.fixture
def sql(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sql]:
    """A schema, in which the connection `warehouse` has its tables."""
    Sql.server = postgres
    with Sql(tmp_path) as made:
        monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse(postgres, made.schema))
        yield made


@pytest.fixture
def hook(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, sql: Sql) -> Iterator[JetStreamHook]:
    """The stream CHANGES on the server of the DAG's connection."""
    extra = {"servers": nats_server.url, "shortest_ack_wait": 0.5, "ledger": f"test_{sql.schema}"}
    monkeypatch.setenv("AIRFLOW_CONN_NATS_DEFAULT", json.dumps({"conn_type": "nats", "extra": extra}))
    hook = JetStreamHook()
    config = {"name": "CHANGES", "subjects": ["shop.>"], "allow_direct": True}
    hook.run(lambda js: js.create_stream(config))
    yield hook
    hook.run(lambda js: js.stream("CHANGES").delete())


class Follower:
    """The DAG, and the table that it writes."""

    def __init__(self, hook: JetStreamHook, sql: Sql) -> None:
        self.hook, self.sql, self.dag = hook, sql, dag_of(DAG_ID)
        self.runs = 0
        execute(self.dag.get_task("create"))

    def publish(self, *messages: tuple[int, bytes], headers: dict[str, str] | None = None) -> None:
        async def publish(js: Any) -> None:
            for key, payload in messages:
                await js.publish(f"{SUBJECT}.{key}", payload, headers=headers)

        self.hook.run(publish)

    def claims(self) -> list[dict[str, Any]]:
        self.runs += 1
        claims: list[dict[str, Any]] = execute(quick(self.dag.get_task("claims")), run_id=f"run {self.runs}")
        return claims

    def apply(self, claim: HeldClaim) -> int:
        return int(self.dag.get_task("apply").python_callable(claim))

    def applied(self) -> list[int]:
        """Run the DAG once: how many changes each of its tasks has applied."""
        claims = self.claims()
        return [run(claim, self.apply, run_id=f"run {self.runs}", map_index=at) for at, claim in enumerate(claims)]

    def table(self) -> list[Any]:
        return sorted(self.sql.query("id, name, points, lsn", "customers"))


@pytest.fixture
def follower(hook: JetStreamHook, sql: Sql) -> Follower:
    return Follower(hook, sql)


def row(key: int, name: str, points: int = 0) -> dict[str, Any]:
    return {"id": key, "name": name, "points": points}


def test_each_kind_of_change(follower: Follower) -> None:
    created = [(key, envelope("r" if key < 3 else "c", None, row(key, "first"), 10 + key)) for key in (1, 2, 3, 4)]
    changed = [(key, envelope("u", row(key, "first"), row(key, "second", 5), 20 + key)) for key in (1, 3)]
    gone = [(2, envelope("d", row(2, "first"), None, 30)), (2, b""), (4, b""), (5, b"")]
    follower.publish(*created, *changed, *gone)
    assert sum(follower.applied()) == 10
    assert follower.table() == [(1, "second", 5, 21), (3, "second", 5, 23)]
    follower.publish((2, envelope("c", None, row(2, "again"), 40)), (3, envelope("d", row(3, "second"), None, 41)))
    assert sum(follower.applied()) == 2
    assert follower.table() == [(1, "second", 5, 21), (2, "again", 0, 40)]


def test_the_markers_of_the_server_delete_no_row(follower: Follower) -> None:
    follower.publish((1, envelope("c", None, row(1, "first"))))
    follower.publish((1, b""), headers={"Nats-Marker-Reason": "MaxAge"})
    follower.applied()
    assert follower.table() == [(1, "first", 0, 1)]


def test_what_is_no_change_of_a_row_stops_its_row(follower: Follower) -> None:
    follower.publish((1, envelope("c", None, row(1, "first"))), (1, envelope("t", None, None)))
    with pytest.raises(ValueError, match="message 2: 't' is no change of a row"):
        follower.applied()
    assert follower.table() == []


def test_an_attempt_that_wakes_up_late_changes_nothing(follower: Follower, hook: JetStreamHook) -> None:
    follower.publish((1, envelope("c", None, row(1, "first"))), (1, envelope("u", None, row(1, "second"))))
    (claim,) = follower.claims()
    with ExitStack() as holds:
        frozen = holds.enter_context(HeldClaim.begin(hook.settings, Claim.from_json(claim), try_number=1))
        frozen._portal.call(frozen._hold._stop_beats)
        follower.publish((1, envelope("u", None, row(1, "third"))))
        assert follower.applied() == [3]
        assert follower.apply(frozen) == 0
        with pytest.raises(HandoffError):
            frozen.settle()
    assert follower.table() == [(1, "third", 0, 1)]


def test_the_page_shows_the_example() -> None:
    (shown,) = re.findall(r"^```python\n([^`]*claim\.transaction[^`]*)^```$", PAGE.read_text(), re.MULTILINE)
    assert textwrap.indent(shown, "    ") in (DAGS / f"{DAG_ID}.py").read_text()


def test_without_an_order_the_newest_message_of_a_key_wins(hook: JetStreamHook, sql: Sql) -> None:
    """What docs/how-to/order-per-key.md shows first, with claims in the reverse order."""
    upsert, view = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    schema = f"set search_path to {sql.schema}; "
    sql.execute(f"{schema} create table customers (id bigint primary key, name text, sequence bigint)")
    for sequence in (4, 3, 2, 1):
        values = {"id": sequence % 2, "name": f"'name {sequence}'", "sequence": sequence}
        sql.execute(schema + upsert % values)
    assert sorted(sql.query("id, name, sequence", "customers")) == [(0, "name 4", 4), (1, "name 3", 3)]

    (section,) = (each for each in sections(PAGE) if each.title == "Do you need order?")
    names: dict[str, Any] = {"task": task}
    exec(compile(section.source, str(PAGE), "exec"), names)
    states = [(1, "first", False), (2, "first", False), (1, "second", True), (2, "second", False)]
    payloads = [json.dumps(dict(zip(("id", "name", "deleted"), each, strict=True))).encode() for each in states]
    publish_all(hook.settings, [("shop.x", each) for each in payloads])
    sensor = JetStreamPullSensor(task_id="claims", stream="CHANGES", consumer="newest", messages_per_claim=2)
    for claim in reversed(execute(quick(sensor))):
        run(claim, names["append"].function, run_id=claim["id"])
    sql.execute(f"{schema} drop table customers; {view}")
    assert sql.query("id, name", "customers") == [(2, "second")]


@pytest.mark.slow
def test_workers_that_die_change_nothing(hook: JetStreamHook, sql: Sql) -> None:
    """It takes longer than others, because the lease of an attempt that was killed has to end."""
    began = time.monotonic()
    changes = Changes(hook, sql, CHANGES, KEYS, KILLS)
    changes.publish(seed=0.4)
    published = time.monotonic()
    environment = {name: os.environ[name] for name in CONNECTIONS}
    size = max(CHANGES // 16, 500)
    claims = 2 if size < 1_000 else 4
    # While the processors are busy, a batch gets old before it is entered.
    changes.follow(environment, max_messages=size, claims=claims, ack_wait=2 + size // 1_000)
    seconds = [f"{each:.1f} s" for each in (published - began, time.monotonic() - published)]
    print(*seconds, changes, wrong := changes.judged(), sep="\n")  # noqa: T201 - `make changes` shows it
    assert changes.killed.total() == KILLS
    assert wrong == {"different": 0, "otherwise": 0, "back": 0}
