"""Pulling from a consumer: what is outstanding, what a status line means, when to ask again. No I/O.

Pull requests and their status lines: ADR-13, and ``processNextMsgRequest`` in nats-server's ``server/consumer.go``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_nats_jetstream.client.errors import (
    ConsumerDeleted,
    ConsumerIsPushBased,
    HeartbeatMissed,
    LeadershipChanged,
    PullError,
    PullLimitExceeded,
)

LARGEST_REQUEST = 10_000
"""Messages in one request. Two requests are outstanding at most, so the server never has more than twice this and
twice MAX_BYTES on its way: past 64 MiB of unread data it would cut the connection as a slow consumer."""
MAX_BYTES = 8 << 20
EXPIRES = 30.0
"""Seconds that a request waits on the server. nats.go: DefaultExpires."""
HEARTBEAT = 5.0
"""Seconds between idle heartbeats; two missed are an error. nats.go: DefaultHeartbeat."""


_COUNT = re.compile("[0-9]{1,10}")


class PullWindow:
    """The accounting of one fetch of at most ``wanted`` messages.

    The driver sends what :meth:`next_request` returns with the reply ``<inbox>.<number>``, and reports every message
    and every status line. Requests are served in the order in which they were sent.
    """

    def __init__(
        self,
        wanted: int,
        *,
        now: float,
        expires: float = EXPIRES,
        heartbeat: float | None = None,
        largest_request: int = LARGEST_REQUEST,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._wanted = wanted
        self._expires = expires
        self._heartbeat = min(HEARTBEAT, expires / 2.5) if heartbeat is None else heartbeat
        self._largest = largest_request
        self._max_bytes = max_bytes
        self._outstanding: dict[int, int] = {}  # request number → messages that it may still bring
        self._received: dict[int, int] = {}
        self._number = 0
        self._heard = now
        self._ended = False

    @property
    def missing(self) -> int:
        """How many messages are neither here nor asked for."""
        return self._wanted - sum(self._outstanding.values())

    @property
    def idle(self) -> bool:
        """Nothing is outstanding: everything came, or every request has ended."""
        return not self._outstanding

    def next_request(self, now: float) -> tuple[int, dict[str, Any]] | None:
        """The number and body of a request that should be sent now, if any."""
        if self._ended or len(self._outstanding) >= 2 or self.missing <= 0:
            return None
        if self._outstanding and next(iter(self._outstanding.values())) > self._largest // 2:
            return None
        if self.idle:
            self._heard = now
        batch = min(self.missing, self._largest)
        self._number += 1
        self._outstanding[self._number] = batch
        self._received[self._number] = 0
        body = {
            "batch": batch,
            "max_bytes": self._max_bytes,
            "expires": round(self._expires * 1e9),
            "idle_heartbeat": round(self._heartbeat * 1e9),
        }
        return self._number, body

    def on_message(self, now: float) -> None:
        self.on_messages(1, now)

    def on_messages(self, count: int, now: float) -> None:
        """So many have arrived, for the oldest requests."""
        self._heard = now
        self._wanted -= count
        for number in list(self._outstanding):
            part = min(count, self._outstanding[number])
            self._received[number] += part
            self._outstanding[number] -= part
            count -= part
            if not self._outstanding[number]:
                del self._outstanding[number]
            if not count:
                return

    def on_status(
        self, number: int, status: int, description: str, headers: Mapping[str, Sequence[str]], now: float
    ) -> None:
        """A status line for request ``number``. Returns when it is harmless.

        Raises:
            PullError: or a subclass, for every line that does not mean "no more now".
        """
        self._heard = now
        if status == 100:
            return
        stated = headers.get("Nats-Pending-Messages", ["0"])[0]
        left = int(stated) if _COUNT.fullmatch(stated) else 0
        expected = self._outstanding.pop(number, 0)
        received = self._received.pop(number, 0)
        words = description.lower()
        if status == 404 or (status == 408 and "bad" not in words):
            self._ended = True
            return
        if status == 409:
            if words == "batch completed":
                return
            if "exceeds maxbytes" in words:
                if received or left < expected:
                    return
                raise PullLimitExceeded(status, f"{description}: one message is larger than {self._max_bytes} bytes")
            raise _CONFLICTS.get(words.split(" of ")[0], _conflict(words))(status, description)
        raise PullError(status, description or "no responders")

    def check_heartbeat(self, now: float) -> None:
        """Raises HeartbeatMissed when requests are outstanding and nothing was heard for two heartbeats."""
        silence = now - self._heard
        if self._outstanding and silence > 2 * self._heartbeat:
            raise HeartbeatMissed(silence)


_CONFLICTS: dict[str, type[PullError]] = {
    "consumer deleted": ConsumerDeleted,
    "consumer is push based": ConsumerIsPushBased,
    "leadership change": LeadershipChanged,
    "server shutdown": LeadershipChanged,
}


def _conflict(words: str) -> type[PullError]:
    return PullLimitExceeded if words.startswith("exceeded max") else PullError
