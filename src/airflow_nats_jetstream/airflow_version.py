# SPDX-License-Identifier: Apache-2.0
"""Check Airflow's version when this module is imported. If Airflow is too old, later imports would fail with a less
helpful message."""

from __future__ import annotations

import airflow

OLDEST_AIRFLOW = (3, 1)


def check_airflow(version: str) -> None:
    """Raise ImportError if the Airflow ``version`` is older than this package needs."""
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_AIRFLOW:
        raise ImportError(
            f"airflow-provider-nats-jetstream needs Apache Airflow 3.1 or later, but {version} is installed; "
            "upgrade Airflow"
        )


check_airflow(airflow.__version__)
