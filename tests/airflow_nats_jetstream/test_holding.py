# ruff: noqa: ARG002 - operators whose parameters are checked, and methods that Airflow calls
"""Operators that know nothing of claims, held on a real server: each row of the table of outcomes."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync
from airflow.providers.standard.sensors.filesystem import FileSensor
from airflow.sdk import DAG, BaseOperator

from airflow_nats_jetstream import triggers
from airflow_nats_jetstream.compat import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    AirflowTaskTimeout,
    DownstreamTasksSkipped,
    TaskDeferred,
)
from airflow_nats_jetstream.held_trigger import JetStreamHeldTrigger
from airflow_nats_jetstream.holding import JetStreamHeld, holding
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from airflow_nats_jetstream.sensors import JetStreamPullSensor
from demo.service import free_port
from jetstream_client.errors import ConnectionFailed, InvalidValue, JetStreamNotEnabled, RequestTimeout
from jetstream_client.wire.settings import environment_name
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import AlreadyDone, HoldLost, LedgerUnavailable, Superseded
from jetstream_handoff.hold.hold import Hold
from tests.airflow_nats_jetstream.deferring import Deferring, GateTrigger
from tests.airflow_nats_jetstream.steps import (
    ACK_WAIT,
    CONNECTION,
    CONSUMER,
    claim,
    context_of,
    execute,
    info,
    publish,
    receipt,
    record,
    rendered,
    run,
    sensor,
)
from tests.airflow_versions import DagSerialization, TaskDeferralError, deserialize, serialize
from tests.jetstream_client.until import until

COMMAND = "printf '%s' '{{ claim.attempt_id }} {{ claim.count }} {{ claim.first }}-{{ claim.last }}' > {{ params.out }}"


class Try:
    """One try of a task: the processes of the try share the task instance's id, as in Airflow."""

    def __init__(self, make: Callable[[], Any], **instance: Any) -> None:
        self.make = make
        self.instance = {"instance": uuid4(), "max_tries": 0, **instance}
        self.params: dict[str, Any] = {}
        self.task: Any = None

    def begin(self) -> Any:
        return self._process(lambda task: task.execute)

    def resume(self, method: str, kwargs: dict[str, Any]) -> Any:
        return self._process(lambda task: partial(task.resume_execution, method, kwargs))

    def _process(self, work: Callable[[Any], Any]) -> Any:
        self.task = task = self.make()
        context = {**context_of(task, **self.instance), "params": self.params}
        task.render_template_fields(context)
        return run(task, context, work(task))

    def defers(self, process: Callable[[], Any] | None = None) -> tuple[TaskDeferred, JetStreamHeldTrigger]:
        """Run a process until it defers. Returns the trigger as read back from Airflow's database."""
        with pytest.raises(TaskDeferred) as deferred:
            (process or self.begin)()
        path, fields = deferred.value.trigger.serialize()
        assert path == "airflow_nats_jetstream.held_trigger.JetStreamHeldTrigger"
        stored: Any = deserialize(json.loads(json.dumps(serialize(fields))))
        trigger = JetStreamHeldTrigger(**stored)
        trigger.task_instance = context_of(self.task, **self.instance)["ti"]
        return deferred.value, trigger


async def fired(trigger: JetStreamHeldTrigger) -> Any:
    try:
        (event,) = [event async for event in trigger.run()]
        return event.payload
    finally:
        await trigger.cleanup()


def bash(value: Any, command: str = COMMAND, **changes: Any) -> Any:
    return holding(BashOperator)(
        task_id="work", bash_command=command, claim=value, nats_conn_id=CONNECTION, do_xcom_push=True, **changes
    )


def python(value: Any, body: Callable[..., Any], **changes: Any) -> Any:
    return holding(PythonOperator)(
        task_id="work", python_callable=body, claim=value, nats_conn_id=CONNECTION, **changes
    )


def deferring(value: Any, folder: Path, **changes: Any) -> Any:
    return holding(Deferring)(
        task_id="work",
        folder="{{ claim.attempt_id }}",
        gate=str(folder / "gate"),
        claim=value,
        nats_conn_id=CONNECTION,
        **changes,
    )


def token(hook: JetStreamHook, stream: str, value: Any) -> str | None:
    return record(hook, stream).open[value["id"]].token  # type: ignore[union-attr]


def test_an_operator_is_held_and_settled(hook: JetStreamHook, stream: str, tmp_path: Path) -> None:
    value = claim(hook, stream, 25)
    work = Try(lambda: bash(value, COMMAND + "; echo; echo the XCom"))
    work.params = {"out": tmp_path / "out"}
    assert work.begin() == "the XCom"
    (done,) = hook.committed(stream, CONSUMER)
    assert (tmp_path / "out").read_text() == f"{done.attempt_id} 25 1-25"
    assert done.value == "the XCom"
    assert done.attempt_id.endswith(f"-1-{work.instance['instance'].hex[-8:]}")
    assert [each.by[2:] for each in done.history.attempts] == [("work", -1, 1)]
    assert info(hook, stream).floor == 25
    assert Try(lambda: bash(value, "exit 1"), try_number=2).begin() == "the XCom"  # cleared after its success
    with pytest.raises(AirflowFailException, match="on_settled='fail'"):
        Try(lambda: bash(value, "exit 1", on_settled="fail")).begin()


def test_the_messages_are_held_while_the_operator_works(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    assert Try(lambda: bash(value, f"sleep {2.5 * ACK_WAIT.total_seconds()}")).begin() == ""
    assert info(hook, stream).floor == 10
    assert info(hook, stream).counter == 10  # nothing was redelivered


@pytest.mark.parametrize("export", [False, True])
def test_credentials_are_exported_only_if_asked_for(
    hook: JetStreamHook, stream: str, export: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, name = claim(hook, stream), environment_name(CONNECTION)
    monkeypatch.delenv(name, raising=False)
    printed = Try(lambda: bash(value, f"echo ${{{name}:-nothing}}", export_connection=export)).begin()
    assert ("servers" in printed) == export
    monkeypatch.delenv(name, raising=False)


def test_a_value_that_cannot_be_recorded_is_not(hook: JetStreamHook, stream: str) -> None:
    for body in (lambda: {1, 2}, lambda: "x" * 9000):
        value = claim(hook, stream)
        assert Try(lambda value=value, body=body: python(value, body)).begin() == body()  # type: ignore[misc]
        assert receipt(hook, stream, value["id"]).value is None  # type: ignore[union-attr]
    value = claim(hook, stream)
    assert Try(lambda: python(value, lambda: "secret", do_xcom_push=False)).begin() == "secret"
    assert receipt(hook, stream, value["id"]).value is None  # type: ignore[union-attr]


def test_what_may_be_retried_waits_for_the_retry(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    for error in (OSError, SystemExit, AirflowTaskTimeout):

        def body(error: Any = error) -> None:
            raise error("no")

        with pytest.raises(error):
            Try(lambda body=body: python(value, body, retry_delay=timedelta(seconds=1)), max_tries=1).begin()  # type: ignore[misc]
        assert token(hook, stream, value) is None
    with pytest.raises(Exception, match="fewer than 1"):  # leased to the retry for longer than ack_wait
        execute(sensor(stream, timeout=2.5), run_id="other")
    assert Try(lambda: python(value, lambda: 7), try_number=2, max_tries=1).begin() == 7


@pytest.mark.parametrize(
    ("error", "max_tries", "counted"),
    [
        (OSError("full"), 0, True),
        (AirflowFailException("no"), 3, True),
        (AirflowSensorTimeout("no"), 3, True),
        (AirflowSkipException("no"), 3, False),
    ],
)
def test_a_last_failure_releases_the_messages(
    hook: JetStreamHook, stream: str, error: Exception, max_tries: int, counted: bool
) -> None:
    value = claim(hook, stream)

    def body() -> None:
        raise error

    with pytest.raises(type(error)):
        Try(lambda: python(value, body), max_tries=max_tries).begin()
    assert (receipt(hook, stream, value["id"]) is not None) == counted
    assert bool(record(hook, stream).failures) == counted  # type: ignore[union-attr]
    (again,) = execute(sensor(stream, timeout=0.9), run_id="other")
    assert again["ranges"] == value["ranges"]


@pytest.mark.parametrize("error", [AlreadyDone("00000000", "1-00000000", "theirs"), Superseded("claim 00000000 …")])
def test_an_error_about_another_claim_is_a_failure(hook: JetStreamHook, stream: str, error: Exception) -> None:
    value = claim(hook, stream)

    def body() -> None:
        raise error

    with pytest.raises(AirflowException, match="claim 00000000"):
        Try(lambda: python(value, body)).begin()
    assert receipt(hook, stream, value["id"]).state == "failed"  # type: ignore[union-attr]


def test_skipping_downstream_tasks_is_a_success(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)

    def body() -> None:
        raise DownstreamTasksSkipped(tasks=["after", ("mapped", 1)])  # type: ignore[no-untyped-call]

    def begin() -> list[Any]:
        with pytest.raises(DownstreamTasksSkipped) as skipped:
            Try(lambda: python(value, body)).begin()
        return list(skipped.value.tasks)

    first = begin()
    assert receipt(hook, stream, value["id"]).state == "done"  # type: ignore[union-attr]
    # A task that was cleared does not work again, and skips the same tasks.
    assert begin() == first == ["after", ("mapped", 1)]


def test_a_rescheduled_sensor_goes_on_as_the_same_attempt(hook: JetStreamHook, stream: str, tmp_path: Path) -> None:
    value, file = claim(hook, stream), tmp_path / "file"

    def make() -> Any:
        return holding(FileSensor)(
            task_id="work",
            filepath=str(file),
            mode="reschedule",
            poke_interval=0.1,
            claim=value,
            nats_conn_id=CONNECTION,
        )

    poke = Try(make)
    poke.instance["state"] = None
    os.environ["AIRFLOW_CONN_FS_DEFAULT"] = "fs:///"
    try:
        with pytest.raises(AirflowRescheduleException):
            poke.begin()
        first = token(hook, stream, value)
        time.sleep(2.5 * ACK_WAIT.total_seconds())
        assert info(hook, stream).counter == 10  # leased to the next poke
        file.touch()
        poke.begin()
    finally:
        del os.environ["AIRFLOW_CONN_FS_DEFAULT"]
    (done,) = hook.committed(stream, CONSUMER)
    assert done.token == first


async def test_a_deferred_operator_is_held_by_its_trigger(hook: JetStreamHook, stream: str, tmp_path: Path) -> None:
    value = await asyncio.to_thread(claim, hook, stream)
    work = Try(lambda: deferring(value, tmp_path, rounds=2))
    process: Callable[[], Any] = work.begin
    for number in (1, 2):
        deferred, trigger = await asyncio.to_thread(work.defers, process)
        assert deferred.method_name == "resume"
        assert deferred.kwargs == {"number": number}
        running = asyncio.create_task(fired(trigger))
        await asyncio.sleep(2 * ACK_WAIT.total_seconds())
        (tmp_path / f"gate.{number}").write_text("done")
        event = await running
        assert event == {"said": "done"}
        process = partial(work.resume, "resume", {"event": event, "number": number})
    attempt = (tmp_path / "gate.jobs").read_text().strip()
    assert await asyncio.to_thread(process) == {"folder": attempt, "said": "done"}
    (done,) = await asyncio.to_thread(hook.committed, stream, CONSUMER)
    assert (done.attempt_id, done.value) == (attempt, {"folder": attempt, "said": "done"})
    found = await asyncio.to_thread(info, hook, stream)
    assert (found.floor, found.counter) == (10, 10)  # nothing was redelivered
    assert (tmp_path / "gate.cleaned").exists()


@pytest.mark.parametrize("calls_itself", [False, True])
async def test_an_operator_may_continue_with_execute(
    hook: JetStreamHook, stream: str, tmp_path: Path, calls_itself: bool
) -> None:
    """As EmrServerlessStartJobOperator does when its application has not started yet."""

    class Again(Deferring):
        def execute(self, context: Any, event: dict[str, Any] | None = None, number: int = 0) -> Any:
            if event is None:
                return self.wait(1)
            return f"{event['said']} {number}"

        def wait(self, number: int) -> None:
            trigger = GateTrigger(self.gate, number, datetime.now(UTC))
            self.defer(trigger=trigger, method_name="then" if calls_itself else "execute", kwargs={"number": number})

        def then(self, context: Any, event: dict[str, Any], number: int) -> Any:
            said = self.execute(context, event=event, number=number)
            raise OSError(f"{said}, but not everything has succeeded")

    def make() -> Any:
        given = {"claim": value, "nats_conn_id": CONNECTION, "folder": "", "gate": str(tmp_path / "gate")}
        return holding(Again)(task_id="work", **given)

    value = await asyncio.to_thread(claim, hook, stream)
    work = Try(make, max_tries=1)
    deferred, trigger = await asyncio.to_thread(work.defers)
    (tmp_path / "gate.1").write_text("done")
    event = await fired(trigger)
    resumed = partial(work.resume, deferred.method_name, {"event": event, "number": 1})
    if calls_itself:
        with pytest.raises(OSError, match="not everything has succeeded"):
            await asyncio.to_thread(resumed)
        assert await asyncio.to_thread(token, hook, stream, value) is None
        assert (await asyncio.to_thread(info, hook, stream)).floor == 0
    else:
        assert await asyncio.to_thread(resumed) == "done 1"
        (done,) = await asyncio.to_thread(hook.committed, stream, CONSUMER)
        assert done.value == "done 1"


async def test_a_job_that_fails_while_deferred_is_released(hook: JetStreamHook, stream: str, tmp_path: Path) -> None:
    value = await asyncio.to_thread(claim, hook, stream)
    work = Try(lambda: deferring(value, tmp_path), max_tries=1)
    _, trigger = await asyncio.to_thread(work.defers)
    (tmp_path / "gate.1").write_text("failed")
    event = await fired(trigger)
    with pytest.raises(Exception, match="the job has failed"):
        await asyncio.to_thread(work.resume, "resume", {"event": event, "number": 1})
    assert await asyncio.to_thread(token, hook, stream, value) is None


async def test_a_trigger_that_breaks_fails_the_task(hook: JetStreamHook, stream: str, tmp_path: Path) -> None:
    value = await asyncio.to_thread(claim, hook, stream)
    work = Try(lambda: deferring(value, tmp_path))
    _, trigger = await asyncio.to_thread(work.defers)
    (tmp_path / "gate.1").write_text("breaks")
    with pytest.raises(OSError, match="the trigger breaks"):
        await fired(trigger)
    with pytest.raises(TaskDeferralError):
        await asyncio.to_thread(work.resume, "__fail__", {"error": "Trigger failure", "traceback": ["…"]})
    assert (await asyncio.to_thread(receipt, hook, stream, value["id"])).state == "failed"  # type: ignore[union-attr]


async def test_a_claim_lost_while_deferred_kills_the_job(hook: JetStreamHook, stream: str, tmp_path: Path) -> None:
    value = await asyncio.to_thread(claim, hook, stream)
    work = Try(lambda: deferring(value, tmp_path), max_tries=3)
    _, trigger = await asyncio.to_thread(work.defers)
    running = asyncio.create_task(fired(trigger))
    await until(lambda: trigger._running is not None)
    async with hook.shared() as js, begun_by_another_try(js, value) as thief:
        event = await running
        assert f"attempt {thief.token} now holds it" in event["jetstream_lost"]
        assert (tmp_path / "gate.killed").read_text() == "in the triggerer\n"
        with pytest.raises(AirflowFailException, match=thief.token):  # without retry
            await asyncio.to_thread(work.resume, "resume", {"event": event, "number": 1})
        await thief.settle("the thief's")
    (done,) = await asyncio.to_thread(hook.committed, stream, CONSUMER)
    assert done.token == thief.token


def test_too_many_skipped_tasks_are_not_recorded(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)

    def body() -> None:
        raise DownstreamTasksSkipped(tasks=[f"task_{number}" for number in range(2_000)])  # type: ignore[no-untyped-call]

    with pytest.raises(DownstreamTasksSkipped):
        Try(lambda: python(value, body)).begin()
    settled = receipt(hook, stream, value["id"])
    assert settled
    assert (settled.state, settled.value) == ("done", None)


async def test_the_longest_hold_kills_the_job(hook: JetStreamHook, stream: str, tmp_path: Path) -> None:
    value = await asyncio.to_thread(claim, hook, stream)
    work = Try(lambda: deferring(value, tmp_path, longest_hold="PT2S"))
    _, trigger = await asyncio.to_thread(work.defers)
    event = await fired(trigger)
    assert "longer than longest_hold" in event["jetstream_lost"]
    assert (tmp_path / "gate.killed").exists()
    assert await asyncio.to_thread(token, hook, stream, value) is None


async def test_the_longest_hold_kills_the_job_while_nats_is_away(
    hook: JetStreamHook, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = await asyncio.to_thread(claim, hook, stream)
    work = Try(lambda: deferring(value, tmp_path, longest_hold="PT2S"))
    _, trigger = await asyncio.to_thread(work.defers)
    nowhere = {"conn_type": "nats", "extra": {"servers": f"nats://127.0.0.1:{free_port()}", "connect_timeout": 0.2}}
    monkeypatch.setenv("AIRFLOW_CONN_AWAY", json.dumps(nowhere))
    trigger.nats_conn_id = "away"
    event = await fired(trigger)
    assert "longest_hold has passed" in event["jetstream_lost"]
    assert (tmp_path / "gate.killed").exists()


async def test_a_cancelled_trigger_leaves_the_claim_to_the_next(
    hook: JetStreamHook, stream: str, tmp_path: Path
) -> None:
    value = await asyncio.to_thread(claim, hook, stream)
    work = Try(lambda: deferring(value, tmp_path))
    _, trigger = await asyncio.to_thread(work.defers)
    running = asyncio.create_task(fired(trigger))
    await until(lambda: trigger._running is not None)
    await asyncio.sleep(0.5)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    await asyncio.sleep(2.5 * ACK_WAIT.total_seconds())  # nobody holds it, but it is leased
    _, path = trigger.serialize()
    another = JetStreamHeldTrigger(**path)
    another.task_instance = trigger.task_instance
    (tmp_path / "gate.1").write_text("done")
    event = await fired(another)
    await asyncio.to_thread(work.resume, "resume", {"event": event, "number": 1})
    found = await asyncio.to_thread(info, hook, stream)
    assert (found.floor, found.counter) == (10, 10)
    assert not (tmp_path / "gate.killed").exists()


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    ("state", "stolen", "killed", "released"),
    [
        ("deferred", False, False, False),  # another trigger watches the job
        ("deferred", True, True, False),  # cleared, and deferred again
        ("success", False, True, True),
        ("failed", False, True, True),
        (None, False, True, False),  # just cleared: the next try takes the claim over
        ("running", False, True, False),
    ],
)
async def test_a_user_acts_on_a_deferred_task(  # noqa: PLR0917 - the cases of one decision
    hook: JetStreamHook,
    stream: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: str | None,
    stolen: bool,
    killed: bool,
    released: bool,
    told: bool,
) -> None:
    """Airflow tells the trigger so, or, below 3.3, only cancels it."""
    monkeypatch.setattr(triggers, "tells_triggers", told)
    value = await asyncio.to_thread(claim, hook, stream)
    work = Try(lambda: deferring(value, tmp_path))
    _, trigger = await asyncio.to_thread(work.defers)

    async def known() -> str | None:
        return state

    monkeypatch.setattr(trigger, "_task_state", known)
    before = await asyncio.to_thread(token, hook, stream, value)
    held = False

    async def as_the_triggerer_does() -> None:
        try:
            async for _ in trigger.run():
                pass
        except asyncio.CancelledError:
            if told:
                await trigger.on_kill()
            raise
        finally:
            await trigger.cleanup()

    running = asyncio.create_task(as_the_triggerer_does())
    await until(lambda: trigger._running is not None)
    await asyncio.sleep(0.5)
    if stolen:
        await asyncio.to_thread(begin_and_keep, hook, value)
        held = True
    while not running.done():
        running.cancel()
        await asyncio.wait([running], timeout=0.4)
    assert (tmp_path / "gate.killed").exists() == killed
    after = await asyncio.to_thread(token, hook, stream, value)
    assert after == (None if released else "2-stolen00" if held else before)


def begun_by_another_try(js: Any, value: Any, **options: Any) -> Any:
    same = ("dag", "run", "work", -1, 9)
    return Hold.begin(js, Claim.from_json(value), try_number=9, holder=same, **options)


def begin_and_keep(hook: JetStreamHook, value: Any) -> None:
    async def steal(js: Any) -> None:
        async with begun_by_another_try(js, value, token="2-stolen00") as hold:
            await hold.hand_over()

    hook.run(steal)


async def test_an_event_that_would_end_the_task_is_refused(hook: JetStreamHook, stream: str, tmp_path: Path) -> None:
    value = await asyncio.to_thread(claim, hook, stream)
    work = Try(lambda: deferring(value, tmp_path, ends_task=True))
    _, trigger = await asyncio.to_thread(work.defers)
    (tmp_path / "gate.1").write_text("done")
    with pytest.raises(TypeError, match="end_from_trigger=False"):
        await fired(trigger)


def test_a_killed_task_releases_its_claim_and_kills_its_job_once(
    hook: JetStreamHook, stream: str, tmp_path: Path
) -> None:
    value = claim(hook, stream)
    killed: list[int] = []

    class Job(BaseOperator):
        def execute(self, context: Any) -> None:
            signal.signal(signal.SIGALRM, lambda *_: work.task.on_kill())
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            while not killed:
                time.sleep(0.05)
            raise OSError("the job was killed")

        def on_kill(self) -> None:
            killed.append(1)
            assert len(killed) == 1

    work = Try(lambda: holding(Job)(task_id="work", claim=value, waits=True, nats_conn_id=CONNECTION), max_tries=3)
    with pytest.raises(OSError, match="killed"):
        work.begin()
    assert token(hook, stream, value) is None
    (again,) = execute(sensor(stream, timeout=0.9), run_id="other")  # at once
    assert again["ranges"] == value["ranges"]
    work.task.on_kill()


def test_a_task_that_is_killed_while_it_begins_to_hold_starts_no_job(
    hook: JetStreamHook, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = claim(hook, stream)
    started: list[str] = []
    hold = JetStreamHook.holding

    @contextmanager
    def killed_meanwhile(self: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        with hold(self, *arguments, **options) as held:
            work.task.on_kill()
            yield held

    monkeypatch.setattr(JetStreamHook, "holding", killed_meanwhile)
    work = Try(lambda: python(value, lambda: started.append("job")), max_tries=3)
    with pytest.raises(HoldLost, match="released when its task was killed"):
        work.begin()
    assert started == []
    assert token(hook, stream, value) is None


@pytest.mark.parametrize(
    ("ends", "options", "error"),
    [
        ("killed", {}, AirflowException),
        ("timed out", {"execution_timeout": timedelta(seconds=1)}, AirflowTaskTimeout),
    ],
)
def test_a_task_that_ends_while_it_hands_over_releases_its_claim(  # noqa: PLR0917 - fixtures
    hook: JetStreamHook,
    stream: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends: str,
    options: dict[str, Any],
    error: Any,
) -> None:
    value = claim(hook, stream)
    hand_over = Hold.hand_over

    async def slowly(self: Hold, lease: timedelta) -> None:
        if ends == "killed":
            await asyncio.to_thread(work.task.on_kill)
        else:
            await asyncio.sleep(1.5)
        await hand_over(self, lease)

    monkeypatch.setattr(Hold, "hand_over", slowly)
    work = Try(lambda: deferring(value, tmp_path, **options), max_tries=0)
    with pytest.raises(error):
        work.begin()
    assert (tmp_path / "gate.killed").read_text() == "in the worker\n"
    assert token(hook, stream, value) is None
    (again,) = execute(sensor(stream, timeout=0.9), run_id="other")  # at once
    assert again["ranges"] == value["ranges"]


def test_a_lost_claim_kills_the_job_in_the_worker(hook: JetStreamHook, stream: str, tmp_path: Path) -> None:
    value, killed = claim(hook, stream), tmp_path / "killed"

    class Job(BaseOperator):
        def execute(self, context: Any) -> None:
            begin_and_keep(hook, value)
            end = time.monotonic() + 30
            while not killed.exists():
                assert time.monotonic() < end
                time.sleep(0.05)
            raise OSError("the job was killed")

        def on_kill(self) -> None:
            killed.touch()

    with pytest.raises(AirflowFailException, match="attempt 2-stolen00 now holds it"):
        Try(lambda: holding(Job)(task_id="work", claim=value, waits=True, nats_conn_id=CONNECTION), max_tries=3).begin()
    assert token(hook, stream, value) == "2-stolen00"


@pytest.mark.parametrize(
    "away",
    [ConnectionFailed("nobody listens"), LedgerUnavailable("no answer"), LedgerUnavailable("no leader")],
    ids=["no server", "no answer", "no leader"],
)
async def test_a_task_that_resumes_waits_for_nats(
    hook: JetStreamHook, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: Exception
) -> None:
    if isinstance(away, LedgerUnavailable):
        away.__cause__ = RequestTimeout("") if "answer" in str(away) else JetStreamNotEnabled(503, 0, "")
    value = await asyncio.to_thread(claim, hook, stream)
    work = Try(lambda: deferring(value, tmp_path))
    _, trigger = await asyncio.to_thread(work.defers)
    (tmp_path / "gate.1").write_text("done")
    event = await fired(trigger)
    tries = []
    hold = JetStreamHook.holding

    @contextmanager
    def away_at_first(self: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        tries.append(options["resume"])
        if len(tries) < 3:
            raise away
        with hold(self, *arguments, **options) as held:
            yield held

    monkeypatch.setattr(JetStreamHook, "holding", away_at_first)
    await asyncio.to_thread(work.resume, "resume", {"event": event, "number": 1})
    assert tries == [True, True, True]


# Templates, classes and what is refused.


def test_templates_of_mapped_tasks_know_the_claim(hook: JetStreamHook, stream: str) -> None:
    publish(hook, stream, 20)
    values = execute(sensor(stream, messages_per_claim=10))
    with DAG("dag", schedule=None):
        mapped = (
            holding(BashOperator)
            .partial(task_id="work", bash_command="{{ claim.id }}", env={"CLAIM": "{{ claim.json }}"})
            .expand(claim=values)
        )
    for index, value in enumerate(values):
        task = rendered(mapped, {}, map_index=index)
        assert task.bash_command == value["id"]
        assert json.loads(task.env["CLAIM"]) == value
        assert task.claim == value


def test_the_claim_is_never_a_template(hook: JetStreamHook, stream: str) -> None:
    """A consumer named sql gives the claim a string that ends in .sql, as names of files do."""
    publish(hook, stream, 1)
    (value,) = execute(sensor(stream, consumer="sql"))

    class Query(BaseOperator):
        template_fields = ("statement",)
        template_ext = (".sql",)

        def __init__(self, statement: str, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.statement = statement

    task = rendered(
        holding(Query)(task_id="work", waits=True, statement="{{ claim.consumer }} {{ claim.bytes }}", claim=value), {}
    )
    assert task.statement == "sql 10"
    assert task.claim == value


def test_a_native_environment_keeps_the_claim_a_string(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    with DAG("dag", schedule=None, render_template_as_native_obj=True):
        task = bash(value, "{{ claim.json }}", env={"N": "{{ claim.count }}"})
    task = rendered(task, {})
    assert json.loads(task.bash_command) == value
    assert task.env == {"N": 10}


def test_a_template_may_say_which_claim(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    task = rendered(bash("{{ params.claims[0] | tojson }}", "{{ claim.id }}"), {"claims": [value]})
    assert task.bash_command == value["id"]
    assert task.claim == value


@pytest.mark.parametrize("wrong", [None, {}, [], {"v": 1}, "claims"])
def test_what_is_no_claim_fails_without_retry(wrong: Any) -> None:
    with pytest.raises(AirflowFailException, match="claim"):
        Try(lambda: bash(wrong, "echo {{ claim.id }}")).begin()


def test_the_class_is_the_operators_own_in_airflows_eyes() -> None:
    held = holding(Deferring)
    assert holding(Deferring) is held
    assert holding(held) is held
    assert (held.__name__, held.__module__) == ("Deferring", Deferring.__module__)
    assert held.template_fields == ("claim", "folder", "gate", "on_settled", "longest_hold", "nats_conn_id")
    with DAG("dag", schedule=None) as dag:
        held(task_id="one", folder="", gate="", claim={})
        held.partial(task_id="many", folder="", gate="").expand(claim=[{}])
    read = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    for task_id in ("one", "many"):
        task: Any = read.get_task(task_id)
        assert (task.task_type, task.ui_color) == ("Deferring", "#123456")
        assert "JetStream" in [each.name for each in task.operator_extra_links]


def test_the_importable_form_is_the_same(hook: JetStreamHook, stream: str) -> None:
    class Job(JetStreamHeld, BashOperator):
        """A user's class."""

    value = claim(hook, stream)

    class More(Job):
        template_fields = (*BashOperator.template_fields, "append_env")

    for operator in (Job, More):
        assert operator.template_fields[0] == "claim"
        assert len(set(operator.template_fields)) == len(operator.template_fields)
    with pytest.raises(TypeError, match="claim"):
        Job(task_id="work", bash_command="")  # type: ignore[call-arg]
    assert Try(lambda: Job(task_id="w", bash_command="echo 1", claim=value, nats_conn_id=CONNECTION)).begin() == "1"


def test_default_arguments_reach_both() -> None:
    defaults = {"nats_conn_id": "other", "folder": "o", "gate": "g", "retries": 7}
    with DAG("dag", schedule=None, default_args=defaults):
        task = holding(Deferring)(task_id="work", claim={})
    assert (task.nats_conn_id, task.folder, task.retries) == ("other", "o", 7)


class Waiting(BaseOperator):
    """An operator with the parameters of which providers make use."""

    def __init__(  # noqa: PLR0917
        self,
        wait_for_completion: bool = True,
        wait_for_termination: bool = True,
        wait_until_job_complete: bool = True,
        retry_from_failure: bool = False,
        invocation_type: str | None = None,
        conf: dict[str, str] | None = None,
        asynchronous: bool = False,
        reattach_on_restart: bool = True,
        durable: bool | None = None,
        reconnect_on_retry: bool | None = None,
        deferrable: bool = False,
        polling_interval: int = 5,
        reattach_states: Any = None,
        idempotency_token: str | None = None,
        sync: bool = True,
        synchronous: bool = True,
        wait: bool = True,
        application_args: Any = None,
        configuration: Any = None,
        yarn_track_via_rm_api: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.reattaches = (durable, reattach_on_restart, reconnect_on_retry)


class StepFunctionStartExecutionOperator(BaseOperator):
    """The Amazon provider's operator of this name returns at once unless it is deferrable."""

    def __init__(self, deferrable: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class JobFlow(BaseOperator):
    """As EmrCreateJobFlowOperator, whose defaults wait for nothing."""

    def __init__(self, wait_for_completion: bool | None = None, wait_policy: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class Rendered(BaseOperator):
    """Whether it waits is a template field, as of BatchOperator and EcsRunTaskOperator."""

    template_fields = ("wait_for_completion",)

    def __init__(self, wait_for_completion: Any = True, wait_until_job_complete: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.wait_for_completion = wait_for_completion

    def execute(self, context: Any) -> str:
        return "started"


class Hasty(Waiting):
    """Its default only starts a job, as that of EmrAddStepsOperator does."""

    def __init__(self, wait_for_completion: bool = False, **kwargs: Any) -> None:
        super().__init__(wait_for_completion=wait_for_completion, **kwargs)


@pytest.mark.parametrize(
    ("operator", "given", "says"),
    [
        (Waiting, {"wait_for_completion": False}, "only start its job .*; set wait_for_completion=True"),
        (Waiting, {"wait_for_completion": False, "deferrable": True}, "set wait_for_completion=True"),
        (Waiting, {"wait_for_termination": False, "deferrable": True}, "set wait_for_termination=True"),
        (Waiting, {"wait_until_job_complete": False}, "set wait_until_job_complete=True"),
        (Waiting, {"retry_from_failure": True}, "earlier try.*; leave retry_from_failure out"),
        (Waiting, {"invocation_type": "Event"}, "set invocation_type='RequestResponse'"),
        (
            Waiting,
            {"conf": {"spark.yarn.submit.waitAppCompletion": "false", "x": "secret"}},
            "^conf=[^:]*: while",
        ),
        *(
            (Waiting, {"wait_for_completion": off}, "set wait_for_completion=True")
            for off in (0, "0", "false", "No", "")
        ),
        *((Waiting, {name: False}, f"set {name}=True") for name in ("sync", "synchronous", "wait")),
        *((Waiting, {"asynchronous": on}, "set asynchronous=False") for on in (1, "1", "true", "Yes")),
        (Waiting, {"durable": "true"}, "leave durable out"),
        (Waiting, {"polling_interval": 0.0}, "set polling_interval"),
        (Waiting, {"polling_interval": 0, "deferrable": "false"}, "set polling_interval"),
        *(
            (Waiting, given, "leave spark.kubernetes.submission.waitAppCompletion out")
            for given in (
                {"conf": {"spark.kubernetes.submission.waitAppCompletion": False}},
                {
                    "configuration": {
                        "spec": [{"sparkConf": {"spark.kubernetes.submission.waitAppCompletion": "FALSE"}}]
                    }
                },
                {"configuration": ["spark-submit", "--conf", "spark.kubernetes.submission.waitAppCompletion=false"]},
                {"configuration": "a {{ ds }} --conf spark.kubernetes.submission.waitAppCompletion=false"},
            )
        ),
        (JobFlow, {}, "set wait_for_completion=True"),
        (StepFunctionStartExecutionOperator, {}, "only start its job .*; set deferrable=True"),
        (Waiting, {"asynchronous": True}, "set asynchronous=False"),
        (Waiting, {"reattach_on_restart": True}, "earlier try.*; leave reattach_on_restart out"),
        (Waiting, {"durable": True}, "leave durable out"),
        (Waiting, {"reattach_states": {"RUNNING"}}, "leave reattach_states out"),
        (Waiting, {"polling_interval": 0}, "set polling_interval"),
        (Waiting, {"idempotency_token": "{{ ts }}"}, r"the same token; let the token contain \{\{ claim.attempt_id"),
        (Hasty, {}, "while a claim is held around Hasty, .*; set wait_for_completion=True"),
        (DateTimeSensorAsync, {"target_time": "2026-01-01", "end_from_trigger": True}, "set end_from_trigger=False"),
        (
            DateTimeSensorAsync,
            {"target_time": "2026-01-01", "start_from_trigger": True},
            "leave start_from_trigger out",
        ),
    ],
)
def test_what_cannot_be_held_is_refused_when_the_dag_is_parsed(operator: Any, given: Any, says: str) -> None:
    for make in (holding(operator), lambda **kwargs: holding(operator).partial(**kwargs).expand(claim=[])):
        with DAG("dag", schedule=None), pytest.raises(InvalidValue, match=says):
            make(task_id="work", **given, **({"claim": {}} if make is holding(operator) else {}))


@pytest.mark.filterwarnings("ignore:Task .* was never mapped")
def test_a_default_argument_of_the_dag_is_refused_too() -> None:
    with (
        DAG("dag", schedule=None, default_args={"reconnect_on_retry": True}),
        pytest.raises(InvalidValue, match="leave reconnect_on_retry out"),
    ):
        holding(Waiting)(task_id="work", claim={})


def test_a_retry_never_continues_the_job_of_an_earlier_try() -> None:
    """Its output would be under the name of another attempt."""
    assert holding(Waiting)(task_id="work", claim={}).reattaches == (False, False, None)
    with DAG("dag", schedule=None):
        mapped = holding(Waiting).partial(task_id="work", durable=None).expand(claim=[{}])
    assert mapped.unmap({"claim": {}}).reattaches == (False, False, None)


@pytest.mark.parametrize(
    ("operator", "given"),
    [
        (Hasty, {"deferrable": True, "wait_for_completion": True}),
        (Hasty, {"wait_for_completion": "{{ params.wait }}"}),
        (Waiting, {"polling_interval": 0, "deferrable": True}),
        (JobFlow, {"wait_policy": "until its steps have ended"}),
        (StepFunctionStartExecutionOperator, {"deferrable": True}),
        (Waiting, {"wait_for_completion": None, "asynchronous": "0", "wait": "yes"}),
        (Waiting, {"application_args": ["--conf", "spark.yarn.submit.waitAppCompletion=false"]}),
        (Waiting, {"conf": {"spark.yarn.submit.waitAppCompletion": "true", "x": ("spark.yarn", 1)}}),
        (Waiting, {"conf": {"spark.yarn.submit.waitAppCompletion": "{{ params.wait }}"}}),
        (Waiting, {"conf": {"spark.yarn.submit.waitAppCompletion": "false"}, "yarn_track_via_rm_api": True}),
    ],
)
def test_what_can_be_held_is_not_refused(operator: Any, given: Any) -> None:
    holding(operator)(task_id="work", claim={}, **given)


class Unknown(BaseOperator):
    """An operator of a service, of which nothing says whether it waits for its job."""

    template_fields = ("body",)

    def __init__(self, body: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.body = body

    def execute(self, context: Any) -> str:
        return "started"


class Bash(BashOperator):
    """A user's class that does something after the command."""

    def execute(self, context: Any) -> Any:
        return super().execute(context)


@pytest.mark.filterwarnings("ignore:Task .* was never mapped")
@pytest.mark.parametrize(("operator", "given"), [(Unknown, {}), (Bash, {"bash_command": "true"})])
def test_an_operator_that_is_not_known_to_wait_needs_its_authors_word(operator: Any, given: dict[str, Any]) -> None:
    says = f"^waits=False: .* around {operator.__name__}, .* not known to return only after .* add waits=True"
    with DAG("dag"):
        with pytest.raises(InvalidValue, match=says):
            holding(operator)(task_id="one", claim={}, **given)
        with pytest.raises(InvalidValue, match=says):
            holding(operator).partial(task_id="many", **given)
        for name in ("waits", "export_connection"):
            with pytest.raises(InvalidValue, match=f"{name}.*give True or False"):
                holding(operator)(task_id=name, claim={}, **{"waits": True, **given, name: "no"})
        assert holding(operator)(task_id="two", claim={}, waits=True, **given)
        mapped = holding(operator).partial(task_id="three", waits=True, **given).expand(claim=[{}])
    assert mapped.unmap({"claim": {}})


def test_an_operator_whose_source_only_creates_an_object_is_refused() -> None:
    class FlinkKubernetesOperator(Unknown):
        """The operator of this name creates a FlinkDeployment."""

    with pytest.raises(InvalidValue, match="only creates an object in Kubernetes"):
        holding(FlinkKubernetesOperator)


def test_a_rendered_conf_is_refused_before_the_job_begins(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    body = {"conf": {"spark.yarn.submit.waitAppCompletion": "{{ params.wait }}"}}
    with DAG("dag", schedule=None):
        task = holding(Unknown)(task_id="work", claim=value, body=body, waits=True, nats_conn_id=CONNECTION)
    with pytest.raises(InvalidValue, match=r"leave spark\.yarn\.submit\.waitAppCompletion out"):
        execute(rendered(task, {"wait": "false"}))
    assert token(hook, stream, value) is None
    assert execute(rendered(task, {"wait": "true"})) == "started"


def test_a_rendered_parameter_is_refused_before_the_job_begins(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    with DAG("dag", schedule=None, render_template_as_native_obj=True):
        task = holding(Rendered)(
            task_id="work", wait_for_completion="{{ params.wait }}", claim=value, nats_conn_id=CONNECTION
        )
    with pytest.raises(InvalidValue, match="set wait_for_completion=True"):
        execute(rendered(task, {"wait": False}))
    assert token(hook, stream, value) is None
    assert execute(rendered(task, {"wait": True})) == "started"


def test_what_an_operator_makes_of_its_parameters_is_not_refused(hook: JetStreamHook, stream: str) -> None:
    """As EksCreateClusterOperator, which waits either in its trigger or in the worker."""

    class InTheTrigger(Rendered):
        def __init__(self, wait_for_completion: Any = True, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.wait_for_completion = False

    value = claim(hook, stream)
    given = {"wait_for_completion": True, "claim": value, "nats_conn_id": CONNECTION}
    assert Try(lambda: holding(InTheTrigger)(task_id="work", **given)).begin() == "started"


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        (TriggerDagRunOperator, "nothing runs while the claim is held; pass the claim to the other DAG"),
        (EmptyOperator, "Airflow never runs it"),
        (JetStreamPullSensor, "use it without holding"),
        (JetStreamProcessOperator, "use it without holding"),
        (dict, "give the class of an operator"),
        ("BashOperator", "give the class of an operator"),
    ],
)
def test_operators_that_cannot_be_held_say_why(operator: Any, says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        holding(operator)


def test_an_operator_with_the_same_parameters_is_refused() -> None:
    class Claims(BaseOperator):
        def __init__(self, claim: Any = None, **kwargs: Any) -> None:
            super().__init__(**kwargs)

    with pytest.raises(InvalidValue, match="a parameter 'claim'"):
        holding(Claims)


def test_a_success_that_is_too_fast_is_told(
    hook: JetStreamHook, stream: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Submits(BaseOperator):
        def execute(self, context: Any) -> None:
            return None

    value = claim(hook, stream)
    Try(lambda: holding(Submits)(task_id="work", claim=value, waits=True, nats_conn_id=CONNECTION)).begin()
    assert "If it only started a job" in capsys.readouterr().out
    value = claim(hook, stream)
    Try(lambda: bash(value, "true")).begin()
    assert "If it only started a job" not in capsys.readouterr().out
