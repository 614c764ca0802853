"""DatabricksSubmitRunOperator, waiting and deferred."""

from typing import Any

from airflow.providers.databricks.operators.databricks import DatabricksSubmitRunOperator

from tests.held.around import ARGUMENTS, held

task = {"task_key": "delays", "spark_python_task": {"python_file": "job.py", "parameters": ARGUMENTS}}
run: dict[str, Any] = {"json": {"tasks": [task]}, "polling_period_seconds": 1}
held("databricks", DatabricksSubmitRunOperator, **run)
held("databricks_deferred", DatabricksSubmitRunOperator, deferrable=True, **run)
