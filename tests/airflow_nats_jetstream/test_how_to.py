"""The DAGs on pages of the documentation parse, and those in dags/ that they show do what they say, on a server."""

import json
import re
import secrets
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_nats_jetstream.compat import AirflowSkipException
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from demo.nats_server import NatsServer
from tests.airflow_nats_jetstream.steps import execute, rendered
from tests.dag_file import dag_of
from tests.jetstream_tables.formats import Delta
from tests.snippets import sections

ROOT = Path(__file__).parents[2]
NAMES = (
    "parallel-runs",
    "catch-up-and-backfill",
    "large-payloads",
    "spark-cluster",
    "hold-any-operator",
    "order-per-key",
)
PAGES = [
    *(ROOT / "docs" / "how-to" / f"{name}.md" for name in NAMES),
    ROOT / "docs" / "coming-from-kafka.md",
    ROOT / "README.md",
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_dags_of_the_page_parse(page: Path) -> None:
    found = [section for section in sections(page) if "DAG(" in section.source]
    assert found
    for section in found:
        exec(compile(section.source, str(page), "exec"), {"__name__": "dag"})


@pytest.fixture
def server(nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[JetStreamHook]:
    """The stream ORDERS, with two orders of each shop, on the server of the DAGs' default connection."""
    extra = {"servers": nats_server.url, "ledger": f"test_{secrets.token_hex(4)}"}
    monkeypatch.setenv("AIRFLOW_CONN_NATS_DEFAULT", json.dumps({"conn_type": "nats", "extra": extra}))
    monkeypatch.setattr("jetstream_handoff.repair.reset.QUIET", 0.5)
    hook = JetStreamHook()

    async def orders(js: Any) -> None:
        await js.create_stream({"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True})
        for shop in ("north", "south", "west") * 2:
            await js.publish(f"orders.{shop}", b"{}")

    hook.run(orders)
    yield hook
    hook.run(lambda js: js.stream("ORDERS").delete())


def quick(task: Any, **changes: Any) -> Any:
    """The sensor of the DAG, but in this process and with a shorter time-out."""
    task.deferrable, task.gather = False, timedelta(seconds=0.1)
    for name, value in changes.items():
        setattr(task, name, value)
    return task


def consumer(hook: JetStreamHook, name: str) -> Any:
    return hook.run(lambda js: js.stream("ORDERS").consumer(name).info())


def test_everything_since_a_time_comes_again(server: JetStreamHook) -> None:
    claims, work = (dag_of("orders").get_task(name) for name in ("claims", "revenue"))
    (claim,) = execute(quick(claims))
    execute(JetStreamProcessOperator(task_id=work.task_id, python_callable=lambda claim: claim.count, op_args=[claim]))
    assert consumer(server, "revenue").floor == 6
    third = server.run(lambda js: js.stream("ORDERS").get_message(3)).time
    replay = dag_of("replay_orders")
    first = execute(rendered(replay.get_task("first"), {"since": third}))
    reset: Any = replay.get_task("reset")
    reset.sequence = reset.render_template(reset.sequence, {"ti": SimpleNamespace(xcom_pull={"first": first}.get)})
    assert execute(reset)["pending"] == 4
    (again,) = execute(quick(claims))
    assert again["ranges"] == [[3, 6]]


def test_the_urgent_ones_are_claimed_by_a_consumer_of_their_own(server: JetStreamHook) -> None:
    (claim,) = execute(quick(dag_of("urgent_orders").get_task("claims")))
    assert claim["ranges"] == [[3, 3], [6, 6]]
    config = consumer(server, "urgent").config
    assert (config["filter_subject"], config["max_ack_pending"]) == ("orders.west", 3_000)


def test_a_period_is_processed_by_a_consumer_of_its_own(server: JetStreamHook) -> None:
    words = {"DAG", "by_start_time", "params"}
    (section,) = (each for each in sections(PAGES[1]) if words <= {*re.findall(r"\w+", each.source)})
    names: dict[str, Any] = {"__name__": "dag"}
    exec(compile(section.source, str(PAGES[1]), "exec"), names)
    fifth = server.run(lambda js: js.stream("ORDERS").get_message(5)).time
    (claim,) = execute(quick(rendered(names["claims"], {"since": fifth})))
    assert claim["ranges"] == [[5, 6]]
    done = names["done"]
    done.despite_open_claims = True
    assert execute(done)["deleted"]


def test_each_run_processes_the_orders_of_its_day(
    server: JetStreamHook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """dags/orders_daily.py, with days that end after the second and the fourth order, and days without any."""
    monkeypatch.setattr("jetstream_handoff.rules.period.SETTLED", 0)
    monkeypatch.setenv("ORDERS_DAILY_OUT", str(tmp_path))

    async def stored(js: Any) -> list[str]:
        return [(await js.stream("ORDERS").get_message(at)).time for at in (3, 5)]

    ends = server.run(stored)
    now = server.run(lambda js: js.stream("ORDERS").info()).now
    found: list[Any] = []
    for number, end in enumerate(["2026-10-23T00:00:00Z", *ends, ends[-1], now]):
        made = dag_of("orders_daily")
        claims, work = (
            quick(made.get_task("claims"), max_messages=100, messages_per_claim=1),
            made.get_task("count_by_shop"),
        )
        claims.consumer_config = {"deliver_policy": "all"}  # the clock of this machine may be behind the start date
        claims.until = claims.render_template(claims.until, {"data_interval_end": end})
        try:
            taken = execute(claims, run_id=f"day {number}")
        except AirflowSkipException as skipped:
            found.append(str(skipped).partition(" that ")[0])
            continue
        found.append([claim["ranges"][0][0] for claim in taken])
        assert isinstance(work, MappedOperator)
        for at, claim in enumerate(taken):
            one = JetStreamProcessOperator(
                task_id=work.task_id, python_callable=lambda claim: claim.count, op_args=[claim]
            )
            execute(one, run_id=f"day {number}", map_index=at)
    assert found == ["no message", [1, 2], [3, 4], "no message", [5, 6]]
    assert consumer(server, "daily").floor == 6


def written(hook: JetStreamHook, claims: Any, task: Any) -> list[dict[str, Any]]:
    """What a mapped JetStreamToTableOperator returns for each claim of a sensor."""
    assert isinstance(task, MappedOperator)
    handed = execute(quick(claims, max_messages=2_000))
    return [execute(task.unmap({"claim": claim}), map_index=n) for n, claim in enumerate(handed)]


def test_the_orders_become_a_table(server: JetStreamHook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """dags/orders_to_table.py: the six messages of the stream are no orders, and so are dead letters."""
    monkeypatch.setenv("ORDERS_TO_TABLE_OUT", str(tmp_path))

    async def orders(js: Any) -> None:
        for amount in (1, 2, 3):
            await js.publish("orders.north", json.dumps({"shop": "north", "amount": amount}).encode())

    server.run(orders)
    made = dag_of("orders_to_table")
    (value,) = written(server, made.get_task("claims"), made.get_task("to_table"))
    assert (value["rows"], value["malformed"]) == (3, 6)
    assert Delta(tmp_path).query("count(*), sum(amount)") == [(3, 6)]


def test_the_page_from_a_stream_to_a_table(
    server: JetStreamHook, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its programs, one after the other; `make quickstart` shows that such pages work from an empty machine."""
    monkeypatch.chdir(tmp_path)
    text, _, _ = (ROOT / "docs" / "how-to" / "stream-to-table.md").read_text().partition("## In Dagster")
    publish, parcels = re.findall(r"<< 'END'\n(.*?)^END$", text, re.DOTALL | re.MULTILINE)
    (look,) = re.findall(r"python -c '\n(.*?)'\n", text, re.DOTALL)
    exec(publish, {})
    names: dict[str, Any] = {"__name__": "dag"}
    exec(compile(parcels, "parcels.py", "exec"), names)
    claims = names["claims"]
    try:
        values = written(server, claims, claims.dag.get_task("to_table"))
        assert [(each["rows"], each["malformed"]) for each in values] == [(500, 0), (500, 0), (0, 3)]
        exec(look, {})
        assert "20854.125" in capsys.readouterr().out
    finally:
        server.run(lambda js: js.stream("PARCELS").delete())
