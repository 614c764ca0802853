"""The code for Dagster of docs/how-to/catch-up-and-backfill.md, on a real nats-server."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import HeldClaim, JetStreamResource, claimed_asset
from demo.nats_server import NatsServer
from tests.snippets import sections

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "catch-up-and-backfill.md"


@pytest.fixture
def jetstream(tmp_path: Path) -> Iterator[JetStreamResource]:
    """A server of its own, because the page names its stream, with five orders."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    resource = JetStreamResource(servers=server.url)
    resource.ensure_stream({"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True})
    resource.publish("ORDERS", [("orders.north", b"{}")] * 5, scope="page")
    yield resource
    server.stop()


def page(since: str, until: str) -> dict[str, Any]:
    """What the page defines, with another period. Its module can be found by name, as Dagster needs it."""
    (section,) = (each for each in sections(PAGE) if each.title == "In Dagster")
    module = ModuleType("page")
    sys.modules["page"] = module
    source = section.source.replace("2026-11-21T00:00:00Z", since).replace("2026-11-22T00:00:00Z", until)
    exec(compile(source, PAGE, "exec"), vars(module))
    return vars(module)


def test_messages_since_a_time_are_processed_again(
    jetstream: JetStreamResource, monkeypatch: pytest.MonkeyPatch
) -> None:
    @claimed_asset(stream="ORDERS", consumer="revenue")
    def revenue(claim: HeldClaim) -> int:
        return claim.count

    monkeypatch.setattr("jetstream_handoff.repair.reset.QUIET", 0.5)
    third = jetstream.run(lambda js: js.stream("ORDERS").get_message(3)).time
    fifth = jetstream.run(lambda js: js.stream("ORDERS").get_message(5)).time
    names, resources = page(third, fifth), {"jetstream": jetstream}
    assert dg.materialize([revenue], resources=resources).success
    config = {"ops": {"reset_revenue": {"config": {"since": third}}}}
    result = names["replay_orders"].execute_in_process(run_config=config, resources=resources)
    assert result.output_for_node("reset_revenue") == 3
    assert dg.materialize([revenue], resources=resources).success
    assert [str(each.sequences) for each in jetstream.committed("ORDERS", "revenue")] == ["1-5", "3-5"]
    assert dg.materialize([names["revenue_again"]], resources=resources).success
    assert [str(each.sequences) for each in jetstream.committed("ORDERS", "revenue-again")] == ["3-4"]
    again = dg.materialize([names["revenue_again"]], resources=resources)  # which waits for nothing
    assert again.success
    assert not again.get_asset_materialization_events()
    info = jetstream.run(lambda js: js.stream("ORDERS").consumer("revenue-again").info())
    assert (info.floor, info.pending + info.ack_pending) == (4, 1), "the message after the period"
