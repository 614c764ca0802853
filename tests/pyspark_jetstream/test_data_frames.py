"""What a DataFrame of a claim is: read again by each action, as long as its messages exist."""

import asyncio
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession

from demo.service import until
from jetstream_client import ConnectionSettings
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from jetstream_handoff.claim import Claim
from jetstream_handoff.errors import HoldLost
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.take.take import Take
from jetstream_handoff.take.taking import Taking
from pyspark_jetstream.held_claim import HeldClaim


async def taken(stream: Stream, count: int) -> Claim:
    publish_all(stream.js.settings, ((f"{stream.name}.a", b"%d" % number) for number in range(count)))
    take = Take(stream.js, Taking(stream=stream.name, consumer="c", owner=("test",), max_messages=count))
    await take.prepare()
    (claim,) = await take.take(10)
    take.handed_on()
    return claim


async def work(function: Callable[[], None]) -> None:
    await asyncio.to_thread(function)


@pytest.mark.slow  # test_snapshot.py shows daily that what has vanished is named; to cache is Spark's
async def test_a_claim_is_read_twice_and_a_cached_data_frame_outlives_its_messages(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream
) -> None:
    await stream.delete()
    config = {"name": stream.name, "subjects": [f"{stream.name}.>"], "allow_direct": True, "retention": "workqueue"}
    claim = await taken(await stream.js.create_stream(config), 20)

    def works() -> None:
        with HeldClaim.begin(settings, claim, try_number=1) as held:
            held.connection = "nats_tests"
            one, other = (held.read(spark) for _ in range(2))
            assert one.union(other).groupBy("sequence").count().where("count = 2").count() == 20
            cached = one.select("sequence", "data").persist()
            assert cached.count() == 20
            held.settle()
            assert cached.count() == 20  # nothing is read from the stream
            with pytest.raises(Exception, match=r"MessagesMissing.*removed after their acknowledgement"):
                other.count()
            with pytest.raises(Exception, match="MessagesMissing"):
                held.read(spark).count()
            cached.unpersist()

    await work(works)
    (receipt,) = await Ledger(stream.js, stream.name, "c").committed()
    assert receipt.processed == claim.sequences


@pytest.mark.slow  # test_fence.py and test_held.py show daily that what is lost is not settled
async def test_what_is_read_after_the_claim_was_lost_is_not_settled(
    spark: SparkSession, settings: ConnectionSettings, stream: Stream
) -> None:
    claim = await taken(stream, 20)

    def works() -> None:
        with pytest.raises(HoldLost), HeldClaim.begin(settings, claim, try_number=1) as first:  # noqa: PT012
            first.connection = "nats_tests"
            messages: DataFrame = first.read(spark)
            with HeldClaim.begin(settings, claim, try_number=2) as second:
                until("the first attempt is lost", lambda: first.lost, seconds=60)
                with pytest.raises(HoldLost, match="is no longer held"):
                    first.read(spark)
                assert messages.count() == 20  # reading needs no hold
                second.connection = "nats_tests"
                assert second.read(spark).count() == 20
                second.settle()
            first.settle()

    await work(works)
    (receipt,) = await Ledger(stream.js, stream.name, "c").committed()
    assert receipt.attempt_id.startswith(f"{claim.id}-2-")
