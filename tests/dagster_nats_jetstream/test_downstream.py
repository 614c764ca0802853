"""Steps that depend on a claimed asset, after the asset's step died between its settlement and its end."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import HeldClaim, JetStreamResource, claimed_asset
from tests.dagster_nats_jetstream.conftest import Line

TWICE = dg.RetryPolicy(max_retries=1)


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a kill between the settlement and the step's last event."""
    settle = HeldClaim.settle
    died: list[str] = []

    def dies(self: HeldClaim, value: Any = None) -> None:
        settle(self, value)
        if not died:
            died.append(self.id)
            raise RuntimeError("as a kill")

    monkeypatch.setattr(HeldClaim, "settle", dies)


def materialize(line: Line, instance: dg.DagsterInstance, *assets: Any) -> Any:
    resources = {"jetstream": line.resource}
    return dg.materialize([*assets], resources=resources, instance=instance, raise_on_error=False)


@pytest.mark.usefixtures("dying")
@pytest.mark.parametrize("waiting", [0, 2])
def test_a_retry_of_a_settled_step_takes_nothing(line: Line, instance: dg.DagsterInstance, waiting: int) -> None:
    """Dagster has the output of the first try. The output of other messages would replace it before anybody reads it,
    although the messages of the first one are acknowledged."""
    line.publish(3)
    counted: list[int] = []

    @claimed_asset(**line.quick(), retry_policy=TWICE)
    def orders(claim: HeldClaim) -> int:
        line.publish(waiting, first=3)
        counted.append(claim.count)
        return claim.count

    @dg.asset
    def report(orders: int) -> int:
        return orders

    result = materialize(line, instance, orders, report)
    assert result.success
    assert result.output_for_node("report") == 3
    assert (counted, line.floor) == ([3], 3)  # what has arrived since waits for the next run


@pytest.mark.usefixtures("dying")
def test_the_same_without_a_value(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(3)

    @claimed_asset(**line.quick(), retry_policy=TWICE)
    def orders(claim: HeldClaim) -> None:
        line.publish(2, first=3)

    @dg.asset(deps=[orders])
    def report() -> int:
        return sum(receipt.sequences.count for receipt in line.committed)

    result = materialize(line, instance, orders, report)
    assert result.success
    assert (result.output_for_node("report"), line.floor) == (3, 3)


@pytest.mark.usefixtures("dying")
def test_without_assets_downstream_the_run_succeeds(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(3)

    @claimed_asset(**line.quick(), retry_policy=TWICE, check_specs=[dg.AssetCheckSpec("few", asset="orders")])
    def orders(claim: HeldClaim) -> Iterator[Any]:
        yield dg.Output(claim.count)
        yield dg.AssetCheckResult(check_name="few", passed=True)

    result = materialize(line, instance, orders)
    assert result.success
    assert len(result.asset_materializations_for_node("orders")) == 1


def test_a_retry_after_a_failure_takes_the_messages_again(line: Line, instance: dg.DagsterInstance) -> None:
    """The I/O manager of the first try has stored an output, but its claim was not settled."""
    line.publish(3)
    tries: list[int] = []

    @claimed_asset(**line.quick(), retry_policy=TWICE)
    def orders(claim: HeldClaim) -> Iterator[Any]:
        tries.append(claim.count)
        yield dg.Output(claim.count)
        if len(tries) == 1:
            raise RuntimeError("after the output")

    @dg.asset
    def report(orders: int) -> int:
        return orders

    result = materialize(line, instance, orders, report)
    assert result.success
    assert (tries, result.output_for_node("report"), line.floor) == ([3, 3], 3, 3)


def assets_of(stream: str, servers: str, stored: bool) -> Any:
    """A job that Dagster can build again, as a re-execution needs it."""
    line = Line(stream, JetStreamResource(servers=servers, shortest_ack_wait=0.5))

    @claimed_asset(**line.quick())
    def orders(claim: HeldClaim) -> Any:
        return claim.count if stored else None

    deps: dict[str, Any] = {"ins": {"orders": dg.AssetIn()}} if stored else {"deps": [orders]}

    def report(**values: int) -> int:
        return values.get("orders", 0) or sum(receipt.sequences.count for receipt in line.committed)

    job = dg.define_asset_job("reporting", executor_def=dg.in_process_executor)
    defs = dg.Definitions([orders, dg.asset(**deps)(report)], jobs=[job], resources={"jetstream": line.resource})
    return defs.resolve_job_def("reporting")


@pytest.mark.usefixtures("dying")
@pytest.mark.parametrize("stored", [True, False])
def test_a_re_execution_of_a_settled_step_takes_nothing(line: Line, tmp_path: Path, stored: bool) -> None:
    """The step has settled its claim, and its run has ended before the asset downstream. Otherwise the re-execution
    would be green, and the asset downstream would never see what was made from these messages."""
    line.publish(3)
    where: Any = (line.stream, line.resource.servers, stored)
    job = dg.build_reconstructable_job(__name__, assets_of.__name__, where)

    def execute(*steps: str, of: str = "") -> Any:
        again = dg.ReexecutionOptions(of, step_selection=[*steps]) if of else None
        return dg.execute_job(job, instance, reexecution_options=again)

    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        first = execute()
        assert not first.success
        line.publish(2, first=3)
        second = execute("orders", "report", of=first.run_id)
        assert second.success == (not stored)
        assert line.floor == 3
        if stored:
            (failure,) = (event for event in second.all_events if event.is_step_failure)
            assert "Execute these steps without this one" in str(failure.step_failure_data.error)
            assert execute("report", of=first.run_id).success
        assert report_of(instance) == 3
        assert execute().success
        assert (report_of(instance), line.floor) == (2 if stored else 5, 5)


def report_of(instance: dg.DagsterInstance) -> Any:
    """The value of the report that was stored last."""
    return pickle.loads((Path(instance.storage_directory()) / "report").read_bytes())
