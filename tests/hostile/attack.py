"""Repeating an attack: a few seeded cases in `make test`, a hundred thousand or more in `make fuzz`."""

import functools
import inspect
import math
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

SEED = int(os.environ.get("SEED") or 0)
CASES = int(os.environ.get("CASES") or 0)
"""Number of cases of all attacks in a run together; 0: the short, derandomised form of `make test`."""
_SHORT = 60
_HANG = timedelta(seconds=10)
"""A case that takes longer hangs. Most take a millisecond, but the machine may be busy with other tests."""

WEIGHTS: list[float] = []
"""The weight of each collected attack."""
counted = 0


def attack(
    *arguments: st.SearchStrategy[Any], weight: float = 1, **keywords: st.SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Like Hypothesis's ``given``. Each attack makes an equal share of the run's cases, times ``weight``."""

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
        WEIGHTS.append(weight)

        def case(*values: Any, **named: Any) -> None:
            global counted  # noqa: PLW0603 - what the end of the run prints
            counted += 1
            test(*values, **named)

        case.__name__, case.__qualname__, case.__module__ = test.__name__, test.__qualname__, test.__module__

        def run() -> None:
            # The number of attacks is known only now, when all have been collected.
            share = CASES / sum(WEIGHTS) if CASES else _SHORT
            limits = settings(
                max_examples=math.ceil(share * weight),
                derandomize=not CASES,
                database=None,
                deadline=_HANG,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            )
            # Without functools.wraps: Hypothesis reads the signature to fill it.
            attacked = given(*arguments, **keywords)(_with_signature(case, test))
            (seed(SEED)(limits(attacked)) if CASES else limits(attacked))()

        functools.update_wrapper(run, test)
        del run.__wrapped__  # type: ignore[attr-defined] # pytest would read the signature of the test behind it
        return run

    return decorate


def _with_signature(case: Callable[..., None], test: Callable[..., None]) -> Callable[..., None]:
    case.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return case
