"""LivyOperator, waiting and deferred."""

from typing import Any

from airflow.providers.apache.livy.operators.livy import LivyOperator

from tests.held.around import ARGUMENTS, held

batch: dict[str, Any] = {"file": "job.py", "args": ARGUMENTS, "polling_interval": 1}
held("livy", LivyOperator, **batch)
held("livy_deferred", LivyOperator, deferrable=True, **batch)
