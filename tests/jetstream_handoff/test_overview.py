"""The overview on a real server: the faults that a reader must recognise, what it costs, and what cannot be read."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import RequestTimeout
from jetstream_client.sequences import Sequences
from jetstream_client.stream import Stream
from jetstream_client.trace import Trace
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.history import readable
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.letters.discard import discard
from jetstream_handoff.letters.listing import listed
from jetstream_handoff.letters.selection import Selection
from jetstream_handoff.repair.release import release
from jetstream_handoff.rules import ledger_mark
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.withdraw import withdraw
from jetstream_handoff.watch.doctor import Scope, examine
from jetstream_handoff.watch.inspection import find
from jetstream_handoff.watch.overview import Survey, overview
from jetstream_handoff.watch.stuck import Limits
from jetstream_handoff.watch.view import ConsumerView, Symptom
from tests.jetstream_client.until import until
from tests.jetstream_handoff.access import Access
from tests.jetstream_handoff.steps import CONSUMER, publish, take, taking

AT_ONCE = Limits(idle=timedelta(0), unheld=timedelta(0))
HOLDER = ("dag", "run", "work", -1, 1)


async def settled(stream: Stream, count: int = 1, **changes: Any) -> None:
    """Publish messages, and settle them in so many claims."""
    await publish(stream, 10 * count)
    for claim in await take(stream, messages_per_claim=10, **changes):
        async with Hold.begin(stream.js, claim, try_number=1, holder=HOLDER) as hold:
            await hold.settle()


def filtered(stream: Stream, token: str) -> dict[str, Any]:
    return {"filter_subject": f"{stream.name}.{token}"}


async def look(survey: Survey, consumer: str = "") -> ConsumerView:
    (stream,) = (await survey.look()).streams
    (found,) = [view for view in stream.consumers if consumer in ("", view.consumer)]
    return found


async def only(survey: Survey) -> Symptom:
    (symptom,) = (await look(survey)).findings
    return symptom


async def test_a_healthy_consumer_has_no_findings(stream: Stream) -> None:
    await settled(stream, 3)
    await publish(stream, 20)
    waiting, held = await take(stream, "later", messages_per_claim=10)
    async with Hold.begin(stream.js, held, try_number=1, holder=HOLDER):
        seen = await overview(stream.js)
    (of,) = seen.streams
    (view,) = of.consumers
    assert (seen.findings, view.findings) == ((), ())
    assert (seen.ledger, seen.server) == (stream.js.settings.ledger, stream.js.settings.servers[0])
    assert seen.now
    assert (of.name, of.dead_letters.stream, of.dead_letters.exists) == (stream.name, f"DEAD_{stream.name}", False)
    assert of.info
    assert of.info.state["messages"] == 50
    assert (view.stream, view.consumer, view.open, view.held) == (stream.name, CONSUMER, 2, 1)
    assert (view.claimed_messages, [each.id for each in view.claims]) == (20, [waiting.id, held.id])
    assert view.oldest
    assert view.oldest.history.owner == ("dag", "later", "sensor", -1, 1)
    assert view.claims[1].history.attempts[0].by == HOLDER
    assert view.usual is not None
    assert 0 <= view.usual < 60


async def test_a_filter_that_matches_nothing_is_said_until_it_matches(stream: Stream) -> None:
    await settled(stream, consumer_config=filtered(stream, "*"))
    await Take(stream.js, taking(stream, "later", consumer="wrong", consumer_config=filtered(stream, "none"))).prepare()
    survey = Survey(stream.js)
    matched, wrong = [await look(survey, name) for name in (CONSUMER, "wrong")]
    assert matched.unmatched == ""
    text = f"none of the 10 messages of stream {stream.name} matches the consumer's filter '{stream.name}.none'"
    assert wrong.unmatched == text
    await stream.js.publish(f"{stream.name}.none", b"")
    assert (await look(survey, "wrong")).unmatched == ""


async def test_messages_that_wait_for_a_paused_dag_name_the_last_sensor(stream: Stream) -> None:
    await settled(stream)
    await publish(stream, 5)
    symptom = await only(Survey(stream.js, AT_ONCE))
    assert symptom.kind == "no_puller"
    assert readable(symptom.by) == "dag / run / sensor"
    assert (await look(Survey(stream.js))).findings == ()  # a moment is no fault


async def test_a_claim_that_waits_for_its_task_can_be_released(stream: Stream) -> None:
    await publish(stream, 5)
    (claim,) = await take(stream)
    symptom = await only(Survey(stream.js, AT_ONCE))
    assert (symptom.kind, symptom.claim) == ("unheld", claim.id)
    assert readable(symptom.by) == "dag / run / sensor"
    seen = await find(stream.js, symptom.claim)
    assert seen
    await release(stream.js, seen)
    (again,) = await take(stream, "other", wait=2)
    assert again.sequences == claim.sequences


async def test_a_dead_worker_is_recognised_and_a_living_one_is_not_suspected(stream: Stream) -> None:
    await publish(stream, 5)
    (claim,) = await take(stream)
    survey = Survey(stream.js)
    async with Hold.begin(stream.js, claim, try_number=1, holder=HOLDER) as hold:
        for _ in range(8):  # for 1.6 s, with an ack_wait of 1 s
            assert (await look(survey)).findings == ()
            await asyncio.sleep(0.2)
        await hold._stop_beats()  # as a killed worker does

        async def suspected() -> bool:
            return bool((await look(survey)).findings)

        await until(suspected)
        symptom = await only(survey)
        assert (symptom.kind, symptom.claim) == ("dead_holder", claim.id)
        assert f"attempt {hold.token} is dead or cut off" in symptom.cause
        assert readable(symptom.by[:-1]) == "dag / run / work"


async def test_a_backlog_grows_only_for_a_survey_that_has_watched_it(stream: Stream) -> None:
    """Two processes watch on their own, and each says since when."""
    await settled(stream)
    limits = Limits(idle=timedelta(hours=1), growing=timedelta(seconds=0.3))
    early, late = Survey(stream.js, limits), Survey(stream.js, limits)

    async def grows(survey: Survey) -> bool:
        await publish(stream, 1)
        return [each.kind for each in (await look(survey)).findings] == ["growing"]

    await until(lambda: grows(early))
    assert not await grows(late)
    first, second = (await early.look()).since, (await late.look()).since
    assert "" < first < second
    await until(lambda: grows(late))
    assert (await late.look()).since == second


async def test_a_paused_consumer_is_recognised_and_can_be_resumed(stream: Stream) -> None:
    await settled(stream)
    await publish(stream, 5)
    survey = Survey(stream.js)
    await stream.consumer(CONSUMER).pause(datetime.now(UTC) + timedelta(hours=1))
    symptom = await only(survey)
    assert (symptom.kind, symptom.level) == ("paused_consumer", "error")
    assert "its backlog of 5 messages" in symptom.effect
    await stream.consumer(CONSUMER).resume()
    assert (await look(survey)).findings == ()


async def test_a_poison_message_is_recognised_until_it_is_a_dead_letter(stream: Stream) -> None:
    await publish(stream, 1)
    survey = Survey(stream.js)
    for run in ("a", "b"):
        (claim,) = await take(stream, run, max_failures=2)
        async with Hold.begin(stream.js, claim, try_number=1, holder=(*HOLDER[:4], 1 + (run == "b"))) as hold:
            await hold.fail("ValueError: no date")
    symptom = await only(survey)
    assert (symptom.kind, symptom.level, symptom.claim) == ("failing", "error", claim.id)
    assert symptom.cause == f"Message 1 of stream {stream.name} fails: ValueError: no date."
    assert symptom.by == (*HOLDER[:4], 2)
    assert await take(stream, "c", wait=0.3, max_failures=2) == []  # buries it
    view = await look(survey)
    assert [each.kind for each in view.findings] == ["dead_letters"]
    assert "1 dead letter. The newest is message 1" in view.findings[0].text
    assert view.dead_letters == 1


@pytest.fixture
def access(tmp_path: Path) -> Iterator[Access]:
    access = Access(tmp_path)
    access.server.start()
    yield access
    access.server.stop()


async def test_a_missing_permission_is_named(access: Access) -> None:
    of: dict[str, Any] = {"consumer": "delays", "max_failures": 3}
    async with connect(access.settings("admin")) as js:
        await js.create_stream({"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True})
        stream = js.stream("FLIGHTS")
        await Take(js, taking(stream, **of)).create()
        await js.publish("flights.a", b"x")
        (claim,) = await take(stream, **of)
        async with Hold.begin(js, claim, try_number=1) as hold:
            await hold.reject(Sequences.of([1]), "no date")
            await hold.settle()
    for role in ("admin", "sensor", "processor"):  # what they lack is none of their business
        async with connect(access.settings(role)) as js:
            seen = await overview(js)
            (view,) = seen.streams[0].consumers
            assert seen.findings == ()
            counted = role != "sensor"  # this user is not permitted to read the dead letters
            assert [each.kind for each in view.findings] == ["dead_letters"] * counted
            assert seen.streams[0].dead_letters.complete == counted
    async with connect(access.settings("processor")) as js:
        letters = DeadLetters(js, "FLIGHTS")
        assert [stub.confirmed for stub in (await listed(letters)).stubs] == [True]
        assert (await discard(letters, Selection(everything=True))).count == 1
    for subject in ("$JS.ACK.FLIGHTS.delays.>", "$JS.API.CONSUMER.INFO.FLIGHTS.delays"):
        access.without("processor", subject)
        async with connect(access.settings("processor")) as js:
            symptom = (await look(Survey(js))).findings[0]
            assert (symptom.kind, symptom.level) == ("permission", "error")
            assert repr(subject) in symptom.text
    access.without("processor", "$JS.API.STREAM.INFO.KV_airflow_claims")
    async with connect(access.settings("processor")) as js:
        (symptom,) = (await overview(js)).findings
        assert symptom.kind == "permission"
        assert "'$JS.API.STREAM.INFO.KV_airflow_claims'" in symptom.text


async def test_a_refusal_does_not_make_every_look_slow(access: Access) -> None:
    async with connect(access.settings("admin")) as js:
        stream = await js.create_stream({"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True})
        await Take(js, taking(stream, consumer="delays")).create()
        await js.publish("flights.a", b"x")
        await take(stream, consumer="delays")
    asked: Counter[str] = Counter()
    async with connect(access.settings("sensor")) as js:
        survey = Survey(js.with_options(trace=Trace(lambda event: asked.update([event.subject]))))
        for _ in range(3):
            (of,) = (await survey.look()).streams
            assert not of.dead_letters.complete
    assert asked["$JS.API.STREAM.INFO.DEAD_FLIGHTS"] == 1
    assert asked["$JS.API.CONSUMER.INFO.FLIGHTS.delays"] == 3


async def test_what_does_not_change_is_not_read_again(stream: Stream) -> None:
    for consumer in ("a", "b", "c"):
        await settled(stream, consumer=consumer)
    await DeadLetters(stream.js, stream.name).ensure()
    asked: Counter[str] = Counter()
    js = stream.js.with_options(trace=Trace(lambda event: asked.update([event.subject.split(".", 2)[2]])))
    survey = Survey(js)
    await survey.look()
    lists = sum(number for subject, number in asked.items() if subject.startswith("CONSUMER.LIST."))
    assert lists  # one for each stream of the account
    assert asked.total() - lists <= 20
    ledger = js.settings.ledger
    asked.clear()
    await survey.look()
    of_consumers = {f"CONSUMER.INFO.{stream.name}.{consumer}": 1 for consumer in ("a", "b", "c")}
    of_streams = {f"STREAM.INFO.{name}": 1 for name in (f"KV_{ledger}_claims", stream.name, f"DEAD_{stream.name}")}
    assert asked == of_consumers | of_streams
    await publish(stream, 10)
    (claim,) = await take(stream, "other", consumer="a")
    assert [each.open for each in (await survey.look()).streams[0].consumers] == [1, 0, 0]
    assert claim.id in [each.id for each in (await survey.look()).streams[0].consumers[0].claims]


async def test_what_was_deleted_is_missed_only_while_claims_are_open(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    await stream.consumer(CONSUMER).delete()
    survey = Survey(stream.js)
    symptom = await only(survey)
    assert (symptom.kind, symptom.claim) == ("consumer_missing", claim.id)
    await take(stream, "other")  # creates the consumer again
    assert (await look(survey)).findings == ()


async def test_a_record_that_cannot_be_read_hides_no_other(stream: Stream) -> None:
    await settled(stream, consumer="a")
    await settled(stream, consumer="b")
    await stream.js.publish(Ledger(stream.js, stream.name, "a").subjects[0], b"{}")
    (seen,) = (await overview(stream.js)).streams
    (symptom,) = seen.consumers[0].findings
    assert symptom.kind == "unreadable_record"
    assert f"consumer a of stream {stream.name}" in symptom.text
    assert seen.consumers[1].findings == ()


async def test_a_ledger_that_does_not_exist_or_is_unsuitable_is_a_finding(stream: Stream) -> None:
    (symptom,) = (await overview(stream.js)).findings
    assert (symptom.kind, symptom.level) == ("ledger", "warning")
    assert repr(stream.js.settings.ledger) in symptom.text
    await settled(stream)
    name = f"KV_{stream.js.settings.ledger}_claims"
    await stream.js.update_stream({"name": name, "discard": "old"})
    (symptom,) = (await overview(stream.js)).findings
    assert (symptom.kind, symptom.level) == ("ledger", "error")
    assert "discard" in symptom.text
    assert name in symptom.remedy


async def test_a_frozen_server_ends_a_look_soon(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)
    server.start()
    try:
        async with connect(ConnectionSettings(servers=server.url, shortest_ack_wait=0.5, request_timeout=0.3)) as js:
            stream = await js.create_stream({"name": "S", "subjects": ["S.>"], "allow_direct": True})
            await settled(stream)
            survey = Survey(js)
            await survey.look()
            server.freeze()
            with pytest.raises(RequestTimeout, match="gave no answer"):
                await survey.look()
            server.thaw()

            async def answers() -> bool:
                with suppress(RequestTimeout):
                    return (await look(survey)).findings == ()
                return False

            await until(answers)
    finally:
        server.thaw()
        server.stop()


async def test_a_deleted_ledger_is_inferred_from_what_remains_of_it(stream: Stream) -> None:
    """Its consumers stay on the page, also those without a receipt, and after the bucket was created again."""
    await settled(stream)
    await publish(stream, 12)
    await take(stream, "later", consumer="unsettled")
    survey, ledger = Survey(stream.js, AT_ONCE), stream.js.settings.ledger
    await look(survey, CONSUMER)
    records = stream.js.stream(f"KV_{ledger}_claims")
    await records.delete()
    for each in (survey, Survey(stream.js, AT_ONCE)):  # one that knew the ledger, and one that did not
        seen = await each.look()
        (symptom,) = seen.findings
        assert (symptom.kind, symptom.level) == ("ledger", "error")
        assert f"The bucket {ledger}_claims of the ledger was deleted or lost." in symptom.text
        assert "1 receipt and 2 consumers of this ledger exist" in symptom.text
        assert f"Restore stream {records.name}" in symptom.remedy
        assert [view.consumer for view in seen.consumers] == ["unsettled", CONSUMER]
        assert seen.now
    examined = await examine(stream.js.settings, Scope())
    (lost,) = [each for each in examined["Ledger"] if each.what == f"bucket {ledger}_claims"]
    assert lost.state == "to do"
    assert lost.text == f"{symptom.text} {symptom.remedy}"

    await take(stream, "again", wait=0.1)  # creates the bucket again, and finds no message for this consumer
    for each in (survey, Survey(stream.js, AT_ONCE)):
        seen = await each.look()
        assert [view.consumer for view in seen.consumers] == ["unsettled", CONSUMER]
        waits = [symptom for symptom in (await look(each, "unsettled")).findings if symptom.kind == "no_puller"]
        assert ["22 messages wait" in symptom.text for symptom in waits] == [True]


async def test_the_receipts_name_the_consumers_of_a_lost_ledger(stream: Stream) -> None:
    """Also if a consumer has lost its mark, or a user may not list consumers. One that was deleted is not shown."""
    await settled(stream, consumer="a")
    await settled(stream, consumer="b")
    consumer = stream.consumer("a")
    await consumer.update({"metadata": {ledger_mark.KEY: ""}})
    await stream.consumer("b").delete()
    await stream.js.stream(f"KV_{stream.js.settings.ledger}_claims").delete()
    seen = await overview(stream.js)
    assert [view.consumer for view in seen.consumers] == ["a"]
    assert "3 receipts and 2 consumers of this ledger exist" in seen.findings[0].text


async def test_dead_letters_show_a_lost_ledger_only_without_another_one(stream: Stream) -> None:
    """Dead letters do not say to which ledger they belong."""
    await DeadLetters(stream.js, stream.name).ensure()
    assert (await overview(stream.js)).findings[0].level == "warning"


async def test_messages_that_nobody_takes_are_reported_although_no_claim_is_open(stream: Stream) -> None:
    """A claim that was withdrawn leaves no trace in the ledger: its messages are unacknowledged, and in no claim."""
    await settled(stream)
    await publish(stream, 12)
    batch = Take(stream.js, taking(stream))
    await batch.prepare()
    await withdraw(batch.ledger, await batch.take(30))
    survey = Survey(stream.js, AT_ONCE)
    symptom = await only(survey)
    assert (symptom.kind, symptom.level) == ("no_puller", "warning")
    assert "A backlog of 12 messages waits" in symptom.text
    assert (await look(Survey(stream.js))).findings == ()  # a moment is no fault


async def test_a_released_claim_stays_a_finding_until_a_sensor_takes_it(stream: Stream) -> None:
    await publish(stream, 12)
    (claim,) = await take(stream)
    await publish(stream, 3)
    survey = Survey(stream.js)
    seen = await find(stream.js, claim.id)
    assert seen
    await release(stream.js, seen)
    for _ in range(3):
        symptom = await only(survey)
        assert (symptom.kind, symptom.claim) == ("released", claim.id)
        assert "no sensor pulls: 15 messages wait." in symptom.text
    await take(stream, "other", wait=2)
    assert (await look(survey)).findings == ()
