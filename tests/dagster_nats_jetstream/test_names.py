"""Mistyped names in Dagster: a step creates nothing if the consumer must exist, and the resource reads nothing."""

from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import HeldClaim, claimed_asset, take_claims
from jetstream_client.errors import ConsumerNotFound
from tests.dagster_nats_jetstream.conftest import CONSUMER, Line


def summed(claim: HeldClaim) -> int:
    return sum(int(message.data) for message in claim.messages())


def consumers(line: Line) -> list[str]:
    async def names(js: Any) -> list[str]:
        return [name async for name in js.stream(line.stream).consumer_names()]

    found: list[str] = line.run(names)
    return found


def test_committed_of_a_mistyped_consumer_is_an_error(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)
    asset = claimed_asset(**line.quick())(summed)
    assert dg.materialize([asset], resources={"jetstream": line.resource}, instance=instance).success
    with pytest.raises(ConsumerNotFound, match=f"Did you mean '{CONSUMER}'"):
        line.resource.committed(line.stream, "wrok")


def test_a_step_whose_consumer_must_exist_creates_none(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)
    resources = {"jetstream": line.resource}
    asset = claimed_asset(**line.quick(), create_consumer=False)(summed)
    with pytest.raises(ConsumerNotFound, match=f"'{CONSUMER}'"):
        dg.materialize([asset], resources=resources, instance=instance)

    @dg.job(resource_defs=resources)
    def taking() -> None:
        take_claims(**line.quick(), create_consumer=False)()

    with pytest.raises(ConsumerNotFound, match=f"'{CONSUMER}'"):
        taking.execute_in_process(instance=instance)
    assert consumers(line) == []
