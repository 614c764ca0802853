"""Least privilege, as docs/reference/permissions.conf ships it: each user can do its work and nothing else.

Also, a forged claim does not give a processor access to other messages.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import ConnectionSettings, connect
from jetstream_client.context import JetStream
from jetstream_client.errors import (
    ConnectionLost,
    ConsumerRefused,
    InvalidValue,
    PermissionDenied,
    PublishFailed,
    StreamNameInUse,
    WrongLastSequence,
)
from jetstream_client.publish.bulk import publish_all, publish_fast
from jetstream_client.read import by_consumer
from jetstream_client.read.direct import read
from jetstream_client.sequences import Sequences
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import encode_publish
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import AlreadyDone, ClaimInvalid, LedgerUnavailable, Superseded
from jetstream_handoff.hold.answers import Delivered, acknowledge
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from jetstream_handoff.watch import backlog
from jetstream_handoff.watch.oldest import Oldest, find
from tests.installed_server import has
from tests.jetstream_client.until import SOON, until
from tests.jetstream_handoff.access import API_PREFIX, ROLES, SHARED, SHIPPED, Access

FOREIGN = (("FLIGHTS", "audit"), ("OTHER", "delays"))
RECORD = "$KV.airflow_claims.IZGESR2IKRJQ.MRSWYYLZOM"

# What each role needs is tested by its work below. These are requests that most roles must not make. The roles
# that may make them are named.
ACTS: dict[str, tuple[str, ...]] = {
    "flights.ua": ("publisher",),
    "elsewhere": (),
    "$JS.API.INFO": (),
    "$JS.API.STREAM.NAMES": (),
    "$JS.API.STREAM.LIST": (),
    "$JS.API.STREAM.CREATE.OTHER": (),
    "$JS.API.STREAM.INFO.OTHER": (),
    "$JS.API.STREAM.UPDATE.OTHER": (),
    "$JS.API.STREAM.CREATE.FLIGHTS": ("setup",),
    "$JS.API.STREAM.UPDATE.FLIGHTS": ("setup",),
    "$JS.API.STREAM.INFO.FLIGHTS": ("setup", "sensor", "processor"),
    f"{API_PREFIX}.STREAM.INFO.FLIGHTS": ("publisher", "reader"),
    "$JS.API.STREAM.DELETE.FLIGHTS": (),
    "$JS.API.STREAM.PURGE.FLIGHTS": (),
    "$JS.API.STREAM.MSG.DELETE.FLIGHTS": (),
    "$JS.API.STREAM.SNAPSHOT.FLIGHTS": (),
    "$JS.API.STREAM.RESTORE.FLIGHTS": (),
    "$JS.API.STREAM.PEER.REMOVE.FLIGHTS": (),
    "$JS.API.STREAM.LEADER.STEPDOWN.FLIGHTS": (),
    f"{API_PREFIX}.STREAM.INFO.OTHER": (),
    f"{API_PREFIX}.STREAM.DELETE.FLIGHTS": (),
    "$JS.API.STREAM.MSG.GET.FLIGHTS": ("processor",),
    f"{API_PREFIX}.STREAM.MSG.GET.FLIGHTS": ("reader",),
    f"{API_PREFIX}.STREAM.MSG.GET.OTHER": (),
    "$JS.API.DIRECT.GET.FLIGHTS": ("processor",),
    f"{API_PREFIX}.DIRECT.GET.FLIGHTS": ("reader",),
    f"{API_PREFIX}.DIRECT.GET.OTHER": (),
    "$JS.API.DIRECT.GET.FLIGHTS.flights.ua": (),
    "$JS.API.DIRECT.GET.OTHER": (),
    "$JS.API.STREAM.MSG.GET.OTHER": (),
    "$JS.API.CONSUMER.CREATE.FLIGHTS": (),
    "$JS.API.CONSUMER.CREATE.FLIGHTS.mine": (),
    "$JS.API.CONSUMER.CREATE.FLIGHTS.delays": ("setup",),
    "$JS.API.CONSUMER.DURABLE.CREATE.FLIGHTS.delays": (),
    "$JS.API.CONSUMER.DELETE.FLIGHTS.delays": (),
    "$JS.API.CONSUMER.RESET.FLIGHTS.delays": (),
    "$JS.API.CONSUMER.PAUSE.FLIGHTS.delays": (),
    "$JS.API.CONSUMER.LIST.FLIGHTS": (),
    "$JS.API.CONSUMER.INFO.FLIGHTS.delays": ("setup", "sensor", "processor"),
    "$JS.API.CONSUMER.INFO.FLIGHTS.audit": (),
    "$JS.API.CONSUMER.MSG.NEXT.FLIGHTS.delays": ("sensor",),
    "$JS.API.CONSUMER.MSG.NEXT.FLIGHTS.audit": (),
    "$JS.ACK.FLIGHTS.delays.1.1.1.0.0": ("sensor", "processor"),
    "$JS.ACK.FLIGHTS.audit.1.1.1.0.0": (),
    "$JS.ACK.OTHER.delays.1.1.1.0.0": (),
    "$JS.ACK._.hash.FLIGHTS.delays.1.1.1.0.0": (),
    "$JS.API.STREAM.INFO.KV_airflow_claims": ("setup", "sensor", "processor"),
    "$JS.API.STREAM.CREATE.KV_airflow_claims": ("setup",),
    "$JS.API.STREAM.DELETE.KV_airflow_claims": (),
    "$JS.API.STREAM.PURGE.KV_airflow_claims": (),
    "$JS.API.STREAM.UPDATE.KV_airflow_claims": (),
    "$JS.API.STREAM.MSG.DELETE.KV_airflow_claims": (),
    "$JS.API.STREAM.MSG.GET.KV_airflow_claims": ("sensor", "processor"),
    "$JS.API.STREAM.PURGE.KV_airflow_receipts": (),
    "$JS.API.STREAM.MSG.GET.KV_airflow_receipts": ("sensor", "processor"),
    "$JS.API.DIRECT.GET.KV_airflow_receipts": ("processor",),
    "$JS.API.STREAM.INFO.KV_airflow_reserve": ("setup", "sensor", "processor"),
    "$JS.API.STREAM.CREATE.KV_airflow_reserve": ("setup",),
    "$JS.API.STREAM.PURGE.KV_airflow_reserve": ("sensor", "processor"),
    "$JS.API.STREAM.DELETE.KV_airflow_reserve": (),
    "$KV.airflow_reserve.0": ("setup", "sensor", "processor"),
    RECORD: ("sensor", "processor"),
    "$KV.airflow_claims.IZGESR2IKRJQ.MF2WI2LU": (),
    "$KV.airflow_receipts.IZGESR2IKRJQ.MRSWYYLZOM.5f0c9a7be21d": ("sensor", "processor"),
    "$KV.airflow_receipts.IZGESR2IKRJQ.MF2WI2LU.5f0c9a7be21d": (),
    "dead.FLIGHTS.delays.1.1.flights.ua": ("processor",),
    "dead.FLIGHTS.audit.1.1.flights.ua": (),
    "$JS.API.STREAM.MSG.GET.DEAD_FLIGHTS": ("processor",),
    "$JS.API.STREAM.PURGE.DEAD_FLIGHTS": (),
    "$SYS.REQ.SERVER.PING": (),
    "$SYS.REQ.USER.INFO": (),
}


@pytest.fixture
def access(tmp_path: Path) -> Iterator[Access]:
    access = Access(tmp_path)
    access.server.start()
    yield access
    access.server.stop()


def taking(**changes: Any) -> Taking:
    values: dict[str, Any] = {
        "stream": "FLIGHTS",
        "consumer": "delays",
        "owner": ("dag", "run", "sensor", -1, 1),
        "max_messages": 100,
        "gather": timedelta(seconds=0.1),
        "consumer_config": {"ack_wait": timedelta(seconds=1), "max_ack_pending": 10_000},
    }
    return Taking(**{**values, **changes})


async def set_up(access: Access) -> None:
    async with connect(access.settings("setup")) as js:
        await js.create_or_update_stream({"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True})
        await Take(js, taking()).create()
        await DeadLetters(js, "FLIGHTS").ensure()
    async with connect(access.settings("admin")) as js:
        await js.create_stream({"name": "OTHER", "subjects": ["other"], "allow_direct": True})
        for stream, consumer in FOREIGN:
            config = {"durable_name": consumer, "name": consumer, "ack_policy": "explicit"}
            await js.stream(stream).create_consumer(config)


async def take(js: JetStream, **changes: Any) -> list[Claim]:
    work = Take(js, taking(**changes))
    await work.prepare()
    claims = await work.take(3)
    work.handed_on()
    return [Claim.from_json(claim.to_json()) for claim in claims]


def publish(access: Access, role: str, subject: str, count: int) -> int:
    messages = ((subject, b"%d" % number) for number in range(count))
    return publish_all(access.settings(role), messages, scope=subject).count  # some before an interruption


async def test_each_user_can_do_its_work(access: Access) -> None:
    await set_up(access)
    assert await asyncio.to_thread(publish, access, "publisher", "flights.ua", 50) == 50
    async with connect(access.settings("sensor")) as js:
        (claim,) = await take(js)
    batches = await asyncio.to_thread(
        lambda: list(read(access.settings("reader"), claim.stream, claim.sequences, claim.stream_created))
    )
    assert sum(map(len, batches)) == claim.count == 50
    async with connect(access.settings("processor")) as js, Hold.begin(js, claim, try_number=1) as hold:
        await asyncio.sleep(1.5)  # longer than ack_wait: heartbeats keep it
        await hold.reject(Sequences.of([7]), "no date")
        await hold.settle("done")
    async with connect(access.settings("processor")) as js:
        with pytest.raises(AlreadyDone):
            async with Hold.begin(js, claim, try_number=2):
                pass
        assert [each.claim_id for each in await Ledger(js, "FLIGHTS", "delays").committed()] == [claim.id]
    async with connect(access.settings("admin")) as js:
        info = await js.stream("FLIGHTS").consumer("delays").info()
        assert (info.ack_pending, info.floor) == (0, 50)
        assert (await js.stream("DEAD_FLIGHTS").info()).state["messages"] == 1
        if has("2.14"):
            await js.api("CONSUMER.RESET.FLIGHTS.delays", {"seq": 1})
    if has("2.14"):  # the record forgets the settled claim, which has its receipt
        async with connect(access.settings("sensor")) as js:
            (again,) = await take(js)
        assert again.sequences == claim.sequences
    async with connect(access.settings("processor")) as js:
        assert [each.claim_id for each in await Ledger(js, "FLIGHTS", "delays").committed()] == [claim.id]
    access.without("processor", "$JS.API.DIRECT.GET.KV_airflow_receipts")
    async with connect(replace(access.settings("processor"), request_timeout=60)) as js, asyncio.timeout(SOON):
        assert [each.claim_id for each in await Ledger(js, "FLIGHTS", "delays").committed()] == [claim.id]


async def test_the_sensor_goes_on_although_it_may_not_read_the_stream(access: Access) -> None:
    """Another client acknowledges what it had fetched when the record began. Whether the messages exist is asked of the
    stream, which the sensor is not permitted to read."""
    await set_up(access)
    async with connect(access.settings("admin")) as admin:
        await admin.stream("FLIGHTS").consumer("delays").update({"ack_wait": timedelta(seconds=60)})
        await asyncio.gather(*(admin.publish("flights.ua", b"") for _ in range(2)))
        fetched = await admin.stream("FLIGHTS").consumer("delays").fetch(2)
        await asyncio.gather(*(admin.publish("flights.ua", b"") for _ in range(2)))
        async with connect(access.settings("sensor")) as js:
            (claim,) = await take(js, consumer_config=None)
            assert claim.sequences == Sequences.from_ranges([(3, 4)])
            for message in fetched:
                await message.double_ack()
            await asyncio.gather(*(admin.publish("flights.ua", b"") for _ in range(2)))
            (later,) = await take(js, owner=("dag", "later", "sensor", -1, 1), consumer_config=None)
            assert {5, 6} <= {*later.sequences}
            record, _ = await Ledger(js, "FLIGHTS", "delays").read()
    assert record
    assert record.unreceipted
    assert record.unreceipted[0] == Sequences.from_ranges([(1, 2)])


async def test_max_wait_counts_from_the_first_look_where_the_stream_may_not_be_read(
    access: Access, caplog: pytest.LogCaptureFixture
) -> None:
    await set_up(access)
    assert await asyncio.to_thread(publish, access, "publisher", "flights.ua", 3) == 3
    async with connect(access.settings("sensor")) as js:
        before: Oldest | None = None
        for _ in range(3):
            look = await backlog.look(js, "FLIGHTS", "delays")
            ready = look.backlog(backlog.unknown)
            found = await find(js, "FLIGHTS", look=look, ready=ready, ended=backlog.unknown, before=before)
            assert found
            assert found.stored == (before.stored if before else look.now)
            before = found
    assert caplog.text.count("max_wait counts from when a message of stream FLIGHTS is first seen") == 1


async def test_nobody_can_do_anything_else(access: Access) -> None:
    await set_up(access)

    def try_each(role: str) -> None:
        with Wire.open(access.settings(role)) as wire:
            for subject in [subject for subject, allowed in ACTS.items() if role not in allowed]:
                with pytest.raises(PermissionDenied) as denied:
                    wire.request(subject, b"{}")
                assert denied.value.subject == subject
            for subject in (">", "flights.>", "_INBOX.>", "$JS.API.>", *(f"_INBOX_{other}.>" for other in ROLES)):
                if subject == f"_INBOX_{role}.>":
                    continue
                wire.subscribe(subject)
                with pytest.raises(PermissionDenied, match="subscribe to"):
                    wire.receive(2)

    def try_allowed(role: str) -> None:
        """The requests of the table are valid: the server accepts those that are permitted."""
        with Wire.open(access.settings(role)) as wire:
            for subject in [subject for subject, allowed in ACTS.items() if role in allowed]:
                wire.send(encode_publish(subject, "", b"{}"))
                wire.api("STREAM.INFO.FLIGHTS")  # its answer arrives after a refusal

    for role in ROLES:
        await asyncio.to_thread(try_each, role)
    for role in ROLES:
        await asyncio.to_thread(try_allowed, role)


READS = [("STREAM.INFO.FLIGHTS", b""), ("STREAM.MSG.GET.FLIGHTS", b'{"seq":1}'), ("DIRECT.GET.FLIGHTS", b'{"seq":1}')]
REQUESTS = {
    "reader": READS,
    "processor": READS,
    "publisher": [("STREAM.INFO.FLIGHTS", b""), ("flights.ua", b"+ACK"), ("flights.ua", b"")],
}
"""The requests that these users may send, without the prefix of their API. Message 1 is empty."""
TARGETS = {
    "delete": ("$JS.API.STREAM.DELETE.OTHER", "OTHER"),
    "purge": ("$JS.API.STREAM.PURGE.OTHER", "OTHER"),
    "record": (RECORD, "KV_airflow_claims"),
    "receipt": ("$KV.airflow_receipts.IZGESR2IKRJQ.MRSWYYLZOM.5f0c9a7be21d", "KV_airflow_receipts"),
    "dead letter": ("dead.FLIGHTS.delays.1.1.flights.ua", "DEAD_FLIGHTS"),
    "acknowledge": ("$JS.ACK.FLIGHTS.audit.1.1.1.0.0", "audit"),
}
"""Subjects that none of them may publish to, to be named as the reply subject of a request, and what would change."""
WRITES = {"record", "receipt", "dead letter"}
ESCAPES = {
    "reader": WRITES | {"delete", "purge"},
    "processor": WRITES | {"delete", "purge"},
    "publisher": WRITES if has("2.12") else WRITES | {"purge"},
}
"""The targets that these users reach if they are in the account of the streams, whatever their permissions. Until 2.12,
a server takes a PubAck for a request to purge up to the ``seq`` in it, because it ignores the other fields."""


@pytest.mark.parametrize(
    ("config", "inside"), [(SHARED, ("reader", "publisher")), (SHIPPED, ("processor",))], ids=["one account", "shipped"]
)
async def test_who_is_outside_the_streams_account_cannot_escape_through_answers(
    tmp_path: Path, config: str, inside: tuple[str, ...]
) -> None:
    """nats-server publishes an answer on the reply subject of the request with its own rights, not the user's."""
    access = Access(tmp_path, config)
    access.server.start()
    try:
        await set_up(access)
        await asyncio.to_thread(publish, access, "admin", "other", 3)
        async with connect(access.settings("admin")) as js:
            await js.publish("flights.ua", b"")
            await js.stream("FLIGHTS").consumer("audit").fetch(1)
            late: set[str] = set()  # what answers to an earlier target may still change
            for role in (*inside, *({"reader", "publisher"} - {*inside})):
                expected = ESCAPES[role] if role in inside else set()
                for what, (target, part) in TARGETS.items():
                    before = await others(js)
                    await asyncio.to_thread(redirect, access.settings(role), REQUESTS[role], target)
                    if what in expected:
                        await until(partial(changed, js, part, before))
                        late.add(part)
                    else:
                        await asyncio.sleep(0.1)  # longer than it takes if it is permitted
                        after = await others(js)
                        same = {each for each in before | after if before.get(each) == after.get(each)}
                        assert {*before, *after} - same <= late - {part}, f"{role}: {what}"
                    with suppress(StreamNameInUse):
                        await js.create_stream({"name": "OTHER", "subjects": ["other"], "allow_direct": True})
                    await js.publish("other", b"")  # to be purged
    finally:
        access.server.stop()


def redirect(settings: ConnectionSettings, requests: list[tuple[str, bytes]], target: str) -> None:
    """Let the server publish answers on ``target``: named directly, with each prefix that could be removed, by a header
    that asks for a trace there, and by one that schedules a message for there."""
    prefix = settings.prefix
    inbox = f"{settings.inbox_prefix}.x"
    scheduled = f"Nats-Schedule: @at 2020-01-01T00:00:00Z\r\nNats-Schedule-Target: {target}"
    ways = [
        *((reply, "") for reply in (target, f"{prefix}.{target}", target.replace("$JS.API", prefix))),
        *((inbox, f"NATS/1.0\r\n{lines}\r\n\r\n") for lines in (f"Nats-Trace-Dest: {target}", scheduled)),
    ]
    for request, body in requests:
        subject = request if request.startswith("flights.") else f"{prefix}.{request}"
        for reply, header in ways:
            with Wire.open(settings) as wire:
                wire.send(encode_publish(subject, reply, body, header.encode()))
                with suppress(PermissionDenied, ConnectionLost):  # some are refused
                    wire.api("STREAM.INFO.FLIGHTS")


async def others(js: JetStream) -> dict[str, Any]:
    """The state of things that belong to others: all streams but FLIGHTS, which a publisher may change."""
    names = [name for name in (await js.api("STREAM.NAMES"))["streams"] if name != "FLIGHTS"]
    states = {name: (await js.stream(name).info()).state for name in names}
    audit = await js.stream("FLIGHTS").consumer("audit").info()
    streams = {name: (state["first_seq"], state["last_seq"]) for name, state in states.items()}
    return {**streams, "audit": (audit.ack_pending, audit.floor)}


async def changed(js: JetStream, part: str, before: dict[str, Any]) -> bool:
    return (await others(js)).get(part) != before.get(part)


async def test_each_way_to_publish_works_through_the_import(access: Access) -> None:
    await set_up(access)
    publisher = replace(access.settings("publisher"), request_timeout=SOON)  # the server syncs each message
    async with connect(publisher) as js:
        assert (await js.publish("flights.ua", b"0")).seq == 1
        answers = await asyncio.gather(*[await js.publish_async("flights.ua", b"%d" % n) for n in range(1_000)])
        assert {answer.seq for answer in answers} == set(range(2, 1_002))
        with pytest.raises(WrongLastSequence):
            await js.publish("flights.ua", b"", expected_last_sequence=7)
    assert await asyncio.to_thread(publish, access, "publisher", "flights.ua", 5_000) == 5_000
    messages = [("flights.ua", b"%d" % number) for number in range(100)]
    last = 6_001
    if has("2.12"):
        async with connect(access.settings("admin")) as js:
            await js.create_or_update_stream({"name": "FLIGHTS", "allow_atomic": True})
        async with connect(publisher) as js:
            last += 100
            assert (await js.publish_batch(messages)).seq == last
    if has("2.14"):
        async with connect(access.settings("admin")) as js:
            await js.create_or_update_stream({"name": "FLIGHTS", "allow_batched": True})
        last += 100
        assert (await asyncio.to_thread(publish_fast, publisher, messages)).seq == last
    async with connect(access.settings("admin")) as js:
        info = await js.stream("FLIGHTS").info()
    assert info.state["messages"] == last
    wanted = Sequences.from_ranges([(1, last)])
    batches = await asyncio.to_thread(lambda: list(read(access.settings("reader"), "FLIGHTS", wanted, info.created)))
    assert [sequence for batch in batches for sequence in batch.sequences] == [*range(1, last + 1)]


async def test_claims_are_not_taken_through_the_import(access: Access) -> None:
    await set_up(access)
    async with connect(access.settings("reader")) as js:
        with pytest.raises(InvalidValue, match="api_prefix"):
            await take(js)


async def test_one_forbidden_message_among_many_is_named(access: Access) -> None:
    await set_up(access)
    messages = [("flights.ua", b"1"), ("elsewhere.ua", b"2"), ("flights.ua", b"3")]
    with pytest.raises(PublishFailed, match=r"elsewhere\.ua") as failed:
        await asyncio.to_thread(publish_all, access.settings("publisher"), messages)
    assert (failed.value.position, type(failed.value.cause)) == (1, PermissionDenied)
    async with connect(access.settings("admin")) as js:
        assert (await js.stream("FLIGHTS").info()).state["messages"] == failed.value.stored


async def test_an_inbox_that_may_not_be_listened_to_is_named(access: Access) -> None:
    await set_up(access)
    settings = replace(access.settings("reader"), inbox_prefix="_INBOX")
    with pytest.raises(PermissionDenied, match="subscribe to '_INBOX"), Wire.open(settings) as wire:
        wire.api("STREAM.INFO.FLIGHTS")
    async with connect(settings) as js:
        with pytest.raises(PermissionDenied, match="subscribe to '_inbox"):
            await js.stream("FLIGHTS").info()


@pytest.mark.parametrize("role", ["sensor", "processor"])
async def test_who_may_not_acknowledge_is_told_before_the_work_begins(access: Access, role: str) -> None:
    await set_up(access)
    await asyncio.to_thread(publish, access, "publisher", "flights.ua", 5)
    access.without(role, "$JS.ACK.FLIGHTS.delays.>")

    async def work() -> None:
        async with connect(access.settings("sensor")) as js:
            (claim,) = await take(js)
        async with connect(access.settings("processor")) as js, Hold.begin(js, claim, try_number=1):
            pytest.fail("the work began")

    with pytest.raises(PermissionDenied, match=r"publish on '\$JS\.ACK\.FLIGHTS\.delays\."):
        await asyncio.wait_for(work(), 20)


async def test_a_sensor_that_may_not_pull_is_told_so(access: Access) -> None:
    await set_up(access)
    access.without("sensor", "$JS.API.CONSUMER.MSG.NEXT.FLIGHTS.delays")
    async with connect(access.settings("sensor")) as js:
        with pytest.raises(PermissionDenied, match=r"MSG\.NEXT\.FLIGHTS\.delays"):
            await asyncio.wait_for(take(js), 20)


async def test_denied_acknowledgements_are_named_at_once(access: Access, caplog: pytest.LogCaptureFixture) -> None:
    """A permission is withdrawn during the work: the claim is settled, the subject logged, and nothing waits 30 s."""
    await set_up(access)
    await asyncio.to_thread(publish, access, "publisher", "flights.ua", 2_500)
    async with connect(access.settings("sensor")) as js:
        (claim,) = await take(js, max_messages=5_000)
    async with connect(access.settings("processor")) as js:
        async with Hold.begin(js, claim, try_number=1) as hold:
            access.without("processor", "$JS.ACK.FLIGHTS.delays.>")
            await asyncio.sleep(1.2)
            start = time.monotonic()
            await hold.settle("done")
            assert time.monotonic() - start < 20
        because = "cannot be acknowledged: no permission to publish on '$JS.ACK.FLIGHTS"
        said = f"claim {claim.id} is done, but its messages are redelivered, because they {because}"
        assert said in caplog.text
        book = Ledger(js, "FLIGHTS", "delays")
        record, _ = await book.read()
        assert record is not None
        assert record.done[claim.id].value == "done"
        with pytest.raises(PermissionDenied) as denied:
            await acknowledge(book, Delivered.of(record, claim.sequences, claim.consumer_sequence))
        assert denied.value.subject.startswith("$JS.ACK.FLIGHTS.delays.1.")
    async with connect(access.settings("admin")) as js:
        assert (await js.stream("FLIGHTS").consumer("delays").info()).ack_pending == 2_500


FORGED: dict[str, tuple[dict[str, Any], type[Exception], type[Exception]]] = {
    # changes of a valid claim: the error with the shipped permissions, and that of a user who may do everything
    "stream": (
        {"stream": "OTHER", "ack_prefix": "$JS.ACK.OTHER.delays"},
        PermissionDenied,
        Superseded,
    ),
    "consumer": ({"consumer": "audit", "ack_prefix": "$JS.ACK.FLIGHTS.audit"}, PermissionDenied, Superseded),
    "ledger's stream": (
        {"stream": "KV_airflow_claims", "ack_prefix": "$JS.ACK.KV_airflow_claims.delays"},
        PermissionDenied,
        Superseded,
    ),
    "wider": ({"ranges": [[1, 10]], "count": 10}, ClaimInvalid, ClaimInvalid),
    "other ranges": ({"ranges": [[6, 10]]}, ClaimInvalid, ClaimInvalid),
    "part": ({"ranges": [[1, 2]], "count": 2}, ClaimInvalid, ClaimInvalid),
    "another id": ({"id": "5f0c9a7be21d"}, Superseded, Superseded),
    "ack_prefix": ({"ack_prefix": "$JS.ACK.OTHER.delays"}, ClaimInvalid, ClaimInvalid),
    "subject": ({"ack_prefix": "$JS.API.STREAM.DELETE.FLIGHTS"}, ClaimInvalid, ClaimInvalid),
    "wildcard": ({"stream": "*", "ack_prefix": "$JS.ACK.*.delays"}, ClaimInvalid, ClaimInvalid),
    "command": ({"consumer": "d 1\r\nPUB", "ack_prefix": "$JS.ACK.FLIGHTS.d 1\r\nPUB"}, ClaimInvalid, ClaimInvalid),
    "connection": ({"connection": "nats_admin"}, ClaimInvalid, ClaimInvalid),
    "created": ({"consumer_created": "2020-01-01T00:00:00Z"}, Superseded, Superseded),
}


async def test_a_forged_claim_moves_nothing(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    await set_up(access)
    await asyncio.to_thread(publish, access, "publisher", "flights.ua", 10)
    await asyncio.to_thread(publish, access, "admin", "other", 10)
    async with connect(access.settings("admin")) as js:
        for stream, consumer in FOREIGN:
            assert len(await js.stream(stream).consumer(consumer).fetch(10)) == 10
        good, _ = await take(js, messages_per_claim=5)
        before = await state(js)
        for role in ("processor", "admin"):
            async with connect(access.settings(role)) as acting:
                for what, (changes, denied, refused) in FORGED.items():
                    with pytest.raises(denied if role == "processor" else refused):
                        async with Hold.begin(acting, await forged(js, good, changes), try_number=1):
                            pytest.fail(f"held with another {what}")
        assert await state(js) == before
        async with Hold.begin(js, good, try_number=1) as hold:  # the valid claim is still valid
            await asyncio.sleep(1)
            await hold.settle()
        assert (await js.stream("FLIGHTS").consumer("delays").info()).ack_pending == 5
        assert [each for each in await state(js) if each not in before] == []


async def forged(js: JetStream, good: Claim, changes: dict[str, Any]) -> Claim:
    """A claim forged by someone who knows when the other stream and consumer were created."""
    value = good.to_json()
    names = (changes.get("stream", good.stream), changes.get("consumer", good.consumer))
    if names in FOREIGN:
        value["stream_created"] = (await js.stream(names[0]).info()).created
        value["consumer_created"] = (await js.stream(names[0]).consumer(names[1]).info()).created
    return Claim.from_json(json.dumps({**value, **changes}))


async def state(js: JetStream) -> list[Any]:
    """The state of things that belong to others: their consumers, and all records of the ledger."""
    infos = [await js.stream(stream).consumer(name).info() for stream, name in FOREIGN]
    streams = [(await js.stream(name).info()).state["messages"] for name in ("FLIGHTS", "OTHER")]
    return [*[(info.ack_pending, info.floor) for info in infos], streams]


async def test_a_reader_makes_no_consumer_and_is_told_so_before_it_reads(access: Access) -> None:
    await set_up(access)
    await asyncio.to_thread(publish, access, "publisher", "flights.ua", 10)
    async with connect(access.settings("admin")) as js:
        created = (await js.stream("FLIGHTS").info()).created
    reading = by_consumer.read(access.settings("reader"), "FLIGHTS", Sequences.from_ranges([(1, 10)]), created)
    with pytest.raises(ConsumerRefused, match=r"CONSUMER\.CREATE\.FLIGHTS"):
        await asyncio.to_thread(next, reading)


async def test_a_reader_with_a_forged_claim_reads_nothing_else(access: Access) -> None:
    await set_up(access)
    await asyncio.to_thread(publish, access, "admin", "other", 10)
    async with connect(access.settings("admin")) as js:
        created = (await js.stream("OTHER").info()).created
    with pytest.raises(PermissionDenied, match=r"JS\.airflow\.API\.STREAM\.INFO\.OTHER"):
        await asyncio.to_thread(
            lambda: list(read(access.settings("reader"), "OTHER", Sequences.from_ranges([(1, 10)]), created))
        )


async def test_one_record_cannot_erase_the_others(access: Access) -> None:
    """The ledger's buckets refuse a message that would replace all others in a bucket (``Nats-Rollup: all``)."""
    await set_up(access)
    async with connect(access.settings("admin")) as js:
        await js.publish("$KV.airflow_claims.OTHER.X", b"{}")
    async with connect(access.settings("processor")) as js:
        for scope in ("all", "sub"):
            with pytest.raises(Exception, match="rollup not permitted"):
                await js.publish(RECORD, b"{}", headers={"Nats-Rollup": scope})
    async with connect(access.settings("admin")) as js:
        assert (await js.stream("KV_airflow_claims").info()).state["messages"] == 1


@pytest.mark.parametrize(
    ("subject", "error", "named"),
    [
        (RECORD, LedgerUnavailable, r"publish on '\$KV\.airflow_claims\."),
        ("$KV.airflow_receipts.IZGESR2IKRJQ.MRSWYYLZOM.*", LedgerUnavailable, r"publish on '\$KV\.airflow_receipts\."),
        ("$JS.ACK.FLIGHTS.delays.>", PermissionDenied, r"publish on '\$JS\.ACK\.FLIGHTS\.delays\."),
    ],
)
async def test_what_settling_may_not_do_is_named_before_anything_is_pulled(
    access: Access, subject: str, error: type[Exception], named: str
) -> None:
    await set_up(access)
    await asyncio.to_thread(publish, access, "publisher", "flights.ua", 5)
    access.without("sensor", subject)
    async with connect(access.settings("sensor")) as js:
        with pytest.raises(error, match=named):
            await take(js)
    async with connect(access.settings("admin")) as js:
        info = await js.stream("FLIGHTS").consumer("delays").info()
        assert (info.counter, info.ack_pending) == (0, 0)
        assert (await js.stream("KV_airflow_claims").info()).state["last_seq"] == 0
