"""Functions that a caller gives, refused at once where calling them could not do what they are for."""

from __future__ import annotations

from inspect import iscoroutinefunction, unwrap
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def check_coroutine_function(field: str, function: Callable[..., Any] | None) -> None:
    """What is awaited. What another function returns is known only when it was called, with a message that would then
    stay unanswered. Raises InvalidValue."""
    if not callable(function) or not _is_coroutine_function(function):
        raise InvalidValue(field, function, "give an async def function (with arguments: functools.partial of one)")


def check_handler(field: str, function: Callable[..., object] | None) -> None:
    """What is called and not awaited, or None. Raises InvalidValue."""
    if function is not None and (not callable(function) or _is_coroutine_function(function)):
        raise InvalidValue(field, function, "give a function that is not asynchronous: it is not awaited")


def _is_coroutine_function(function: Callable[..., object]) -> bool:
    inner = unwrap(function)
    return iscoroutinefunction(inner) or iscoroutinefunction(type(inner).__call__)
