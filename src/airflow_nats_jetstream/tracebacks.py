"""Tracebacks for people: an error of this package says in its own words what happened and what to do.

Airflow prints the traceback of whatever a task raises. The frames between the task's code and the client (the portal,
the event loop, this package) made up to ninety lines of it for a mistyped name, at every try.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from jetstream_client.errors import JetStreamError

log = logging.getLogger(__name__)

_CARRIERS = frozenset(
    {"airflow_nats_jetstream", "anyio", "asyncio", "concurrent", "contextlib", "jetstream_client", "jetstream_handoff"}
)


class Brief:
    """``with Brief():`` takes from a :class:`JetStreamError` that passes the frames that only carried it.

    The error stays what it is: its class, its attributes, its cause, and so what Airflow makes of it. The frames of the
    author's own code stay. The whole traceback is logged at DEBUG.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, JetStreamError):
            log.debug("the whole traceback of an error", exc_info=error)
            brief(error)


def brief(error: BaseException) -> BaseException:
    """The error, and its causes, without those frames."""
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = _kept(each.__traceback__)
        each.__suppress_context__ = True
        each = each.__cause__
    return error


def _kept(traceback: TracebackType | None) -> TracebackType | None:
    places = []
    while traceback is not None:
        if str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _CARRIERS:
            places.append(traceback)
        traceback = traceback.tb_next
    kept = None
    for place in reversed(places):
        kept = TracebackType(kept, place.tb_frame, place.tb_lasti, place.tb_lineno)
    return kept
