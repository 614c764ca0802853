"""Numbers and callbacks that could never work are refused at once: by name, and before anything is sent."""

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetstream_client.consume.message import Message
from jetstream_client.consume.priority import Priority
from jetstream_client.consume.pull_window import Pulling
from jetstream_client.errors import InvalidValue, PublishFailed, ServerTooOld
from jetstream_client.publish.bulk import publish_all
from jetstream_client.requirements import ATOMIC_BATCHES
from jetstream_client.stream import Stream
from tests.jetstream_client.steps import Traffic, publish
from tests.jetstream_client.until import until

NO_NUMBERS = ("1", b"1", [1], True, False, math.nan, math.inf, -math.inf, 1e300, 10**30, 1j, -1)
Call = Callable[[Stream, Any], Awaitable[object]]


async def made(_: object) -> None:
    """For values that are refused when they are created, before this call."""


async def enter(context: AbstractAsyncContextManager[object]) -> None:
    async with context:
        pass


async def commit(stream: Stream, timeout: Any) -> None:
    async with stream.js.batch() as batch:
        batch.ended = True
        await batch.commit(timeout)


COUNTS: dict[str, list[Call]] = {
    "batch": [
        lambda stream, value: stream.consumer("c").fetch(value),
        lambda stream, value: stream.consumer("c").fetch_no_wait(value),
        lambda stream, value: enter(stream.consumer("c").pull(value)),
        lambda stream, value: stream.ordered_consumer().fetch(value),
        lambda stream, value: stream.ordered_consumer().fetch_no_wait(value),
    ],
    "max_bytes": [
        lambda stream, value: stream.consumer("c").fetch_bytes(value),
        lambda stream, value: stream.ordered_consumer().fetch_bytes(value),
    ],
    "max_messages": [
        lambda stream, value: enter(stream.js.batch(max_messages=value)),
        lambda stream, value: stream.js.publish_batch([(f"{stream.name}.a", b"")], max_messages=value),
    ],
    "max_pending": [lambda stream, value: enter(stream.js.publisher(max_pending=value))],
    "count": [lambda stream, value: made(stream.get_messages(count=value))],
}
COUNTS_FROM_ZERO: dict[str, list[Call]] = {
    "retry_attempts": [
        lambda stream, value: stream.js.publish(f"{stream.name}.a", retry_attempts=value),
        lambda stream, value: stream.js.publish_async(f"{stream.name}.a", retry_attempts=value),
    ],
    "max_resets": [lambda stream, value: made(stream.ordered_consumer(max_resets=value))],
    "min_pending": [lambda _, value: made(Priority("g", min_pending=value))],
    "min_ack_pending": [lambda _, value: made(Priority("g", min_ack_pending=value))],
    "level": [lambda _, value: made(Priority("g", level=value))],
    "threshold": [lambda _, value: made(Pulling(threshold=value))],
}
SECONDS: dict[str, list[Call]] = {
    "timeout": [
        lambda stream, value: stream.js.publish(f"{stream.name}.a", timeout=value),
        lambda stream, value: stream.js.publish_batch([(f"{stream.name}.a", b"")], timeout=value),
        commit,
    ],
    "expires": [
        lambda stream, value: stream.consumer("c").fetch(1, max_wait=value),
        lambda stream, value: stream.consumer("c").fetch_bytes(1, max_wait=value),
        lambda stream, value: stream.consumer("c").next(max_wait=value),
        lambda _, value: made(Pulling(expires=value)),
    ],
    "heartbeat": [
        lambda stream, value: stream.consumer("c").fetch(1, heartbeat=value),
        lambda _, value: made(Pulling(heartbeat=value)),
    ],
    "max_wait": [lambda stream, value: stream.ordered_consumer().fetch(1, max_wait=value)],
    "ack_timeout": [lambda stream, value: enter(stream.js.publisher(ack_timeout=value))],
}
SECONDS_FROM_ZERO: dict[str, list[Call]] = {
    "retry_wait": [
        lambda stream, value: stream.js.publish(f"{stream.name}.a", retry_wait=value),
        lambda stream, value: stream.js.publish_async(f"{stream.name}.a", retry_wait=value),
    ],
    "timeout": [lambda stream, value: stream.js.publish_async_complete(value)],
    "stall_timeout": [lambda stream, value: enter(stream.js.publisher(stall_timeout=value))],
    "patience": [lambda stream, value: stream.info(patience=value)],
}
CASES = [
    pytest.param(
        field,
        call,
        [*NO_NUMBERS, *more],
        id=f"{field}-{number}",
        marks=[pytest.mark.server("2.12")] if call is commit else [],
    )
    for fields, more in (
        (COUNTS, (0, 1.0, 1 << 63)),
        (COUNTS_FROM_ZERO, (1.0, 1 << 63)),
        (SECONDS, (0, 0.0, -0.001)),
        (SECONDS_FROM_ZERO, (-0.001,)),
    )
    for field, calls in fields.items()
    for number, call in enumerate(calls)
]


@pytest.mark.parametrize(("field", "call", "wrong"), CASES)
async def test_a_number_that_could_never_work_is_refused_at_once(
    stream: Stream, field: str, call: Call, wrong: list[Any]
) -> None:
    with suppress(ServerTooOld):
        await stream.js.require(ATOMIC_BATCHES)  # requested once
    traffic = Traffic(stream.js.connection)
    for value in wrong:
        with pytest.raises(InvalidValue) as refused:
            await call(stream, value)
        assert refused.value.field == field
    assert traffic.sent == 0
    assert (await stream.info()).state["messages"] == 0


async def test_the_wait_for_a_message(stream: Stream) -> None:
    consumer = await stream.create_consumer({})
    async with consumer.messages() as messages, consumer.pull(1) as pull:
        for value in NO_NUMBERS:
            with pytest.raises(InvalidValue, match="max_wait="):
                await messages.next(value)  # type: ignore[arg-type]
            with pytest.raises(InvalidValue, match="wait="):
                await pull.receive(value)  # type: ignore[arg-type]
        assert await messages.next(0) is None
        assert await pull.receive(0) == []


async def test_a_priority_that_is_none(stream: Stream) -> None:
    for wrong in ("g", {"group": "g"}, 1):
        with pytest.raises(InvalidValue, match="priority="):
            Pulling(priority=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="priority="):
            await stream.consumer("c").fetch(1, priority=wrong)  # type: ignore[arg-type]


class Noting:
    def __init__(self, seen: list[tuple[object, ...]]) -> None:
        self.seen = seen

    async def __call__(self, *arguments: object) -> None:
        self.seen.append(arguments)

    async def method(self, message: Message) -> None:
        self.seen.append((message,))


async def test_only_a_coroutine_function_can_consume(stream: Stream) -> None:
    """A plain function would be called with the first message, and fail only then."""

    async def note(*_: object) -> None: ...

    await stream.create_consumer({"durable_name": "c"})
    await stream.create_consumer({"durable_name": "p", "deliver_subject": f"to.{stream.name}"})
    consumers: list[Any] = [stream.consumer("c"), stream.push_consumer("p"), stream.ordered_consumer()]
    traffic = Traffic(stream.js.connection)
    wrong: Any
    for wrong in (None, print, lambda message: note(message), "note", Noting, stream):  # noqa: PLW0108
        for consumer in consumers:
            with pytest.raises(InvalidValue, match=r"callback=.*async def"):
                consumer.consume(wrong)
    for wrong in (note, "note", Noting([]).method):  # it would not be awaited
        for consumer in consumers:
            with pytest.raises(InvalidValue, match="on_error="):
                consumer.consume(note, on_error=wrong)
            with pytest.raises(InvalidValue, match="on_error="):
                consumer.messages(on_error=wrong)
    assert traffic.sent == 0


async def test_whatever_is_awaited_can_consume(stream: Stream) -> None:
    consumer = await stream.create_consumer({"durable_name": "c"})
    seen: list[tuple[object, ...]] = []

    async def note(*arguments: object) -> None:
        seen.append(arguments)

    @functools.wraps(note)
    def wrapped(*arguments: object) -> Awaitable[None]:
        return note(*arguments)

    def told(count: int) -> bool:
        return len(seen) == count

    right: Any
    for number, right in enumerate((note, functools.partial(note, "x"), wrapped, Noting(seen), Noting(seen).method), 1):
        async with consumer.consume(right, ack=True):
            await publish(stream, 1)
            await until(functools.partial(told, number))


async def test_handlers_of_a_publisher_are_called_and_not_awaited(stream: Stream) -> None:
    async def note(*_: object) -> None: ...

    wrong: Any
    for wrong in (note, "note", 1):
        with pytest.raises(InvalidValue, match="on_error="):
            await enter(stream.js.publisher(on_error=wrong))
        with pytest.raises(InvalidValue, match="on_ack="):
            await enter(stream.js.publisher(on_ack=wrong))


async def test_an_answer_that_the_server_could_not_read_is_not_sent(stream: Stream) -> None:
    """The server would redeliver the message at once, as if there were no delay."""
    consumer = await stream.create_consumer({"durable_name": "c"})
    await publish(stream, 1)
    message = await consumer.next()
    wrong: Any
    for wrong in (*NO_NUMBERS, 0, 1.5, "1s", timedelta(seconds=-1), timedelta.max):
        with pytest.raises(InvalidValue, match="delay="):
            await message.nak(wrong)
    for wrong in (None, 5, b"no"):
        with pytest.raises(InvalidValue, match="reason="):
            await message.term(wrong)
    assert not message.answered
    info = await consumer.info()
    assert (info.ack_pending, info.raw["num_redelivered"]) == (1, 0)
    await message.nak(timedelta())
    assert (await consumer.next()).metadata.delivered == 2


async def test_what_stands_for_nothing_is_not_taken_for_everything(stream: Stream) -> None:
    """None would resume a paused consumer, and match any stream."""
    consumer = await stream.create_consumer({"durable_name": "c"})
    await consumer.pause(datetime.now(UTC) + timedelta(minutes=5))
    wrong: Any
    for wrong in (None, 5, 0.0, timedelta(hours=1), []):
        with pytest.raises(InvalidValue, match="until="):
            await consumer.pause(wrong)
    assert (await consumer.info()).paused
    for wrong in (None, "", 5, b"a"):
        with pytest.raises(InvalidValue, match="subject="):
            await stream.js.stream_name_by_subject(wrong)
    for wrong in ([], "", 0, 5, "c"):
        with pytest.raises(InvalidValue, match="config="):
            stream.ordered_consumer(wrong)


async def test_headers_that_are_none_and_times_that_no_server_knows(stream: Stream) -> None:
    subject = f"{stream.name}.a"
    wrong: Any
    for wrong in ("a", [("a", "b")], 5, {"a": 5}, {"a": None}, {5: "a"}, {"a": b"x"}, {"a": [1]}):
        with pytest.raises(InvalidValue, match="headers"):
            await stream.js.publish(subject, headers=wrong)
        with pytest.raises(PublishFailed, match="headers"):
            await asyncio.to_thread(publish_all, stream.js.settings, [(subject, b"", wrong)])
    for wrong in (timedelta.max, timedelta(0), timedelta(-1), 60, True):
        with pytest.raises(InvalidValue, match="ttl="):
            await stream.js.publish(subject, ttl=wrong)
    assert (await stream.info()).state["messages"] == 0
