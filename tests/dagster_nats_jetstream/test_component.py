"""The component in YAML."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import ClaimedAssetComponent, HeldClaim, JetStreamToTableComponent
from jetstream_client.errors import InvalidValue
from jetstream_client.publish.bulk import publish_all
from tests.dagster_nats_jetstream.conftest import CONSUMER, Line
from tests.jetstream_tables.formats import Delta


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
        "min_messages": 100,
        "max_wait": 1,
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
    *({"max_wait": wait} for wait in (5, -1, math.nan)),
    *({"max_wait": wait, "min_messages": 2} for wait in (-1, 0.5)),
    *({"wait": wait} for wait in (-1, math.nan, math.inf)),
    *({"asset": asset} for asset in ("", "a//b", "/a")),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_bad_values_are_refused(wrong: dict[str, Any]) -> None:
    attributes = {"asset": "a", "function": f"{__name__}.process", "stream": "S", "consumer": "c", **wrong}
    with pytest.raises(InvalidValue, match=f"^{next(iter(wrong))}="):
        ClaimedAssetComponent(**attributes).build_defs(None)  # type: ignore[arg-type]


ORDERS: dict[str, Any] = {
    "asset": "orders",
    "consumer": "work",
    "wait": 15,
    "consumer_config": {"ack_wait": 5_000_000_000},
    "payload_schema": "shop STRING, amount INT",
}
LAKE: dict[str, Any] = {"stream": "S", "table": {"type": "delta", "uri": "/lake"}}


def test_a_stream_becomes_a_table(line: Line, instance: dg.DagsterInstance, tmp_path: Path) -> None:
    """Twice, the second time after a reset: each message is in the table once, or a dead letter."""
    payloads = [json.dumps({"shop": "a", "amount": each}).encode() for each in (1, 2, "x", 4)]
    publish_all(line.settings, [(f"{line.stream}.a", each) for each in payloads], stream=line.stream)
    with Delta(tmp_path) as lake:
        table = {"type": "delta", "uri": lake.uri("orders")}
        attributes = {**ORDERS, "stream": line.stream, "table": table}
        context: Any = None
        component = JetStreamToTableComponent.from_attributes_dict(attributes=attributes, context=context)
        defs = component.build_defs(context)
        asset: Any
        (asset,), (sensor,) = list(defs.assets or ()), list(defs.sensors or ())
        assert sensor.name == f"{line.stream}_work".lower()
        for rows, duplicates in ((3, 0), (0, 3)):
            result = dg.materialize([asset], resources={"jetstream": line.resource}, instance=instance)
            (done,) = result.asset_materializations_for_node("orders")
            found = {name: done.metadata[f"jetstream/{name}"].value for name in ("rows", "duplicates", "malformed")}
            assert found == {"rows": rows, "duplicates": duplicates, "malformed": 1}
            line.run(lambda js: js.stream(line.stream).consumer(CONSUMER).reset(1))
        assert sorted(lake.query("shop, amount")) == [("a", 1), ("a", 2), ("a", 4)]


def test_a_schema_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "order.sql").write_text("shop STRING, amount INT\n")
    context: Any = SimpleNamespace(path=tmp_path)
    wanted: dict[str, Any] = {**ORDERS, **LAKE, "payload_schema": None, "schema_file": "order.sql"}
    assert JetStreamToTableComponent(**wanted, columns=["amount"]).build_defs(context).assets
    for wrong, told in (
        ({"schema_file": "none.sql"}, "cannot be read"),
        ({"payload_schema": "a INT"}, "either payload_schema or schema_file"),
    ):
        with pytest.raises(InvalidValue, match=told):
            JetStreamToTableComponent(**{**wanted, **wrong}).build_defs(context)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"payload_schema": "amount INTT"}, "at 'INTT': this is not a type"),
        ({"table": {"type": "deltas", "uri": "/lake"}}, "give one of 'delta'"),
        ({"columns": ["size"]}, "does not contain this field"),
        ({"decoding": {"registry": {"adress": "x"}}}, "unexpected keyword argument 'adress'"),
        ({"max_malformed": -1}, "0 or more"),
        ({"objects": "a.b"}, "objects='a.b'"),
        ({"objects": "large", "max_object_size": 0}, "max_object_size=0"),
    ],
)
def test_bad_values_of_a_table_are_refused_when_the_code_is_loaded(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidValue, match=told):
        JetStreamToTableComponent(**{**ORDERS, **LAKE, **wrong}).build_defs(None)  # type: ignore[arg-type]
