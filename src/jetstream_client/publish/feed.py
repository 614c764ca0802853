"""What a bulk publish takes its messages from: the input, checked one by one and made into outgoing messages."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from jetstream_client.errors import DuplicatesPossible, InvalidValue, JetStreamError
from jetstream_client.names import check_subject
from jetstream_client.publish.ids import MessageIds, message_id
from jetstream_client.publish.message import OutgoingMessage, check_headers
from jetstream_client.requirements import of_headers
from jetstream_client.wire.protocol import encode_headers

if TYPE_CHECKING:
    from jetstream_client.publish.fast_window import FastWindow
    from jetstream_client.publish.message import Headers, Publishable
    from jetstream_client.publish.window import PublishWindow

_PAIR = (tuple, list)
_new = tuple.__new__  # past the constructor of a named tuple, which takes as long as three checks
_PASSED_OVER = 4_096  # messages that the stream holds already, at one time


class Feed:
    """The input as outgoing messages, checked one by one. Ends at the first that cannot be sent."""

    def __init__(
        self,
        messages: Iterable[Publishable],
        window: PublishWindow | FastWindow,
        stream: str | None,
        scope: str | None,
        stop: Callable[[], bool],
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``headers`` go with every message that does not have them itself; its id does not know of them."""
        self._messages = enumerate(messages)
        self._position = -1
        self._window = window
        self.stream = stream
        self._expected = {"Nats-Expected-Stream": stream} if stream else {}
        self._added = dict(headers or {})
        plain = self._added | self._expected
        self._plain = encode_headers(plain) if plain else b""
        self._before_id, self._after_id = encode_headers({"Nats-Msg-Id": "…", **plain}).split("…".encode())
        self.ids = MessageIds(scope) if scope is not None else None
        self._stop = stop
        self.stored: Mapping[bytes, int] = {}
        """Ids that need not be sent, and their sequences."""
        self.sends_until = math.inf
        self.unclear: DuplicatesPossible | None = None
        """Why nothing is sent any more after that time."""
        self.max_payload = 1 << 20
        self.server = ""
        """The version of the server that it goes to."""
        self.ended = False

    def next(self, most: int = 256, most_bytes: int = 1 << 20) -> list[OutgoingMessage]:
        """What fits into the window now, at most so much. Each is entered in the window."""
        chunk: list[OutgoingMessage] = []
        size = taken = 0
        now = time.monotonic()
        if self.sends_until < math.inf:
            most = 1  # none waits, until it is too late, for an input that is slow to give the next
        if self._stop() and not self.ended:
            self.ended = True
            position = next(self._messages, (0, None))[0]
            self._window.fail(position, "", JetStreamError("publishing was stopped"))
        if self._window.failed:
            self.ended = True
        # What is stored already is passed over, but never so much at once that the connection would be kept waiting.
        while (
            not self.ended
            and len(chunk) < most
            and taken < _PASSED_OVER
            and size < most_bytes
            and not self._window.full
        ):
            taken += 1
            try:
                entry = next(self._messages, None)
            except InvalidValue as refusal:  # the input is made as it is taken: what cannot be made has a position
                self.ended = True
                self._window.fail(self._position + 1, "", refusal)
                break
            if entry is None:
                self.ended = True
                break
            if self.unclear and time.monotonic() > self.sends_until:
                self.ended = True
                self._window.fail(entry[0], "", self.unclear)
                break
            self._position = entry[0]
            message = self._outgoing(*entry)
            if message is not None:
                size += self._window.add(message, now)
                chunk.append(message)
            elif self._window.failed:
                self.ended = True
        return chunk

    def _outgoing(self, position: int, message: Publishable) -> OutgoingMessage | None:
        subject = ""
        try:
            if not isinstance(message, _PAIR) or len(message) not in (2, 3):
                raise InvalidValue(
                    "messages", type(message).__name__, "give (subject, data) or (subject, data, headers)"
                )
            subject, data = check_subject(message[0]), message[1]
            if not isinstance(data, bytes):
                raise InvalidValue("data", type(data).__name__, "give bytes")
            header = self._header(subject, data, message[2] if len(message) == 3 else {})
            size = len(header) + len(data)
            if size > self.max_payload:
                remedy = f"the server takes at most {self.max_payload} bytes with headers (max_payload)"
                raise InvalidValue("data", f"{size} bytes", remedy)
        except JetStreamError as refusal:
            self._window.fail(position, subject, refusal)
            return None
        if self.stored and (sequence := self.stored.get(message_id(header))):
            self._window.found(position, sequence)
            return None
        return _new(OutgoingMessage, (subject, data, header, position))

    def _header(self, subject: str, data: bytes, given: Headers) -> bytes:
        if not given:  # nearly always, and nothing in it needs a check
            if self.ids is None:
                return self._plain
            return self._before_id + self.ids.next(subject, data).encode() + self._after_id
        headers: dict[str, str | Sequence[str]] = {**check_headers(given)}
        if needed := of_headers(headers):
            needed.check(self.server)
        if self.ids and "Nats-Msg-Id" not in headers:
            headers["Nats-Msg-Id"] = self.ids.next(subject, data, encode_headers(headers))
        return encode_headers(self._added | headers | self._expected)
