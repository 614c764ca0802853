# SPDX-License-Identifier: Apache-2.0
"""The cluster policy by which Airflow has each DAG checked when it is parsed (the entry point ``airflow.policy``).

Every process of Airflow imports this module. The rules are loaded only where a DAG file has loaded this package's
tasks.
"""

from __future__ import annotations

import sys
from typing import Any

from airflow.policies import hookimpl

_LOADED = "airflow_nats_jetstream.template"  # every operator and sensor of this package imports it


@hookimpl
def dag_policy(dag: Any) -> None:
    """Check a DAG. An error becomes an import error of the DAG.

    dag:  the DAG.

    Raises:
        AirflowClusterPolicyViolation: the DAG breaks a rule (:mod:`airflow_nats_jetstream.dag.rules`).
    """
    if _LOADED in sys.modules:
        from airflow.exceptions import AirflowClusterPolicyViolation

        from airflow_nats_jetstream.dag.rules import broken

        for rule in broken(dag):
            raise AirflowClusterPolicyViolation(rule)
