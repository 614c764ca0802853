"""Airflow's own events, the effect of each on the hand-off, and what the person on call does about it."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from demo.service import Service, alive, session, until
from tests.airflow_system.conftest import database
from tests.airflow_system.event import MESSAGES, Event, Play, Row
from tests.airflow_system.run import Run

EVENTS: list[Event] = []
"""The events, in the order of the table."""


def event(
    title: str, *rows: Row, in_all: int, why: str, remedy: str, messages: int = MESSAGES, alone: bool = False
) -> Callable[[Play], Play]:
    """Declare an event, whose play is the decorated function."""

    def declared(play: Play) -> Play:
        EVENTS.append(Event(title, play, rows, in_all, why, remedy, messages, alone))
        return play

    return declared


DONE = "success", "done", "0"


@event(
    "The body raises, and Airflow retries",
    Row(*DONE, body=2),
    in_all=2,
    why="The claim is released, with a lease that is longer than the retry's delay. The retry holds it again.",
    remedy="Nothing. If it happens again, read the log of the first try.",
)
def retry(run: Run) -> Iterator[None]:
    run.open_the_gate()
    run.start(first_try="raises")
    run.ends()
    yield


@event(
    "The body raises for the last time",
    Row("failed", "failed", "all", body=1),
    in_all=2,
    why="The claim has failed. Its messages are redelivered at once, to the next sensor that takes messages.",
    remedy="Fix the cause, and let the next run take the messages. Clearing this task does not give it these messages.",
)
def failure(run: Run) -> Iterator[None]:
    run.open_the_gate()
    run.start(first_try="fails")
    run.ends()
    yield


@event(
    "The body is skipped",
    Row("skipped", "open", "all", body=1),
    in_all=2,
    why="A skip says nothing about the messages. The claim is released, and the next run takes its messages.",
    remedy="If there is nothing to do for such messages, set `on_skip='settle'`: otherwise each run gets them again.",
)
def skipped(run: Run) -> Iterator[None]:
    run.open_the_gate()
    run.start(first_try="skips")
    run.ends()
    yield


@event(
    "The body exits (`sys.exit(0)`)",
    Row(*DONE, body=2),
    in_all=2,
    why="For Airflow the task has failed, whatever the exit code is. The claim waits for the retry.",
    remedy="Nothing. If it happens again, read the log of the first try.",
)
def exits(run: Run) -> Iterator[None]:
    run.open_the_gate()
    run.start(first_try="exits")
    run.ends()
    yield


@event(
    "The body asks to be rescheduled",
    Row(*DONE, body=2),
    in_all=2,
    why="The claim is leased until 5 min after the task is due again, and the task then holds it with a new token.",
    remedy="Nothing.",
)
def rescheduled(run: Run) -> Iterator[None]:
    run.open_the_gate()
    run.start(first_try="is rescheduled")
    run.ends()
    yield


@event(
    "The task is cleared while it runs",
    Row(*DONE, body=2),
    in_all=2,
    why="The running attempt releases the claim before it is killed. The new attempt holds it under a new token.",
    remedy="Nothing. You can clear the task like any other.",
)
def clear_while_running(run: Run) -> Iterator[None]:
    run.start()
    first = run.at_work()
    process = run.process()
    (token,) = run.judge.tokens(run.id).values()
    assert first.endswith(str(token))
    run.stack.airflow.clear(run.dag_id, run.id, "work", 0)
    until("the claim to be released", lambda: list(run.judge.tokens(run.id).values()) == [None], 240, every=0.05)
    second = run.at_work(attempts=2)
    assert not alive(process)
    assert run.judge.done(run.stream) == {}
    run.open_the_gate()
    run.ends()
    (receipt,) = run.judge.done(run.stream).values()
    assert second.endswith(receipt["token"])
    yield


@event(
    "The task is cleared after its success",
    Row(*DONE, body=1),
    in_all=1,
    why="The ledger says that the claim is done, so the body is skipped and the recorded value is returned.",
    remedy=(
        "To process the messages again, publish them again, reset the consumer, or set `on_settled='reprocess'` and "
        "then clear the task."
    ),
)
def clear_after_success(run: Run) -> Iterator[None]:
    run.open_the_gate()
    run.start()
    run.ends()
    run.stack.airflow.clear(run.dag_id, run.id, "work", 0)
    until("the second try", lambda: (task := run.task()) and (task.try_number, task.state) == (2, "success"), 240)
    yield


@contextmanager
def killed_by_airflow(run: Run) -> Iterator[None]:
    """Run the block, then wait until the first attempt has released its claim and its process has ended."""
    process = run.process()
    run.at_work()
    yield
    until("the claim to be released", lambda: run.judge.ledger(run.stream) == ["open"], 240)
    until("the end of the process", lambda: not alive(process), 240)


@event(
    "The task is marked success while it runs",
    Row("success", "open", "all", body=1),
    in_all=2,
    why=(
        "A mark says nothing about the work. The attempt releases the claim, nothing is acknowledged, and the "
        "next run takes the messages."
    ),
    remedy="A mark does not remove messages: they are redelivered. Find out why the task ran for so long.",
)
def mark_success(run: Run) -> Iterator[None]:
    run.start()
    with killed_by_airflow(run):
        run.stack.airflow.mark(run.dag_id, run.id, "work", "success", 0)
    yield
    run.open_the_gate()


@event(
    "The task is marked failed while it runs",
    Row("failed", "open", "all", body=1),
    in_all=2,
    why="The attempt releases the claim. The next run takes the messages, and this claim is then superseded.",
    remedy="Nothing is lost. To process the messages in this run, clear the task before another sensor takes them.",
)
def mark_failed(run: Run) -> Iterator[None]:
    run.start()
    with killed_by_airflow(run):
        run.stack.airflow.mark(run.dag_id, run.id, "work", "failed", 0)
    yield
    run.open_the_gate()


@event(
    "The execution times out in the body",
    Row(*DONE, body=2),
    in_all=2,
    why="The time-out ends the body, the claim is released, and the retry holds it again.",
    remedy="If every try times out, raise `execution_timeout`, or make claims smaller (`messages_per_claim`).",
)
def time_out_in_the_body(run: Run) -> Iterator[None]:
    run.dag_id = "hasty"
    run.open_the_gate()
    run.start(first_try="hangs")
    run.ends()
    yield


@event(
    "The execution times out in the body while the sensor of another run waits",
    Row(*DONE, body=2),
    in_all=2,
    why="The released messages are leased until 5 min after the retry is due, so the other sensor does not get them.",
    remedy="Nothing. If the retry waits for a worker for longer than these 5 min, the other run does the work.",
)
def time_out_beside_a_sensor(run: Run) -> Iterator[None]:
    run.dag_id = "hasty"
    run.start(first_try="hangs")
    run.at_work()
    other = run.another().claim(run.count)
    until("the other run's sensor to pull", lambda: run.judge.pulls(run.stream), 240)
    run.open_the_gate()
    run.ends()
    yield
    run.judge.publish(run.stream, run.count)
    other.ends()


@event(
    "The execution times out in settling",
    Row(*DONE, body=1),
    in_all=1,
    why="The time-out waits until settling has ended. The task then succeeds, because its claim is settled.",
    remedy="Nothing. The task's log says that the time-out came during settling.",
    messages=20_000,
)
def time_out_in_settling(run: Run) -> Iterator[None]:
    run.dag_id = "hasty"
    run.open_the_gate()
    run.start(first_try="returns late")
    run.ends()
    log = run.stack.airflow.log(run.dag_id, run.id, run.task())  # type: ignore[arg-type]
    assert "the task timed out after its work had ended, while its claim was being settled" in log
    yield


@event(
    "SIGTERM to the task's process",
    Row(*DONE, body=2),
    in_all=2,
    why="The attempt releases the claim at once and cannot settle it. The retry holds it again.",
    remedy="Nothing. Spark's jobs are cancelled; a body without Spark goes on until it returns.",
)
def sigterm(run: Run) -> Iterator[None]:
    run.start()
    run.at_work()
    run.process().send_signal(signal.SIGTERM)
    until("the claim to be released", lambda: run.judge.ledger(run.stream) == ["open"], 240)
    assert run.state() == "running"
    run.open_the_gate()
    run.ends()
    yield


@event(
    "The worker is killed",
    Row(*DONE, body=2),
    in_all=2,
    why="Airflow gets no heartbeats from the worker and retries the task. The retry takes the claim over.",
    remedy="Nothing. Airflow notices the death when `task_instance_heartbeat_timeout` is over.",
)
def worker_killed(run: Run) -> Iterator[None]:
    run.start()
    run.at_work()
    process = run.process()
    run.stack.kill_worker(run.task())  # type: ignore[arg-type]
    assert not alive(process)
    run.open_the_gate()
    run.ends()
    yield


@event(
    "The supervisor is killed, and its child process lives on",
    Row(*DONE, body=2),
    in_all=2,
    why="Two attempts are alive. Only the attempt with the newest token can settle the claim; the older is refused.",
    remedy="Read only committed output (`hook.committed`). Kill the older process if it slows down the machine.",
)
def supervisor_killed(run: Run) -> Iterator[None]:
    run.start()
    run.at_work()
    orphan = run.process()
    orphan.parent().kill()  # type: ignore[union-attr]
    second = run.at_work(attempts=2)
    assert alive(orphan)
    run.open_the_gate()
    run.ends()
    until("the orphan's end", lambda: not alive(orphan), 240)
    (receipt,) = run.judge.done(run.stream).values()
    assert second.endswith(receipt["token"])
    yield


@event(
    "The XCom cannot be pushed",
    Row(*DONE, body=2),
    in_all=2,
    why="The push comes before the settlement. The claim is released for the retry, which does the work again.",
    remedy="Fix Airflow's database or XCom backend. If this was the last try, let the next run take the messages.",
)
def xcom_push_fails(run: Run) -> Iterator[None]:
    run.start()
    run.at_work()
    with refusing_xcoms_of(run, "work"):
        run.open_the_gate()
        until("the retry", lambda: run.state() == "up_for_retry" or run.task().try_number > 1, 240, every=0.05)  # type: ignore[union-attr]
        assert run.judge.done(run.stream) == {}
    run.ends()
    assert run.stack.airflow.xcom(run.dag_id, run.id, "work", map_index=0) == run.count
    yield


@event(
    "`post_execute` raises",
    Row(*DONE, body=2),
    in_all=2,
    why="It is called before the claim is settled. The claim is released for the retry, which does the work again.",
    remedy="Nothing. If it happens again, read the log of the first try.",
)
def post_execute_raises(run: Run) -> Iterator[None]:
    run.open_the_gate()
    run.start(first_try="cannot report")
    run.ends()
    yield


@contextmanager
def refusing_xcoms_of(run: Run, task_id: str) -> Iterator[None]:
    """Let Airflow's database refuse the return value of one task of the run."""
    with closing(database(run.stack)) as connection, connection.cursor() as cursor:
        cursor.execute("insert into refused values (%s, %s)", [run.id, task_id])
        yield
        cursor.execute("delete from refused where run_id = %s", [run.id])


def sensor_fails(run: Run, state: str) -> None:
    """Let Airflow refuse the XCom of the sensor, which has taken messages: the try fails and releases them."""
    run.open_the_gate()
    run.waits()
    with refusing_xcoms_of(run, "claims"):
        run.judge.publish(run.stream, run.count)
        until("the sensor to fail", lambda: run.state("claims", -1) == state, 240, every=0.05)
        until("its claim to be released", lambda: run.judge.ledger(run.stream) == ["superseded"], 240, every=0.05)


@event(
    "Airflow refuses the XCom of the sensor, and retries it",
    Row("success", "done, superseded", "0", body=1),
    in_all=1,
    why="The try that fails releases what it has taken, and the retry takes the messages again.",
    remedy="Nothing. If it happens again, find out why Airflow's database or the XCom backend refuses XComs.",
)
def sensor_retried(run: Run) -> Iterator[None]:
    run.dag_id = "retried"
    sensor_fails(run, "up_for_retry")
    run.ends()
    yield


@event(
    "Airflow refuses the XCom of the sensor, and a user clears it",
    Row("upstream_failed", "superseded", "all", body=0, when="the sensor has failed"),
    Row("success", "done, superseded", "0", body=1),
    in_all=1,
    why="The messages were released when the sensor failed, so the cleared sensor, or any other, takes them at once.",
    remedy="Find out why the XCom was refused, and clear the sensor with *Downstream*. Or let the next run take them.",
)
def sensor_cleared(run: Run) -> Iterator[None]:
    sensor_fails(run, "failed")
    assert run.ends() == "failed"
    yield
    run.stack.airflow.clear(run.dag_id, run.id, "claims", downstream=True)
    run.ends()
    yield


@event(
    "A take could have more claims than Airflow maps",
    Row("upstream_failed", "", "all", body=0),
    in_all=1,
    why="The sensor fails before it takes anything. Without templates, the DAG is refused when it is parsed.",
    remedy="Lower `max_messages`, or raise `messages_per_claim` or `[core] max_map_length`; the log has the numbers.",
)
def more_claims_than_airflow_maps(run: Run) -> Iterator[None]:
    run.open_the_gate()
    run.judge.lay(run.stream, [f"{run.stream}.>"], 5)
    run.judge.publish(run.stream, run.count)
    run.claim(2_000, per_claim=1)
    assert run.ends() == "failed"
    yield


def longer_than_ack_wait(run: Run, waits: Callable[[], bool]) -> None:
    """Wait until the claim is in the ledger and its task waits, and then for longer than ack_wait (5 s)."""
    until("the claim", lambda: run.judge.ledger(run.stream) == ["open"], 240)
    until("its task to wait", waits, 240)
    run.judge.lease_ends(run.stream)


@event(
    "The task is queued for longer than `ack_wait`",
    Row("scheduled", "open", "all", body=0, when="while it waits"),
    Row(*DONE, body=1),
    in_all=1,
    why=(
        "Until the work starts, the messages are leased for the sensor's `hand_off_timeout` (15 min), not for "
        "`ack_wait`."
    ),
    remedy="Nothing. Find out why the queue is long (pool, parallelism).",
)
def queued_longer_than_ack_wait(run: Run) -> Iterator[None]:
    run.dag_id = "queued"
    run.open_the_gate()
    run.start()
    longer_than_ack_wait(run, lambda: run.state() == "scheduled")
    yield
    run.stack.airflow.pool(run.dag_id, 4)
    run.ends()
    yield


@event(
    "The task is queued for longer than `hand_off_timeout` while another run's sensor waits",
    Row("scheduled", "done, superseded", "0", body=1, when="while it waits"),
    Row("failed", "done, superseded", "0", body=1),
    in_all=1,
    why="The lease ended, and the other run took the messages and settled them. The late task does not process them.",
    remedy="You can ignore the failure, because the messages are settled. Give the sensor a longer `hand_off_timeout`.",
)
def queued_longer_than_hand_off_timeout(run: Run) -> Iterator[None]:
    run.dag_id = "queued_too_long"
    run.open_the_gate()
    run.start()
    until("the claim", lambda: run.judge.ledger(run.stream) == ["open"], 240)
    run.another().claim(run.count).ends()
    until("its task to wait", lambda: run.state() == "scheduled", 240)
    yield
    run.stack.airflow.pool(run.dag_id, 4)
    run.ends()
    yield


@event(
    "The DAG is paused",
    Row("claims: scheduled", "open", "all", body=0, when="while it is paused"),
    Row(*DONE, body=1),
    in_all=1,
    why="The trigger goes on and takes messages, but no task starts. The messages wait under their lease.",
    remedy=(
        "Unpause the DAG within `hand_off_timeout` (15 min). After that, another run's sensor can take the "
        "messages. Nothing is lost either way."
    ),
)
def paused(run: Run) -> Iterator[None]:
    run.dag_id = "paused"
    run.open_the_gate()
    run.waits()
    run.stack.airflow.pause(run.dag_id)
    run.judge.publish(run.stream, run.count)
    longer_than_ack_wait(run, lambda: run.state("claims", -1) == "scheduled")
    yield
    run.stack.airflow.pause(run.dag_id, False)
    run.ends()
    yield


@event(
    "A triggerer freezes for longer than its threshold and thaws, while a second one runs",
    Row("running", "held", "all", body=1, when="thawed, while the body runs"),
    Row(*DONE, body=1),
    in_all=1,
    why="The first one missed the server's heartbeats and drops the data in its socket. The second takes all messages.",
    remedy=(
        "Nothing. The messages waited until `triggerer_health_check_threshold` was over. Find out what froze the "
        "machine."
    ),
    alone=True,
)
def first_triggerer_frozen(run: Run) -> Iterator[None]:
    run.waits(least=run.count)  # the server serves both pulls; the second waits until the rest is redelivered
    first = run.stack.triggerer
    second = Service("triggerer-2", first.command, folder=first.folder, environment=run.stack.environment)
    try:
        second.start()
        run.judge.next_pull(run.stream)
        with frozen(first):
            until("the second triggerer to pull", lambda: run.judge.pulls(run.stream) == 2, 28)
            run.judge.publish(run.stream, run.count)
            run.at_work()
        time.sleep(15)  # the thawed triggerer leaves no trace: it sends neither a pull nor an answer
        yield
        run.open_the_gate()
        run.ends()
        yield
    finally:
        second.kill()


@contextmanager
def frozen(service: Service) -> Iterator[None]:
    processes = session(service.pid)
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()
