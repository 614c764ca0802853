"""The messages of the flights demo: 336,776 departures as JSON, about 340 bytes each."""

import os
from functools import cache
from pathlib import Path


@cache
def departures() -> list[tuple[str, bytes]]:
    """Return the messages that the DAG publishes, made by its own generator. They are cached, because making them must
    not be timed."""
    # Importing Airflow writes its configuration to AIRFLOW_HOME, which by default is in the user's home.
    os.environ.setdefault("AIRFLOW_HOME", str(Path(__file__).parent.parent / "build" / "benchmarks" / "airflow"))
    from dags.flight_delays import departures as published

    return list(published())
