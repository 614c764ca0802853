"""The component in YAML."""

import math
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import ClaimedAssetComponent, HeldClaim
from jetstream_client.errors import InvalidValue
from tests.dagster_nats_jetstream.conftest import Line


def process(claim: HeldClaim) -> int:
    return claim.count


def test_an_asset_is_declared_in_yaml(line: Line, instance: dg.DagsterInstance) -> None:
    line.publish(3)
    attributes: dict[str, Any] = {
        "asset": "sales/orders",
        "function": f"{__name__}.process",
        "stream": line.stream,
        "consumer": "work",
        "wait": 15,
        "consumer_config": {"ack_wait": 5_000_000_000},
    }
    component = ClaimedAssetComponent(**attributes)
    defs = component.build_defs(None)  # type: ignore[arg-type]
    asset: Any
    (asset,), (sensor,) = list(defs.assets or ()), list(defs.sensors or ())
    assert (asset.key.to_user_string(), sensor.name) == ("sales/orders", f"{line.stream}_work".lower())
    result = dg.materialize([asset], resources={"jetstream": line.resource}, instance=instance)
    assert result.success
    assert len(line.committed) == 1


def test_a_function_that_cannot_be_imported_is_refused() -> None:
    component = ClaimedAssetComponent(asset="a", function="nowhere.at_all", stream="S", consumer="c")
    with pytest.raises(Exception, match=r"function='nowhere\.at_all': the function cannot be imported"):
        component.build_defs(None)  # type: ignore[arg-type]


def test_what_is_not_a_function_is_named_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its value may be a secret."""
    monkeypatch.setattr("os.planted", "hidden-value", raising=False)
    component = ClaimedAssetComponent(asset="a", function="os.planted", stream="S", consumer="c")
    with pytest.raises(InvalidValue, match=r"function='os\.planted': this is not a function") as refused:
        component.build_defs(None)  # type: ignore[arg-type]
    assert "hidden-value" not in str(refused.value)


WRONG: list[dict[str, Any]] = [
    {"function": "os.sep"},
    {"function": "builtins.int"},
    {"max_retries": -1},
    *({"wait": wait} for wait in (-1, math.nan, math.inf)),
    *({"asset": asset} for asset in ("", "a//b", "/a")),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_bad_values_are_refused(wrong: dict[str, Any]) -> None:
    attributes = {"asset": "a", "function": f"{__name__}.process", "stream": "S", "consumer": "c", **wrong}
    with pytest.raises(InvalidValue, match=f"^{next(iter(wrong))}="):
        ClaimedAssetComponent(**attributes).build_defs(None)  # type: ignore[arg-type]
