# SPDX-License-Identifier: Apache-2.0
"""Tracing of requests to the JetStream API and of their answers, modelled on nats.go's ``ClientTrace``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetstream_client.wire.protocol import Reply

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RequestSent:
    """A request that is about to be sent. It contains no credentials: these are in CONNECT, which is not traced.

    subject:  subject of the request.
    data:     body of the request. ``repr`` does not show it.
    """

    subject: str
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class ResponseReceived:
    """The answer to a request. ``repr`` shows neither data nor headers: the answer may contain a stored message.

    subject:  subject of the request.
    data:     body of the answer.
    headers:  headers of the answer, with all their values.
    status:   code of an answer without a body, for example 404, or 503 if nothing listens on the subject; otherwise 0.
    seconds:  time since the request.
    """

    subject: str
    data: bytes = field(repr=False)
    headers: Mapping[str, Sequence[str]] = field(repr=False)
    status: int
    seconds: float

    @classmethod
    def of(cls, subject: str, reply: Reply, seconds: float) -> ResponseReceived:
        return cls(subject, reply.data, reply.headers, reply.status, seconds)


@dataclass(frozen=True)
class Trace:
    """Callbacks for each request of a :class:`~jetstream_client.context.JetStream`.

    They are called in the event loop, so they must be quick. An exception in a callback is logged with its traceback
    and does not affect the request. A request that is not answered in time has no ``ResponseReceived``.

    request_sent:       called with each request before it is sent. Default None.
    response_received:  called with each answer. Default None.
    """

    request_sent: Callable[[RequestSent], object] | None = None
    response_received: Callable[[ResponseReceived], object] | None = None

    def tell(self, event: RequestSent | ResponseReceived) -> None:
        callback: Any = self.request_sent if isinstance(event, RequestSent) else self.response_received
        try:
            if callback is not None:
                callback(event)
        except Exception:
            log.exception("a trace callback failed for %r", event)
