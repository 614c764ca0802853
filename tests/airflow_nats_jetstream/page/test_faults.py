"""Faults that were planted on a real server and in Airflow's database: the page names the cause and one action of each.

The last one is that of a sensor without a permission, which has never taken a claim.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from demo.service import until
from jetstream_client.context import JetStream
from jetstream_client.errors import JetStreamError
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.take.take import Take
from tests.airflow_nats_jetstream.page.airflow import Airflow
from tests.airflow_nats_jetstream.page.api_server import RUN
from tests.airflow_nats_jetstream.page.world import ACTED, CONSUMER, World
from tests.jetstream_handoff.steps import taking

TASK = ("orders", RUN, "work", 0, 2)


def paused_dag(world: World, stream: str) -> None:
    world.late_claim(stream, "resting")


def dead_worker(world: World, stream: str) -> None:
    world.hold(world.claim(stream, 3))


def paused_consumer(world: World, stream: str) -> None:
    world.settle(world.claim(stream, 3))
    until_then = datetime.now(UTC) + timedelta(hours=1)
    world.run(lambda js: js.stream(stream).consumer(CONSUMER).pause(until_then), ledger=ACTED)


def poison(world: World, stream: str) -> None:
    claim = world.claim(stream, 1)

    async def fail(js: JetStream) -> None:
        async with Hold.begin(js, claim, try_number=2, holder=TASK) as hold:
            await hold.fail(f"ValueError in orders.work[0], run {RUN}, try 2")

    world.run(fail, ledger=ACTED)


def skipped(world: World, stream: str) -> None:
    world.late_claim(stream, "orders", skipped=True)


def edited(world: World, stream: str) -> None:
    world.claim(stream, 3)
    world.run(lambda js: js.stream(stream).consumer(CONSUMER).update({"max_deliver": 5}), ledger=ACTED)


def shorter(world: World, stream: str) -> None:
    world.claim(stream, 3)
    world.run(lambda js: js.stream(stream).consumer(CONSUMER).update({"ack_wait": 10**9}), ledger=ACTED)


def failed_sensor(world: World, stream: str) -> None:
    world.late_claim(stream, "waits_sensor")


FAULTS: list[tuple[Callable[[World, str], None], str, str | None]] = [
    (paused_dag, "DAG resting is paused.", "dag"),
    (dead_worker, "The worker of attempt 2-dead is dead or cut off.", "release"),
    (paused_consumer, "Consumer work of stream FAULT_paused_consumer is paused until 2", "resume"),
    (poison, "Message 1 of stream FAULT_poison fails: ValueError.", "task"),
    (skipped, " skipped its work, and no sensor pulls.", "dag"),
    (edited, "Consumer work of stream FAULT_edited was changed: max_deliver=5.", None),
    (shorter, "was changed while its claims are open: ack_wait: 2000000000", None),
    (failed_sensor, f"Task waits_sensor / {RUN} / take failed after it had taken the claim.", "release"),
]


def findings(airflow: Airflow, connection: str, stream: str) -> list[dict[str, Any]]:
    """The findings of the connection and of a stream."""
    with airflow.client("op") as client:
        found = client.get(f"connections/{connection}/overview").json()
    of_stream = [each for each in found["streams"] if each["name"] == stream]
    return [*found["findings"], *(each for of in of_stream for view in of["consumers"] for each in view["findings"])]


@pytest.mark.parametrize(("plant", "cause", "action"), FAULTS, ids=[each[0].__name__ for each in FAULTS])
def test_a_planted_fault_is_named(
    airflow: Airflow, world: World, plant: Callable[[World, str], None], cause: str, action: str | None
) -> None:
    stream = f"FAULT_{plant.__name__}"
    plant(world, stream)
    until("the finding", lambda: any(cause in each["cause"] for each in findings(airflow, "acting", stream)), 30)
    found = [each for each in findings(airflow, "acting", stream) if each["kind"] != "storage"]
    (named,) = [each for each in found if cause in each["cause"]]
    assert (named["action"], found[0]["cause"]) == (action, named["cause"])
    if plant is poison:
        assert (named["task"]["task_id"], named["task"]["map_index"]) == ("work", 0)


def cause_of(airflow: Airflow, stream: str, cause: str) -> dict[str, Any]:
    """The finding with this cause, when it is there."""

    def named() -> list[dict[str, Any]]:
        return [each for each in findings(airflow, "acting", stream) if cause in each["cause"]]

    until(f"the finding {cause!r}", lambda: bool(named()), 30)
    return named()[0]


def test_what_airflow_knows_of_a_dag_whose_messages_wait_is_named(airflow: Airflow, world: World) -> None:
    for name, cause, remedy in (
        ("sensor", f"Run {RUN} of DAG waits_sensor has failed: task take failed.", "Read the log of what failed"),
        ("gone", "DAG waits_gone is no longer among the DAGs of Airflow.", "Start a run of the DAG that takes from"),
        ("later", "The next run of DAG waits_later is due at 2100-01-01T00:00:00Z.", "Start a run of the pipeline"),
    ):
        world.late_claim(f"UNTAKEN_{name}", f"waits_{name}", skipped=True)
        found = cause_of(airflow, f"UNTAKEN_{name}", cause)
        assert "skipped its work, and no sensor pulls." in found["effect"]
        assert remedy.split(" the pipeline")[0] in found["remedy"]


def test_messages_that_the_newest_run_has_left_do_not_wait_for_the_next_one(airflow: Airflow, world: World) -> None:
    """The DAG may no longer take from this consumer."""
    world.late_claim("UNTAKEN_left", "waits_later", skipped=True, run="before")
    found = cause_of(airflow, "UNTAKEN_left", "skipped its work, and no sensor pulls.")
    assert found["remedy"].startswith("Start a run of DAG waits_later")


def test_a_triggerer_that_has_stopped_is_the_cause(airflow: Airflow, world: World) -> None:
    world.late_claim("UNTAKEN_triggerer", "waits_later", skipped=True)
    with closing(sqlite3.connect(airflow.database, timeout=30)) as database:
        with database:
            values = ("TriggererJob", "running", "2026-01-01 00:00:00", "2026-01-01 00:00:00", "h", "u")
            columns = "job_type, state, start_date, latest_heartbeat, hostname, unixname"
            database.execute(f"insert into job ({columns}) values (?, ?, ?, ?, ?, ?)", values)
        try:
            found = cause_of(airflow, "UNTAKEN_triggerer", "Airflow's triggerer does not run: its last heartbeat was ")
            assert found["remedy"] == "Start the triggerer."
        finally:
            with database:
                database.execute("delete from job")


def deleted_ledger(world: World, stream: str) -> None:
    world.claim(stream, 3, rejected=True, ledger="gone")
    world.run(lambda js: js.stream("KV_gone_claims").delete())


def forbidden_ledger(world: World, stream: str) -> None:
    """A sensor that may not write its ledger, and has never taken a claim."""

    async def prepare(js: JetStream) -> None:
        found = await js.get_or_create_stream({"name": stream, "subjects": [f"{stream}.>"], "allow_direct": True})
        with pytest.raises(JetStreamError, match="muted_claims"):
            await Take(js, taking(found)).prepare()

    world.run(prepare, user="mute", ledger="muted")


def test_a_deleted_ledger_is_named(airflow: Airflow, world: World) -> None:
    deleted_ledger(world, "FAULT_gone")
    cause = "The bucket gone_claims of the ledger was deleted or lost."
    until("the finding", lambda: [each["cause"] for each in findings(airflow, "gone", "")] == [cause], 30)
    with airflow.client("op") as client:
        found = client.get("connections/gone/overview").json()
    assert [each["name"] for each in found["streams"]] == ["FAULT_gone"]
    assert "1 receipt and 1 consumer of this ledger exist" in found["findings"][0]["effect"]


def test_a_missing_permission_to_write_the_ledger_is_named_before_the_first_claim(
    airflow: Airflow, world: World
) -> None:
    forbidden_ledger(world, "FAULT_mute")
    (found,) = findings(airflow, "muted", "FAULT_mute")
    assert (found["kind"], found["level"]) == ("permission", "error")
    assert "not permitted to publish on '$KV.muted_claims." in found["cause"]
