"""The messages of the flights demo: 336,776 departures as JSON, about 340 bytes each."""

import os
from functools import cache
from pathlib import Path


@cache
def departures() -> list[tuple[str, bytes]]:
    """What the DAG publishes, made by the DAG's own generator, and kept: making them is not what is timed."""
    # Importing Airflow writes its configuration to AIRFLOW_HOME, by default into the user's home.
    os.environ.setdefault("AIRFLOW_HOME", str(Path(__file__).parent.parent / "build" / "benchmarks" / "airflow"))
    from dags.flight_delays import departures as published

    return list(published())
