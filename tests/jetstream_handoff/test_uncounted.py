"""Messages that wait and that the server does not count, because a filter was removed from their consumer."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from jetstream_client.errors import InvalidValue
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.watch.doctor import Scope, examine
from jetstream_handoff.watch.overview import Survey
from jetstream_handoff.watch.stuck import Limits, uncounted
from jetstream_handoff.watch.view import ConsumerView
from tests.jetstream_client.until import until
from tests.jetstream_handoff.steps import CONSUMER, edited_by_another, publish, take

LONG = timedelta(seconds=60)


async def counted(stream: Stream, count: int) -> bool:
    return (await stream.consumer(CONSUMER).info()).pending == count


async def view(survey: Survey) -> ConsumerView:
    (found,) = (await survey.look()).consumers
    return found


async def take_one(stream: Stream, **config: Any) -> None:
    (claim,) = await take(stream, consumer_config={"ack_wait": LONG, **config})
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()


@pytest.fixture
async def unfiltered(stream: Stream) -> Stream:
    """A stream whose consumer has settled what its filter selected, and has no filter any more. The sequences 5 and 6
    were skipped for good, and 7 to 10 wait. The server counts none of them."""
    await publish(stream, 6)
    await take_one(stream, filter_subject=f"{stream.name}.0")
    await edited_by_another(stream.consumer(CONSUMER), {}, remove=["filter_subject"])
    others = [(f"{stream.name}.{token}", b"") for token in "12" * 2]
    await asyncio.to_thread(publish_all, stream.js.settings, others)
    return stream


async def test_the_server_does_not_count_them(unfiltered: Stream) -> None:
    """If a later server does, there is less to do here."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await until(partial(counted, unfiltered, 4))
    assert await counted(unfiltered, 0)


async def test_a_stream_drops_what_a_removed_filter_did_not_select(stream: Stream) -> None:
    """With retention ``interest``; with the filter ``>``, it is kept."""
    await stream.delete()
    config = {"name": stream.name, "subjects": [f"{stream.name}.>"], "allow_direct": True, "retention": "interest"}
    kept = await stream.js.create_stream(config)
    consumer = await kept.create_consumer({"durable_name": CONSUMER, "filter_subject": f"{stream.name}.0"})
    stored = []
    for change in ({}, {"filter_subject": ">"}):
        await edited_by_another(consumer, change, remove=["filter_subject"])
        await stream.js.publish(f"{stream.name}.1", b"")
        stored.append((await kept.info()).state["messages"])
    assert stored == [0, 1]


async def test_a_pull_that_waits_gets_them(unfiltered: Stream) -> None:
    (claim,) = await take(unfiltered, consumer_config={"ack_wait": LONG})
    assert str(claim.sequences) == "7-10"


async def test_the_page_and_the_doctor_name_them_until_the_filter_is_set(unfiltered: Stream) -> None:
    js = unfiltered.js
    survey = Survey(js, Limits(idle=LONG))
    assert (await view(survey)).findings == ()  # what is published between two requests looks the same
    found = await view(survey)
    (symptom,) = found.findings
    assert (symptom.kind, symptom.level) == ("uncounted", "warning")
    assert symptom.cause.startswith("Of 6 messages behind the last delivery of consumer work, ")
    sections = await examine(js.settings, Scope(unfiltered.name))
    told = [each.text for findings in sections.values() for each in findings]
    assert [text for text in told if symptom.cause in text and symptom.remedy in text]
    await unfiltered.consumer(CONSUMER).update({"filter_subject": ">"})  # as the remedy says
    assert await counted(unfiltered, 4)
    assert (await view(survey)).findings == ()


async def test_what_is_published_between_two_requests_is_not_taken_for_them(stream: Stream) -> None:
    await publish(stream, 1)
    await take_one(stream)
    survey = Survey(stream.js, Limits(idle=LONG))
    publishing = asyncio.create_task(publish(stream, 20_000))
    looks = 0
    while not publishing.done() or looks < 3:
        assert [each.kind for each in (await view(survey)).findings] == []
        looks += 1
    await publishing
    await stream.purge()
    assert [each.kind for each in (await view(survey)).findings] == []


@pytest.mark.parametrize(
    "start",
    [
        {},
        {"deliver_policy": "last"},
        {"deliver_policy": "new"},
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 4},
        {"deliver_policy": "by_start_time", "opt_start_time": "2000-01-01T00:00:00Z"},
    ],
    ids=lambda start: start.get("deliver_policy", "all"),
)
async def test_where_a_consumer_begins_is_no_finding(stream: Stream, start: dict[str, Any]) -> None:
    await publish(stream, 6)
    consumer = await stream.create_consumer({"name": "c", **start})
    before = await stream.info()
    assert uncounted(stream.name, "c", await consumer.info(), before, await stream.info()) is None


@pytest.mark.parametrize("name", ["filter_subject", "filter_subjects"])
async def test_a_filter_is_replaced_and_not_removed(stream: Stream, name: str) -> None:
    old = f"{stream.name}.0" if name == "filter_subject" else [f"{stream.name}.0", f"{stream.name}.1"]
    consumer = await stream.create_consumer({"name": "c", name: old})
    removals: list[tuple[dict[str, Any], list[str]]] = [({}, [name]), ({"filter_subjects": []}, ["filter_subject"])]
    for config, remove in removals:
        with pytest.raises(InvalidValue, match=r"config\['filter_subject'\]=None: a filter cannot be removed; set '>'"):
            await consumer.update(config, remove=remove)
    assert (await consumer.info()).config[name] == old
    await consumer.update({"filter_subject": ">"}, remove=[name])
    assert (await consumer.info()).config["filter_subject"] == ">"
