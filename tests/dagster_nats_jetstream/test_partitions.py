"""The partitions of a stream in Dagster, as docs/how-to/order-per-key.md shows them, on a real server."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_nats_jetstream import JetStreamResource, take_claims
from demo.nats_server import NatsServer
from jetstream_client.errors import InvalidValue
from jetstream_handoff.errors import PartitionsUnsuitable
from tests.snippets import sections

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "order-per-key.md"
KEYS = 8


@pytest.fixture
def jetstream(tmp_path: Path) -> Any:
    """A server for this test, because the page names its stream."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    resource = JetStreamResource(servers=server.url)
    resource.ensure_stream({"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True})
    yield resource
    server.stop()


def publish(jetstream: JetStreamResource, scope: str) -> None:
    messages = [(f"orders.{each}.paid", scope.encode()) for each in [*range(KEYS)] * 2]
    jetstream.publish("ORDERS", messages, scope=scope)


def settled(jetstream: JetStreamResource) -> list[int]:
    """The sequences of all settled claims of all consumers."""
    names = ["balances-between", *(f"balances-{each}" for each in range(8))]

    async def known(js: Any) -> set[str]:
        return {each async for each in js.stream("ORDERS").consumer_names()}

    there = jetstream.run(known)
    receipts = [each for name in names if name in there for each in jetstream.committed("ORDERS", name)]
    return sorted(sequence for each in receipts for sequence in each.processed)


@pytest.mark.filterwarnings("ignore:Parameter `owners`:dagster_shared.utils.warnings.BetaWarning")  # Dagster's own
def test_the_page_processes_each_partition(jetstream: JetStreamResource, tmp_path: Path) -> None:
    """About 20 s: seven runs, each of which gathers until no more messages come."""
    (source,) = [each.source for each in sections(PAGE) if "claimed_op" in each.source]
    page: dict[str, Any] = {"__name__": "page"}
    exec(compile(source, PAGE, "exec"), page)
    page["DIVIDED"]["partitions"] = 2
    jobs: dg.Definitions = page["defs"]
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:

        def tick() -> list[str]:
            of: dict[str, Any] = {"repository_def": jobs.get_repository_def(), "resources": {"jetstream": jetstream}}
            with dg.build_sensor_context(instance=instance, **of) as context:
                context._instance_ref = instance.get_ref()  # as the daemon sets it
                result = page["waiting"].evaluate_tick(context)
            for each in result.dynamic_partitions_requests:
                instance.add_dynamic_partitions(each.partitions_def_name, each.partition_keys)
            for each in result.run_requests:
                job = jobs.resolve_job_def("balances")
                run = job.execute_in_process(
                    instance=instance, partition_key=each.partition_key, resources={"jetstream": jetstream}
                )
                assert run.success
            return [str(each.partition_key) for each in result.run_requests]

        assert tick() == []
        publish(jetstream, "first")
        assert tick() == ["0", "1"]
        assert settled(jetstream) == [*range(1, 2 * KEYS + 1)]
        with pytest.raises(PartitionsUnsuitable, match="partitions=3"):
            jetstream.ensure_partitions("ORDERS", "balances", **{**page["DIVIDED"], "partitions": 3})
        publish(jetstream, "second")
        page["DIVIDED"] |= {"partitions": 3, "change_number": True}
        assert tick() == ["0", "1"]
        publish(jetstream, "third")
        assert tick() == ["between"]
        publish(jetstream, "fourth")
        assert set(tick()) <= {"0", "1", "2"}
        places = defaultdict(set)

        async def look(js: Any) -> None:
            answer = await js.api("STREAM.INFO.ORDERS", {"subjects_filter": ">"})
            for subject in answer["state"]["subjects"]:
                places[subject.split(".")[2]].add(subject.split(".")[0])

        jetstream.run(look)
        assert all("between" in each for each in places.values())
        waiting = jetstream.ensure_partitions("ORDERS", "balances", **page["DIVIDED"])
        assert waiting.consumers == ("balances-0", "balances-1", "balances-2")


def test_the_subject_of_a_partition_is_checked() -> None:
    with pytest.raises(InvalidValue, match="subject="):
        take_claims(stream="S", consumer="c", subject="orders.*")
