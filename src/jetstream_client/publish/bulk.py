# SPDX-License-Identifier: Apache-2.0
"""Publishing many messages over the bulk connection."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator

from jetstream_client.api import DEFAULT_PREFIX
from jetstream_client.errors import (
    ApiError,
    ConnectionDenied,
    ConnectionFailed,
    ConnectionLost,
    DuplicatesPossible,
    JetStreamError,
    JetStreamNotEnabled,
    PermissionDenied,
    ProtocolError,
    RequestTimeout,
    StreamNotFound,
)
from jetstream_client.names import subject_matches
from jetstream_client.publish.ack import PubAck
from jetstream_client.publish.fast_window import PING_AFTER, SILENT_FOR, FastWindow
from jetstream_client.publish.feed import STOPPED, Feed
from jetstream_client.publish.ids import MessageIds
from jetstream_client.publish.message import Headers, OutgoingMessage, Publishable
from jetstream_client.publish.position import Position, Recovery
from jetstream_client.publish.window import Published, PublishWindow
from jetstream_client.requirements import FAST_BATCHES
from jetstream_client.wire.attempts import Attempts
from jetstream_client.wire.blocking import ANSWERED_WITHIN, Wire
from jetstream_client.wire.protocol import (
    SUBSCRIBE,
    decode_headers,
    decode_status,
    encode_headers,
    encode_publish,
    inbox_number,
)
from jetstream_client.wire.settings import ConnectionSettings

__all__ = ["Publishable", "publish_all", "publish_fast"]

log = logging.getLogger(__name__)

_PAUSE = 0.01  # seconds before messages that the stream dropped are sent again
_ELECTION = 0.25  # seconds between two checks whether a stream has a leader
_BUSY = (
    "the stream dropped messages for a minute (too many requests); publish from fewer processes at a time, or raise "
    "the server's max_buffered_msgs"
)
_LEADERLESS = (
    "no stream accepted a message for a minute ({}); if the stream exists, make sure that more than half of the "
    "servers that store it are running"
)


def publish_all(
    settings: ConnectionSettings,
    messages: Iterable[Publishable],
    *,
    stream: str | None = None,
    scope: str | None = None,
    since: Position | None = None,
    first: bool = False,
    accept_duplicates: bool = False,
    headers: Headers | None = None,
    progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Published:
    """Publish all messages, and wait until the stream has answered each of them. Blocking.

    settings: the servers, and how to connect to them.
    messages: each message as ``(subject, data)`` or ``(subject, data, headers)``.
    stream:   the stream that must store the messages; a message on another stream's subject is refused. Default None.
    scope:    if set, each message without a ``Nats-Msg-Id`` gets an id, made from scope, content and occurrence. If you
              repeat the call with the same scope within the stream's duplicate window, no message is stored twice.
              Default None.
    since:    end of the stream before the first attempt (:meth:`Position.current`). With ``since``, no message is
              stored twice even if the duplicate window has passed. Before the first message is sent, and after a lost
              connection, the messages that the stream has stored since this position are found by their ids, and are
              not sent again. If it is unclear which messages are stored, sending relies on the duplicate window, and
              stops 10 s before the window ends. All messages need ids, from ``scope`` or their headers. Default None.
    first:    if True, this is the first attempt after the position ``since``, so stored messages are looked for only
              after a lost connection. Default False.
    accept_duplicates: if True, send even if messages could be stored twice. Default False.
    headers:  headers for every message that does not have them, none of which begins with ``Nats-``. Ids do not depend
              on these headers, so a repeated call with other headers stores no message twice.
    progress: called repeatedly with the number of these messages that the stream holds so far.
    stop:     called repeatedly; if it returns True, publishing ends with PublishFailed. While no server can be reached,
              this takes up to ``connect_timeout`` of the settings.

    After a lost connection, another connection is opened and unanswered messages are sent again, until there is no
    progress for 60 s. Without ``since``, a message can be stored twice if it has no id, or if this takes longer than
    the duplicate window. For a stream without a leader, publishing also waits for up to 60 s, and sends nothing new
    during this time. A message on a subject that no stream listens on is refused as soon as the server has confirmed
    this.

    The stream gets the messages in the order of the input, except those that it dropped at first because it was
    overloaded (429). ``Published.in_order`` says whether the order was kept.

    Raises:
        InvalidValue: a header for every message is invalid, or begins with ``Nats-``; nothing was sent.
        DuplicatesPossible: it is unknown which messages were stored since the position ``since``; nothing was sent.
        PublishFailed: names the first message that was not stored, the reason, and how many were stored.
        ConnectionFailed: no connection could be made at the start.
        ConnectionDenied: the client or the server refused a connection, at the start or later.
        PermissionDenied: the user lacks the permission to subscribe to its inbox, see ``inbox_prefix`` of the settings.
    """
    window = PublishWindow(stream, domain=settings.domain)
    ids = MessageIds(scope) if scope is not None else None
    recovery = Recovery(settings, window, since, ids, accept_duplicates) if since else None
    if recovery and not first:
        recovery.before_the_first()
    feed = Feed(messages, window, stream=stream, ids=ids, headers=headers, recovery=recovery, stop=stop)
    _drive_all(settings, window, feed, progress or (lambda _: None), recovery, stop=stop)
    return window.result()


def publish_fast(
    settings: ConnectionSettings,
    messages: Iterable[Publishable],
    *,
    stream: str | None = None,
    scope: str | None = None,
    progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> PubAck:
    """Publish all messages as one fast-ingest batch (nats-server 2.14, ``allow_batched``). Blocking, on one connection.

    This is faster than :func:`publish_all`, but a lost connection ends the batch, and messages that had arrived are
    stored. With a ``scope``, the messages have ids, so you can repeat the call within the stream's duplicate window: no
    message is stored twice, and ``batch_size`` includes messages that the stream already had. The input must produce a
    message at least every 10 s, because the server drops a batch for which nothing arrives for 10 s.

    stream, scope, progress, stop:  see :func:`publish_all`.

    Returns a PubAck with ``batch_size``, the number of messages, and ``seq``, the sequence of the last one. Both are 0
    for an empty input.

    Raises:
        ServerTooOld: the server does not support fast-ingest batches; nothing was sent.
        BatchGap: messages did not reach the stream; earlier messages are stored.
        PublishFailed: names the first message that was refused, could not be sent or was not answered. Its ``cause`` is
            BatchesDisabled if the stream has no ``allow_batched``, and PermissionDenied if the user lacks a permission.
        ConnectionFailed: no connection could be made.
    """
    with Wire.open(settings) as wire:
        FAST_BATCHES.check(wire.version)
        window = FastWindow(wire.new_inbox(), settings.domain)
        feed = Feed(messages, window, ids=MessageIds(scope) if scope is not None else None, stop=stop)
        wire.subscribe(window.answers)
        try:
            _drive_fast(wire, window, feed, stream, progress or (lambda _: None))
        except (ConnectionLost, PermissionDenied, ProtocolError) as error:
            window.give_up(error)
    return window.result() if window.added or window.failed else PubAck(stream or "", 0)


def _drive_fast(
    wire: Wire, window: FastWindow, feed: Feed, stream: str | None, progress: Callable[[int], None]
) -> None:
    held: list[OutgoingMessage] = []  # the last message, which commits the batch if no other follows
    silent = 0
    pinged = False
    while not window.ended:
        held += feed.next(wire)
        if not window.added:
            return
        if window.broken:
            if not pinged:
                pinged = True
                wire.send(encode_publish(window.subject, window.ping(), b""))
        elif ready := held if feed.ended else held[:-1]:
            wire.send(*[_encode_fast(window, each, stream, feed.ended and each is held[-1]) for each in ready])
            held = held[len(ready) :]
        try:
            arrived = wire.receive(PING_AFTER if window.full or window.broken or feed.ended else 0)
        except RequestTimeout:
            silent += 1
            if silent * PING_AFTER >= SILENT_FOR:
                window.give_up(RequestTimeout(f"the server did not answer for {SILENT_FOR:g} s"))
            wire.send(encode_publish(window.subject, window.ping(), b""))
            continue
        silent = 0
        for frame in arrived:
            status = decode_status(frame.header)[0] if frame.header else 0
            window.on_answer(frame.subject.decode("latin-1"), status, frame.data)
        if arrived:
            progress(window.confirmed)


def _encode_fast(window: FastWindow, message: OutgoingMessage, stream: str | None, last: bool) -> bytes:
    header = message.header
    if stream and not window.sent:  # all messages of a batch are stored in the stream of the first one
        header = encode_headers({**decode_headers(header), "Nats-Expected-Stream": stream})
    return encode_publish(message.subject, window.reply(last=last), message.data, header)


def _receive(wire: Wire, window: PublishWindow, seconds: float) -> None:
    try:
        arrived = wire.receive_runs(seconds)
    except PermissionDenied as denied:
        if denied.act == SUBSCRIBE:
            raise
        window.on_denied(denied)
        return
    for run in arrived:
        for subject, _, _, header, data in wire.read(run):
            status = decode_status(header)[0] if header else 0
            window.on_reply(inbox_number(subject), status, data)


def _listened(wire: Wire, subject: str, stream: str | None) -> bool:
    """Whether a stream may listen on a subject from which no answer came. False if the server confirms that no stream
    does."""
    try:
        if stream is None:
            return bool(wire.api("STREAM.NAMES", {"subject": subject})["streams"])
        subjects = wire.api(f"STREAM.INFO.{stream}")["config"].get("subjects") or []
    except StreamNotFound:
        return False
    except (ApiError, PermissionDenied, RequestTimeout):  # there is no leader to answer, or no permission to ask
        return True
    return any(subject_matches(each, subject) for each in subjects)


def _disabled(wire: Wire) -> JetStreamNotEnabled | None:
    """The error if JetStream is disabled, as far as the account's information tells.

    If this request has no responders either, the stream may be in another domain, account or server, whose connection
    may be lost at this moment. It is not, if the connected server would answer the request itself.
    """
    try:
        wire.api("INFO")
    except JetStreamNotEnabled as error:
        elsewhere = wire.settings.prefix != DEFAULT_PREFIX or wire.server.get("jetstream")
        return None if elsewhere and not error.err_code else error
    except (ApiError, PermissionDenied, RequestTimeout):
        pass
    return None


def _drive_all(
    settings: ConnectionSettings,
    window: PublishWindow,
    feed: Feed,
    progress: Callable[[int], None],
    recovery: Recovery | None,
    *,
    stop: Callable[[], bool] | None,
) -> None:
    attempts = Attempts(
        lambda: f"publishing was interrupted with {len(window.unanswered)} messages unanswered, and is resumed",
        patient=False,
        stop=stop,
    )
    inbox = ""
    try:
        while True:
            with attempts:
                if recovery:
                    recovery.after_a_loss()
                with Wire.open(settings) as wire:
                    if not inbox:
                        inbox = wire.new_inbox()  # the same inbox on each connection, so that late answers arrive
                        attempts.reached(-1)
                    wire.subscribe(f"{inbox}.*")
                    for answered in _drive(wire, inbox, window, feed, attempts):
                        progress(answered)
                    return
    except (DuplicatesPossible, ConnectionFailed, RequestTimeout, ApiError) as error:
        if isinstance(error, ConnectionDenied) or not inbox:
            raise
        window.give_up(error)


def _drive(wire: Wire, inbox: str, window: PublishWindow, feed: Feed, attempts: Attempts) -> Iterator[int]:
    """Publish over one connection until the input ends, or until the stream has stored nothing for too long. Yields the
    number of answered messages whenever it has changed."""
    window.begin()
    window.again()  # ignore the returned list: its messages are also unanswered
    outgoing = window.unanswered
    while True:
        wire.send(
            *[encode_publish(each.subject, f"{inbox}.{each.position}", each.data, each.header) for each in outgoing]
        )
        if window.empty and feed.ended:
            return
        full = window.full
        _receive(wire, window, ANSWERED_WITHIN if full or feed.ended else 0)
        window.pace(time.monotonic(), waited=full)
        if attempts.reached(window.answered):
            yield window.answered
        if again := window.again():
            if attempts.stopped:
                window.give_up(JetStreamError(STOPPED))
                return
            if attempts.exhausted:
                without = _LEADERLESS.format(window.leaderless)
                window.give_up(JetStreamError(without if window.leaderless else _BUSY))
                return
            if window.leaderless and not window.answered and (disabled := _disabled(wire)):
                window.give_up(disabled)
                return
            if window.leaderless and not _listened(wire, again[0].subject, feed.stream):
                window.refuse(again.pop(0), window.leaderless)
            time.sleep(_ELECTION if window.leaderless else _PAUSE)
        outgoing = again + feed.next(wire)
