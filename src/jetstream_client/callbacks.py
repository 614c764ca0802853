# SPDX-License-Identifier: Apache-2.0
"""Checks of callbacks. A callback is checked when it is passed, not when it is first called."""

from __future__ import annotations

from inspect import iscoroutinefunction, unwrap
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def check_coroutine_function(field: str, function: Callable[..., Any] | None) -> None:
    """Check a callback that is awaited: it must be an ``async def`` function. Whether a plain function returns an
    awaitable would be known only after it was called with a message, and this message would stay unanswered. Raises
    InvalidValue."""
    if not callable(function) or not _is_coroutine_function(function):
        raise InvalidValue(field, function, "must be an async def function, or functools.partial of one")


def check_handler(field: str, function: Callable[..., object] | None) -> None:
    """Check a callback that is not awaited; None is allowed. Raises InvalidValue."""
    if function is not None and (not callable(function) or _is_coroutine_function(function)):
        raise InvalidValue(field, function, "must be a plain function, not an async one, because it is not awaited")


def _is_coroutine_function(function: Callable[..., object]) -> bool:
    inner = unwrap(function)
    return iscoroutinefunction(inner) or iscoroutinefunction(type(inner).__call__)
