"""Tests of which `make test` runs a part, and `make slow` the rest."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def beyond(daily: int, cases: Sequence[Iterable[Any]]) -> list[Any]:
    """The cases of a test that needs a job of Spark for each. Those beyond the first `daily` ones are slow."""
    return [*cases[:daily], *(pytest.param(*case, marks=pytest.mark.slow) for case in cases[daily:])]
