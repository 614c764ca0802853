"""Functions that return before their work is done: the claim is not settled, whatever the I/O manager accepts."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import HeldClaim, claimed_asset, claimed_op, take_claims
from tests.dagster_nats_jetstream.conftest import Line
from tests.dagster_nats_jetstream.test_assets import Storing

GO = threading.Event()


@pytest.fixture(autouse=True)
def go() -> Iterator[None]:
    GO.clear()
    yield
    GO.set()


async def later(claim: HeldClaim) -> int:
    return claim.count


async def steps(claim: HeldClaim) -> Any:
    yield claim.count


def numbers(claim: HeldClaim) -> Iterator[int]:
    yield from (int(message.data) for message in claim.messages())


def coroutine(claim: HeldClaim) -> Any:
    return later(claim)


def wrapped_coroutine(claim: HeldClaim) -> Any:
    return dg.Output(later(claim))


def coroutine_of_a_generator(claim: HeldClaim) -> Iterator[Any]:
    yield dg.Output(later(claim))


def asynchronous_generator(claim: HeldClaim) -> Any:
    return steps(claim)


def task(claim: HeldClaim) -> Any:
    async def begun() -> Any:
        return asyncio.get_running_loop().create_future()

    return asyncio.run(begun())


def future(claim: HeldClaim) -> Any:
    return Future()


def futures_in_a_list(claim: HeldClaim) -> Any:
    with ThreadPoolExecutor() as pool:
        done = pool.submit(len, "x")
    return [done, Future()]


def lazy(claim: HeldClaim) -> Any:
    return map(len, [message.data for message in claim.messages()])


def generator_in_a_result(claim: HeldClaim) -> Any:
    return dg.MaterializeResult(value=numbers(claim))


def thread(claim: HeldClaim) -> Any:
    threading.Thread(target=GO.wait).start()
    return claim.count


def thread_of_a_generator(claim: HeldClaim) -> Iterator[Any]:
    yield dg.Output(claim.count)
    threading.Thread(target=GO.wait).start()


UNFINISHED: dict[str, Callable[[HeldClaim], Any]] = {
    each.__name__: each
    for each in (
        *(coroutine, wrapped_coroutine, coroutine_of_a_generator, asynchronous_generator, task, future),
        *(futures_in_a_list, lazy, generator_in_a_result, thread, thread_of_a_generator),
    )
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetstream_handoff.hold.driven.TO_END", 0.2)


def failure_of(result: Any) -> str:
    (failure,) = result.filter_events(lambda event: event.is_step_failure)
    assert not result.filter_events(lambda event: event.is_step_up_for_retry)
    return str(failure.step_failure_data.error)


@pytest.mark.parametrize("function", UNFINISHED.values(), ids=UNFINISHED)
def test_an_asset_whose_work_is_not_done_does_not_settle(
    line: Line, instance: dg.DagsterInstance, function: Callable[[HeldClaim], Any]
) -> None:
    line.publish(3)
    policy = dg.RetryPolicy(max_retries=1)
    orders = claimed_asset(**line.quick(), name="orders", io_manager_key="storing", retry_policy=policy)(function)
    resources = {"jetstream": line.resource, "storing": Storing(line)}
    result = dg.materialize([orders], resources=resources, instance=instance, raise_on_error=False)
    assert "the work is not done although its function has returned" in failure_of(result)
    assert (line.committed, line.open, line.unacknowledged) == ([], {}, 3)


@pytest.mark.parametrize("function", [thread, coroutine])
def test_an_op_whose_work_is_not_done_does_not_settle(
    line: Line, instance: dg.DagsterInstance, function: Callable[[HeldClaim], Any]
) -> None:
    line.publish(3)
    take = take_claims(**line.quick())
    process = claimed_op(name="process", retry_policy=dg.RetryPolicy(max_retries=1))(function)

    @dg.graph
    def drain() -> None:
        take().map(process)

    resources = {"jetstream": line.resource}
    result = drain.execute_in_process(resources=resources, instance=instance, raise_on_error=False)
    assert "the work is not done although its function has returned" in failure_of(result)
    assert (line.committed, line.open, line.unacknowledged) == ([], {}, 3)


def test_the_error_of_a_future_is_that_of_the_work(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(3)

    @claimed_asset(**line.quick(), io_manager_key="storing")
    def orders(claim: HeldClaim) -> Any:
        with ThreadPoolExecutor() as pool:
            return pool.submit(int, "x")

    resources = {"jetstream": line.resource, "storing": Storing(line)}
    result = dg.materialize([orders], resources=resources, instance=instance, raise_on_error=False)
    assert "ValueError" in failure_of(result)
    assert line.committed == []
