"""The names of Airflow that only tests use and that differ between its versions: no test checks a version itself."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Hashable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.execution_time.context import OutletEventAccessor

__all__ = [
    "PARTITIONS",
    "RETRY_POLICIES",
    "TWO_METRICS",
    "AsyncCallback",
    "DagBag",
    "DagSerialization",
    "Metrics",
    "ProvidersManagerTaskRuntime",
    "RetryDecision",
    "RetryPolicy",
    "SharedStreamManager",
    "TaskDeferralError",
    "TaskInstanceDTO",
    "dag_bag",
    "deserialize",
    "encode_trigger",
    "forget_secrets_backends",
    "serialize",
    "smart_decode_trigger_kwargs",
    "taskinstance",
]

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.executors.workloads.task import TaskInstanceDTO
    from airflow.sdk.definitions.callback import AsyncCallback
    from airflow.sdk.definitions.retry_policy import RetryDecision, RetryPolicy
    from airflow.sdk.exceptions import TaskDeferralError
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime
    from airflow.sdk.serde import deserialize, serialize
    from airflow.serialization.decoders import smart_decode_trigger_kwargs
    from airflow.serialization.encoders import encode_trigger
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.triggers.shared_stream import SharedStreamManager
else:

    def first(name: str, *modules: str, other: Any = None) -> Any:
        """The name from the first of these modules that has it, or something else in its place."""
        for module in modules:
            with suppress(ImportError, AttributeError):
                return getattr(import_module(module), name)
        assert other is not None, name
        return other

    DagBag = first("DagBag", "airflow.dag_processing.dagbag", "airflow.models.dagbag")
    TaskDeferralError = first("TaskDeferralError", "airflow.sdk.exceptions", "airflow.exceptions")
    TaskInstanceDTO = first(
        "TaskInstanceDTO",
        "airflow.executors.workloads.task",
        other=first("TaskInstance", "airflow.executors.workloads"),
    )
    AsyncCallback = first("AsyncCallback", "airflow.sdk.definitions.callback", "airflow.sdk.definitions.deadline")
    ProvidersManagerTaskRuntime = first(
        "ProvidersManagerTaskRuntime",
        "airflow.sdk.providers_manager_runtime",
        other=first("ProvidersManager", "airflow.providers_manager"),
    )
    serialize = first("serialize", "airflow.sdk.serde", "airflow.serialization.serde")
    deserialize = first("deserialize", "airflow.sdk.serde", "airflow.serialization.serde")
    smart_decode_trigger_kwargs = first(
        "smart_decode_trigger_kwargs", "airflow.serialization.decoders", other=lambda kwargs: kwargs
    )
    encode_trigger = first(
        "encode_trigger",
        "airflow.serialization.encoders",
        other=lambda trigger: dict(zip(("classpath", "kwargs"), trigger.serialize(), strict=True)),
    )
    DagSerialization = first(
        "DagSerialization",
        "airflow.serialization.serialized_objects",
        other=first("SerializedDAG", "airflow.serialization.serialized_objects"),
    )

    class _NoSharedStreams:
        """Airflow without shared streams (below 3.3): each trigger has its own."""

        def __init__(self) -> None:
            self._groups: dict[Hashable, Any] = {}

        async def subscribe(self, trigger_id: int, trigger: Any, key: Hashable) -> AsyncIterator[Any]:  # noqa: ARG002
            async for each in trigger.open_shared_stream(trigger.serialize()[1]):
                yield each

        async def unsubscribe(self, trigger_id: int, key: Hashable) -> None:  # noqa: ARG002
            await asyncio.sleep(0)

    class _NoDecision:
        """A decision that no Airflow below 3.3 asks for."""

        @classmethod
        def fail(cls) -> None: ...
        @classmethod
        def retry(cls, delay: Any) -> None: ...
        @classmethod
        def default(cls) -> None: ...

    RetryDecision = first("RetryDecision", "airflow.sdk.definitions.retry_policy", other=_NoDecision)
    RetryPolicy = first("RetryPolicy", "airflow.sdk.definitions.retry_policy", other=object)
    SharedStreamManager = first("SharedStreamManager", "airflow.triggers.shared_stream", other=_NoSharedStreams)

SHARED_STREAMS = find_spec("airflow.triggers.shared_stream") is not None
"""Whether the watchers of one consumer share a measurement."""

PARTITIONS = hasattr(OutletEventAccessor, "add_partitions")
"""Whether the events of assets have partitions."""

TWO_METRICS = find_spec("airflow.sdk.observability") is not None
"""Whether Airflow's core and its tasks have metrics of their own."""

RETRY_POLICIES = "retry_policy" in inspect.signature(BaseOperator.__init__).parameters
"""Whether operators have the parameter ``retry_policy``."""


_NO_EXAMPLES: Any = {"include_examples": False} if "include_examples" in inspect.signature(DagBag).parameters else {}


def dag_bag(path: Path) -> DagBag:
    """The DAGs of a file or folder, without Airflow's own examples."""
    return DagBag(str(path), bundle_path=path if path.is_dir() else path.parent, **_NO_EXAMPLES)


def forget_secrets_backends(patched: pytest.MonkeyPatch) -> None:
    """Let this process look up its secrets backends again; from 3.3 on, Airflow caches them."""
    with suppress(ImportError):
        patched.setattr(import_module("airflow.sdk.configuration"), "_secrets_backend_cache", {}, raising=False)


taskinstance = import_module(
    "airflow._shared.listeners.spec.taskinstance"
    if find_spec("airflow._shared") and find_spec("airflow._shared.listeners")
    else "airflow.listeners.spec.taskinstance"
)
"""The hooks of Airflow's listeners for task instances."""


class Metrics:
    """Airflow's metrics of the core (a triggerer's), or of the SDK (those of a task's process). Airflow 3.1 has one for
    both."""

    def __init__(self, core: bool) -> None:
        root = "airflow" if core else "airflow.sdk"
        places = f"{root}._shared.observability.metrics", "airflow.metrics"
        self._stats: Any = found(f"{places[0]}.stats", "airflow.stats")
        self._utils: Any = found(f"{root}.observability.metrics.stats_utils", "airflow.metrics.statsd_logger")
        self._none: Any = found(*(f"{place}.base_stats_logger" for place in places)).NoStatsLogger

    def begin(self) -> None:
        """Set the metrics up as Airflow does at the start of a process."""
        if hasattr(self._stats, "incr"):
            self._stats.initialize(factory=self._utils.get_stats_factory(), export_legacy_names=False)
        elif hasattr(self._stats.Stats, "initialize"):  # 3.2
            self._stats.Stats.initialize(factory=self._utils.get_stats_factory(self._stats.Stats))
        else:
            self._set(lambda: self._utils.get_statsd_logger(self._stats.Stats))

    def end(self) -> None:
        """Close the socket, and count nothing from now on."""
        if hasattr(self._stats, "incr"):
            self._stats._get_backend().statsd.close()
            self._stats.initialize(factory=self._none, export_legacy_names=False)
            return
        if (statsd := getattr(self._stats.Stats.instance, "statsd", None)) is not None:
            statsd.close()
        if hasattr(self._stats.Stats, "initialize"):
            self._stats.Stats.initialize(factory=self._none)
        else:
            self._set(self._none)

    def _set(self, factory: Any) -> None:
        self._stats.Stats.factory, self._stats.Stats.instance = staticmethod(factory), None


def found(*modules: str) -> Any:
    """The first of these modules that exists."""
    for module in modules:
        with suppress(ImportError):
            return import_module(module)
    raise ImportError(modules)
