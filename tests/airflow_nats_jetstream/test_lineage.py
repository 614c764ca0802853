"""OpenLineage: what Airflow's provider extracts from tasks that have run on a real server."""

import pkgutil
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.openlineage.facet import Dataset
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.sdk import Asset, BaseOperator
from airflow.utils.state import TaskInstanceState

from airflow_nats_jetstream.get_provider_info import get_provider_info
from airflow_nats_jetstream.holding import holding
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from airflow_nats_jetstream.operators.publish import JetStreamPublishOperator
from airflow_nats_jetstream.signals import lineage
from pyspark_jetstream.held_claim import HeldClaim
from tests.airflow_nats_jetstream.conftest import set_connection
from tests.airflow_nats_jetstream.steps import CONNECTION, claim, execute, sensor


def extracted(task: Any, state: TaskInstanceState = TaskInstanceState.SUCCESS) -> tuple[Any, Any]:
    """The lineage of a task as the provider reports it: inputs and outputs, each as namespace, name and numbers."""
    run: Any = SimpleNamespace(run_id="run")
    manager = ExtractorManager()  # type: ignore[no-untyped-call]
    found = manager.extract_metadata(run, task, state, SimpleNamespace(task=task))
    inputs = [(each.namespace, each.name, numbers(each.inputFacets)) for each in found.inputs]
    outputs = [(each.namespace, each.name, numbers(each.outputFacets)) for each in found.outputs]
    return inputs, outputs


def numbers(facets: Any) -> dict[str, int]:
    """The numbers of the statistics, if there are any."""
    return {
        name: value
        for facet in facets.values()
        for name in ("rowCount", "size")
        if (value := getattr(facet, name, None)) is not None
    }


def test_publish_take_and_process(hook: JetStreamHook, stream: str) -> None:
    server = hook.settings.servers[0]
    assert server.startswith("nats://127.0.0.1:")
    messages = [(f"{stream}.{number}", b"x" * 10) for number in range(10)]
    publish = JetStreamPublishOperator(task_id="publish", stream=stream, messages=messages, nats_conn_id=CONNECTION)
    assert extracted(publish, TaskInstanceState.FAILED) == ([], [(server, stream, {})])
    execute(publish)
    assert extracted(publish) == ([], [(server, stream, {"rowCount": 10})])

    claims = sensor(stream)
    (claim,) = execute(claims)
    assert extracted(claims) == ([(server, stream, {})], [])

    def body(claim: HeldClaim) -> int:
        return claim.count

    work = JetStreamProcessOperator(
        task_id="work", python_callable=body, op_kwargs={"claim": claim}, nats_conn_id=CONNECTION
    )
    assert extracted(work) == ([], [])  # because its claim is not known yet
    execute(work)
    assert extracted(work) == ([(server, stream, {"rowCount": 10, "size": 100})], [])


@pytest.mark.parametrize(
    ("servers", "namespace"),
    [
        ("tls://nats.example.com", "nats://nats.example.com:4222"),
        ("nats://a:4333,nats://b", "nats://a:4333"),
        ("nats://[::1]:4222", "nats://[::1]:4222"),
    ],
)
def test_the_namespace_is_the_first_server(monkeypatch: pytest.MonkeyPatch, servers: str, namespace: str) -> None:
    set_connection(monkeypatch, servers=servers)
    (read,) = lineage.read(SimpleNamespace(stream="S", nats_conn_id=CONNECTION)).inputs
    assert (read.namespace, read.name) == (namespace, "S")


@pytest.mark.parametrize(
    ("uri", "dataset"),
    [
        ("nats://nats.example.com/FLIGHTS", ("nats://nats.example.com:4222", "FLIGHTS")),
        ("nats://a:4333/FLIGHTS/flights.*.>", ("nats://a:4333", "FLIGHTS/flights.*.>")),
    ],
)
def test_an_asset_is_the_same_dataset(uri: str, dataset: tuple[str, str]) -> None:
    info: Any = get_provider_info()
    convert = pkgutil.resolve_name(info["asset-uris"][0]["to_openlineage_converter"])
    asset = Asset(uri=uri)
    assert convert(Asset(uri=asset.normalized_uri or ""), None) == Dataset(*dataset)


class Writes(BaseOperator):
    """An operator of another provider, with lineage and an attribute that has the name of ours."""

    stream = "not a stream of NATS"

    def execute(self, context: Any) -> int:  # noqa: ARG002
        return 1

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        from airflow.providers.common.compat.openlineage.facet import OutputDataset
        from airflow.providers.openlineage.extractors import OperatorLineage

        return OperatorLineage(outputs=[OutputDataset("postgres://db", "orders")])


class Silent(BaseOperator):
    """An operator without lineage."""

    def execute(self, context: Any) -> int:  # noqa: ARG002
        return 1


def test_a_held_operator_reads_the_stream_of_its_claim(hook: JetStreamHook, stream: str) -> None:
    server = hook.settings.servers[0]
    read = (server, stream, {"rowCount": 10, "size": 100})
    value = claim(hook, stream)
    for operator, written in ((Writes, [("postgres://db", "orders", {})]), (Silent, [])):
        assert extracted(holding(operator)(task_id="work", claim=value, waits=True, nats_conn_id=CONNECTION)) == (
            [read],
            written,
        )
