# SPDX-License-Identifier: Apache-2.0
"""Pulling from a consumer: counts outstanding messages, reads status lines, and decides when to request more. No I/O.

Sources: ADR-13 (pull requests and status lines), ADR-37 (consuming without end), ADR-42 (priority groups), and
``processNextMsgRequest``, ``nextWaiting`` and ``processWaiting`` in nats-server's ``server/consumer.go``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jetstream_client.consume.priority import Priority
from jetstream_client.errors import (
    BatchCompleted,
    HeartbeatMissed,
    InvalidValue,
    MaxBytesExceeded,
    NoMessages,
    PullError,
)
from jetstream_client.quantities import check_count, check_seconds

LARGEST_REQUEST = 10_000
"""The largest number of messages in one request. Up to one and a half times as many messages are outstanding, in three
requests of at most MAX_BYTES each, as long as no message is larger. The number is limited because the server closes a
connection with 64 MiB of unread data as a slow consumer (its ``max_pending``). Pulls on one connection share this
number, because a hundred waiting sensors may be served at the same moment."""
FEWEST = 50
"""The smallest number of messages in one request, however many pulls share the connection. With a thousand pulls, the
server's limit is still not reached, and a pull with many messages to fetch is not slowed down by pulls that only
wait."""
MAX_BYTES = 8 << 20
BESIDE_PAYLOAD = 8 << 10
"""Bytes of a message in addition to its headers and data: subject and reply subject, each shorter than a line of the
protocol (``max_control_line``, 4 KiB)."""
EXPIRES = 30.0
"""Seconds that a request waits on the server, as in nats.go (DefaultExpires)."""
HEARTBEAT = 5.0
"""Seconds between idle heartbeats of a fetch, as in nats.go. Two missed heartbeats are an error."""
LEAST_SILENCE = 1.0
"""Seconds that a fetch may hear nothing, at least, however soon it expires: a busy process or server may be silent for
half a second."""
LONGEST_HEARTBEAT = 30.0
"""By default, the seconds between idle heartbeats of consuming are half of the expiry, as in nats.go, but at most this
many."""
MAX_MESSAGES = 500
"""Messages that consuming keeps requested or unread, as in nats.go (DefaultMaxMessages)."""
MANY = 1_000_000
"""Messages in a request that is limited by bytes, as in nats.go."""

_COUNT = re.compile("[0-9]{1,18}")
_REMEMBERED = 512
"""Requests whose size is remembered until they end: as many as may wait on the server (``max_waiting``, default 512).
A request that is served completely ends without a status line, so that the oldest ones must be forgotten some time."""


@dataclass(frozen=True, slots=True)
class Pulling:
    """The settings with which consuming pulls messages (ADR-37). The defaults are the same as in nats.go.

    max_messages: the largest number of messages that are requested or wait unread. Default 500. With 1, this client
                  gets one message at a time.
    max_bytes:    limits bytes instead of messages. The server counts subject, reply subject, headers and data. If
                  ``max_messages`` is set too, ``max_bytes`` limits each request.
    expires:      seconds that a request waits on the server before it is renewed. Default 30.
    heartbeat:    seconds between the server's idle heartbeats. Default: half of ``expires``, and at most 30 (5 for an
                  ordered consumer). After two missed heartbeats a pull counts as lost.
    threshold:    more messages are requested when at most this many messages (or bytes, if bytes are limited) are
                  outstanding or unread. Default: half of the maximum.
    stop_after:   number of messages after which consuming ends. No others are requested. Default None: no limit.
    priority:     priority of the pulls, for a consumer with priority groups. Default None.

    Raises:
        InvalidValue: a value is invalid for the server or for this client.
    """

    max_messages: int | None = None
    max_bytes: int | None = None
    expires: float = EXPIRES
    heartbeat: float | None = None
    threshold: int | None = None
    stop_after: int | None = None
    priority: Priority | None = None

    def __post_init__(self) -> None:
        for name in ("max_messages", "max_bytes", "stop_after"):
            if (value := getattr(self, name)) is not None:
                check_count(name, value)
        if self.threshold is not None and check_count("threshold", self.threshold, 0) >= self.limit:
            raise InvalidValue(
                "threshold",
                self.threshold,
                f"must be from 0 to {self.limit - 1}, less than the maximum number of messages or bytes",
            )
        check_request(self.expires, self.heartbeat, self.priority)

    @property
    def by_bytes(self) -> bool:
        return self.max_messages is None and self.max_bytes is not None

    @property
    def limit(self) -> int:
        """The maximum, in messages or (with :attr:`by_bytes`) in bytes."""
        return self.max_messages or self.max_bytes or MAX_MESSAGES


def check_request(expires: float, heartbeat: float | None, priority: Priority | None) -> None:
    """Raises InvalidValue for values that the server would refuse with 400, or that are too long for a timer."""
    check_seconds("expires", expires)
    if heartbeat is not None and check_seconds("heartbeat", heartbeat) > expires / 2:
        raise InvalidValue(
            "heartbeat", heartbeat, f"must be at most {expires / 2:g} seconds, which is half of 'expires' or max_wait"
        )
    if priority is not None and not isinstance(priority, Priority):
        raise InvalidValue("priority", priority, "must be a Priority")


class PullWindow:
    """Counts the messages of one fetch of at most ``wanted`` messages.

    The driver sends the requests of :meth:`next_request` with the reply subject ``<inbox>.<number>``, and reports every
    message and every status line. The server serves open requests in turns, and a message does not name its request, so
    the outstanding messages of all requests are counted together. When a request ends early, its status line states how
    many messages it did not deliver.

    expires, heartbeat: seconds, for every request.
    largest_request: the largest number of messages in one request.
    max_bytes: bytes of one request. If the caller sets it, the fetch ends at this limit; None uses a default limit.
    no_wait:   request only messages that can be delivered at once.
    largest_message: bytes of the largest possible message. The limit of a request is not smaller, however many pulls
               share the connection, except that it exceeds MAX_BYTES only after a message did not fit.
    """

    def __init__(
        self,
        wanted: int,
        *,
        now: float,
        expires: float = EXPIRES,
        heartbeat: float | None = None,
        largest_request: int = LARGEST_REQUEST,
        max_bytes: int | None = None,
        no_wait: bool = False,
        priority: Priority | None = None,
        largest_message: int = MAX_BYTES,
    ) -> None:
        self._wanted = wanted
        self.expires = expires
        self._heartbeat = min(HEARTBEAT, expires / 2.5) if heartbeat is None else heartbeat
        self.silence_allowed = max(2 * self._heartbeat, LEAST_SILENCE if heartbeat is None else 0)
        """Seconds without a message or heartbeat after which a pull counts as lost."""
        self._largest = largest_request
        self._once = max_bytes is not None
        self._max_bytes = max_bytes or MAX_BYTES
        self._largest_message = largest_message
        self._enlarged = False  # whether a message did not fit: from then on, the limit of bytes is as large as needed
        self._bytes = 0  # bytes that a fetch with a limit of bytes has received
        self._no_wait = no_wait
        self.priority = priority
        self._outstanding = 0
        self._requested: dict[int, int] = {}  # request number → requested messages
        self._number = 0
        self._heard = now
        self.longest_silence = 0.0
        """Longest time in seconds between two messages or heartbeats, or between a request and its first message or
        heartbeat. It can exceed :attr:`silence_allowed` if the process was stopped or the event loop was busy."""
        self._ended = False
        self.pin = ""
        """The last ``Nats-Pin-Id`` that this client got (ADR-42). It is sent with every request."""

    @property
    def missing(self) -> int:
        """Number of wanted messages that have neither arrived nor been requested."""
        return self._wanted - self._outstanding

    @property
    def idle(self) -> bool:
        """Whether nothing is outstanding, because everything has arrived or every request has ended."""
        return self._outstanding <= 0

    def next_request(self, now: float, among: int = 1) -> tuple[int, dict[str, Any]] | None:
        """Number and body of a request to send now, or None. ``among`` is the number of pulls on the connection."""
        if self._ended or self.missing <= 0 or (self._number and self._once):
            return None
        divided = self._largest if among == 1 else max(FEWEST, self._largest // among)
        largest = MANY if self._once else divided
        if not self.idle and (self._no_wait or self._outstanding > largest // 2):
            return None
        return self._request(min(self.missing, largest), self._bytes_of_request(among), now)

    def _bytes_of_request(self, among: int) -> int:
        if self._once:
            return self._max_bytes
        if self._enlarged:
            return max(self._max_bytes, self._largest_message)
        return min(self._max_bytes, max(self._max_bytes // among, self._largest_message))

    def _request(self, batch: int, max_bytes: int, now: float) -> tuple[int, dict[str, Any]]:
        if self.idle:
            self._heard = now
        self._number += 1
        self._outstanding += batch
        self._requested[self._number] = batch
        self._requested.pop(self._number - _REMEMBERED, None)
        body: dict[str, Any] = {"batch": batch, "max_bytes": max_bytes}
        if self._no_wait:
            body["no_wait"] = True
        else:
            body |= {"expires": round(self.expires * 1e9), "idle_heartbeat": round(self._heartbeat * 1e9)}
        if self.priority:
            body |= self.priority.request(self.pin)
        return self._number, body

    def on_messages(self, count: int, now: float, size: int = 0) -> None:
        """Record arrived messages. ``size``: bytes of these messages as the server counts them, needed if the pull is
        limited by bytes."""
        self.on_heartbeat(now)
        self._wanted -= count
        self._outstanding = max(0, self._outstanding - count)
        self._bytes += size
        if self._once and self._bytes >= self._max_bytes:
            self._outstanding = 0  # a request that is filled to the last byte ends without a status line

    def on_status(
        self, number: int, status: int, description: str, headers: Mapping[str, Sequence[str]], now: float
    ) -> None:
        """Record a status line for request ``number``. Returns normally if the line only means "no more messages now".

        Raises:
            PullError: the line means anything else (usually a subclass).
        """
        self.on_heartbeat(now)
        if status == 100:
            return
        requested = self._requested.pop(number, None)
        error = PullError.from_status(status, description)
        if isinstance(error, NoMessages):
            self._on_empty()
        elif requested is not None and self._learn(description):
            self._outstanding = max(0, self._outstanding - requested)
            return
        elif not isinstance(error, BatchCompleted | MaxBytesExceeded):
            raise error
        if requested is None:
            return  # the request was sent before an interruption
        left = _count(headers, "Nats-Pending-Messages", requested)
        self._closed(left, _count(headers, "Nats-Pending-Bytes", 0))
        if isinstance(error, MaxBytesExceeded) and left >= requested:
            self._on_too_large(number, MaxBytesExceeded(status, f"{description} of {self._max_bytes}"))

    def on_heartbeat(self, now: float) -> None:
        """Record that something arrived from the server."""
        self.longest_silence = max(self.longest_silence, now - self._heard)
        self._heard = now

    def _on_empty(self) -> None:
        self._ended = True

    def _closed(self, messages: int, size: int) -> None:  # noqa: ARG002
        self._outstanding = max(0, self._outstanding - messages)

    def _on_too_large(self, number: int, error: MaxBytesExceeded) -> None:  # noqa: ARG002
        if self._once or self._enlarged or self._max_bytes == self._largest_message:
            raise error
        self._enlarged = True

    def _learn(self, description: str) -> bool:
        """Use the consumer's limit of bytes if the status line states one below the window's own. Returns whether the
        window has a new limit."""
        limit, _, stated = description.lower().rpartition(" of ")
        if (
            self._once
            or limit != "exceeded maxrequestmaxbytes"
            or not _COUNT.fullmatch(stated)
            or not 0 < int(stated) < self._max_bytes
        ):
            return False
        self._max_bytes = int(stated)
        self._largest_message = min(self._largest_message, self._max_bytes)
        return True

    def check_heartbeat(self, now: float) -> None:
        """Raises HeartbeatMissed if requests are outstanding and the silence was longer than allowed."""
        silence = now - self._heard
        if not self.idle and silence > self.silence_allowed:
            raise HeartbeatMissed(silence)

    def remaining(self, now: float) -> float:
        """Seconds until :meth:`check_heartbeat` would raise."""
        return self.silence_allowed - (now - self._heard)


class ConsumeWindow(PullWindow):
    """Counts the messages of consuming without end (ADR-37). When the number of outstanding and unread messages falls
    to the threshold of :class:`Pulling`, this window requests as many as are missing from the maximum.

    The driver also reports every message that is read (:meth:`on_read`), so that a slow reader does not get more than
    the maximum.
    """

    def __init__(self, pulling: Pulling, *, now: float, smallest_bound: int = 0) -> None:
        """``smallest_bound``: bytes of the largest possible message. The default limit of a request is not smaller."""
        heartbeat = pulling.heartbeat or min(LONGEST_HEARTBEAT, pulling.expires / 2)
        self._left = pulling.stop_after or 2**62  # messages that are still to be read
        super().__init__(self._left, now=now, expires=pulling.expires, heartbeat=heartbeat, priority=pulling.priority)
        self._by_bytes = pulling.by_bytes
        self._limit = pulling.limit
        self._threshold = pulling.limit // 2 if pulling.threshold is None else pulling.threshold
        self._max_bytes = pulling.max_bytes or max(MAX_BYTES, smallest_bound)
        self._unread = 0
        self._full = 0  # number of the last request for all of max_bytes
        self._blocked = False

    @property
    def _kept(self) -> int:
        return self._outstanding + self._unread

    @property
    def wants(self) -> bool:
        """Whether to request more now."""
        kept = self._kept
        return kept <= (0 if self._blocked else self._threshold) and (self._by_bytes or kept < self._left)

    @property
    def complete(self) -> bool:
        """Whether ``stop_after`` messages were read."""
        return self._left <= 0

    def next_request(self, now: float, among: int = 1) -> tuple[int, dict[str, Any]] | None:  # noqa: ARG002
        if not self.wants:
            return None
        self._blocked = False
        room = self._limit - self._kept
        if not self._by_bytes:
            return self._request(min(room, self._left - self._kept), self._max_bytes, now)
        batch = min(MANY, self._left)
        number, body = self._request(batch, room, now)
        self._outstanding += room - batch  # in bytes, unlike in PullWindow
        if room == self._limit:
            self._full = number
        return number, body

    def on_messages(self, count: int, now: float, size: int = 0) -> None:
        counted = size if self._by_bytes else count
        self._heard = now
        self._outstanding = max(0, self._outstanding - counted)
        self._unread += counted

    def on_read(self, size: int) -> None:
        """Record that one message was read."""
        self._unread -= size if self._by_bytes else 1
        self._left -= 1

    def on_unsent(self) -> None:
        """Record that the request could not be sent."""
        self._outstanding = 0

    def on_interruption(self, now: float) -> None:
        """Record that all requests are lost, with the connection, the leader or the server."""
        self._outstanding = 0
        self._requested.clear()
        self._heard = now

    def _on_empty(self) -> None:
        pass

    def _closed(self, messages: int, size: int) -> None:
        self._outstanding = max(0, self._outstanding - (size if self._by_bytes else messages))

    def _on_too_large(self, number: int, error: MaxBytesExceeded) -> None:
        if not self._by_bytes or number == self._full:
            raise error
        self._blocked = True  # the message will fit when all other messages have been read

    def _learn(self, description: str) -> bool:
        return not self._by_bytes and super()._learn(description)


def _count(headers: Mapping[str, Sequence[str]], name: str, otherwise: int) -> int:
    stated = headers.get(name, [""])[0]
    return int(stated) if _COUNT.fullmatch(stated) else otherwise
