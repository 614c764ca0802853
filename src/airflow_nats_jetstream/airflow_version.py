"""Checks Airflow's version when it is imported: before the imports that fail less helpfully with an older one."""

from __future__ import annotations

import airflow

OLDEST_AIRFLOW = (3, 3)


def check_airflow(version: str) -> None:
    """Raises ImportError for an Airflow that lacks what this package builds on."""
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_AIRFLOW:
        raise ImportError(f"airflow-provider-nats-jetstream needs Apache Airflow 3.3 or newer; this is {version}")


check_airflow(airflow.__version__)
