# SPDX-License-Identifier: Apache-2.0
"""Checks of callbacks when they are passed, not when they are first called."""

from __future__ import annotations

from inspect import iscoroutinefunction, unwrap
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def check_coroutine_function(field: str, function: Callable[..., Any] | None) -> None:
    """Check a callback that is awaited. Another function might return an awaitable, but that would be known only after
    calling it, with a message that would then stay unanswered. Raises InvalidValue."""
    if not callable(function) or not _is_coroutine_function(function):
        raise InvalidValue(field, function, "must be an async def function, or functools.partial of one")


def check_handler(field: str, function: Callable[..., object] | None) -> None:
    """Check a callback that is not awaited, or None. Raises InvalidValue."""
    if function is not None and (not callable(function) or _is_coroutine_function(function)):
        raise InvalidValue(field, function, "must be a function that is not asynchronous, because it is not awaited")


def _is_coroutine_function(function: Callable[..., object]) -> bool:
    inner = unwrap(function)
    return iscoroutinefunction(inner) or iscoroutinefunction(type(inner).__call__)
