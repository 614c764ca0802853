"""OpenLineage: which streams a task read or wrote. Only Airflow's OpenLineage provider asks, and has it imported then.

A stream is the dataset ``STREAM`` of the namespace ``nats://server:port``, of a subject ``STREAM/subject``; the server
is the first of the connection's, as in assets (:mod:`airflow_nats_jetstream.assets`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Asset

_PORT = 4222


def read(operator: Any, task_instance: Any = None) -> OperatorLineage[Any, Any]:  # noqa: ARG001
    """``get_openlineage_facets_on_complete`` of an operator that reads a ``stream``, or a ``claim`` of it."""
    from airflow.providers.common.compat.openlineage.facet import InputDataset
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.facet_v2 import input_statistics_input_dataset as statistics

    if not operator.stream:
        return OperatorLineage()
    claim = getattr(operator, "claim", None)
    facets: Any = {}
    if isinstance(claim, Mapping):
        read_ = statistics.InputStatisticsInputDatasetFacet(rowCount=claim.get("count"), size=claim.get("bytes"))
        facets = {"inputStatistics": read_}
    return OperatorLineage(inputs=[InputDataset(_namespace(operator), operator.stream, inputFacets=facets)])


def written(operator: Any, task_instance: Any = None) -> OperatorLineage[Any, Any]:  # noqa: ARG001
    """``get_openlineage_facets_on_complete`` of an operator with a ``stream`` to write, and a number of ``published``
    messages once all are stored."""
    from airflow.providers.common.compat.openlineage.facet import OutputDataset, OutputStatisticsOutputDatasetFacet
    from airflow.providers.openlineage.extractors import OperatorLineage

    facets: Any = {}
    if operator.published is not None:
        facets = {"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=operator.published)}
    return OperatorLineage(outputs=[OutputDataset(_namespace(operator), operator.stream, outputFacets=facets)])


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> Dataset:  # noqa: ARG001
    """What Airflow calls for every asset ``nats://…`` of a task's inlets and outlets."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    uri = urlsplit(asset.uri)
    return Dataset(f"nats://{uri.netloc}", unquote(uri.path.lstrip("/")))


def _namespace(operator: Any) -> str:
    """No user and no password, and no scheme of its own for TLS: it names the server."""
    from airflow_nats_jetstream.hooks import JetStreamHook

    server = urlsplit(JetStreamHook(operator.nats_conn_id).settings.servers[0])
    host = server.hostname or ""
    return f"nats://{f'[{host}]' if ':' in host else host}:{server.port or _PORT}"
