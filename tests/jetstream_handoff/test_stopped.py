"""Keys that have stopped, on a real server: the page, the doctor, the commands and the metrics say it."""

import json

from jetstream_client.stream import Stream
from jetstream_handoff.repair.deletion import plan
from jetstream_handoff.watch.doctor import Scope, examine
from tests.jetstream_handoff.steps import CONSUMER, take
from tests.jetstream_handoff.test_barrier import seen
from tests.jetstream_handoff.test_commands import say
from tests.jetstream_handoff.test_in_order import publish, stopped_at


async def test_stopped_keys_are_visible_wherever_one_looks(stream: Stream) -> None:
    assert "stopped" not in (await say(stream, "dead-letters", "list", stream.name)).out
    await publish(stream, "aba")
    await stopped_at(stream, 1)
    view, lag = await seen(stream)
    assert lag.stopped_keys == 1
    (finding,) = [each for each in view.findings if each.kind == "stopped"]
    cause = f"1 key of consumer {CONSUMER} of stream {stream.name} has stopped, the first one at message 1."
    assert finding.cause == cause
    assert f"dead-letters resume {stream.name} {CONSUMER}`" in finding.remedy
    line = f"{cause} {finding.effect} {finding.remedy}"
    for words in (["claims"], ["claims", "--stream", stream.name], ["dead-letters", "list", stream.name]):
        assert (await say(stream, *words)).out.splitlines()[-1] == line
    stopped, claims = (await examine(stream.js.settings, Scope()))["Open claims"]
    assert (stopped.state, stopped.text, claims.state) == ("to do", line, "fine")


async def test_a_list_of_claims_and_stopped_keys_reads_each_record_once(stream: Stream) -> None:
    await publish(stream, "ab")
    await take(stream, consumer="other")
    await stopped_at(stream, 1)
    reads: list[str] = []
    bucket = f"KV_{stream.js.settings.ledger}_claims"
    async with stream.js.connection.listen(
        f"$JS.API.STREAM.MSG.GET.{bucket}", lambda request: reads.append(json.loads(request.data)["last_by_subj"])
    ):
        listed = await say(stream, "claims")
        await stream.js.connection.flush()
        assert "other" in listed.out
        assert "1 key of consumer" in listed.out
        assert len({*reads}) == len(reads) == 2
        deletion = await plan(stream.js, stream.name)
        assert deletion
        assert deletion.claims
        await stream.js.connection.flush()
        assert len(reads) == 4
