"""Buckets for the ledger that another client created, on a real server."""

from datetime import timedelta
from typing import Any

import pytest

from jetstream_client.stream import Stream
from jetstream_handoff.errors import LedgerUnsuitable
from jetstream_handoff.hold.hold import Hold
from jetstream_handoff.ledger.bucket import bucket_config
from jetstream_handoff.take.take import Take
from tests.installed_server import has
from tests.jetstream_handoff.steps import floor, publish, take, taking, unacknowledged

UNSUITABLE: list[tuple[str, dict[str, Any]]] = [
    ("mirror", {"mirror": {"name": "ELSEWHERE"}, "subjects": None}),
    ("sources", {"sources": [{"name": "ELSEWHERE"}]}),
    ("subject_transform", {"subject_transform": {"src": "$KV.*.>", "dest": "$KV.{{wildcard(1)}}.x.>"}}),
    ("subjects", {"subjects": ["$KV.else.>"]}),
    ("retention", {"retention": "interest"}),
    ("retention", {"retention": "workqueue"}),
    ("storage", {"storage": "memory"}),
    *([("persist_mode", {"persist_mode": "async"})] if has("2.12") else []),
    ("sealed", {"sealed": True}),
    ("no_ack", {"no_ack": True}),
    ("discard_new_per_subject", {"discard_new_per_subject": True}),
    ("discard", {"discard": "old"}),
    ("max_msgs_per_subject", {"max_msgs_per_subject": -1}),
    ("max_msgs", {"max_msgs": 10}),
    ("max_msg_size", {"max_msg_size": 100_000}),
    ("max_age", {"max_age": timedelta(hours=1)}),
]


def named(which: str, stream: Stream) -> str:
    return f"{stream.js.settings.ledger}_{which}"


@pytest.mark.parametrize(
    ("which", "field", "changes"),
    [("claims", *rule) for rule in UNSUITABLE] + [("receipts", *UNSUITABLE[-1])],
    ids=lambda value: str(value) if isinstance(value, dict) else value,
)
async def test_a_bucket_that_could_lose_what_is_done_is_refused_before_anything_is_pulled(
    stream: Stream, which: str, field: str, changes: dict[str, Any]
) -> None:
    bucket = named(which, stream)
    config = {key: value for key, value in (bucket_config(bucket, 1, timedelta(0)) | changes).items() if value}
    if field == "subjects":
        config["subjects"] = [f"$KV.else_{bucket}.>"]
    if field == "sealed":  # only an update can seal a stream
        sealed = await stream.js.create_stream({key: value for key, value in config.items() if key != "sealed"})
        await sealed.update(changes)
    else:
        await stream.js.create_stream(config)
    says = rf"bucket '{bucket}' cannot be used because of {field}=.* KV_{bucket}\. "
    with pytest.raises(LedgerUnsuitable, match=says) as error:
        await Take(stream.js, taking(stream)).prepare()
    assert (error.value.bucket, error.value.field) == (bucket, field)


@pytest.mark.parametrize(
    "changes",
    [{"max_bytes": 1 << 30}, {"max_msg_size": 4 << 20}, {"deny_purge": True}, {"allow_rollup_hdrs": True}],
    ids=str,
)
async def test_what_loses_nothing_is_allowed(stream: Stream, changes: dict[str, Any]) -> None:
    for which in ("claims", "receipts"):
        await stream.js.create_stream(bucket_config(named(which, stream), 1, timedelta(0)) | changes)
    await publish(stream, 10)
    (claim,) = await take(stream)
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await hold.settle()
    assert await floor(stream) == 10


async def test_receipts_may_expire_later_or_sooner(stream: Stream) -> None:
    await publish(stream, 10)
    await take(stream)
    for days in (7, 400, 0):
        await stream.js.stream(f"KV_{named('receipts', stream)}").update({"max_age": timedelta(days=days)})
        await take(stream, f"{days} days", wait=0.5)


async def test_a_bucket_that_was_changed_meanwhile_ends_the_work_and_acknowledges_nothing(stream: Stream) -> None:
    await publish(stream, 10)
    (claim,) = await take(stream)
    bucket = stream.js.stream(f"KV_{named('claims', stream)}")
    async with Hold.begin(stream.js, claim, try_number=1) as hold:
        await bucket.update({"max_age": timedelta(days=1)})
        with pytest.raises(LedgerUnsuitable, match="max_age"):
            await hold.settle()
    with pytest.raises(LedgerUnsuitable, match="max_age"):
        async with Hold.begin(stream.js, claim, try_number=2):
            pass
    assert await unacknowledged(stream) == 10
