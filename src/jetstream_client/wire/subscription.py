# SPDX-License-Identifier: Apache-2.0
"""Subscriptions of the control connection, and passing what arrives to them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_client.errors import LONGEST_TEXT
from jetstream_client.wire.protocol import DELIVERY, Reply, decode_headers, decode_status
from jetstream_client.wire.run import Columns, Frame, Run

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

Deliver = Callable[[Reply], None]
"""Called with each message."""
Accept = Callable[[Columns], bool]
"""A function that is offered messages that arrived together, and returns whether it has taken them. Messages that it
has not taken are delivered one by one."""


@dataclass(frozen=True)
class Subscription:
    """What is called with the messages on a subject. In a ``queue`` group, each message goes to one member.

    most:  the server ends the subscription after so many messages on a link; 0: never.
    """

    subject: str
    deliver: Deliver
    accept: Accept | None = None
    queue: str = ""
    most: int = 0

    def command(self, sid: int) -> bytes:
        """SUB. The server sends its messages with the number ``sid``."""
        end = f"UNSUB {sid} {self.most}\r\n" if self.most else ""
        return f"SUB {self.subject} {self.queue} {sid}\r\n{end}".encode()


def distribute(run: Run, subscriptions: Mapping[int, Subscription]) -> None:
    """Pass messages to their subscriptions: as columns to those that accept these, and otherwise one by one. Messages
    without a subscription are dropped, because they arrived after its end. Raises ProtocolError."""
    columns = run.columns()
    if columns is None:
        _one_by_one(run.frames(), subscriptions)
        return
    for alike in columns.by_sid():
        subscription = subscriptions.get(alike.sids[0])
        if subscription and not (subscription.accept and _accepted(subscription.accept, alike)):
            _one_by_one(alike.frames(), subscriptions)


def _one_by_one(frames: list[Frame], subscriptions: Mapping[int, Subscription]) -> None:
    for frame in frames:
        if subscription := subscriptions.get(frame.sid):
            _deliver(subscription.deliver, frame)


def _accepted(accept: Accept, columns: Columns) -> bool:
    try:
        return accept(columns)
    except Exception:
        log.exception("NATS connection: handling %d messages together failed", len(columns.data))
        return False


def _deliver(deliver: Deliver, frame: Frame) -> None:
    subject, _, reply, header, data = frame
    size = len(subject) + len(reply) + len(header) + len(data)
    says = header and not data and not reply.startswith(DELIVERY)
    status, description = decode_status(header) if says else (0, "")
    # Any client can publish on a subject that is not UTF-8. The server keeps it, and replaces the invalid bytes in its
    # JSON only.
    texts = subject.decode("utf-8", "replace"), reply.decode("utf-8", "replace")
    fields = (*texts, status, description, decode_headers(header), data, size)
    try:
        deliver(tuple.__new__(Reply, fields))  # calling the constructor would double the time
    except Exception:
        log.exception("NATS connection: handling a delivery on %r failed", fields[0][:LONGEST_TEXT])
