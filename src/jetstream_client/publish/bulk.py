"""Publishing many messages over the bulk connection, accounted for by the window of ``publish``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from jetstream_client.errors import (
    ApiError,
    ConnectionDenied,
    ConnectionFailed,
    ConnectionLost,
    DuplicatesPossible,
    JetStreamError,
    PermissionDenied,
    ProtocolError,
    RequestTimeout,
    StreamNotFound,
)
from jetstream_client.names import subject_matches
from jetstream_client.publish.ack import PubAck
from jetstream_client.publish.fast_window import PING_AFTER, SILENT_FOR, FastWindow
from jetstream_client.publish.feed import Feed
from jetstream_client.publish.ids import MessageIds
from jetstream_client.publish.message import OutgoingMessage, Publishable
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

_PAUSE = 0.01  # seconds that a stream gets which had no room
_ELECTION = 0.25  # seconds between two checks whether a stream has a leader
_BUSY = "the stream had no room for a minute (too many requests): publish less at once, or raise max_buffered_msgs"
_LEADERLESS = "the stream had no leader for a minute ({}): see that most of its servers run"


def publish_all(
    settings: ConnectionSettings,
    messages: Iterable[Publishable],
    *,
    stream: str | None = None,
    scope: str | None = None,
    since: Position | None = None,
    first: bool = False,
    accept_duplicates: bool = False,
    headers: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Published:
    """Publish everything, each message answered by the stream. Blocking.

    stream:   the stream that must store them; a message on another stream's subject is refused.
    scope:    with it each message without a ``Nats-Msg-Id`` gets one from scope, content and occurrence. The same call
              with the same scope stores nothing twice within the stream's duplicate window.
    since:    where the stream ended before the first attempt (:meth:`Position.current`): with it nothing is stored
              twice later either. What the stream holds since then is looked for by its ids before the first message,
              and again when a connection was lost, and not sent again. Where that cannot be found out, the duplicate
              window is relied on until 10 s before it ends, and then nothing more is sent. Messages need ids: a scope,
              or their own.
    first:    this is the first attempt since that position: only a lost connection is a reason to look.
    accept_duplicates: send nevertheless.
    headers:  of every message that does not have them itself. They are no part of the content that an id is made of:
              the same call with others stores nothing twice.
    progress: called now and then with the number of messages that the stream holds.
    stop:     asked now and then; True ends the publish as failed.

    A lost connection is opened again and what was unanswered is sent again, for up to 60 s without progress. Without
    ``since`` that stores a message twice when the connection was away for longer than the duplicate window. A stream
    without a leader is waited for as long, with nothing new sent meanwhile; a subject that no stream listens on is
    refused as soon as the server has said so.

    The stream gets the messages in the order of the input, except those that it dropped at first, having too much to do
    (429): ``Published.in_order`` says what became of it.

    Raises:
        DuplicatesPossible: before anything is sent: what was stored since the position cannot be found out.
        PublishFailed: the first message that was not stored, why, and how many were.
        ConnectionFailed: no connection at the start.
        PermissionDenied: no answers can be listened for, see ``inbox_prefix`` of the settings.
    """
    window = PublishWindow(stream, domain=settings.domain)
    ids = MessageIds(scope) if scope is not None else None
    recovery = Recovery(settings, window, since, ids, accept_duplicates) if since else None
    if recovery and not first:
        recovery.before_the_first()
    feed = Feed(messages, window, stream=stream, ids=ids, headers=headers, recovery=recovery, stop=stop)
    _drive_all(settings, window, feed, progress or (lambda _: None), recovery)
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
    """Publish everything as one fast-ingest batch (nats-server 2.14, ``allow_batched``). Blocking, on one connection.

    Faster than :func:`publish_all`, and less is promised: a lost connection ends it, and what had arrived is stored.
    With a ``scope``, which gives ids, the same call again stores nothing twice within the stream's duplicate window;
    what it recognises counts. The input has to give a message every 10 s, after which the server gives a batch up.

    stream, scope, progress, stop:  see :func:`publish_all`.

    Returns ``batch_size``, how many messages the stream holds, all of them, and ``seq`` of the last one; with an empty
    input both are 0.

    Raises:
        ServerTooOld: before anything is sent.
        BatchesDisabled: as ``PublishFailed.cause``: the stream has no ``allow_batched``.
        BatchGap: messages got lost on the way; those before are stored.
        PublishFailed: the first message that was refused, could not be sent or was not answered.
        ConnectionFailed, PermissionDenied: see :func:`publish_all`.
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
    held: list[OutgoingMessage] = []  # the last one: whether it commits is known when there is no next
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
                window.give_up(RequestTimeout(f"no answer for {SILENT_FOR:g} s"))
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
    if stream and not window.sent:  # the others are of one batch with it
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
    """Whether a stream that nobody answered for may listen on a subject: False when the server knows of none."""
    try:
        if stream is None:
            return bool(wire.api("STREAM.NAMES", {"subject": subject})["streams"])
        subjects = wire.api(f"STREAM.INFO.{stream}")["config"].get("subjects") or []
    except StreamNotFound:
        return False
    except (ApiError, PermissionDenied, RequestTimeout):  # it has no leader that could say, or we may not ask
        return True
    return any(subject_matches(each, subject) for each in subjects)


def _drive_all(
    settings: ConnectionSettings,
    window: PublishWindow,
    feed: Feed,
    progress: Callable[[int], None],
    recovery: Recovery | None,
) -> None:
    attempts = Attempts(
        lambda: f"publishing was interrupted, sending {len(window.unanswered)} messages again", patient=False
    )
    inbox = ""
    try:
        while True:
            with attempts:
                if recovery:
                    recovery.after_a_loss()
                with Wire.open(settings) as wire:
                    if not inbox:
                        inbox = wire.new_inbox()  # the same on each connection: late answers still count
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
    """Publish over one connection, to the end of the input or until the stream took nothing for too long. Gives how
    many messages are answered, when that has changed."""
    window.again()  # they are among the unanswered
    outgoing = window.unanswered
    while True:
        wire.send(
            *[encode_publish(each.subject, f"{inbox}.{each.position}", each.data, each.header) for each in outgoing]
        )
        if window.empty and feed.ended:
            return
        _receive(wire, window, ANSWERED_WITHIN if window.full or feed.ended else 0)
        if attempts.reached(window.answered):
            yield window.answered
        if again := window.again():
            if attempts.exhausted:
                without = _LEADERLESS.format(window.leaderless)
                window.give_up(JetStreamError(without if window.leaderless else _BUSY))
                return
            if window.leaderless and not _listened(wire, again[0].subject, feed.stream):
                window.refuse(again.pop(0), window.leaderless)
            time.sleep(_ELECTION if window.leaderless else _PAUSE)
        outgoing = again + feed.next(wire)
