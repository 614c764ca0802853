"""A claim of messages that refer to objects: ``claim.messages()``, ``claim.arrow()`` and ``decoded``, to the dead
letters."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from jetstream_arrow import decoded
from jetstream_arrow.columns import TYPES
from jetstream_client.errors import BucketNotFound, InvalidValue, ReferencesUnresolved
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stores.objects import ObjectStore, referring
from jetstream_client.stores.reference import Reference
from jetstream_client.stream import Stream
from pyspark_jetstream.held_claim import HeldClaim
from tests.jetstream_arrow.test_claim import working
from tests.jetstream_handoff.steps import object_store, take

LEASE = {"ack_wait": timedelta(minutes=1)}  # all messages come at once, however busy the machine is
SMALL, LARGE = b'{"text": "small"}', json.dumps({"text": "x" * (1 << 20)}).encode()


@pytest.fixture
async def bucket(stream: Stream) -> AsyncIterator[str]:
    async with object_store(stream.js) as name:
        yield name


async def published(stream: Stream, bucket: str) -> None:
    """Sequences 1 to 4: small, large, of an object that does not exist, and of another bucket."""
    messages = [(f"{stream.name}.a", SMALL), (f"{stream.name}.a", LARGE)]
    gone, foreign = (Reference.of(name, "gone", LARGE) for name in (bucket, "other"))
    messages += [(f"{stream.name}.a", each.payload, each.headers) for each in (gone, foreign)]  # type: ignore[misc]

    def run() -> None:
        settings = stream.js.settings
        some = referring(settings, messages[:2], bucket, stream=stream.name, scope="s")
        publish_all(settings, [*some, *messages[2:]])

    await asyncio.to_thread(run)


def test_the_payload_of_a_reference_is_malformed_without_its_object() -> None:
    """Also where nobody reads objects: no format takes the sentence for data."""
    payload = Reference.of("large", "scan", LARGE).payload
    messages = pa.table({"data": pa.array([payload], pa.binary())})
    for options in (
        {"schema": "text STRING"},
        {"format": "avro", "schema": '{"type": "record", "name": "R", "fields": [{"name": "text", "type": "string"}]}'},
        {"format": "avro", "schema": '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}'},
    ):
        good, malformed = decoded(messages, **options)  # type: ignore[arg-type]
        assert (good.read_all().num_rows, malformed.read_all().num_rows) == (0, 1), options


async def test_references_that_nobody_resolves_are_counted(stream: Stream, bucket: str, caplog: Any) -> None:
    await published(stream, bucket)
    (claim,) = await take(stream, wait=120, max_messages=4, min_messages=4, consumer_config=LEASE)

    def work(held: HeldClaim) -> list[str]:
        seen = []
        for read in (held.arrow, held.messages, partial(held.arrow, ["sequence", "headers"])):
            caplog.clear()
            assert len(list(read())) > 0
            seen.append(" ".join(each.getMessage() for each in caplog.records if each.levelname == "WARNING"))
        return seen

    arrow, messages, without_data = await working(stream, claim, work)
    assert "3 messages of stream" in arrow
    assert "sequences 2-4" in arrow
    assert (messages, without_data) == (arrow, "")


async def test_arrow_and_decoded(stream: Stream, bucket: str) -> None:
    await published(stream, bucket)
    (claim,) = await take(stream, wait=120, max_messages=4, min_messages=4, consumer_config=LEASE)

    def work(held: HeldClaim) -> tuple[pa.Table, pa.Table, pa.Table]:
        table = held.arrow(objects=bucket).read_all()
        good, malformed = (each.read_all() for each in decoded(held.arrow(objects=bucket), "text STRING"))
        held.reject(malformed)
        with pytest.raises(InvalidValue, match="add it"):
            held.arrow(["sequence"], objects=bucket)
        with pytest.raises(BucketNotFound):
            held.arrow(objects=f"{bucket}x").read_all()
        tight = held.arrow(["data"], objects=bucket, max_object_size=len(LARGE) - 1).read_all()
        assert "at most" in tight["object_error"].to_pylist()[1]
        assert "object_error" not in held.arrow().read_all().column_names
        return table, good, malformed

    table, good, malformed = await working(stream, claim, work)
    assert table.column_names == [*TYPES, "object_error"]
    assert table["data"].to_pylist()[:2] == [SMALL, LARGE]
    assert table["data"].to_pylist()[2].startswith(b"object gone of bucket")  # as it was published
    errors = table["object_error"].to_pylist()
    assert errors[:2] == [None, None]
    assert "does not exist" in errors[2]
    assert "names the bucket 'other'" in errors[3]
    assert good.column_names == ["stream", "subject", "sequence", "timestamp", "headers", "text"]
    assert [len(text) for text in good["text"].to_pylist()] == [5, 1 << 20]
    assert malformed.column_names == [*TYPES, "reason"]
    assert malformed["reason"].to_pylist() == errors[2:]
    letters = [
        letter async for letter in stream.js.stream(f"DEAD_{stream.name}").get_messages(count=9, next_by_subject=">")
    ]
    assert len(letters) == 2
    assert all(letter.headers["Object-Digest"] for letter in letters)
    assert [why for letter in letters for why in letter.headers["Nats-Dead-Letter-Reason"]] == errors[2:]


async def test_messages(stream: Stream, bucket: str) -> None:
    await published(stream, bucket)
    (claim,) = await take(stream, wait=120, max_messages=4, min_messages=4, consumer_config=LEASE)

    def work(held: HeldClaim) -> list[Any]:
        assert [each.data for each in held.messages()][:1] == [SMALL]  # nothing is resolved unasked
        found: list[Any] = []
        with pytest.raises(ReferencesUnresolved, match=r"2 messages of stream .*first of them is 3.*does not exist"):
            found.extend(held.messages(objects=bucket))
        try:
            list(held.messages(objects=bucket))
        except ReferencesUnresolved as unresolved:
            for sequence, reason in unresolved.reasons.items():
                held.reject(sequence, reason)
        return found

    found = await working(stream, claim, work)
    assert [(each.sequence, each.data) for each in found] == [(1, SMALL), (2, LARGE)]
    assert (await stream.js.stream(f"DEAD_{stream.name}").info()).state["messages"] == 2


async def test_large_objects_do_not_come_together(stream: Stream, bucket: str) -> None:
    """A claim of large objects is read in batches of 16 MiB and one object, whatever the number of its messages."""
    size, count = 6 << 20, 8

    def put() -> list[Any]:
        with ObjectStore(stream.js.settings, bucket) as store:
            found = [store.put(str(number), bytes([number]) * size) for number in range(count)]
        publish_all(stream.js.settings, [(f"{stream.name}.a", each.payload, each.headers) for each in found])
        return found

    await asyncio.to_thread(put)
    (claim,) = await take(stream, wait=120, max_messages=count, min_messages=count, consumer_config=LEASE)

    def work(held: HeldClaim) -> list[int]:
        return [batch.nbytes for batch in held.arrow(objects=bucket)]

    sizes = await working(stream, claim, work)
    assert sum(sizes) > count * size
    assert max(sizes) < (16 << 20) + size + (1 << 20)
