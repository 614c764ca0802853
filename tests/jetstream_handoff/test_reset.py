"""Our reset, attacked on a real server: all messages that it promises to deliver again are processed again."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import (
    ApiError,
    ConsumerNotFound,
    InvalidValue,
    PermissionDenied,
    RequestTimeout,
    ServerTooOld,
)
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import HandoffError, HoldLost, LedgerUnavailable, ResetElsewhere, ResetRefused, Superseded
from jetstream_handoff.hold import answers
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Receipt
from jetstream_handoff.repair import reset
from tests.jetstream_client.servers import older_program
from tests.jetstream_handoff.steps import (
    ACK_WAIT,
    CONSUMER,
    floor,
    give_up,
    publish,
    reset_by_a_stranger,
    rewrite,
    take,
    unacknowledged,
)

pytestmark = pytest.mark.server("2.14")


@pytest.fixture(autouse=True)
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits of resets, because the server here neither freezes nor dies."""
    monkeypatch.setattr(reset, "QUIET", 0.3)


def book(stream: Stream) -> Ledger:
    return Ledger(stream.js, stream.name, CONSUMER)


async def taken(stream: Stream, run: str = "run", count: int = 1_000, wait: float = 3) -> list[Claim]:
    config = {"ack_wait": 3 * ACK_WAIT, "max_ack_pending": 4_000}  # exact even on a busy machine
    return await take(stream, run, wait=wait, max_messages=count, consumer_config=config)


async def work(stream: Stream, run: str, count: int = 10) -> Claim:
    """Take a claim and settle it."""
    (claim,) = await taken(stream, run, count)
    async with Hold.begin(stream.js, claim, try_number=1) as held:
        await held.settle(run)
    return claim


async def everything(stream: Stream) -> Sequences:
    """Take and settle all messages that a sensor gets now."""
    found = Sequences()
    while True:
        claims = await taken(stream, f"everything after {found}", wait=0.4)
        for claim in claims:
            assert not found & claim.sequences
            found |= claim.sequences
        if not claims and not (await stream.consumer(CONSUMER).info()).pending:  # a busy machine may need longer
            return found


async def receipts(stream: Stream) -> dict[str, Receipt]:
    return {receipt.claim_id: receipt for receipt in await book(stream).committed()}


async def test_to_the_floor_while_claims_are_held(stream: Stream) -> None:
    await publish(stream, 30)
    done = await work(stream, "done")
    (held,) = await taken(stream, "held", 10)
    (waiting,) = await taken(stream, "waiting", 10)
    async with Hold.begin(stream.js, held, try_number=1) as attempt:
        made = await reset.reset(book(stream))
        assert (made.sequence, made.superseded) == (11, tuple(sorted([held.id, waiting.id])))
        assert made.pending == 20
        with pytest.raises((Superseded, HoldLost)):
            await attempt.settle("too late")
    with pytest.raises(Superseded):
        async with Hold.begin(stream.js, waiting, try_number=1):
            pass
    assert await everything(stream) == Sequences.from_ranges([(11, 30)])
    assert (await receipts(stream)).keys() == {done.id}
    for claim in (held, waiting):
        receipt = await book(stream).receipts.read(claim.id)
        assert receipt
        assert receipt.state == "superseded"


async def test_to_a_sequence_what_is_done_comes_again(stream: Stream) -> None:
    await publish(stream, 20)
    done = await work(stream, "done")
    made = await reset.reset(book(stream), 4)
    assert (made.sequence, made.pending, made.superseded) == (4, 17, ())
    info = await stream.consumer(CONSUMER).info()
    assert (info.counter, info.floor) == (0, 3)
    again = await work(stream, "again", 20)
    assert again.sequences == Sequences.from_ranges([(4, 20)])
    assert await floor(stream) == 20
    assert (await receipts(stream)).keys() == {done.id, again.id}


async def test_a_reset_whose_counters_are_not_shown_is_repeated(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """nats-server sometimes shows the previous counters, and a restart would then undo the reset."""
    await publish(stream, 10)
    await work(stream, "done")
    api, asked = stream.js.api, []

    async def shows_the_previous(request: str, *body: Any, **options: Any) -> Any:
        answer = await api(request, *body, **options)
        if not request.startswith("CONSUMER.RESET"):
            return answer
        asked.append(request)
        return {**answer, "delivered": {"consumer_seq": 10, "stream_seq": 10}} if len(asked) < 3 else answer

    monkeypatch.setattr(stream.js, "api", shows_the_previous)
    assert (await reset.reset(book(stream), 1)).pending == 10
    assert (len(asked), "still shows" in caplog.text) == (3, False)
    monkeypatch.setattr(reset, "TRIES", 2)
    asked.clear()
    assert (await reset.reset(book(stream), 1)).pending == 10
    assert (len(asked), "reset the consumer again then" in caplog.text) == (2, True)


async def test_it_never_skips_what_nobody_processed(stream: Stream) -> None:
    await publish(stream, 20)
    await work(stream, "done")
    await taken(stream, "held", 5)
    before = await state(stream)
    for sequence in (12, 20, 21):
        with pytest.raises(InvalidValue, match="give 11 or less"):
            await reset.reset(book(stream), sequence)
    for wrong in (0, -1, True, "5", 1.0):
        with pytest.raises(InvalidValue, match="must be a whole number, 1 or more"):
            await reset.reset(book(stream), wrong)  # type: ignore[arg-type]
    assert await state(stream) == before
    assert (await reset.plan(book(stream), 11)).sequence == 11


@pytest.mark.parametrize(
    ("config", "sequence", "says"),
    [
        ({"deliver_policy": "new"}, 1, "only to its acknowledgement floor"),
        ({"opt_start_seq": 5}, 4, "opt_start_seq=5"),
    ],
)
async def test_what_the_consumer_rules_out(stream: Stream, config: dict[str, Any], sequence: int, says: str) -> None:
    await publish(stream, 10)
    policy = {"deliver_policy": "by_start_sequence", **config}
    await take(stream, wait=0.2, consumer_config={"ack_wait": 10**9, **policy})
    before = await state(stream)
    with pytest.raises(InvalidValue, match=says):
        await reset.reset(book(stream), sequence)
    with pytest.raises(ApiError):  # as the server says
        await stream.js.api(f"CONSUMER.RESET.{stream.name}.{CONSUMER}", {"seq": sequence})
    assert await state(stream) == before


@pytest.mark.parametrize("claims", [True, False])
@pytest.mark.parametrize("retention", ["limits", "interest"])
async def test_to_the_floor_below_deliveries_that_the_server_gave_up(
    stream: Stream, retention: str, claims: bool
) -> None:
    """Without a sequence the server would go on behind them; on an interest stream it would delete them."""
    if retention == "interest":
        await stream.delete()
        await stream.js.create_stream(
            {"name": stream.name, "subjects": [f"{stream.name}.>"], "retention": "interest", "allow_direct": True}
        )
        await taken(stream, "creates the consumer", 1, wait=0.1)
    await publish(stream, 6)
    await give_up(stream, await taken(stream))
    info = await stream.consumer(CONSUMER).info()
    assert (info.floor, info.delivered, info.pending, info.ack_pending) == (0, 6, 0, 0)
    if not claims:
        await stream.js.stream(f"KV_{stream.js.settings.ledger}_claims").purge()
    made = await (reset.reset if claims else reset.reset_unclaimed)(book(stream))
    assert (made.sequence, made.pending) == (1, 6)
    assert (await everything(stream)).count == 6


async def test_a_consumer_that_the_server_would_reset_behind_them_is_not_reset(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"ack_wait": 10**9, "deliver_policy": "new"}
    await take(stream, wait=0.1, consumer_config=config)
    await publish(stream, 6)
    await give_up(stream, await take(stream, consumer_config=config))
    before = await state(stream)
    for asked in (reset.reset, reset.plan):
        with pytest.raises(
            ResetRefused, match=r"given up deliveries .* floor 0 and its last delivery 6.*opt_start_seq=1"
        ):
            await asked(book(stream))
    assert await state(stream) == before
    monkeypatch.setattr(reset, "_check_kept", lambda _: None)  # they are given up after the last check
    with pytest.raises(ResetElsewhere, match="reset to sequence 7 instead of 1, so the messages 1 to 6 are not del"):
        await reset.reset(book(stream))


async def test_without_consumer_or_ledger_nothing_is_reset(stream: Stream) -> None:
    await publish(stream, 10)
    with pytest.raises(LedgerUnavailable, match="does not exist"):
        await reset.reset(book(stream))
    await taken(stream)
    await stream.consumer(CONSUMER).delete()
    with pytest.raises(ConsumerNotFound):
        await reset.reset(book(stream))


@pytest.mark.server("2.11")
async def test_a_server_that_cannot_reset_is_named_before_a_claim_is_superseded(tmp_path: Path) -> None:
    """It would not answer the request, after all claims had been superseded for it."""
    server = NatsServer(tmp_path, program=older_program("2.11.11"))
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url, request_timeout=1, shortest_ack_wait=0.5)) as js:
            stream = await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
            await publish(stream, 10)
            (claim,) = await taken(stream)
            unclaimed = await stream.create_consumer({"name": "plain", "ack_policy": "explicit"})
            async with Hold.begin(js, claim, try_number=1) as held:
                for asked in (reset.reset, reset.plan):
                    with pytest.raises(ServerTooOld, match=r"nats-server 2\.14 .* resetting a consumer.* 2\.11\.11"):
                        await asked(book(stream))
                with pytest.raises(ServerTooOld, match="resetting a consumer"):
                    await reset.reset_unclaimed(Ledger(js, "S", unclaimed.name))
                await held.settle("done")
            assert await floor(stream) == 10
    finally:
        server.stop()


async def done_and_not_acknowledged(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> Claim:
    """Settle a claim whose attempt dies between the record and the acknowledgements."""
    (claim,) = await taken(stream, "dies", 10)

    async def die(*arguments: Any) -> Sequences:
        raise ConnectionResetError

    with monkeypatch.context() as patch:
        patch.setattr(answers, "acknowledge", die)
        with pytest.raises(ConnectionResetError):
            async with Hold.begin(stream.js, claim, try_number=1) as held:
                await held.settle("dies")
    assert await unacknowledged(stream) == 10
    return claim


async def test_a_settlement_between_done_and_acknowledged(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    await publish(stream, 20)
    claim = await done_and_not_acknowledged(stream, monkeypatch)
    record, _ = await book(stream).read()
    assert record
    late = answers.Delivered.of(record, claim.sequences, claim.consumer_sequence)
    made = await reset.reset(book(stream))
    assert (made.sequence, made.forgotten) == (11, claim.sequences)  # acknowledged before, because it is done
    made = await reset.reset(book(stream), 1)
    assert made.sequence == 1
    (again,) = await taken(stream, "again")
    assert again.sequences == Sequences.from_ranges([(1, 20)])
    assert await answers.acknowledge(book(stream), late, within=1) == claim.sequences  # the dead attempt wakes up
    assert await unacknowledged(stream) == 20


async def test_after_a_stranger_there_is_nothing_to_acknowledge(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(stream, 20)
    claim = await done_and_not_acknowledged(stream, monkeypatch)
    await reset_by_a_stranger(stream)
    made = await reset.reset(book(stream), patience=3)
    assert (made.sequence, made.forgotten) == (1, claim.sequences)
    assert await everything(stream) == Sequences.from_ranges([(1, 20)])


async def test_acknowledgements_on_their_way_arrive_before_the_reset(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(stream, 10)
    (claim,) = await taken(stream)
    tested = asyncio.Event()
    confirm = answers._Confirmer.confirm

    async def slowly(self: Any, *arguments: Any) -> Sequences:
        if not tested.is_set():  # the first call: the attempt's own, after its test
            tested.set()
            await asyncio.sleep(0.2)
        return await confirm(self, *arguments)

    monkeypatch.setattr(answers._Confirmer, "confirm", slowly)
    async with Hold.begin(stream.js, claim, try_number=1) as held:
        settling = asyncio.create_task(held.settle())
        await tested.wait()
        await reset.reset(book(stream), 1)
        (again,) = await taken(stream, "again", wait=1)
        assert again.sequences == claim.sequences
        await settling
    await asyncio.sleep(0.2)
    assert await unacknowledged(stream) == 10


async def test_unconfirmed_acknowledgements_refuse_it(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    await publish(stream, 20)
    claim = await done_and_not_acknowledged(stream, monkeypatch)
    before = await state(stream)

    async def lose(*arguments: Any) -> None:
        raise RequestTimeout("the way to the server is gone")

    with monkeypatch.context() as patch:
        patch.setattr(answers._Confirmer, "_confirm_few", lose)
        with pytest.raises(ResetRefused, match=r"10 acknowledgements .* unconfirmed: 1-10") as refused:
            await reset.reset(book(stream), patience=1)
    assert refused.value.unconfirmed == claim.sequences
    assert await state(stream) == before
    assert (await reset.reset(book(stream))).sequence == 11
    assert await everything(stream) == Sequences.from_ranges([(11, 20)])


async def test_who_may_not_acknowledge_resets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = '{ publish: { deny: ["$JS.ACK.>"] } }'
    users = f"{{ user: all, password: p }}, {{ user: mute, password: p, permissions: {allowed} }}"
    server = NatsServer(tmp_path, config=f"authorization {{ users: [ {users} ] }}")
    server.start()
    try:
        settings = ConnectionSettings(servers=server.url, user="all", password="p", shortest_ack_wait=0.5)
        async with connect(settings) as js, connect(replace(settings, user="mute")) as mute:
            stream = await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
            await publish(stream, 20)
            await done_and_not_acknowledged(stream, monkeypatch)
            before = await state(stream)
            with pytest.raises(PermissionDenied, match=r"JS\.ACK"):
                await reset.reset(Ledger(mute, "S", CONSUMER), patience=1)
            assert await state(stream) == before
    finally:
        server.stop()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", ["confirmed", "new life", "last check"])
async def test_killed_between_two_steps(stream: Stream, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    await publish(stream, 30)
    done = await done_and_not_acknowledged(stream, monkeypatch)
    (held,) = await taken(stream, "held", 10)
    with monkeypatch.context() as patch:
        kill(patch, step)
        with pytest.raises(Killed):
            await reset.reset(book(stream))
    if step != "confirmed":
        with pytest.raises(ResetRefused, match="another reset of this consumer began at"):
            await reset.reset(book(stream))
    if step == "confirmed":  # nothing was done: the claim goes on
        async with Hold.begin(stream.js, held, try_number=1) as attempt:
            await attempt.settle()
        assert await everything(stream) == Sequences.from_ranges([(21, 30)])
    else:  # in doubt it is processed again, when its lease ends
        with pytest.raises(Superseded):
            async with Hold.begin(stream.js, held, try_number=1):
                pass
        await answers.negative(book(stream), held.sequences)
        assert await everything(stream) == Sequences.from_ranges([(11, 30)])
    monkeypatch.setattr(reset, "QUIET", 0.1)
    monkeypatch.setattr(reset, "UNDER_WAY", 0.5)  # by now the killed reset is older than this
    made = await reset.reset(book(stream), 1)
    assert made.sequence == 1
    assert await everything(stream) == Sequences.from_ranges([(1, 30)])
    assert done.id in await receipts(stream)


def kill(patch: pytest.MonkeyPatch, step: str) -> None:
    """Let a reset die after a step."""
    changes = 0
    change = Ledger.change

    async def dying_change(self: Ledger, function: Any) -> Any:
        nonlocal changes
        changes += 1
        if step == "confirmed":
            raise Killed
        answer = await change(self, function)
        if (step, changes) in (("new life", 1), ("last check", 2)):
            raise Killed
        return answer

    patch.setattr(Ledger, "change", dying_change)


async def test_of_two_at_once_the_later_is_refused(stream: Stream) -> None:
    """Otherwise a reset to 20, checked before the one to 1, would skip messages that were made available again."""
    await publish(stream, 30)
    await work(stream, "done", 30)
    first = asyncio.create_task(reset.reset(book(stream), 1))
    await asyncio.sleep(0.15)
    with pytest.raises(ResetRefused, match="another reset of this consumer began at"):
        await reset.reset(book(stream), 20)
    assert (await first).sequence == 1
    assert await everything(stream) == Sequences.from_ranges([(1, 30)])


@pytest.mark.killed  # so that settling takes long
async def test_resets_and_work_at_once(stream: Stream) -> None:
    """Each reset keeps its promise under load: all messages past it are settled after it."""
    await publish(stream, 400)
    await taken(stream, "creates the consumer", 5)
    stop = asyncio.Event()

    async def worker(number: int) -> None:
        run = 0
        while not stop.is_set():
            run += 1
            with suppress(HandoffError):
                for claim in await taken(stream, f"{number}-{run}", 40, wait=0.5):
                    async with Hold.begin(stream.js, claim, try_number=1) as held:
                        await held.settle()

    made: list[tuple[int, int]] = []

    async def resets(wait: float) -> None:
        await asyncio.sleep(wait)
        with suppress(ResetRefused):  # while the other reset is in progress
            answer = await reset.reset(book(stream), 1, patience=10)
            made.append((answer.sequence, time_nanoseconds((await stream.info()).now)))

    workers = [asyncio.create_task(worker(number)) for number in range(3)]
    await asyncio.gather(resets(0.5), resets(1.5))
    for _ in range(100):
        await asyncio.sleep(0.2)
        if await floor(stream) >= 400 and not await unacknowledged(stream):
            break
    stop.set()
    await asyncio.gather(*workers)
    assert made
    for sequence, at in made:
        after = [
            receipt.sequences for receipt in (await receipts(stream)).values() if time_nanoseconds(receipt.at) > at
        ]
        processed = Sequences.from_ranges(each for sequences in after for each in sequences.ranges)
        assert not Sequences.from_ranges([(sequence, 400)]) - processed


async def test_it_counts_as_refused_while_claims_go_on_being_settled(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(stream, 40)
    await work(stream, "first")
    monkeypatch.setattr(reset, "QUIET", 1.0)
    resetting = asyncio.create_task(reset.reset(book(stream), 1, patience=1))
    await asyncio.sleep(0.3)
    await work(stream, "second")
    with pytest.raises(ResetRefused, match="pause each pipeline"):
        await resetting
    assert await floor(stream) >= 20


async def state(stream: Stream) -> Any:
    """Return what a reset would change: the record's revision, and the consumer's counters."""
    info = await stream.consumer(CONSUMER).info()
    return (await book(stream).read())[1], info.counter, info.floor, info.ack_pending


async def test_a_reset_that_began_before_the_clock_was_set_back_is_not_waited_for(stream: Stream) -> None:
    await publish(stream, 10)
    await work(stream, "done")
    later = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    dead = ("dead", later)
    await rewrite(book(stream), lambda record, _: replace(record, resetting=dead) if record else None)
    assert (await reset.reset(book(stream), 1)).sequence == 1


async def test_a_machine_that_is_paused_after_its_last_check_checks_again(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(stream, 10)
    await work(stream, "done")
    ledger_ = book(stream)
    looks: list[str] = []
    change, info = ledger_.change, ledger_.consumer.info

    async def counted(function: Any) -> Any:
        answer = await change(function)
        if function.__name__ == "last_check":
            looks.append(answer.result[0].now)
        return answer

    async def after_a_pause(**named: Any) -> Any:
        answer = await info(**named)
        if len(looks) == 1:  # the server's clock went on, ours did not
            late = datetime.fromisoformat(f"{answer.now[:19]}+00:00") + timedelta(seconds=3)
            answer.raw["ts"] = late.isoformat()
        return answer

    monkeypatch.setattr(ledger_, "change", counted)
    monkeypatch.setattr(ledger_.consumer, "info", after_a_pause)
    await reset.reset(ledger_, 1)
    assert len(looks) == 2
