"""The listener for run events as Airflow registers and calls it, with a real server.

tests/airflow_system/test_run_events.py has it in a real Airflow.
"""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import pluggy
import pytest
from airflow.listeners.spec import asset, dagrun
from airflow.sdk import Asset

from airflow_nats_jetstream.get_provider_info import get_provider_info
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.page.plugin import JetStreamPlugin
from airflow_nats_jetstream.signals import run_events
from airflow_nats_jetstream.signals.run_events import GRACE, MOST, SECTION, Config, Filter, RunEvents, token
from demo.service import until
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_subject
from tests.airflow_nats_jetstream.steps import CONNECTION
from tests.airflow_versions import taskinstance

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Any:
    def configure(**options: str) -> None:
        for name, value in options.items():
            monkeypatch.setenv(f"AIRFLOW__{SECTION.upper()}__{name.upper()}", value)

    return configure


def listening(listener: RunEvents) -> Any:
    """Airflow's hooks, with this listener alone."""
    manager = pluggy.PluginManager("airflow")
    for spec in (taskinstance, dagrun, asset):
        manager.add_hookspecs(spec)
    manager.register(listener)
    return manager.hook


@pytest.fixture
def listener(hook: JetStreamHook, stream: str) -> Iterator[RunEvents]:
    listener = RunEvents(Config(nats_conn_id=CONNECTION, subject_prefix=stream, stream=stream))
    yield listener
    listener.outbox.close()


def task(**changes: Any) -> Any:
    values = {"id": uuid4(), "dag_id": "sales.daily", "task_id": "group.load", "run_id": "manual__1", "state": None}
    return SimpleNamespace(**{**values, "map_index": -1, "try_number": 2, "start_date": None, **changes})


def run(**changes: Any) -> Any:
    return SimpleNamespace(**{"dag_id": "sales", "run_id": "manual__1", "run_type": "manual", **changes})


def stored(hook: JetStreamHook, stream: str) -> list[tuple[str, str, dict[str, Any]]]:
    """The subject, id and content of each event."""

    async def read(js: Any) -> list[tuple[str, str, dict[str, Any]]]:
        of = js.stream(stream)
        last = (await of.info()).state["last_seq"]
        found = [await of.get_message(sequence) for sequence in range(1, last + 1)]
        return [
            (each.subject.removeprefix(f"{stream}."), each.headers["Nats-Msg-Id"][0], json.loads(each.data))
            for each in found
        ]

    return hook.run(read)


def test_each_change_has_its_subject_and_its_id(hook: JetStreamHook, stream: str, listener: RunEvents) -> None:
    hooks = listening(listener)
    before = "queued"
    hooks.on_task_instance_running(previous_state=before, task_instance=task())
    hooks.on_task_instance_success(previous_state="running", task_instance=task())
    hooks.on_task_instance_failed(previous_state="running", task_instance=task(), error=ValueError("a secret"))
    hooks.on_task_instance_failed(previous_state="running", task_instance=task(state="up_for_retry"), error="a secret")
    hooks.on_task_instance_skipped(previous_state="running", task_instance=task())
    for name in ("running", "success", "failed"):
        getattr(hooks, f"on_dag_run_{name}")(dag_run=run(), msg="")
    orders = Asset("orders > 9", "nats://nats.example.com/ORDERS")
    hooks.on_asset_created(asset=orders)
    listener.on_asset_event_emitted(SimpleNamespace(asset=orders, source_dag_id="sales", extra={"a": "secret"}))
    until("the events", lambda: not listener.outbox.waiting, 60)
    events = stored(hook, stream)
    assert [subject for subject, _, _ in events] == [
        "sales%2Edaily.group%2Eload.running",
        "sales%2Edaily.group%2Eload.success",
        "sales%2Edaily.group%2Eload.failed",
        "sales%2Edaily.group%2Eload.up_for_retry",
        "sales%2Edaily.group%2Eload.skipped",
        "sales.running",
        "sales.success",
        "sales.failed",
        "@asset.orders%20%3E%209.created",
        "@asset.orders%20%3E%209.changed",
    ]
    assert [identity for _, identity, _ in events] == [event["id"] for _, _, event in events]
    assert len({identity for _, identity, _ in events}) == len(events)
    first, failed, changed = events[0][2], events[2][2], events[-1][2]
    assert first["event"], first["state"] == ("task_instance", "running")
    assert (first["dag_id"], first["task_id"], first["run_id"]) == ("sales.daily", "group.load", "manual__1")
    assert (first["map_index"], first["try_number"], first["previous_state"]) == (-1, 2, "queued")
    assert failed["error"] == "ValueError"
    assert (changed["name"], changed["uri"], changed["source_dag_id"]) == (orders.name, orders.uri, "sales")
    assert "secret" not in json.dumps([event for _, _, event in events])


def test_filters_and_switches(hook: JetStreamHook, stream: str, configured: Any) -> None:
    configured(
        nats_conn_id=CONNECTION,
        subject_prefix=stream,
        asset_events_enabled="False",
        dag_run_dag_id_allowlist="sales*, other",
        dag_run_dag_id_denylist="*_test",
        task_instance_task_id_denylist="noisy*",
    )
    (listener,) = JetStreamPlugin().listeners
    hooks = listening(listener)
    for dag_id in ("sales", "sales_test", "unknown", "other"):
        hooks.on_dag_run_running(dag_run=run(dag_id=dag_id), msg="")
    for task_id in ("noisy_one", "load"):
        hooks.on_task_instance_running(previous_state=None, task_instance=task(task_id=task_id))
    hooks.on_asset_created(asset=Asset("orders"))
    until("the events", lambda: not listener.outbox.waiting, 60)
    subjects = [subject for subject, _, _ in stored(hook, stream)]
    assert subjects == ["sales.running", "other.running", "sales%2Edaily.load.running"]
    listener.outbox.close()


def test_nothing_is_registered_unless_a_connection_is_named() -> None:
    assert JetStreamPlugin().listeners == []


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_events", "many"),
        ("max_events", "0"),
        ("grace", "-1"),
        ("stream", "no.name"),
        ("subject_prefix", "a..b"),
        ("asset_events_enabled", "perhaps"),
        ("task_instance_dag_id_denlist", "payroll*"),  # what it denies would be published
    ],
)
def test_an_invalid_configuration_is_logged_and_stops_nothing(
    configured: Any, caplog: pytest.LogCaptureFixture, option: str, value: str
) -> None:
    configured(nats_conn_id=CONNECTION, **{option: value})
    with pytest.raises(InvalidValue, match=option):
        Config.read()
    assert JetStreamPlugin().listeners == []
    assert option in caplog.text
    assert "payroll" not in caplog.text


def test_an_option_that_does_not_exist_is_told_also_without_a_connection(
    configured: Any, caplog: pytest.LogCaptureFixture
) -> None:
    configured(nats_con_id=CONNECTION)
    assert JetStreamPlugin().listeners == []
    assert "[jetstream_events] nats_con_id='…': there is no such option; did you mean nats_conn_id?" in caplog.text


def test_a_hook_raises_nothing_and_counts_what_it_lost(
    listener: RunEvents, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lost: list[int] = []
    monkeypatch.setattr(run_events, "counted", lambda _, count: lost.append(count))
    hooks = listening(listener)
    hooks.on_task_instance_running(previous_state=None, task_instance=SimpleNamespace(dag_id="d"))
    hooks.on_dag_run_running(dag_run=run(dag_id="d" * 4_000), msg="")
    assert lost == [1, 1]
    assert "an event was lost in on_task_instance_running (AttributeError)" in caplog.text
    assert "an event was lost in on_dag_run_running (InvalidValue)" in caplog.text


def test_the_end_of_a_process_publishes_what_is_left(hook: JetStreamHook, stream: str, listener: RunEvents) -> None:
    listener.config = Config(nats_conn_id=CONNECTION, subject_prefix=stream, grace=60)
    listening(listener).on_dag_run_running(dag_run=run(), msg="")
    listener.before_stopping()
    assert [subject for subject, _, _ in stored(hook, stream)] == ["sales.running"]


def test_without_nats_the_end_of_a_process_loses_events_and_says_so(
    hook: JetStreamHook, listener: RunEvents, caplog: pytest.LogCaptureFixture
) -> None:
    listener.config = Config(nats_conn_id="there_is_none", grace=0)
    listener.outbox = listener._new()
    with caplog.at_level(logging.WARNING):
        listening(listener).on_dag_run_running(dag_run=run(), msg="")
        listener.before_stopping()
    assert "1 message lost, 1 in all" in caplog.text


@pytest.mark.parametrize("name", ["a", "a.b", "a%2Eb", "50 %", "*", ">", "tab\t", "größe", "a/b", "%"])
def test_every_name_is_one_token_that_can_be_read_back(name: str) -> None:
    assert unquote(token(name)) == name
    assert "." not in token(name)
    check_subject(f"airflow.{token(name)}.running")


def test_denied_names_win() -> None:
    both = Filter(allow=("a*",), deny=("ab",))
    assert [both.selects(name) for name in ("a", "ab", "b")] == [True, False, False]


def test_airflow_and_the_page_list_every_option() -> None:
    info: Any = get_provider_info()
    options = info["config"][SECTION]["options"]
    text = PAGE.read_text()
    assert [option for option in options if f"`{option}`" not in text] == []
    for option in ("max_events", "grace"):
        assert f"{options[option]['default']}" in {str(MOST), str(GRACE)}


def test_a_forked_process_has_an_empty_outbox_of_its_own(listener: RunEvents) -> None:
    before = listener.outbox
    before.put("x.y", b"", "id")
    listener._forked()
    assert listener.outbox is not before
    assert listener.outbox.waiting == 0
    before.close()
