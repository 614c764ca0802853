"""Assets from claims, in one process: what is settled, and when."""

from typing import Any

import dagster as dg

from dagster_nats_jetstream import HeldClaim, claimed_asset
from tests.dagster_nats_jetstream.conftest import Line


def materialize(line: Line, asset: Any, instance: dg.DagsterInstance, **options: Any) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [asset], resources={"jetstream": line.resource}, instance=instance, raise_on_error=False, **options
    )


def test_a_claim_is_settled_after_its_output_is_stored(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(10)
    seen: list[int] = []

    class Storing(dg.IOManager):
        def handle_output(self, context: dg.OutputContext, obj: Any) -> None:  # noqa: ARG002
            seen.append(line.unacknowledged)

        def load_input(self, context: dg.InputContext) -> Any:
            raise NotImplementedError

    @claimed_asset(**line.quick(), io_manager_key="storing")
    def orders(claim: HeldClaim) -> int:
        return sum(int(message.data) for message in claim.messages())

    resources = {"jetstream": line.resource, "storing": Storing()}
    result = dg.materialize([orders], resources=resources, instance=instance)
    assert result.output_for_node("orders") == 45
    assert seen == [10]
    assert line.unacknowledged == 0
    (receipt,) = line.committed
    (materialization,) = result.asset_materializations_for_node("orders")
    assert materialization.metadata["jetstream/attempt"].value == receipt.attempt_id
    assert materialization.metadata["jetstream/sequences"].value == "1-10"
