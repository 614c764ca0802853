"""Kills, interrupts and failures of a Dagster with real processes. Each function is one scenario."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial

import dagster as dg

from demo.service import until
from tests.dagster_system.world import World

POINTS = ("entered", "worked", "storing", "stored", "decided", "settled")
SUCCESS, FAILURE = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE
STARTED, CANCELED = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELED
LONG = 300
"""Seconds: on a busy machine each process of Dagster takes long to start."""
TAKE_OVER, REQUEST = "jetstream/take_over", "jetstream/request"


def well(world: World, stream: str, seconds: float = 0) -> None:
    """Wait until all messages of a stream are settled, and check that each was settled once."""
    if seconds:
        try:
            until(f"all of {stream} to be settled", lambda: bool(world.judge(stream)), seconds, every=1)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {world.judge(stream)}") from None
    judgement = world.judge(stream)
    assert judgement, judgement
    left = world.left(stream)
    assert not left, f"these points were not reached: {left}"


def run_of(world: World, job: str, known: int) -> str:
    """Wait until the sensor has requested another run than the `known` first ones, and return its id."""
    return until(f"a run of {job}", lambda: world.stack.runs(job)[known:], LONG)[0].run_id


# Steps that are killed or fail, and are retried.


def drained(world: World, stream: str, *points: str, times: int = 1, messages: int = 2000, what: str = "kill") -> None:
    """A run takes and processes the messages while its steps are killed at these points and retried."""
    world.publish(stream, messages)
    world.order(stream, *points, what=what, times=times)
    run = world.stack.launch(stream.lower())
    assert world.stack.finished(run) == SUCCESS
    well(world, stream)
    if not set(points) <= {"begun", "entered"}:
        retried = world.stack.instance.all_logs(run, of_type=dg.DagsterEventType.STEP_UP_FOR_RETRY)
        assert len(retried) >= times


def killed_thrice(world: World, point: str) -> None:
    drained(world, "DRAIN", point, times=3)


def killed_at_all_points(world: World) -> None:
    drained(world, "DRAIN", *POINTS)


def recorded_value_is_stored_again(world: World) -> None:
    """A retry that finds its claim settled stores the recorded value again, under the attempt that has settled it."""
    before = set((world.folder / "steps").iterdir())
    drained(world, "DRAIN", "decided", messages=400)
    notes = [file.read_text().split() for file in set((world.folder / "steps").iterdir()) - before]
    assert sorted(map(len, notes)) == [1, 2]
    assert len({attempt for note in notes for attempt in note}) == 2


def asset(world: World, *points: str) -> None:
    """The step of an asset is killed at these points and retried."""
    world.publish("ORDERS", 500)
    world.order("ORDERS", *points)
    assert world.stack.finished(world.stack.launch("orders_job")) == SUCCESS
    well(world, "ORDERS")


def asset_killed_after_decision(world: World) -> None:
    """The retry finds nothing to take, because the ledger has the claim as done; the asset is materialized. The next
    run that gets the messages, when their lease has ended, acknowledges them without processing them."""
    world.publish("ORDERS", 500)
    world.order("ORDERS", "decided")
    run = world.stack.launch("orders_job")
    assert world.stack.finished(run) == SUCCESS
    (materialized,) = world.stack.instance.all_logs(run, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    attempt = materialized.get_dagster_event().step_materialization_data.materialization.metadata["jetstream/attempt"]
    assert attempt.value in {receipt.attempt_id for receipt in world.committed("ORDERS")}
    count = len(world.committed("ORDERS"))

    def acknowledged() -> bool:
        assert world.stack.finished(world.stack.launch("orders_job")) == SUCCESS
        return bool(world.judge("ORDERS"))

    until("the messages to be acknowledged", acknowledged, LONG)
    assert len(world.committed("ORDERS")) == count


def output_refused(world: World) -> None:
    """The I/O manager refuses an output, and the step is not retried: the claim fails at once. The next run pulls its
    messages."""
    world.publish("ORDERS", 100)
    committed = len(world.committed("ORDERS"))
    world.order("ORDERS", "storing", what="refuse")
    run = world.stack.launch("orders_job")
    assert world.stack.finished(run) == FAILURE
    assert not world.stack.instance.all_logs(run, of_type=dg.DagsterEventType.STEP_UP_FOR_RETRY)
    assert not world.open("ORDERS")
    assert len(world.committed("ORDERS")) == committed
    assert world.stack.finished(world.stack.launch("orders_job")) == SUCCESS
    well(world, "ORDERS")


def step_interrupted(world: World) -> None:
    """SIGTERM to one step: the claim is released at once, and the interrupt counts as a try."""
    world.publish("DRAIN", 400)
    world.order("DRAIN", "worked", what="wait")
    run = world.stack.launch("drain")
    os.kill(world.reached("DRAIN", "worked"), signal.SIGTERM)
    assert world.stack.finished(run) == SUCCESS
    assert len(world.stack.instance.all_logs(run, of_type=dg.DagsterEventType.STEP_UP_FOR_RETRY)) == 1
    well(world, "DRAIN")


def blocking_check_fails(world: World) -> None:
    """Nothing is settled; the next run gets the same messages."""
    world.publish("CHECKED", 100)
    before = len(world.committed("CHECKED"))
    world.order("CHECKED", "checked", what="raise")
    assert world.stack.finished(world.stack.launch("checked_job")) == FAILURE
    assert len(world.committed("CHECKED")) == before
    assert not world.open("CHECKED")
    assert world.stack.finished(world.stack.launch("checked_job")) == SUCCESS
    well(world, "CHECKED")


# Runs that end early: the sensor requests a run that takes their claims over.


def terminated(world: World, point: str, messages: int = 2000) -> None:
    """A run is terminated while two steps are at a point: no claim is held soon after that."""
    known = len(world.stack.runs("unlimited"))
    world.order("UNLIMITED", point, what="wait", times=2)
    world.publish("UNLIMITED", messages)
    run = run_of(world, "unlimited", known)
    for number in (0, 1):
        world.reached("UNLIMITED", point, number)
    assert world.held("UNLIMITED") == 2
    world.stack.terminate(run)
    began = time.monotonic()
    until("the claims to be released", lambda: not world.held("UNLIMITED"), 10, every=0.1)
    world.measured["released after"] = time.monotonic() - began
    assert world.stack.finished(run) == CANCELED
    well(world, "UNLIMITED", LONG)
    if point == "worked":  # "storing" fails the claims, whose messages may be requested before the run has ended
        assert TAKE_OVER in world.stack.runs("unlimited")[known + 1].tags


def everything_killed(world: World, stream: str) -> None:
    """The daemon, the code server, the run and its steps are killed at once. The daemon ends the run after its longest
    runtime."""
    job = stream.lower()
    known = len(world.stack.runs(job))
    committed = len(world.committed(stream))
    world.publish(stream, 2000)
    run = run_of(world, job, known)
    until("some claims to be settled", lambda: len(world.committed(stream)) > committed + 2, LONG, every=0.1)
    world.order(stream, "worked", what="wait")
    world.reached(stream, "worked")  # at least one claim is held
    world.stack.daemon.kill()
    world.stack.code_server.kill()  # with the runs and steps
    assert world.stack.status(run) == STARTED
    assert len(world.open(stream)) >= 4
    world.stack.code_server.start()
    world.stack.daemon.start()
    well(world, stream, LONG)
    assert world.stack.status(run) == FAILURE
    assert any(TAKE_OVER in each.tags for each in world.stack.runs(job)[known + 1 :])


def from_failure(world: World) -> None:
    """The daemon retries a killed run from its failure. The retry drops mapped steps that never started, and succeeds;
    the sensor requests a run that takes over their claims."""
    known = len(world.stack.runs("retried"))
    everything_killed(world, "RETRIED")
    first, *later = world.stack.runs("retried")[known:]
    again = [each for each in later if each.root_run_id == first.run_id]
    assert again
    assert again[0].tags[REQUEST] == first.tags[REQUEST]


def killed_before_pulling(world: World) -> None:
    """A run that is killed together with its code server stays STARTED for ever. The sensor does not wait for it."""
    known = len(world.stack.runs("unlimited"))
    world.order("UNLIMITED", "begun", what="wait")
    world.publish("UNLIMITED", 400)
    run = run_of(world, "unlimited", known)
    world.reached("UNLIMITED", "begun")
    world.stack.code_server.restart()
    well(world, "UNLIMITED", LONG)
    assert world.stack.status(run) == STARTED
    world.stack.mark_canceled(run)


def run_killed(world: World) -> None:
    """The code server notices that a run's process was killed, and the sensor requests a run that takes its claims
    over."""
    known = len(world.stack.runs("unlimited"))
    world.order("UNLIMITED", "worked", what="wait", times=2)
    world.publish("UNLIMITED", 1000)
    run = run_of(world, "unlimited", known)
    for number in (0, 1):
        world.reached("UNLIMITED", "worked", number)
    world.stack.kill_workers()
    assert world.stack.finished(run) == FAILURE
    well(world, "UNLIMITED", LONG)


def killed_at_work(world: World) -> None:
    """A run that is killed together with its code server stays STARTED for ever, with claims. Without a longest
    runtime, they are redelivered when their leases have ended and another run is requested for new messages."""
    known = len(world.stack.runs("unlimited"))
    world.order("UNLIMITED", "worked", what="wait", times=2)
    world.publish("UNLIMITED", 1000)
    run = run_of(world, "unlimited", known)
    for number in (0, 1):
        world.reached("UNLIMITED", "worked", number)
    world.stack.code_server.restart()
    time.sleep(21)  # the longest lease
    world.publish("UNLIMITED", 1)
    well(world, "UNLIMITED", LONG)
    assert world.stack.status(run) == STARTED
    world.stack.mark_canceled(run)


def daemon_killed_twice(world: World) -> None:
    """Once while the run is in the queue, and once while it runs."""
    world.publish("DRAIN", 2000)
    run = world.stack.launch("drain")
    world.stack.daemon.restart()
    until("the run to start", lambda: world.stack.status(run) == STARTED, LONG)
    world.stack.daemon.restart()
    assert world.stack.finished(run) == SUCCESS
    well(world, "DRAIN")


SCENARIOS: dict[str, Callable[[World], None]] = {
    **{f"step killed, {point}": partial(killed_thrice, point=point) for point in POINTS},
    "steps killed, all points": killed_at_all_points,
    "steps killed, all points twice": lambda world: drained(world, "DRAIN", *POINTS, times=2),
    "steps killed, spawned": lambda world: drained(world, "SPAWNED", *POINTS, messages=400),
    "steps fail, in one process": lambda world: drained(
        world, "ALONE", "worked", "storing", messages=400, what="raise"
    ),
    "recorded value stored again": recorded_value_is_stored_again,
    "asset killed, before the decision": lambda world: asset(world, *POINTS[:4]),
    "asset killed, after the decision": asset_killed_after_decision,
    "asset killed, after settling": lambda world: asset(world, "settled"),
    "blocking check": blocking_check_fails,
    "output refused": output_refused,
    "step interrupted": step_interrupted,
    "run terminated at work": lambda world: terminated(world, "worked"),
    "run terminated while storing": lambda world: terminated(world, "storing"),
    "daemon killed twice": daemon_killed_twice,
    "everything killed": lambda world: everything_killed(world, "LIMITED"),
    "everything killed, and run retried": from_failure,
    "run killed": run_killed,
    "run and code server killed, before pulling": killed_before_pulling,
    "run and code server killed, at work": killed_at_work,
}

WATCHED = {
    **{name: ["UNLIMITED"] for name in SCENARIOS if name.startswith("run ")},
    "everything killed": ["LIMITED"],
    "everything killed, and run retried": ["RETRIED"],
}
"""The streams that sensors watch in a scenario; without any, runs are launched by hand."""
