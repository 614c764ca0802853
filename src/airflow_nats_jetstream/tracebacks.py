# SPDX-License-Identifier: Apache-2.0
"""Shorten the tracebacks of this package's errors, whose messages already say what happened and what to do.

Airflow prints the traceback of every exception that a task raises. Even for a mistyped name, the frames between the
task's code and the client (the portal, the event loop, this package) take up to ninety lines of the log in each try.
"""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from jetstream_client.errors import JetStreamError

log = logging.getLogger(__name__)

_CARRIERS = frozenset(
    {"airflow_nats_jetstream", "anyio", "asyncio", "concurrent", "contextlib"}
    | {"jetstream_arrow", "jetstream_client", "jetstream_handoff"}
)


class Brief:
    """Context manager that shortens the traceback of a :class:`JetStreamError`: it removes frames of ``_CARRIERS``.

    The error keeps its class, attributes and cause, so Airflow handles it as before. The frames of the DAG author's
    code stay. The complete traceback is logged at DEBUG.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        if isinstance(error, JetStreamError):
            log.debug("the complete traceback of the error", exc_info=error)
            brief(error)


def brief(error: BaseException) -> BaseException:
    """Remove frames of ``_CARRIERS`` from the traceback of an error and of its causes, and return the error.

    error:  the error to shorten, which is changed in place.
    """
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
