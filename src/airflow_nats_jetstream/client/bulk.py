"""Publishing many messages over the bulk connection, accounted for by the window of ``publish``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from airflow_nats_jetstream.client.errors import (
    ConnectionDenied,
    ConnectionFailed,
    InvalidValue,
    JetStreamError,
    PermissionDenied,
    RequestTimeout,
)
from airflow_nats_jetstream.client.names import check_subject
from airflow_nats_jetstream.client.protocol import SUBSCRIBE, decode_status, encode_headers, encode_publish
from airflow_nats_jetstream.client.publish import MessageIds, Outgoing, Published, PublishWindow
from airflow_nats_jetstream.client.settings import ConnectionSettings
from airflow_nats_jetstream.client.wire import Wire

log = logging.getLogger(__name__)

ANSWERED_WITHIN = 10.0
"""Seconds without any answer after which the connection is taken for dead."""
RESUMED_WITHIN = 60.0
"""Seconds without progress after which a bulk publish gives up."""

_PAUSE = 0.01  # seconds that a stream gets which had no room
_BUSY = "the stream had no room for a minute (too many requests): publish less at once, or raise max_buffered_msgs"

Publishable = tuple[str, bytes] | tuple[str, bytes, Mapping[str, str | Sequence[str]]]
"""Subject and data, or subject, data and headers."""


def publish_all(
    settings: ConnectionSettings,
    messages: Iterable[Publishable],
    *,
    stream: str | None = None,
    scope: str | None = None,
    progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Published:
    """Publish everything, each message answered by the stream. Blocking.

    stream:   the stream that must store them; a message on another stream's subject is refused.
    scope:    with it each message without a ``Nats-Msg-Id`` gets one from scope, content and occurrence. The same call
              with the same scope stores nothing twice within the stream's duplicate window.
    progress: called now and then with the number of messages that the stream holds.
    stop:     asked now and then; True ends the publish as failed.

    A lost connection is opened again and what was unanswered is sent again, for up to 60 s without progress.

    Raises:
        PublishFailed: the first message that was not stored, why, and how many were.
        ConnectionFailed: no connection at the start.
        PermissionDenied: no answers can be listened for, see ``inbox_prefix`` of the settings.
    """
    window = PublishWindow(stream)
    feed = _Feed(messages, window, stream, scope, stop or (lambda: False))
    report = progress or (lambda _: None)
    _drive_wire(settings, window, feed, report)
    return window.result()


class _Feed:
    """The input as outgoing messages, checked one by one. Ends at the first that cannot be sent."""

    def __init__(
        self,
        messages: Iterable[Publishable],
        window: PublishWindow,
        stream: str | None,
        scope: str | None,
        stop: Callable[[], bool],
    ) -> None:
        self._messages = enumerate(messages)
        self._window = window
        self._expected = {"Nats-Expected-Stream": stream} if stream else {}
        self._ids = MessageIds(scope) if scope is not None else None
        self._stop = stop
        self.max_payload = 1 << 20
        self.ended = False

    def next(self, most: int = 256, most_bytes: int = 1 << 20) -> list[Outgoing]:
        """What fits into the window now, at most so much. Each is entered in the window."""
        chunk: list[Outgoing] = []
        size = 0
        if self._stop() and not self.ended:
            self.ended = True
            position = next(self._messages, (0, None))[0]
            self._window.fail(position, "", JetStreamError("publishing was stopped"))
        while not self.ended and len(chunk) < most and size < most_bytes and not self._window.full:
            if self._window.failed:
                self.ended = True
                break
            entry = next(self._messages, None)
            if entry is None:
                self.ended = True
                break
            message = self._outgoing(*entry)
            if message is not None:
                self._window.add(message)
                chunk.append(message)
                size += message.size
        return chunk

    def _outgoing(self, position: int, message: Publishable) -> Outgoing | None:
        subject = ""
        try:
            if not isinstance(message, tuple | list) or len(message) not in (2, 3):
                raise InvalidValue(
                    "messages", type(message).__name__, "give (subject, data) or (subject, data, headers)"
                )
            subject, data = check_subject(message[0]), message[1]
            if not isinstance(data, bytes):
                raise InvalidValue("data", type(data).__name__, "give bytes")
            headers = dict(message[2]) if len(message) == 3 else {}
            if self._ids and "Nats-Msg-Id" not in headers:
                plain = encode_headers(headers) if headers else b""
                headers["Nats-Msg-Id"] = self._ids.next(subject, data, plain)
            headers |= self._expected
            outgoing = Outgoing(position, subject, data, encode_headers(headers) if headers else b"")
            if outgoing.size > self.max_payload:
                remedy = f"the server takes at most {self.max_payload} bytes with headers (max_payload)"
                raise InvalidValue("data", f"{outgoing.size} bytes", remedy)
        except JetStreamError as refusal:
            self._window.fail(position, subject, refusal)
            return None
        return outgoing


def _drive_wire(
    settings: ConnectionSettings, window: PublishWindow, feed: _Feed, progress: Callable[[int], None]
) -> None:
    inbox = ""
    last_progress, answered = time.monotonic(), -1
    connected = False
    while True:
        try:
            with Wire.open(settings) as wire:
                connected = True
                inbox = inbox or wire.new_inbox()  # the same on each connection: late answers still count
                feed.max_payload = wire.max_payload
                wire.subscribe(f"{inbox}.*")
                window.again()  # they are among the unanswered
                outgoing = window.unanswered
                while True:
                    wire.send(
                        *[
                            encode_publish(each.subject, f"{inbox}.{each.position}", each.data, each.header)
                            for each in outgoing
                        ]
                    )
                    if window.empty and feed.ended:
                        return
                    waiting = window.full or feed.ended
                    try:
                        arrived = wire.receive(ANSWERED_WITHIN if waiting else 0)
                    except PermissionDenied as denied:
                        if denied.act == SUBSCRIBE:
                            raise
                        arrived = []
                        window.on_denied(denied)
                    for frame in arrived:
                        position = int(frame.subject.rpartition(b".")[2])
                        window.on_reply(position, decode_status(frame.header)[0], frame.data)
                    if window.answered != answered:
                        answered, last_progress = window.answered, time.monotonic()
                        progress(answered)
                    if again := window.again():
                        if time.monotonic() - last_progress > RESUMED_WITHIN:
                            window.give_up(JetStreamError(_BUSY))
                            return
                        time.sleep(_PAUSE)
                    outgoing = again + feed.next()
        except (ConnectionFailed, RequestTimeout) as error:
            if isinstance(error, ConnectionDenied) or not connected:
                raise
            if time.monotonic() - last_progress > RESUMED_WITHIN:
                window.give_up(error)
                return
            log.warning("publishing was interrupted, sending %d messages again: %s", len(window.unanswered), error)
            time.sleep(0.2)
