"""The DAGs on pages of the documentation parse, and those in dags/ that they show do what they say, on a server."""

import importlib.util
import json
import re
import secrets
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from demo.nats_server import NatsServer
from tests.airflow_nats_jetstream.steps import execute, rendered
from tests.snippets import sections

ROOT = Path(__file__).parents[2]
NAMES = ("parallel-runs", "catch-up-and-backfill", "large-payloads", "spark-cluster", "hold-any-operator")
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


def dag(name: str) -> DAG:
    """The DAG of this name in dags/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "dags" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: DAG = getattr(module, name)()
    return made


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
    claims, work = (dag("orders").get_task(name) for name in ("claims", "revenue"))
    (claim,) = execute(quick(claims))
    execute(JetStreamProcessOperator(task_id=work.task_id, python_callable=lambda claim: claim.count, op_args=[claim]))
    assert consumer(server, "revenue").floor == 6
    third = server.run(lambda js: js.stream("ORDERS").get_message(3)).time
    replay = dag("replay_orders")
    first = execute(rendered(replay.get_task("first"), {"since": third}))
    reset: Any = replay.get_task("reset")
    reset.sequence = reset.render_template(reset.sequence, {"ti": SimpleNamespace(xcom_pull={"first": first}.get)})
    assert execute(reset)["pending"] == 4
    (again,) = execute(quick(claims))
    assert again["ranges"] == [[3, 6]]


def test_the_urgent_ones_are_claimed_by_a_consumer_of_their_own(server: JetStreamHook) -> None:
    (claim,) = execute(quick(dag("urgent_orders").get_task("claims")))
    assert claim["ranges"] == [[3, 3], [6, 6]]
    config = consumer(server, "urgent").config
    assert (config["filter_subject"], config["max_ack_pending"]) == ("orders.west", 3_000)


def test_a_period_is_processed_by_a_consumer_of_its_own(server: JetStreamHook) -> None:
    (section,) = (each for each in sections(PAGES[1]) if {"DAG", "by_start_time"} <= {*re.findall(r"\w+", each.source)})
    names: dict[str, Any] = {"__name__": "dag"}
    exec(compile(section.source, str(PAGES[1]), "exec"), names)
    fifth = server.run(lambda js: js.stream("ORDERS").get_message(5)).time
    (claim,) = execute(quick(rendered(names["claims"], {"since": fifth})))
    assert claim["ranges"] == [[5, 6]]
    done = names["done"]
    done.despite_open_claims = True
    assert execute(done)["deleted"]
