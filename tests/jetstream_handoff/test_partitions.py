"""Partitions of a stream, on a real server: their layout, their consumers, and changing their number."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import ApiError, InvalidValue, RequestTimeout
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from jetstream_handoff.errors import ConsumerUnsuitable, PartitionsUnsuitable, ResumeRefused
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.repair.partitioning import Partitioned, ensure_partitions
from jetstream_handoff.repair.resume import Resumed, resume
from jetstream_handoff.rules.partitions import Partitions
from jetstream_handoff.take.take import Take
from tests.jetstream_client.cluster import Cluster, replicated_stream
from tests.jetstream_client.until import until
from tests.jetstream_handoff.steps import taking

KEYS = 20


def layout_of(stream: Stream, partitions: int = 4, group: str = "group", **changes: Any) -> Partitions:
    values = {"subject": f"{stream.name}.*.*", "ordered_by": "{3}", **changes}
    return Partitions(stream=stream.name, group=group, partitions=partitions, **values)


async def ensure(stream: Stream, partitions: int = 4, *, change: bool = False, **changes: Any) -> Partitioned:
    config = changes.pop("consumer_config", None)
    layout = layout_of(stream, partitions, **changes)
    return await ensure_partitions(stream.js, layout, max_messages=1_000, consumer_config=config, change_number=change)


async def publish(stream: Stream, keys: Iterable[object] = range(KEYS)) -> None:
    """Publish one message for each key, in this order."""
    messages = [(f"{stream.name}.{each}.paid", b"x") for each in keys]
    await asyncio.to_thread(publish_all, stream.js.settings, messages)


async def take(stream: Stream, consumer: str, wait: float = 2, **changes: Any) -> list[Any]:
    how: dict[str, Any] = {
        "consumer": consumer,
        "ordered_by": "{3}",
        "claims": 2,
        "consumer_config": None,
        "create_consumer": False,
        **changes,
    }
    work = Take(stream.js, taking(stream, **how))
    try:
        await work.prepare()
        claims = await work.take(wait)
        work.handed_on()
    finally:
        await work.put_back()
    return claims


async def processed(stream: Stream, consumer: str, done: list[tuple[str, int]]) -> None:
    """Process what waits for a consumer: note the key and the sequence of each message, and settle."""
    for claim in await take(stream, consumer):
        async with Hold.begin(stream.js, claim, try_number=1) as hold:
            messages = [await stream.get_message(each) for each in claim.sequences]
            done += [(each.subject.split(".")[2], each.sequence) for each in messages]
            await hold.settle()


async def drain(stream: Stream, consumers: Iterable[str], done: list[tuple[str, int]]) -> None:
    """Process everything that waits for these consumers, at the same time."""

    async def one(consumer: str) -> None:
        info = await stream.consumer(consumer).info()
        while info.pending or info.ack_pending:
            await processed(stream, consumer, done)
            info = await stream.consumer(consumer).info()

    await asyncio.gather(*map(one, consumers))


async def stored(stream: Stream) -> dict[str, set[str]]:
    """The first tokens under which the messages of each key are stored."""
    answer = await stream.js.api(f"STREAM.INFO.{stream.name}", {"subjects_filter": ">"})
    found = defaultdict(set)
    for subject in answer["state"]["subjects"]:
        first, _, key, _ = subject.split(".")
        found[key].add(first)
    return found


@pytest.mark.parametrize(
    ("subject", "ordered_by", "dest"),
    [
        ("orders.*.*", "{3}", "{{partition(8,1)}}.orders.{{wildcard(1)}}.{{wildcard(2)}}"),
        ("orders.*.*", "{2}.{4}", "{{partition(8,2)}}.orders.{{wildcard(1)}}.{{wildcard(2)}}"),
        ("orders.*.*", "{4}.{3}", "{{partition(8,2,1)}}.orders.{{wildcard(1)}}.{{wildcard(2)}}"),
        ("*.orders.>", "{2}", "{{partition(8,1)}}.{{wildcard(1)}}.orders.>"),
        ("orders.>", "subject", "{{partition(8)}}.orders.>"),
    ],
)
def test_the_server_divides_by_the_key(subject: str, ordered_by: str, dest: str) -> None:
    layout = Partitions("S", "c", subject, 8, ordered_by)
    assert layout.transform == {"src": subject, "dest": dest}
    assert layout.number_of({"subject_transform": layout.transform}) == 8
    assert layout.number_of({"subject_transform": layout.between}) == 0
    assert layout.number_of({}) is None
    assert layout.undivided([subject, f"*.{subject}", f"7.{subject}"]) == []  # these are for replays of dead letters
    assert layout.undivided(["sales.*", "a.>"]) == ["sales.*", "a.>"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ordered_by": "header:Customer"}, "ordered_by"),
        ({"ordered_by": "{1}"}, "ordered_by"),  # the partition
        ({"ordered_by": "{2}"}, "ordered_by"),  # the same in all subjects
        ({"ordered_by": "{5}"}, "ordered_by"),
        ({"subject": "orders.*.>", "ordered_by": "{4}"}, "ordered_by"),
        ({"subject": "orders.new", "ordered_by": "subject"}, "subject"),
        ({"subject": "orders..new"}, "subject"),
        ({"partitions": 0}, "partitions"),
        ({"group": "a.b"}, "group"),
        ({"stream": "a.b"}, "stream"),
    ],
)
def test_what_cannot_be_divided_is_refused(changes: dict[str, Any], field: str) -> None:
    values = {"stream": "S", "group": "c", "subject": "orders.*.*", "partitions": 8, "ordered_by": "{3}"}
    with pytest.raises(InvalidValue) as error:
        Partitions(**{**values, **changes})
    assert error.value.field == field


@pytest.mark.parametrize(
    "dest",
    [
        "{{partition(10,1)}}.foo.{{wildcard(1)}}",  # scripts/static_stream_setup.sh of pcgroups
        "{{Partition(10,1)}}.foo.{{Wildcard(1)}}",  # getPartitioningTransformDest of pcgroups
        "{{ partition( 10, 1 ) }}.foo.$1",
    ],
)
async def test_a_stream_that_pcgroups_has_laid_out_is_shared(js: JetStream, stream: Stream, dest: str) -> None:
    name = stream.name
    await stream.update({"subject_transform": {"src": f"{name}.*", "dest": dest.replace("foo", name)}})
    theirs = {  # joinMemberConsumerStatic of pcgroups, for a group "cg" of the members "m1" and "m2"
        "ack_policy": "explicit",
        "priority_groups": ["PCG"],
        "priority_policy": "pinned_client",
        "priority_timeout": timedelta(seconds=5),
    }
    for member, numbers in (("m1", range(5)), ("m2", range(5, 10))):
        filters = [f"{each}.>" for each in numbers]
        await stream.create_consumer({"durable_name": f"cg-{member}", "filter_subjects": filters, **theirs})
    messages = [(f"{name}.{each}", b"x") for each in range(KEYS)]
    await asyncio.to_thread(publish_all, js.settings, messages)
    before = (await stream.info()).config
    mine = await ensure(stream, 10, subject=f"{name}.*")
    assert mine.consumers == tuple(f"group-{each}" for each in range(10))
    assert (await stream.info()).config == before
    pending = [(await stream.consumer(each).info()).pending for each in mine.consumers]
    assert sum(pending) == KEYS
    assert sum(map(bool, pending)) > 3
    with pytest.raises(PartitionsUnsuitable, match=r"consumers=\['cg-m1', 'cg-m2'\].*would miss messages"):
        await ensure(stream, 12, change=True, subject=f"{name}.*")
    assert (await stream.info()).config == before


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
async def test_each_key_is_in_one_partition_and_all_of_them_are_processed(js: JetStream, retention: str) -> None:
    stream, _ = await js.create_or_update_stream(
        {"name": f"P{retention}", "subjects": [f"P{retention}.>"], "retention": retention, "allow_direct": True}
    )
    try:
        first = await ensure(stream)
        assert first.consumers == ("group-0", "group-1", "group-2", "group-3")
        assert len(first.changed) == 5
        config = [(await stream.consumer(each).info()).raw["created"] for each in first.consumers]
        assert (await ensure(stream)) == replace(first, changed=())
        assert config == [(await stream.consumer(each).info()).raw["created"] for each in first.consumers]
        await publish(stream, [*range(KEYS)] * 2)
        assert (await stream.info()).state["messages"] == 2 * KEYS
        if retention == "limits":
            places = await stored(stream)
            assert {len(each) for each in places.values()} == {1}
            assert set.union(*places.values()) == {"0", "1", "2", "3"}
        done: list[tuple[str, int]] = []
        await drain(stream, first.consumers, done)
        assert sorted(sequence for _, sequence in done) == [*range(1, 2 * KEYS + 1)]
    finally:
        await stream.delete()


async def test_a_missing_consumer_is_created_again(stream: Stream) -> None:
    consumers = (await ensure(stream)).consumers
    await stream.delete_consumer(consumers[2])
    again = await ensure(stream)
    assert again == Partitioned(consumers, ("created consumer group-2",))


async def test_another_division_is_refused(stream: Stream) -> None:
    await ensure(stream)
    before = (await stream.info()).config
    for changes, found in (
        ({"ordered_by": "{4}"}, r"subject_transform=.*partition\(4,1\).*would have to be .*partition\(4,2\)"),
        ({"subject": f"{stream.name}.*.>"}, "subject_transform="),
        ({"partitions": 8}, "partitions=8: it has 4 partitions.*change_number=True"),
    ):
        with pytest.raises(PartitionsUnsuitable, match=found):
            await ensure(stream, **changes)
    assert (await stream.info()).config == before


async def test_another_consumer_is_refused(stream: Stream) -> None:
    await ensure(stream)
    await stream.consumer("group-1").update({"filter_subject": "2.>"})
    with pytest.raises(ConsumerUnsuitable, match=rf"'group-1'.*filter_subject='2.>'.*1.{stream.name}"):
        await ensure(stream)
    await stream.consumer("group-1").update({"filter_subject": f"1.{stream.name}.*.*"})
    with pytest.raises(ConsumerUnsuitable, match=r"'group-0'.*ack_wait=60000000000.*90000000000"):
        await ensure(stream, consumer_config={"ack_wait": timedelta(seconds=90)})


async def test_messages_that_would_be_in_no_partition_are_not_forgotten(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(stream, [7])
    with pytest.raises(PartitionsUnsuitable, match=rf"{stream.name}.7.paid \(sequence 1\).*deliver_policy.*'new'"):
        await ensure(stream)
    assert not [each async for each in stream.consumer_names()]
    with caplog.at_level(logging.WARNING):
        await ensure(stream, consumer_config={"deliver_policy": "new"})
    assert f"messages under {stream.name}.> that do not match {stream.name}.*.*" in caplog.text
    await publish(stream)
    done: list[tuple[str, int]] = []
    await drain(stream, (await ensure(stream)).consumers, done)
    assert sorted(sequence for _, sequence in done) == [*range(2, KEYS + 2)]


async def test_consumers_that_would_receive_nothing_any_more_are_not_forgotten(stream: Stream) -> None:
    """They select messages by the subject that these have without a partition."""
    name = stream.name
    for consumer, of in (("all", ">"), ("one", f"{name}.7.*"), ("other", "x.*"), ("theirs", f"3.{name}.>")):
        await stream.create_consumer({"durable_name": consumer, "filter_subject": of, "ack_policy": "explicit"})
    with pytest.raises(PartitionsUnsuitable, match=rf"consumers=\['one'\].*none of those.* under \*\.{name}\.\*\.\*"):
        await ensure(stream)
    assert not (await stream.info()).config.get("subject_transform")
    await stream.consumer("one").update({"filter_subject": f"*.{name}.7.*"})
    assert len((await ensure(stream)).consumers) == 4


async def test_a_group_that_comes_after_a_change_does_not_get_a_key_twice(stream: Stream) -> None:
    await ensure(stream)
    await publish(stream)
    await drain(stream, (await ensure(stream)).consumers, [])
    assert not (await ensure(stream, 6, change=True)).waits_for
    await publish(stream)
    with pytest.raises(PartitionsUnsuitable, match=rf"first_seq=1.*'opt_start_seq': {KEYS + 1}"):
        await ensure(stream, 6, group="later")
    start = {"deliver_policy": "by_start_sequence", "opt_start_seq": KEYS + 1}
    done: list[tuple[str, int]] = []
    await drain(stream, (await ensure(stream, 6, group="later", consumer_config=start)).consumers, done)
    assert sorted(sequence for _, sequence in done) == [*range(KEYS + 1, 2 * KEYS + 1)]


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
@pytest.mark.parametrize("numbers", [(2, 3), (3, 2)])
async def test_the_number_changes_when_what_was_stored_before_is_done(
    js: JetStream, retention: str, numbers: tuple[int, int]
) -> None:
    """Each step is asked for with messages in every partition, and with a claim that is open. About 8 s in all: each
    take gathers until no more messages come."""
    name = f"C{retention}{numbers[0]}"
    stream, _ = await js.create_or_update_stream(
        {"name": name, "subjects": [f"{name}.>"], "retention": retention, "allow_direct": True}
    )
    before, after = numbers
    done: list[tuple[str, int]] = []
    try:
        old = (await ensure(stream, before)).consumers
        await publish(stream)
        draining = await ensure(stream, after, change=True)
        assert draining.consumers == old
        assert "group-0 (not delivered: " in draining.waits_for[0]
        await publish(stream)  # these are in between
        with pytest.raises(PartitionsUnsuitable, match=r"partitions=\d: its number of partitions is being changed"):
            await ensure(stream, after)
        await drain(stream, old[1:], done)
        assert len((await ensure(stream, after, change=True)).waits_for) == 1
        claim, *more = await take(stream, old[0], wait=60)
        for each in more:
            async with Hold.begin(js, each, try_number=1) as hold:
                await hold.settle()
        done += [("", each) for other in more for each in other.sequences]
        assert "open claims: 1" in (await ensure(stream, after, change=True)).waits_for[0]
        async with Hold.begin(js, claim, try_number=1) as hold:
            await hold.settle()
        done += [("", each) for each in claim.sequences]
        await drain(stream, old[:1], done)
        assert sorted(sequence for _, sequence in done) == [*range(1, KEYS + 1)]
        draining = await ensure(stream, after, change=True)
        assert draining.consumers == ("group-between",)
        assert draining.waits_for == (f"group-between (not delivered: {KEYS})",)
        await publish(stream)  # these have their new partitions, and wait
        assert not await take(stream, "group-0", wait=0.5)
        await drain(stream, draining.consumers, done)
        assert sorted(sequence for _, sequence in done) == [*range(1, 2 * KEYS + 1)]
        end = await ensure(stream, after, change=True)
        assert end.consumers == tuple(f"group-{each}" for each in range(after))
        assert not end.waits_for
        assert sorted([each async for each in stream.consumer_names()]) == list(end.consumers)
        assert await ensure(stream, after) == replace(end, changed=())
        await drain(stream, end.consumers, done)
        assert sorted(sequence for _, sequence in done) == [*range(1, 3 * KEYS + 1)]
    finally:
        await stream.delete()


async def test_the_order_is_kept_while_the_number_changes_and_changes_back(stream: Stream) -> None:
    """Messages are published while each step is taken. About 10 s: three changes with two drains each."""
    done: list[tuple[str, int]] = []
    await ensure(stream, 2)
    await publish(stream)
    for number in (3, 1, 2):
        waiting = True
        while waiting:
            result, _ = await asyncio.gather(ensure(stream, number, change=True), publish(stream, [*range(7)] * 5))
            await drain(stream, result.consumers, done)
            waiting = bool(result.waits_for)
    await drain(stream, (await ensure(stream, 2)).consumers, done)
    await judge(stream, done)
    assert all(len(each) > 1 for key, each in (await stored(stream)).items() if int(key) < 7)


async def test_a_key_that_stopped_is_resumed_before_the_number_changes(stream: Stream) -> None:
    """In its new partition, nothing would know that it has stopped. Its dead letters stay in their partition."""
    stopping: dict[str, Any] = {"max_failures": 1, "on_poison": "stop_key"}
    await ensure(stream, 2)
    await publish(stream, [7, 7])
    ((partition,),) = (await stored(stream)).values()
    consumer = f"group-{partition}"
    (claim,) = await take(stream, consumer, **stopping)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.fail("failed")
    (claim,) = await take(stream, consumer, **stopping)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.fail("failed")
    assert await take(stream, consumer, **stopping) == []
    assert (await ensure(stream, 3, change=True)).waits_for == (f"{consumer} (stopped keys: 1)",)
    letters, done = DeadLetters(stream.js, stream.name), list[tuple[str, int]]()
    with pytest.raises(ResumeRefused, match=rf"'{stream.name}' does not listen on '{partition}.{stream.name}.7.paid'"):
        await resume(letters, consumer)
    replays = [f"{each}.{stream.name}.*.*" for each in range(2)]
    await stream.update({"subjects": [f"{stream.name}.>", *replays]})  # *.{stream.name}.*.* would overlap
    assert await resume(letters, consumer) == Resumed(1, 2)
    await drain(stream, [consumer], done)
    assert done == [("7", 3), ("7", 4)]
    assert {each.subject for each in [await stream.get_message(sequence) for sequence in (3, 4)]} == {
        f"{partition}.{stream.name}.7.paid"
    }
    assert not (await ensure(stream, 3, change=True)).waits_for


async def test_new_leaders_divide_from_their_first_message_on(tmp_path: Path) -> None:
    """Each node leads once, and after the transform changed. About 10 s, because three nodes form a cluster."""

    async def leader() -> str:
        with suppress(ApiError, RequestTimeout):
            return str((await stream.info()).raw["cluster"].get("leader", ""))
        return ""

    async def another() -> bool:
        return await leader() not in ("", old)

    with Cluster(tmp_path) as cluster:
        async with connect(ConnectionSettings(servers=cluster.url, request_timeout=0.5)) as js:
            stream = await replicated_stream(js, subjects=["S.*"])
            for prefix, change in (("0123", 4), ("b", 6)):
                await ensure(stream, change, change=True, subject="S.*", ordered_by="{3}")
                led: set[str] = set()
                async with asyncio.timeout(60):
                    while len(led) < 3:
                        first = (await stream.info()).state["last_seq"] + 1
                        old = await leader()
                        await js.api(f"STREAM.LEADER.STEPDOWN.{stream.name}")
                        messages = [(f"S.{each}", b"x") for each in range(KEYS)]
                        await asyncio.gather(asyncio.to_thread(publish_all, js.settings, messages), until(another, 60))
                        led.add(await leader())
                        stored = [await stream.get_message(each) for each in range(first, first + KEYS)]
                        assert {each.subject[0] for each in stored} <= set(prefix)


async def judge(stream: Stream, done: list[tuple[str, int]]) -> None:
    """Every message was processed once, and those of each key in their order."""
    assert sorted(sequence for _, sequence in done) == [*range(1, (await stream.info()).state["last_seq"] + 1)]
    of_key = defaultdict(list)
    for key, sequence in done:
        of_key[key].append(sequence)
    assert all(each == sorted(each) for each in of_key.values())


async def test_a_caller_that_dies_at_any_request_leaves_nothing_half_done(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is begun again after each of its writes was lost, in turn. About 6 s."""
    await ensure(stream, 2)
    await publish(stream)
    done: list[tuple[str, int]] = []
    writes, left = ("STREAM.UPDATE", "CONSUMER.CREATE", "CONSUMER.DELETE", "CONSUMER.PAUSE"), 0
    ask = type(stream.js).api

    async def api(self: JetStream, subject: str, *arguments: Any, **options: Any) -> Any:
        nonlocal left
        if f"{subject}.{stream.name}".startswith(writes) and f".{stream.name}" in subject:
            left -= 1
            if left < 0:
                raise ApiError(500, 0, "killed")
        return await ask(self, subject, *arguments, **options)

    monkeypatch.setattr(type(stream.js), "api", api)
    number, deaths = 4, 0
    for allowed in range(200):
        left = allowed % 4
        try:
            result = await ensure(stream, number, change=True)
        except ApiError:
            deaths += 1
            continue
        finally:
            left = 1 << 30
        await drain(stream, result.consumers, done)
        if not result.waits_for:
            if number == 2:
                break
            number = 2
        await publish(stream)
    assert deaths > 5
    monkeypatch.undo()
    await drain(stream, (await ensure(stream, 2)).consumers, done)
    await judge(stream, done)
