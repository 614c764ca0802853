"""KubernetesPodOperator, waiting and deferred."""

from typing import Any

from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

from tests.held.around import ARGUMENTS, held

pod: dict[str, Any] = {"name": "delays", "image": "delays:1", "arguments": ARGUMENTS, "get_logs": False}
held("kubernetes", KubernetesPodOperator, poll_interval=1, **pod)
held("kubernetes_deferred", KubernetesPodOperator, poll_interval=1, deferrable=True, **pod)
