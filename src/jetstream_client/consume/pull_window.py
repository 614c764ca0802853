"""Pulling from a consumer: what is outstanding, what a status line means, when to ask again. No I/O.

Pull requests and their status lines: ADR-13, consuming without end: ADR-37, priority groups: ADR-42, and
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
"""Messages in one request. At most one and a half times this is outstanding, in three requests of MAX_BYTES or less:
past 64 MiB of unread data the server would cut the connection as a slow consumer (its ``max_pending``). Pulls that
share a connection share this, too: a hundred waiting sensors may be served in the same moment."""
FEWEST = 50
"""Messages in one request, however many pulls share the connection: a thousand of them still fit, and one of them that
has a lot to fetch is not slowed down by those that only wait."""
MAX_BYTES = 8 << 20
BESIDE_PAYLOAD = 8 << 10
"""Bytes of a message beside its headers and data: subject and reply subject, each shorter than a line of the protocol
(``max_control_line``, 4 KiB)."""
EXPIRES = 30.0
"""Seconds that a request waits on the server. nats.go: DefaultExpires."""
HEARTBEAT = 5.0
"""Seconds between idle heartbeats of a fetch; two missed are an error. nats.go: the same."""
LONGEST_HEARTBEAT = 30.0
"""Seconds, of consuming. nats.go: half of the expiry, and at most this."""
MAX_MESSAGES = 500
"""Messages that consuming keeps asked for or unread. nats.go: DefaultMaxMessages."""
MANY = 1_000_000
"""Messages in a request that bytes bound. nats.go's number."""

_COUNT = re.compile("[0-9]{1,18}")
_REMEMBERED = 16  # requests whose size is known when they end


@dataclass(frozen=True, slots=True)
class Pulling:
    """How consuming pulls (ADR-37); the defaults are nats.go's.

    max_messages: messages that are asked for or wait unread, 500. 1 is a work queue: one message at a time.
    max_bytes:    bytes instead of messages, as the server counts them: subject, reply subject, headers and data.
                  Beside ``max_messages``: what one request may bring.
    expires:      seconds that a request waits on the server, 30; it is renewed without end.
    heartbeat:    seconds between the server's idle heartbeats; half of ``expires``, and at most 30 (5 for an ordered
                  consumer). After two missed ones a pull counts as lost.
    threshold:    messages (or bytes, where those count) from which down more is asked for; half of the maximum.
    stop_after:   messages after which the consuming ends, and more than which are not asked for; None: without end.
    priority:     for a consumer with priority groups.

    Raises:
        InvalidValue: a value that the server or this window cannot work with.
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
            raise InvalidValue("threshold", self.threshold, f"give 0 to {self.limit - 1}: below the maximum")
        check_request(self.expires, self.heartbeat, self.priority)

    @property
    def by_bytes(self) -> bool:
        return self.max_messages is None and self.max_bytes is not None

    @property
    def limit(self) -> int:
        """Messages, or :attr:`by_bytes`."""
        return self.max_messages or self.max_bytes or MAX_MESSAGES


def check_request(expires: float, heartbeat: float | None, priority: Priority | None) -> None:
    """Raises InvalidValue for what the server would answer with 400, or a timer could not wait for."""
    check_seconds("expires", expires)
    if heartbeat is not None and check_seconds("heartbeat", heartbeat) > expires / 2:
        raise InvalidValue("heartbeat", heartbeat, f"give seconds above 0 and at most {expires / 2:g}, half of expires")
    if priority is not None and not isinstance(priority, Priority):
        raise InvalidValue("priority", priority, "give a Priority")


class PullWindow:
    """The accounting of one fetch of at most ``wanted`` messages.

    The driver sends what :meth:`next_request` returns with the reply ``<inbox>.<number>``, and reports every message
    and every status line. The server serves its open requests in turns and a message does not say which one brought
    it, so what is outstanding is one sum; a request that ends early says how many it did not bring.

    expires, heartbeat: seconds, of every request. largest_request: messages.
    max_bytes: of one request; a bound of ours (None), or the caller's, which ends the fetch.
    no_wait:   ask for what is there.
    largest_message: bytes of one message that fits the bound of a request, however many share the connection.
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
        self._largest = largest_request
        self._once = max_bytes is not None
        self._max_bytes = max_bytes or MAX_BYTES
        self._largest_message = largest_message
        self._undivided = self._once  # the bound of bytes is not shared
        self._bytes = 0  # that a fetch of bytes has brought
        self._no_wait = no_wait
        self.priority = priority
        self._outstanding = 0
        self._requested: dict[int, int] = {}  # request number → messages asked for
        self._number = 0
        self._heard = now
        self.longest_silence = 0.0
        """Seconds between two messages or heartbeats, or a request and the first of them. It can be longer than
        :attr:`silence_allowed`: of a process that was stopped, or an event loop that was busy."""
        self._ended = False
        self.pin = ""
        """The ``Nats-Pin-Id`` that this client was last given (ADR-42); goes with every request."""

    @property
    def missing(self) -> int:
        """How many messages are neither here nor asked for."""
        return self._wanted - self._outstanding

    @property
    def idle(self) -> bool:
        """Nothing is outstanding: everything came, or every request has ended."""
        return self._outstanding <= 0

    @property
    def silence_allowed(self) -> float:
        """Seconds without a message or heartbeat after which a pull counts as lost."""
        return 2 * self._heartbeat

    def next_request(self, now: float, among: int = 1) -> tuple[int, dict[str, Any]] | None:
        """The number and body of a request that should be sent now, if any. ``among`` pulls share the connection."""
        if self._ended or self.missing <= 0 or (self._number and self._once):
            return None
        largest = MANY if self._once else max(FEWEST, self._largest // among)
        if not self.idle and (self._no_wait or self._outstanding > largest // 2):
            return None
        divided = self._max_bytes if self._undivided else max(self._max_bytes // among, self._largest_message)
        return self._request(min(self.missing, largest), min(divided, self._max_bytes), now)

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
        """So many have arrived. ``size``: their bytes as the server counts them, needed where bytes bound the pull."""
        self.on_heartbeat(now)
        self._wanted -= count
        self._outstanding = max(0, self._outstanding - count)
        self._bytes += size
        if self._once and self._bytes >= self._max_bytes:
            self._outstanding = 0  # a request that is filled to the byte ends without a word

    def on_status(
        self, number: int, status: int, description: str, headers: Mapping[str, Sequence[str]], now: float
    ) -> None:
        """A status line for request ``number``. Returns when it is harmless.

        Raises:
            PullError: its class for this line, for every line that does not mean "no more now".
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
            return  # of a request from before an interruption
        left = _count(headers, "Nats-Pending-Messages", requested)
        self._closed(left, _count(headers, "Nats-Pending-Bytes", 0))
        if isinstance(error, MaxBytesExceeded) and left >= requested:
            self._on_too_large(number, MaxBytesExceeded(status, f"{description} of {self._max_bytes}"))

    def on_heartbeat(self, now: float) -> None:
        """The server is there."""
        self.longest_silence = max(self.longest_silence, now - self._heard)
        self._heard = now

    def _on_empty(self) -> None:
        self._ended = True

    def _closed(self, messages: int, size: int) -> None:  # noqa: ARG002
        self._outstanding = max(0, self._outstanding - messages)

    def _on_too_large(self, number: int, error: MaxBytesExceeded) -> None:  # noqa: ARG002
        if self._undivided or self._max_bytes <= self._largest_message:
            raise error
        self._undivided = True  # larger than the server takes today

    def _learn(self, description: str) -> bool:
        """The consumer's own limit takes the place of ours."""
        limit, _, stated = description.lower().rpartition(" of ")
        if (
            self._once
            or limit != "exceeded maxrequestmaxbytes"
            or not _COUNT.fullmatch(stated)
            or not 0 < int(stated) < self._max_bytes
        ):
            return False
        self._max_bytes = int(stated)
        return True

    def check_heartbeat(self, now: float) -> None:
        """Raises HeartbeatMissed when requests are outstanding and nothing was heard for two heartbeats."""
        silence = now - self._heard
        if not self.idle and silence > self.silence_allowed:
            raise HeartbeatMissed(silence)

    def remaining(self, now: float) -> float:
        """Seconds until :meth:`check_heartbeat` would raise."""
        return self.silence_allowed - (now - self._heard)


class ConsumeWindow(PullWindow):
    """The accounting of consuming without end (ADR-37): what is outstanding or waits unread is filled up to the
    maximum of :class:`Pulling` whenever it has fallen to the threshold.

    The driver also reports what it hands out (:meth:`on_read`), so a slow reader is not sent more than the maximum.
    """

    def __init__(self, pulling: Pulling, *, now: float, smallest_bound: int = 0) -> None:
        """``smallest_bound``: bytes of the largest message that can come; our bound of a request is not below it."""
        heartbeat = pulling.heartbeat or min(LONGEST_HEARTBEAT, pulling.expires / 2)
        self._left = pulling.stop_after or 2**62  # to hand out
        super().__init__(self._left, now=now, expires=pulling.expires, heartbeat=heartbeat, priority=pulling.priority)
        self._by_bytes = pulling.by_bytes
        self._limit = pulling.limit
        self._threshold = pulling.limit // 2 if pulling.threshold is None else pulling.threshold
        self._max_bytes = pulling.max_bytes or max(MAX_BYTES, smallest_bound)
        self._unread = 0
        self._full = 0  # the last request that asked for all of max_bytes
        self._blocked = False

    @property
    def _kept(self) -> int:
        return self._outstanding + self._unread

    @property
    def wants(self) -> bool:
        """There is something to ask for."""
        kept = self._kept
        return kept <= (0 if self._blocked else self._threshold) and (self._by_bytes or kept < self._left)

    @property
    def complete(self) -> bool:
        """All that was wanted was handed out."""
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
        self._outstanding += room - batch  # in bytes here
        if room == self._limit:
            self._full = number
        return number, body

    def on_messages(self, count: int, now: float, size: int = 0) -> None:
        counted = size if self._by_bytes else count
        self._heard = now
        self._outstanding = max(0, self._outstanding - counted)
        self._unread += counted

    def on_read(self, size: int) -> None:
        """One message was handed out."""
        self._unread -= size if self._by_bytes else 1
        self._left -= 1

    def on_unsent(self) -> None:
        """The request could not be sent."""
        self._outstanding = 0

    def on_interruption(self, now: float) -> None:
        """The requests are lost, with the connection, the leader or the server: ask again."""
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
        self._blocked = True  # it fits when everything else is read

    def _learn(self, description: str) -> bool:
        return not self._by_bytes and super()._learn(description)


def _count(headers: Mapping[str, Sequence[str]], name: str, otherwise: int) -> int:
    stated = headers.get(name, [""])[0]
    return int(stated) if _COUNT.fullmatch(stated) else otherwise
