"""Airflow's simple auth manager, with a user who may not see a DAG.

With the simple auth manager alone, everybody who may read connections may see all DAGs.
"""

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

from tests.airflow_nats_jetstream.page.airflow import PARTNER

SECRET_DAG = "orders"


class PartnerAuthManager(SimpleAuthManager):
    def is_authorized_dag(
        self,
        *,
        method: Any,
        user: Any,
        access_entity: DagAccessEntity | None = None,
        details: DagDetails | None = None,
    ) -> bool:
        if user.username == PARTNER and (details is None or details.id == SECRET_DAG):
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
