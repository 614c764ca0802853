"""The ways in which work ends without success and without failure, and work that only seems to be done."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import BaseOperator

from airflow_nats_jetstream.compat import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    AirflowTaskTimeout,
    DagRunTriggerException,
    DownstreamTasksSkipped,
    TaskDeferred,
)
from airflow_nats_jetstream.holding import holding
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from jetstream_client.context import JetStream
from jetstream_client.errors import InvalidValue
from jetstream_handoff.errors import AlreadyDone, WorkNotDone
from jetstream_handoff.hold import driven
from jetstream_handoff.watch.overview import overview
from tests.airflow_nats_jetstream.deferring import GateTrigger
from tests.airflow_nats_jetstream.steps import CONNECTION, CONSUMER, claim, execute, receipt, record, sensor
from tests.airflow_versions import RETRY_POLICIES, RetryDecision, RetryPolicy


@pytest.fixture(autouse=True)
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driven, "TO_END", 0.3)


def processing(value: Any, body: Callable[[], Any], **changes: Any) -> BaseOperator:
    def work(claim: Any) -> Any:
        return body()

    made: BaseOperator = JetStreamProcessOperator(
        task_id="work", python_callable=work, op_kwargs={"claim": value}, nats_conn_id=CONNECTION, **changes
    )
    return made


def held(value: Any, body: Callable[[], Any], **changes: Any) -> BaseOperator:
    made: BaseOperator = holding(PythonOperator)(
        task_id="work", claim=value, python_callable=body, nats_conn_id=CONNECTION, do_xcom_push=False, **changes
    )
    return made


Make = Callable[..., BaseOperator]
BOTH = pytest.mark.parametrize("make", [processing, held])


def raising(error: BaseException) -> Callable[[], Any]:
    def body() -> None:
        raise error

    return body


@BOTH
def test_a_skip_is_seen_when_it_happens_again(hook: JetStreamHook, stream: str, make: Make) -> None:
    """Runs that skip are green, and their messages are redelivered each time."""

    async def findings(js: JetStream) -> list[str]:
        (view,) = (await overview(js)).streams[0].consumers
        return [f"{each.kind}: {each.text}" for each in view.findings]

    value, skip = claim(hook, stream), raising(AirflowSkipException("nothing today"))
    for number in range(1, 4):
        with pytest.raises(AirflowSkipException):
            execute(make(value, skip), run_id=f"run {number}")
        entry = record(hook, stream).open[value["id"]]  # type: ignore[union-attr]
        assert entry.is_released
        assert entry.history.skipped == entry.history.attempts[-1].token
        assert entry.unsettled == number - 1
        said = hook.run(findings)
        if number == 1:
            assert said == []
        else:
            (finding,) = said
            assert finding.startswith(
                f"unsettled: Claims of consumer {CONSUMER} of stream {stream} end neither settled"
            )
            assert f"Claim {value['id']} of stream {stream}" in finding
            assert f"delivered in {number} claims that ended neither settled nor failed" in finding
            assert f"the last attempt, {entry.history.skipped}, skipped its work" in finding
        (value,) = execute(sensor(stream), run_id=f"run {number + 1}")
    execute(make(value, lambda: None))
    assert hook.run(findings) == []
    assert record(hook, stream).failures == {}  # type: ignore[union-attr]


@BOTH
def test_a_skip_can_mean_that_there_is_nothing_to_do(hook: JetStreamHook, stream: str, make: Make) -> None:
    value, calls = claim(hook, stream), []

    def skip() -> None:
        calls.append(1)
        raise AirflowSkipException("nothing today")

    for try_number in (1, 2):
        with pytest.raises(AirflowSkipException):
            execute(make(value, skip, on_skip="settle"), try_number=try_number)
    (done,) = hook.committed(stream, CONSUMER)
    assert done.value == {"jetstream_skipped": True}
    assert calls == [1]  # a task that is cleared later skips again, because the claim is settled


@BOTH
def test_what_a_skip_means_is_known_when_the_dag_is_parsed(make: Make) -> None:
    with pytest.raises(InvalidValue, match="on_skip='retry': give one of 'release', 'settle'"):
        make({}, lambda: None, on_skip="retry")


@BOTH
@pytest.mark.parametrize(
    "error", [SystemExit(0), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr
)
def test_what_exits_has_failed(hook: JetStreamHook, stream: str, make: Make, error: BaseException) -> None:
    value = claim(hook, stream)
    with pytest.raises(type(error)):
        execute(make(value, raising(error)), max_tries=1)
    entry = record(hook, stream).open[value["id"]]  # type: ignore[union-attr]
    assert entry.token is None  # it waits for the retry
    with pytest.raises(type(error)):
        execute(make(value, raising(error)), try_number=2, max_tries=1)
    failed = receipt(hook, stream, value["id"])
    assert failed is not None
    assert failed.state == "failed"
    assert type(error).__name__ in failed.reason
    assert record(hook, stream).failures[value["id"]].size == 10  # type: ignore[union-attr] # it counts


def test_a_function_that_is_rescheduled_keeps_its_claim(hook: JetStreamHook, stream: str) -> None:
    value = claim(hook, stream)
    later = AirflowRescheduleException(datetime.now(UTC) + timedelta(seconds=1))  # type: ignore[no-untyped-call]
    with pytest.raises(AirflowRescheduleException):
        execute(processing(value, raising(later)))  # its last try: Airflow does not count a reschedule
    with pytest.raises(Exception, match="fewer than 1"):
        execute(sensor(stream, timeout=2.5), run_id="other")
    assert execute(processing(value, lambda: 7)) == 7
    assert [done.claim_id for done in hook.committed(stream, CONSUMER)] == [value["id"]]


def deferral() -> TaskDeferred:
    return TaskDeferred(trigger=GateTrigger("gate", 1, datetime.now(UTC)), method_name="execute")


def other_run() -> DagRunTriggerException:
    fields = inspect.signature(DagRunTriggerException).parameters
    return DagRunTriggerException(**dict.fromkeys(fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(("make", "error"), [(processing, deferral), (processing, other_run), (held, other_run)])
def test_what_goes_on_elsewhere_has_failed(
    hook: JetStreamHook, stream: str, make: Make, error: Callable[[], BaseException]
) -> None:
    value = claim(hook, stream)
    with pytest.raises(AirflowFailException, match="continue the task where the claim cannot be held"):
        execute(make(value, raising(error())), max_tries=3)
    assert receipt(hook, stream, value["id"]).state == "failed"  # type: ignore[union-attr]
    (again,) = execute(sensor(stream, timeout=0.9), run_id="other")
    assert again["ranges"] == value["ranges"]


@BOTH
def test_a_task_that_skips_others_has_succeeded(hook: JetStreamHook, stream: str, make: Make) -> None:
    value = claim(hook, stream)
    for try_number in (1, 2):
        with pytest.raises(DownstreamTasksSkipped) as skipping:
            execute(make(value, raising(DownstreamTasksSkipped(tasks=["a", ("b", 1)]))), try_number=try_number)  # type: ignore[no-untyped-call]
        assert skipping.value.tasks == ["a", ("b", 1)]
    assert [done.value for done in hook.committed(stream, CONSUMER)] == [{"jetstream_skipped": ["a", ["b", 1]]}]


@pytest.mark.parametrize("end", ["settle", "release", "fail", "skip"])
@pytest.mark.parametrize(
    "then",
    [None, AirflowTaskTimeout("late"), DownstreamTasksSkipped(tasks=["x"])],  # type: ignore[no-untyped-call]
    ids=["returns", "times out", "skips others"],
)
def test_a_function_that_ends_the_hold_itself_does_not_succeed(
    hook: JetStreamHook, stream: str, end: str, then: BaseException | None
) -> None:
    """It was green after a time-out, and after it skipped other tasks, although it had released the claim."""

    def body(claim: Any) -> None:
        getattr(claim, end)()
        if then is not None:
            raise then

    task = JetStreamProcessOperator(
        task_id="work", python_callable=body, op_kwargs={"claim": claim(hook, stream)}, nats_conn_id=CONNECTION
    )
    with pytest.raises((AirflowFailException, AirflowTaskTimeout)):
        execute(task)
    assert len(hook.committed(stream, CONSUMER)) == (end == "settle")


@BOTH
def test_another_claim_that_is_done_does_not_count_for_this_one(hook: JetStreamHook, stream: str, make: Make) -> None:
    with pytest.raises(AirflowException, match="because of a claim"):
        execute(make(claim(hook, stream), raising(AlreadyDone("0" * 12, "1-abc", 7))), max_tries=1)
    assert hook.committed(stream, CONSUMER) == []


async def coroutine() -> None: ...


def generator() -> Any:
    yield 1


def leaves_a_thread() -> None:
    threading.Thread(target=END.wait, name="loads the table").start()


END = threading.Event()


@BOTH
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (coroutine, "awaitable"),
        (generator, "iterator"),
        (lambda: [Future()], "a future that is not done"),
        (leaves_a_thread, "loads the table"),
    ],
    ids=["coroutine", "generator", "future", "thread"],
)
def test_what_was_only_started_is_not_done(
    hook: JetStreamHook, stream: str, make: Make, body: Callable[[], Any], says: str
) -> None:
    value = claim(hook, stream)
    END.clear()
    try:
        with pytest.raises(WorkNotDone, match=says):
            execute(make(value, lambda: body()), max_tries=1)  # noqa: PLW0108 - Airflow drives a generator function
    finally:
        END.set()
    assert hook.committed(stream, CONSUMER) == []
    assert record(hook, stream).open[value["id"]].token is None  # type: ignore[union-attr]


class Asynchronous:
    async def __call__(self, claim: Any) -> None: ...


async def of_a_claim(claim: Any) -> Any: ...


async def stream_of_a_claim(claim: Any) -> Any:
    yield claim


@pytest.mark.parametrize("function", [Asynchronous(), partial(partial(of_a_claim)), stream_of_a_claim])
def test_whatever_airflow_would_await_without_holding_the_claim_is_refused(function: Any) -> None:
    with pytest.raises(InvalidValue, match="this function is async"):
        JetStreamProcessOperator(task_id="work", python_callable=function, op_kwargs={"claim": {}})


class Policy(RetryPolicy):
    """A policy of an author, which is evaluated twice: for the claim, and by Airflow."""

    def __init__(self, decision: RetryDecision | None) -> None:
        self.decision = decision

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Any = None,  # noqa: ARG002
    ) -> RetryDecision:
        assert (type(exception), try_number, max_tries) == (OSError, 1, 3)
        if self.decision is None:
            raise RuntimeError("the policy breaks")
        return self.decision


@BOTH
@pytest.mark.parametrize(
    ("decision", "state", "leased"),
    [
        (RetryDecision.fail(), "failed", False),
        (RetryDecision.retry(timedelta(hours=1)), None, True),
        (RetryDecision.default(), None, False),
        (None, None, False),
    ],
    ids=["fail", "retry", "default", "breaks"],
)
def test_a_retry_policy_decides_for_the_claim_as_well(  # noqa: PLR0917
    hook: JetStreamHook, stream: str, make: Make, decision: RetryDecision | None, state: str | None, leased: bool
) -> None:
    value = claim(hook, stream)
    if not RETRY_POLICIES:  # Airflow itself refuses the parameter
        with pytest.raises(TypeError, match="retry_policy"):
            make(value, raising(OSError("full")), retry_policy=Policy(decision))
        return
    with pytest.raises(OSError, match="full"):
        execute(make(value, raising(OSError("full")), retry_policy=Policy(decision)), max_tries=3)
    ended = receipt(hook, stream, value["id"])
    assert (ended and ended.state) == state
    assert bool(record(hook, stream).failures) == (state == "failed")  # type: ignore[union-attr]
    if leased:  # for longer than ack_wait
        with pytest.raises(Exception, match="fewer than 1"):
            execute(sensor(stream, timeout=2.5), run_id="other")
