# SPDX-License-Identifier: Apache-2.0
"""The input of a bulk publish. Each message is checked and encoded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue, JetStreamError
from jetstream_client.names import check_subject
from jetstream_client.publish.message import OutgoingMessage, check_headers, headers_of_all, not_a_message
from jetstream_client.requirements import of_headers
from jetstream_client.wire.protocol import encode_headers, too_large

if TYPE_CHECKING:
    from jetstream_client.publish.fast_window import FastWindow
    from jetstream_client.publish.ids import MessageIds
    from jetstream_client.publish.message import Headers, Publishable
    from jetstream_client.publish.position import Recovery
    from jetstream_client.publish.window import PublishWindow
    from jetstream_client.wire.blocking import Wire

STOPPED = "publishing was stopped by its caller"

_PAIR = (tuple, list)
_new = tuple.__new__  # skips the named tuple's constructor, which takes as long as three checks
_MOST, _MOST_BYTES = 256, 1 << 20  # the largest number and total size of messages in one chunk
_PASSED_OVER = 4_096  # messages that are skipped for one chunk, at most, because the stream holds them already


class Feed:
    """The input as outgoing messages. It ends at the first message that cannot be sent."""

    def __init__(
        self,
        messages: Iterable[Publishable],
        window: PublishWindow | FastWindow,
        *,
        stream: str | None = None,
        ids: MessageIds | None = None,
        headers: Headers | None = None,
        recovery: Recovery | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        """``headers`` are added to every message that does not have them, and do not change its id."""
        self._messages = enumerate(messages)
        self._position = -1
        self._window = window
        self.stream = stream
        self._expected = {"Nats-Expected-Stream": stream} if stream else {}
        self._added = headers_of_all(headers or {})
        plain = self._added | self._expected
        self._plain = encode_headers(plain) if plain else b""
        self._before_id, _, self._after_id = encode_headers({"Nats-Msg-Id": "…", **plain}).partition("…".encode())
        self._ids = ids
        self._recovery = recovery
        self._stop = stop
        self.ended = False

    def next(self, wire: Wire) -> list[OutgoingMessage]:
        """The next messages that fit into the window and may be sent to this server. They are added to the window."""
        chunk: list[OutgoingMessage] = []
        size = taken = 0
        now = time.monotonic()
        largest, recovery = wire.max_payload, self._recovery
        # With a deadline, messages are sent one by one, so that none waits for a slow input until it is too late.
        most = 1 if recovery and recovery.sends_until < math.inf else _MOST
        if self._stop and self._stop() and not self.ended:
            self.ended = True
            self._window.fail(self._position + 1, "", JetStreamError(STOPPED))
        if self._window.failed:
            self.ended = True
        # Stored messages are skipped, but not so many at a time that the connection would have to wait.
        while (
            not self.ended
            and len(chunk) < most
            and taken < _PASSED_OVER
            and size < _MOST_BYTES
            and not self._window.full
        ):
            taken += 1
            try:
                entry = next(self._messages, None)
                if recovery and entry is not None:
                    recovery.check_time()
            except JetStreamError as refusal:
                # The input may be a generator that raises, for example ConnectionLost of another connection. It is
                # recorded as a failed message: after another attempt, the generator would look like an ended input.
                self.ended = True
                self._window.fail(self._position + 1, "", refusal)
                break
            if entry is None:
                self.ended = True
                break
            self._position = entry[0]
            message = self._outgoing(*entry, wire, largest)
            if message is not None:
                size += self._window.add(message, now)
                chunk.append(message)
            elif self._window.failed:
                self.ended = True
        return chunk

    def _outgoing(self, position: int, message: Publishable, wire: Wire, largest: int) -> OutgoingMessage | None:
        subject = ""
        try:
            if not isinstance(message, _PAIR) or len(message) not in (2, 3):
                raise not_a_message(message)
            subject, data = check_subject(message[0]), message[1]
            if not isinstance(data, bytes):
                raise InvalidValue("data", "…", f"must be bytes, not {type(data).__name__}")
            if len(message) == 3 and message[2]:
                header = self._header(subject, data, message[2], wire)
            elif self._ids is None:  # nearly all messages come without headers, and added headers need no check
                header = self._plain
            else:
                header = self._before_id + self._ids.next(subject, data).encode() + self._after_id
            size = len(header) + len(data)
            if size > largest:
                raise too_large(size, largest)
        except JetStreamError as refusal:
            self._window.fail(position, subject, refusal)
            return None
        if self._recovery and self._recovery.holds(position, header):
            return None
        return _new(OutgoingMessage, (subject, data, header, position))

    def _header(self, subject: str, data: bytes, given: Headers, wire: Wire) -> bytes:
        headers: dict[str, str | Sequence[str]] = {**check_headers(given)}
        if needed := of_headers(headers):
            needed.check(wire.version)
        if self._ids and "Nats-Msg-Id" not in headers:
            headers["Nats-Msg-Id"] = self._ids.next(subject, data, encode_headers(headers))
        return encode_headers(self._added | headers | self._expected)
