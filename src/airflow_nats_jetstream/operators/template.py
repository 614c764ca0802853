"""What Airflow renders: values that are not known before the task runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def templated(value: Any) -> bool:
    """Whether a value is only known when the task runs: it has a template in it, or comes from another task."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(templated(each) for each in value.values())
    if isinstance(value, list | tuple):
        return any(templated(each) for each in value)
    return hasattr(value, "resolve")
