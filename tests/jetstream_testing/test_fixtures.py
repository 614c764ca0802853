"""The fixtures of the plugin for pytest. The server is asked through the client, not through the fixtures."""

import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from airflow_nats_jetstream.hooks import JetStreamHook
from dagster_nats_jetstream import HeldClaim, JetStreamResource, claimed_asset
from jetstream_client import ConnectionSettings
from jetstream_client.errors import InvalidValue
from jetstream_handoff import portal
from jetstream_testing.nats_server import NatsServer
from jetstream_testing.stream import ClaimUnderTest, StreamUnderTest

ORDERS = [("orders.north", b"1"), ("orders.south", b"2"), ("orders.north", b"3", {"X": "y"})]
Streams = Callable[..., StreamUnderTest]


def consumer(settings: ConnectionSettings, stream: str, name: str) -> Any:
    return portal.run(settings, lambda js: js.stream(stream).consumer(name).info())


async def names(js: Any) -> list[str]:
    return [name async for name in js.stream_names()]


@pytest.mark.parametrize("_", [1, 2])
def test_every_test_begins_with_an_empty_server(_: int, jetstream_settings: Any, jetstream_stream: Streams) -> None:
    assert portal.run(jetstream_settings, names) == []
    jetstream_stream("ORDERS", ["orders.>"]).publish(ORDERS)


def test_the_server_runs_again_after_a_test_that_killed_it(jetstream_server: NatsServer, jetstream_claim: Any) -> None:
    jetstream_claim(ORDERS)
    jetstream_server.kill()


def test_the_next_test_has_an_empty_server_again(jetstream_settings: ConnectionSettings) -> None:
    assert portal.run(jetstream_settings, names) == []


def test_the_server_is_in_a_session_of_its_own(jetstream_server: NatsServer) -> None:
    assert os.getsid(jetstream_server.pid) == jetstream_server.pid != os.getsid(0)


def test_subjects_that_are_one_string_are_refused(
    jetstream_settings: ConnectionSettings, jetstream_stream: Streams
) -> None:
    with pytest.raises(InvalidValue, match=r"subjects='orders\.>'.*\['orders\.>'\]"):
        jetstream_stream("ORDERS", "orders.>")
    assert portal.run(jetstream_settings, names) == []


def test_a_stream_has_what_was_published(jetstream_settings: ConnectionSettings, jetstream_stream: Streams) -> None:
    stream = jetstream_stream("ORDERS", ["orders.>"], max_msgs=10)
    assert stream.messages == []
    stream.publish(ORDERS)
    assert [(each.subject, each.data) for each in stream.messages] == [order[:2] for order in ORDERS]
    info = portal.run(jetstream_settings, lambda js: js.stream("ORDERS").info())
    assert (info.state["messages"], info.config["max_msgs"]) == (3, 10)


def test_a_claim_is_taken_and_not_acknowledged(
    jetstream_settings: ConnectionSettings, jetstream_claim: Callable[..., ClaimUnderTest]
) -> None:
    claim = jetstream_claim(ORDERS, stream="ORDERS", consumer="revenue")
    assert json.loads(json.dumps(claim)) == dict(claim)
    assert (claim["stream"], claim["ranges"], claim.state, claim.settled) == ("ORDERS", [[1, 3]], "open", False)
    assert claim.receipt is None
    assert claim.unacknowledged == consumer(jetstream_settings, "ORDERS", "revenue").ack_pending == 3


def test_a_claim_says_when_it_is_settled(jetstream_hook: JetStreamHook, jetstream_claim: Any) -> None:
    claim = jetstream_claim(ORDERS)
    with jetstream_hook.processing(claim) as held:
        held.value = [int(message.data) for message in held.messages()]
        assert not claim.settled
    assert claim.settled
    assert claim.receipt.value == [1, 2, 3]
    assert claim.unacknowledged == 0 == consumer(jetstream_hook.settings, "TESTED", "tested").ack_pending


def test_a_claim_whose_work_failed_is_not_settled(jetstream_hook: JetStreamHook, jetstream_claim: Any) -> None:
    claim = jetstream_claim(ORDERS)
    with pytest.raises(ZeroDivisionError), jetstream_hook.processing(claim):
        raise ZeroDivisionError
    assert (claim.settled, claim.unacknowledged) == (False, 3)
    with jetstream_hook.holding(claim, try_number=2) as held:
        held.fail("the last try")
    assert (claim.state, claim.settled, claim.unacknowledged) == ("failed", False, 3)


def test_a_claim_that_was_not_taken_is_unknown(jetstream_settings: ConnectionSettings, jetstream_claim: Any) -> None:
    other = ClaimUnderTest({**jetstream_claim(ORDERS), "id": "0123456789ab"}, jetstream_settings)
    with pytest.raises(LookupError, match="the ledger does not know claim 0123456789ab"):
        _ = other.settled


def test_messages_are_taken_in_several_claims(jetstream_stream: Streams) -> None:
    stream = jetstream_stream("ORDERS", ["orders.>"])
    stream.publish(ORDERS)
    claims = stream.take("revenue", messages_per_claim=2)
    assert [claim["ranges"] for claim in claims] == [[[1, 2]], [[3, 3]]]
    assert stream.committed("revenue") == []


def test_a_take_without_messages_says_so(jetstream_stream: Streams) -> None:
    with pytest.raises(AssertionError, match=r"no message of stream ORDERS arrived at consumer revenue within 0\.2 s"):
        jetstream_stream("ORDERS", ["orders.>"]).take("revenue", wait=timedelta(seconds=0.2))


class TestAnotherConnection:
    @pytest.fixture
    def jetstream_conn_id(self) -> str:
        return "nats_orders"

    def test_has_its_id(self, jetstream_hook: JetStreamHook, jetstream_server: NatsServer) -> None:
        assert jetstream_hook.nats_conn_id == "nats_orders"
        assert JetStreamHook("nats_orders").settings.servers == (jetstream_server.url,)
        assert "AIRFLOW_CONN_NATS_DEFAULT" not in os.environ


@claimed_asset(stream="ORDERS", consumer="tested", max_messages=len(ORDERS))
def orders(claim: HeldClaim) -> dg.MaterializeResult[None]:
    return dg.MaterializeResult(metadata={"sum": sum(int(message.data) for message in claim.messages())})


@pytest.mark.parametrize(("amount", "succeeds"), [(b"4", True), (b"malformed", False)])
def test_an_asset_of_dagster(
    amount: bytes, succeeds: bool, jetstream_resource: JetStreamResource, jetstream_stream: Streams
) -> None:
    stream = jetstream_stream("ORDERS", ["orders.>"])
    stream.publish([*ORDERS[:2], ("orders.west", amount)])
    result = dg.materialize([orders], resources={"jetstream": jetstream_resource}, raise_on_error=False)
    assert result.success == succeeds
    assert stream.unacknowledged("tested") == (0 if succeeds else 3)
    assert len(stream.committed("tested")) == succeeds
