"""The DAG files in dags/, loaded as Airflow's DAG processor loads them, but without Airflow's database."""

import importlib.util
from pathlib import Path
from typing import Any

DAGS = Path(__file__).parents[1] / "dags"


def module_of(name: str) -> Any:
    """The module dags/<name>.py, executed anew with the environment of this moment."""
    spec = importlib.util.spec_from_file_location(name, DAGS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dag_of(name: str) -> Any:
    """The DAG of this name in dags/<name>.py, an :class:`airflow.sdk.DAG`."""
    return getattr(module_of(name), name)()
