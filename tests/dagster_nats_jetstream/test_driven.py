"""An output that stands for work which nobody has done settles nothing, whatever the I/O manager makes of it."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_nats_jetstream import HeldClaim, claimed_asset
from tests.dagster_nats_jetstream.conftest import Line
from tests.dagster_nats_jetstream.test_assets import Storing, materialize


async def coroutine() -> None: ...


class Driving(Storing):
    """Stores what a generator yields."""

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        super().handle_output(context, list(obj))


def rows() -> Iterator[int]:
    yield 1
    yield 2


@pytest.mark.parametrize("value", [coroutine, lambda: [Future()]], ids=["coroutine", "future"])
@pytest.mark.parametrize("yields", [False, True], ids=["returned", "yielded"])
def test_what_was_only_started_is_not_done(
    line: Line, instance: dg.DagsterInstance, value: Callable[[], Any], yields: bool
) -> None:
    def returned(claim: HeldClaim) -> Any:
        return value()

    def yielded(claim: HeldClaim) -> Any:
        yield dg.Output(value())

    line.publish(1)
    storing = Storing(line)
    asset = claimed_asset(**line.quick(), io_manager_key="storing")(yielded if yields else returned)
    result = materialize(line, asset, instance, storing)
    assert not result.success
    assert storing.stored == []
    assert (line.committed, line.unacknowledged) == ([], 1)
    (failure,) = line.failures
    assert failure.reason.startswith("WorkNotDone in ")


class Reading(Storing):
    """Stores the sequences of an Arrow stream, as an I/O manager of tables does."""

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        super().handle_output(context, pa.RecordBatchReader.from_stream(obj).read_all()["sequence"].to_pylist())


@pytest.mark.parametrize("reading", [False, True])
def test_a_claim_as_an_arrow_stream_is_done_when_the_io_manager_has_read_it(
    line: Line, instance: dg.DagsterInstance, reading: bool
) -> None:
    def returned(claim: HeldClaim) -> pa.RecordBatchReader:
        return claim.arrow()

    line.publish(3)
    storing = Reading(line) if reading else Storing(line)
    asset = claimed_asset(**line.quick(), io_manager_key="storing")(returned)
    result = materialize(line, asset, instance, storing)
    assert result.success == reading
    assert (len(line.committed), line.unacknowledged) == ((1, 0) if reading else (0, 3))
    assert not reading or storing.stored == [([1, 2, 3], 3)]


@pytest.mark.parametrize("driving", [False, True])
def test_a_generator_is_done_when_the_io_manager_has_driven_it(
    line: Line, instance: dg.DagsterInstance, driving: bool
) -> None:
    def yielded(claim: HeldClaim) -> Any:
        yield dg.Output(rows())

    line.publish(1)
    asset = claimed_asset(**line.quick(), io_manager_key="storing")(yielded)
    result = materialize(line, asset, instance, Driving(line) if driving else Storing(line))
    assert result.success == driving
    assert (len(line.committed), line.unacknowledged) == ((1, 0) if driving else (0, 1))
