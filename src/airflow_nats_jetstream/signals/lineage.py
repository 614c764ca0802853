# SPDX-License-Identifier: Apache-2.0
"""OpenLineage: the streams that a task read or wrote.

Only Airflow's OpenLineage provider calls these functions, so its modules are imported inside them. A stream is the
dataset ``STREAM`` in the namespace ``nats://server:port``, and a subject is the dataset ``STREAM/subject``. The server
is the first one of the connection, as in assets (:mod:`airflow_nats_jetstream.assets`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from airflow_nats_jetstream.tables import described_table
from airflow_nats_jetstream.template import place_of
from jetstream_tables import DeltaTable, SqlTable

if TYPE_CHECKING:
    from airflow.providers.common.compat.openlineage.facet import Dataset
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Asset

_PORT = 4222


def read(operator: Any, task_instance: Any = None) -> OperatorLineage[Any, Any]:  # noqa: ARG001
    """Return the lineage of an operator that reads a ``stream``, or a ``claim`` of that stream.

    Such an operator has this function as its method ``get_openlineage_facets_on_complete``.

    operator:       the operator.
    task_instance:  the task instance, which is not used.
    """
    from airflow.providers.common.compat.openlineage.facet import InputDataset
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.facet_v2 import input_statistics_input_dataset as statistics

    stream, _, _ = place_of(operator)
    if not stream:
        return OperatorLineage()
    claim = getattr(operator, "claim", None)
    facets: Any = {}
    if isinstance(claim, Mapping):
        read_ = statistics.InputStatisticsInputDatasetFacet(rowCount=claim.get("count"), size=claim.get("bytes"))
        facets = {"inputStatistics": read_}
    return OperatorLineage(inputs=[InputDataset(_namespace(operator), stream, inputFacets=facets)])


def written(operator: Any, task_instance: Any = None) -> OperatorLineage[Any, Any]:  # noqa: ARG001
    """Return the lineage of an operator that writes to a ``stream``, with the number of ``published`` messages.

    Such an operator has this function as its method ``get_openlineage_facets_on_complete``.

    operator:       the operator.
    task_instance:  the task instance, which is not used.
    """
    from airflow.providers.common.compat.openlineage.facet import OutputDataset, OutputStatisticsOutputDatasetFacet
    from airflow.providers.openlineage.extractors import OperatorLineage

    facets: Any = {}
    if operator.published is not None:
        facets = {"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=operator.published)}
    return OperatorLineage(outputs=[OutputDataset(_namespace(operator), operator.stream, outputFacets=facets)])


def stored(operator: Any, task_instance: Any = None) -> OperatorLineage[Any, Any]:
    """Return the lineage of an operator that writes a ``claim`` to a ``table``, with the number of ``rows`` written.

    Such an operator has this function as its method ``get_openlineage_facets_on_complete``.

    operator:       the operator.
    task_instance:  the task instance, which is not used.
    """
    from airflow.providers.common.compat.openlineage.facet import OutputDataset, OutputStatisticsOutputDatasetFacet

    found = read(operator, task_instance)
    facets: Any = {}
    if operator.rows is not None:
        facets = {"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=operator.rows)}
    found.outputs.append(OutputDataset(*_dataset(described_table(operator.table)), outputFacets=facets))
    return found


def _dataset(table: Any) -> tuple[str, str]:
    """Return the namespace and the name of a table (https://openlineage.io/docs/spec/naming), without credentials."""
    if isinstance(table, DeltaTable):
        place = urlsplit(table.name)
        if not place.netloc:
            return "file", place.path
        return f"{place.scheme}://{place.netloc}", place.path.strip("/")
    if isinstance(table, SqlTable):
        place = urlsplit(table.url() if callable(table.url) else table.url)
        schema = table.name if "." in table.name else f"public.{table.name}"
        return f"postgres://{place.hostname or ''}:{place.port or 5432}", f"{place.path.strip('/')}.{schema}"
    return "iceberg", table.name


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> Dataset:  # noqa: ARG001
    """Return the dataset of an asset. Airflow calls this for every asset ``nats://…`` of a task's inlets and outlets.

    asset:            the asset.
    lineage_context:  Airflow's context of the lineage, which is not used.
    """
    from airflow.providers.common.compat.openlineage.facet import Dataset

    uri = urlsplit(asset.uri)
    return Dataset(f"nats://{uri.netloc}", unquote(uri.path.lstrip("/")))


def _namespace(operator: Any) -> str:
    """Return the namespace of an operator's streams: ``nats://`` and the server, without user and password. It is
    ``nats://`` with TLS as well."""
    from airflow_nats_jetstream.hooks import JetStreamHook

    server = urlsplit(JetStreamHook(operator.nats_conn_id).settings.servers[0])
    host = server.hostname or ""
    return f"nats://{f'[{host}]' if ':' in host else host}:{server.port or _PORT}"
