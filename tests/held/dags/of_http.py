"""HttpOperator, waiting and deferred."""

from typing import Any

from airflow.providers.http.operators.http import HttpOperator

from tests.held.around import ATTEMPT, held

work: dict[str, Any] = {"endpoint": "work", "method": "POST", "data": {"claim": "{{ claim.json }}", "out": ATTEMPT}}
held("http", HttpOperator, **work)
held("http_deferred", HttpOperator, deferrable=True, **work)
