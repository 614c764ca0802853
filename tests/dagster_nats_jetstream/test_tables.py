"""Assets that append to tables in an object store, with the credentials of a resource."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from dagster_nats_jetstream import HeldClaim, claimed_asset
from jetstream_tables import S3, DeltaTable
from tests.dagster_nats_jetstream.conftest import Line
from tests.jetstream_tables.conftest import object_store
from tests.jetstream_tables.formats import DeltaOnS3, OnS3
from tests.jetstream_tables.object_store import KEY, SECRET, ObjectStore
from tests.jetstream_tables.repeats import repeats

__all__ = ["object_store"]


class Lake(dg.ConfigurableResource["Lake"]):
    endpoint: str
    key: str
    secret: str

    def table(self, uri: str) -> DeltaTable:
        return DeltaTable(uri, S3(self.key, self.secret, region="us-east-1", endpoint=self.endpoint))


@pytest.fixture
def delta(object_store: ObjectStore, tmp_path: Path) -> Iterator[DeltaOnS3]:
    OnS3.store = object_store
    with DeltaOnS3(tmp_path) as made:
        yield made


def appending(line: Line, uri: str) -> dg.AssetsDefinition:
    @claimed_asset(**line.quick())
    def orders(claim: HeldClaim, lake: Lake) -> int:
        messages = claim.arrow(["sequence", "timestamp"]).read_all()
        rows = messages.append_column("amount", messages["sequence"])
        return claim.append_to(lake.table(uri), rows).new.count

    return orders


def test_an_asset_appends(line: Line, delta: DeltaOnS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    line.publish(10)
    lake = Lake(endpoint=str(delta.store.s3.endpoint), key=KEY, secret=dg.EnvVar("LAKE_SECRET"))
    result = dg.materialize(
        [appending(line, delta.uri("orders"))], resources={"jetstream": line.resource, "lake": lake}
    )
    assert result.output_for_node("orders") == 10
    assert delta.sequences() == [*range(1, 11)]
    assert line.unacknowledged == 0


def test_the_credentials_are_in_no_event(
    line: Line, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKE_SECRET", "planted/secret")
    line.publish(10)
    with repeats() as endpoint:
        lake = Lake(endpoint=endpoint, key="planted-id", secret=dg.EnvVar("LAKE_SECRET"))
        resources = {"jetstream": line.resource, "lake": lake}
        result = dg.materialize(
            [appending(line, "s3://lake/orders")], resources=resources, instance=instance, raise_on_error=False
        )
    assert not result.success
    events = "\n".join(str(each) for each in instance.all_logs(result.run_id))
    assert "table s3://lake/orders could not be written" in events
    printed = "".join(capfd.readouterr())
    assert [each for each in (events, printed) if "planted" in each] == []
