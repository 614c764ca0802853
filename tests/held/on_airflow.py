"""Every outcome of a held operator on the real Airflow: `make held`.

The last tests disturb services that others need.
"""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest

from demo.service import Service, alive, until
from demo.stack import Stack
from jetstream_client import connect
from jetstream_client.wire.settings import ConnectionSettings
from jetstream_handoff import portal
from jetstream_handoff.claim import Claim
from jetstream_handoff.hold.hold import Hold
from tests.airflow_system.events import frozen
from tests.airflow_system.held_run import COUNT, HeldRun

Start = Callable[[str], HeldRun]


@pytest.fixture
def start(stack: Stack, folder: Path) -> Start:
    return lambda dag_id: HeldRun(stack, folder, dag_id)


def returned(start: Start) -> None:
    """The operator returns: settled, and the XCom is recorded. Cleared after that: the recorded value, and no run."""
    run = start("held_bash")
    attempt = run.begun()
    run.open(1, "echo the XCom")
    assert run.ends_well(attempt)["value"] == "the XCom"
    run.stack.airflow.clear(run.dag_id, run.id, "work", run.index)
    until("the second try", lambda: (run.tries, run.state) == (2, "success"), 240)
    assert run.jobs == [attempt]
    assert run.stack.airflow.xcom(run.dag_id, run.id, "work", map_index=0) == "the XCom"


def raised(start: Start) -> None:
    """The operator raises, and a retry is left: released until the retry, which settles."""
    run = start("held_bash")
    first = run.begun()
    run.open(1, f"case $(tail -n 1 {run.gate}.jobs) in {first}) exit 1;; esac; echo done")
    run.ends_well()
    assert len(run.jobs) == 2
    assert not run.judge.comes_again(run.stream)


def cannot_report(start: Start) -> None:
    """``post_execute`` raises, and a retry is left: as if the operator had raised."""
    run = start("held_bash_reported")
    first = run.begun()
    run.open(1, "echo done")
    receipt = run.ends_well()
    assert len(run.jobs) == 2
    assert first != run.jobs[-1]
    assert run.jobs[-1].endswith(receipt["token"])


def raised_for_the_last_time(start: Start) -> None:
    run = start("held_bash_once")
    run.begun()
    run.open(1, "exit 1")
    assert run.ends() == "failed"
    assert run.judge.ledger(run.stream) == ["failed"]
    until("the messages", run.redelivered, 60)


def skipped(start: Start) -> None:
    """BashOperator skips itself at exit code 99: the claim is released."""
    run = start("held_bash")
    run.begun()
    run.open(1, "exit 99")
    assert run.ends() == "success"
    assert run.state == "skipped"
    assert run.judge.ledger(run.stream) == ["open"]
    until("the messages", run.redelivered, 60)


def a_sensor_times_out(start: Start) -> None:
    """It fails without a retry."""
    run = start("held_file_poked")
    assert run.ends() == "failed"
    assert run.tries == 1
    assert run.judge.ledger(run.stream) == ["failed"]


def rescheduled(start: Start) -> None:
    run = start("held_file_rescheduled")
    until("the first poke", lambda: run.state == "up_for_reschedule", 240)
    token = run.token
    run.judge.lease_ends(run.stream)  # of ack_wait, but the claim is leased to the next poke
    assert not run.judge.comes_again(run.stream)
    run.open()
    assert run.ends_well()["token"] == token


def deferred_twice(start: Start) -> None:
    run = start("held_deferring")
    attempt = run.deferred()
    run.judge.lease_ends(run.stream)
    assert not run.judge.comes_again(run.stream)
    run.open(1, "once")
    assert run.deferred(times=2) == attempt
    run.open(2, "twice")
    assert run.ends_well(attempt)["value"] == {"folder": attempt, "said": "twice"}


def the_importable_form(start: Start) -> None:
    run = start("held_waiting")
    attempt = run.deferred()
    run.open(1)
    assert run.ends_well(attempt)["value"]["folder"] == attempt


def sensors_of_airflow(start: Start) -> None:
    date, file = start("held_date"), start("held_file_deferred")
    date.ends_well()
    until("the deferral", lambda: file.state == "deferred", 240)
    file.open()
    file.ends_well()


def in_a_mapped_group(start: Start) -> None:
    run = start("held_in_a_group")
    assert run.ends() == "success", run.logs()
    done = run.judge.done(run.stream)
    assert len(done) == COUNT // 5
    assert {each["value"]["count"] for each in done.values()} == {5}
    assert {each["value"]["attempt"] for each in done.values()} == {
        f"{key}-{each['token']}" for key, each in done.items()
    }
    assert run.judge.settled(run.stream) == list(range(1, COUNT + 1))


def short_circuit(start: Start) -> None:
    run = start("held_short_circuit")
    run.ends_well()
    after = run.task("after")
    assert after
    assert after.state == "skipped"


def killed_worker(start: Start) -> None:
    run = start("held_bash")
    first = run.begun()
    task = run.task()
    assert task
    run.stack.kill_worker(task)
    second = run.begun(2)
    assert second != first
    run.open()
    run.ends_well(second)


def cleared_while_it_works(start: Start) -> None:
    run = start("held_bash")
    run.begun()
    process = run.process()
    run.stack.airflow.clear(run.dag_id, run.id, "work", run.index)
    until("the end of the first try", lambda: not alive(process), 240)
    second = run.begun(2)
    run.open()
    run.ends_well(second)


def marked_while_it_works(start: Start) -> None:
    run = start("held_bash")
    run.begun()
    process = run.process()
    run.stack.airflow.mark(run.dag_id, run.id, "work", "failed", run.index)
    until("the release", lambda: run.judge.ledger(run.stream) == ["open"], 240)
    until("the messages", run.redelivered, 60)
    until("the end of the process", lambda: not alive(process), 240)


def sigterm(start: Start) -> None:
    run = start("held_bash")
    run.begun()
    run.process().send_signal(signal.SIGTERM)
    second = run.begun(2)  # bash was killed, so the operator raised
    run.open()
    run.ends_well(second)


def cleared_while_deferred(start: Start) -> None:
    run = start("held_deferring")
    first = run.deferred()
    run.stack.airflow.clear(run.dag_id, run.id, "work", run.index)
    until("the job to be killed", lambda: run.killed == ["in the triggerer"], 240)
    second = run.deferred(jobs=2)
    assert first != second
    assert not run.judge.comes_again(run.stream)  # they waited for the cleared task
    run.open(1)
    run.deferred(jobs=2, times=2)
    run.open(2)
    run.ends_well(second)
    assert run.killed == ["in the triggerer"]


def marked_while_deferred(start: Start) -> None:
    run = start("held_deferring")
    run.deferred()
    run.stack.airflow.mark(run.dag_id, run.id, "work", "success", run.index)
    until("the job to be killed", lambda: run.killed == ["in the triggerer"], 240)
    until("the release", lambda: run.judge.ledger(run.stream) == ["open"], 240)
    until("the messages", run.redelivered, 60)  # well before the end of the lease
    assert run.judge.settled(run.stream) == []


def stolen_while_deferred(start: Start) -> None:
    run = start("held_deferring")
    run.deferred()
    steal(run)
    until("the job to be killed", lambda: run.killed == ["in the triggerer"], 240)
    assert run.ends() == "failed"
    assert run.tries == 1  # no retry, because the messages belong to another attempt
    assert len(run.jobs) == 1


def stolen_while_it_works(start: Start) -> None:
    run = start("held_bash")
    run.begun()
    steal(run)
    assert run.ends() == "failed"
    assert run.tries == 1
    assert len(run.jobs) == 1


def held_for_too_long(start: Start) -> None:
    deferred, works = start("held_deferring_too_long"), start("held_bash_too_long")
    assert deferred.ends() == works.ends() == "failed"
    assert deferred.killed == ["in the triggerer"]
    for run in (deferred, works):
        assert run.tries == 1
        assert run.judge.ledger(run.stream) == ["open"]
        until("the messages", run.redelivered, 60)


def killed_while_it_resumes(start: Start) -> None:
    """The worker dies when it resumes: the job runs twice, and one of them counts."""
    run = start("held_deferring")
    first = run.deferred()
    run.open(1, "dies")
    until("the event", lambda: "Trigger fired event" in run.logs(".trigger."), 240)
    run.closed(1)
    second = run.deferred(jobs=2)
    run.open(1)
    run.deferred(jobs=2, times=2)
    run.open(2)
    run.ends_well(second)
    assert run.jobs == [first, second]


def steal(run: HeldRun) -> None:
    """Hold the claim as another attempt of the same task does, without end."""
    holder = (run.dag_id, run.id, "work", run.index, 9)
    value = run.stack.airflow.xcom(run.dag_id, run.id, "claims")[0]
    settings = ConnectionSettings(servers=run.stack.nats.url, shortest_ack_wait=1, ledger="airflow")

    async def hold(js: object) -> None:
        claim = Claim.from_json(value)
        async with connect(settings) as js_, Hold.begin(js_, claim, try_number=9, holder=holder) as thief:
            await thief.hand_over()

    portal.run(settings, hold)


EVENTS = [
    returned,
    raised,
    cannot_report,
    raised_for_the_last_time,
    skipped,
    a_sensor_times_out,
    rescheduled,
    deferred_twice,
    the_importable_form,
    sensors_of_airflow,
    in_a_mapped_group,
    short_circuit,
    killed_worker,
    cleared_while_it_works,
    marked_while_it_works,
    sigterm,
    cleared_while_deferred,
    marked_while_deferred,
    stolen_while_deferred,
    stolen_while_it_works,
    held_for_too_long,
    killed_while_it_resumes,
]


@pytest.mark.timeout(1800)
def test_what_can_happen_to_a_held_operator(start: Start) -> None:
    errors = []
    chosen = [event for event in EVENTS if event.__name__ in os.environ.get("EVENTS", event.__name__).split()]
    with ThreadPoolExecutor(4) as pool:
        plays = {pool.submit(event, start): event.__name__ for event in chosen}
        for play in as_completed(plays):
            if error := play.exception():
                error.add_note(plays[play])
                errors.append(error)
            print(plays[play], "failed" if error else "passed", flush=True)  # noqa: T201 - progress
    if errors:
        raise BaseExceptionGroup("not every event went as it should", errors)


def test_the_triggerer_dies(start: Start, stack: Stack) -> None:
    run = start("held_deferring")
    attempt = run.deferred()
    stack.triggerer.kill()
    stack.triggerer.start()
    run.open(1)
    run.deferred(times=2)
    run.open(2)
    run.ends_well(attempt)
    assert run.killed == []


def test_a_triggerer_that_froze_kills_nothing_that_another_watches(start: Start, stack: Stack) -> None:
    run = start("held_deferring")
    attempt = run.deferred()
    first = stack.triggerer
    second = Service("triggerer-2", first.command, folder=first.folder, environment=stack.environment)
    try:
        second.start()
        with frozen(first):
            logs = len(list(stack.folder.rglob("*.trigger.*")))
            until("the second triggerer", lambda: len(list(stack.folder.rglob("*.trigger.*"))) > logs, 240)
        said = "the task is deferred with another trigger"
        until("the first trigger to stop", lambda: said in run.logs(), 240)
        assert run.state == "deferred"
        run.open(1)
        run.deferred(times=2)
        run.open(2)
        run.ends_well(attempt)
        assert run.killed == []
        assert run.jobs == [attempt]
    finally:
        second.kill()


def test_nats_is_restarted_while_a_task_is_deferred_and_while_it_resumes(start: Start, stack: Stack) -> None:
    run = start("held_deferring")
    attempt = run.deferred()
    stack.nats.kill()
    stack.nats.start()
    run.open(1)
    run.deferred(times=2)
    stack.nats.kill()
    run.open(2)
    stack.nats.start()
    run.ends_well(attempt)
    assert run.jobs == [attempt]
