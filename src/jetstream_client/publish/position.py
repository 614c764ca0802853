"""Where a publish began, and what of it the stream holds by now.

A stream recognises a repeated ``Nats-Msg-Id`` for its ``duplicate_window`` (``checkMsgId`` in nats-server's
``server/stream.go``). A position that was recorded before the first message outlives the window: whatever the publish
stored lies behind it, in whatever order, and carries its id.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from jetstream_client.consume.pull_window import PullWindow
from jetstream_client.errors import (
    ApiError,
    ConnectionDenied,
    ConnectionFailed,
    ConnectionLost,
    InvalidValue,
    MessagesMissing,
    PermissionDenied,
    PullError,
    RequestTimeout,
    StreamNotFound,
    StreamRecreated,
)
from jetstream_client.publish.ids import MessageIds, message_id
from jetstream_client.read import direct
from jetstream_client.sequences import Sequences
from jetstream_client.times import time_nanoseconds
from jetstream_client.wire.blocking import ANSWERED_WITHIN, PASSING, RESUMED_WITHIN, Wire
from jetstream_client.wire.protocol import (
    DELIVERY,
    AckSubject,
    decode_headers,
    decode_status,
    encode_publish,
    inbox_number,
)

if TYPE_CHECKING:
    from jetstream_client.wire.settings import ConnectionSettings

log = logging.getLogger(__name__)

ON_THE_WAY = 10.0
"""Seconds at the end of the duplicate window that are not relied on: messages on their way, and clocks that differ."""


@dataclass(frozen=True, slots=True)
class Position:
    """The end of a stream at one moment. ``created`` is the stream's identity, ``at`` the server's clock (RFC 3339)."""

    stream: str
    created: str
    last: int
    at: str

    @classmethod
    def current(cls, settings: ConnectionSettings, stream: str) -> Position:
        """Where the stream ends now. Blocking.

        Raises:
            StreamNotFound: there is none.
            RequestTimeout: no answer; the account may lack the permission for ``$JS.API.STREAM.INFO.<stream>``.
            ConnectionFailed: no connection.
        """
        info = _info(settings, stream)
        return cls(stream, info["created"], info["state"]["last_seq"], info["ts"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Position:
        """Raises InvalidValue for anything that :meth:`to_json` did not make."""
        kinds = {"stream": str, "created": str, "last": int, "at": str}
        if not isinstance(value, Mapping) or {name: type(part) for name, part in value.items()} != kinds:
            raise InvalidValue("position", value, f"a mapping of {', '.join(each.name for each in fields(cls))}")
        return cls(**value)


class Found(NamedTuple):
    """What :func:`find` found out.

    ids:      the message ids that the stream holds, and their sequences.
    unclear:  why there may have been more; empty when these are all.
    age:      seconds since the position, by the server's clock.
    window:   the stream's duplicate window in seconds; 0 for a stream that cannot know the ids.
    """

    ids: dict[bytes, int]
    unclear: str
    age: float
    window: float


def find(settings: ConnectionSettings, since: Position, own: MessageIds | None = None) -> Found:
    """The ids of messages that the stream has stored since a position. Blocking.

    By direct get where the stream allows it, else, on a stream that keeps what was consumed (retention ``limits``), by
    an ephemeral consumer that gets headers only. Ids that were made for another scope than ``own`` are left out.
    Memory: about 200 bytes an id.

    A lost connection is opened again and reading goes on, for up to 60 s without progress.

    Raises:
        RequestTimeout, ApiError: the stream says nothing about itself.
        ConnectionFailed: no connection, or no progress for 60 s.
    """
    try:
        info = _info(settings, since.stream)
    except StreamNotFound:
        return Found({}, "the stream is not there any more", 0, 0)
    state, config = info["state"], info["config"]
    age = abs(time_nanoseconds(info["ts"]) - time_nanoseconds(since.at)) / 1e9  # its clock may have been set back
    if info["created"] != since.created:
        return Found({}, f"the stream was recreated at {info['created']}", age, 0)
    window = config.get("duplicate_window", 0) / 1e9
    first, last = since.last + 1, state["last_seq"]
    if last < since.last:
        return Found({}, f"the stream ends at sequence {last} and ended at {since.last} before", age, 0)
    there = max(first, state["first_seq"])
    reader = _by_direct_get if config.get("allow_direct") else _by_consumer
    if reader is _by_consumer and config["retention"] != "limits" and there <= last:
        why = f"a {config['retention']} stream can be read without consuming it by direct get only: set allow_direct"
        return Found({}, why, age, window)
    ids: dict[bytes, int] = {}
    unclear, read = "", 0
    try:
        for sequence, header in reader(settings, since, there, last):
            read += 1
            identity = message_id(header)
            if identity and not (own and own.foreign(identity)):
                ids[identity] = sequence
    except MessagesMissing:
        pass  # it is the count that tells
    except (ApiError, PullError, PermissionDenied, RequestTimeout, StreamRecreated) as error:
        unclear = f"sequences {there} to {last} could not be read: {error}"
    if not unclear and read < last - since.last:
        gone = last - since.last - read
        unclear = f"{gone} of the messages from sequence {first} to {last} are not in the stream any more"
    return Found(ids, unclear, age, window)


def _info(settings: ConnectionSettings, stream: str) -> Any:
    with Wire.open(settings) as wire:
        return wire.api(f"STREAM.INFO.{stream}")


def _by_direct_get(settings: ConnectionSettings, since: Position, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    """Sequence and header lines of each message that is there."""
    if first > last:
        return
    with Wire.open(settings) as wire:  # without the permission nobody would answer, and reading would wait for long
        wire.request(f"{settings.prefix}.DIRECT.GET.{since.stream}", json.dumps({"seq": first}).encode())
    wanted = Sequences.from_ranges([(first, last)])
    for batch in direct.read(settings, since.stream, wanted, since.created):
        yield from zip(batch.sequences, batch.headers, strict=True)
        if batch.sequences[-1] == last:
            return  # before the leader is asked for each sequence that was skipped: they are gone


def _by_consumer(settings: ConnectionSettings, since: Position, first: int, last: int) -> Iterator[tuple[int, bytes]]:
    """Sequence and header block of each message that is there, by consumers that exist for this reading only."""
    following = first
    progress = time.monotonic()
    headers_only = True
    while following <= last:
        try:
            with Wire.open(settings) as wire:
                for sequence, header in _consume(wire, since.stream, following, last, headers_only=headers_only):
                    following = sequence + 1
                    progress = time.monotonic()
                    yield sequence, header
                return
        except (ConnectionFailed, ApiError) as error:
            if isinstance(error, ConnectionDenied) or (isinstance(error, ApiError) and error.code not in PASSING):
                raise
            if time.monotonic() - progress > RESUMED_WITHIN:
                raise ConnectionLost(f"reading stream {since.stream!r} stopped: {error}", following - 1) from error
            log.warning("reading stream %s was interrupted before sequence %d: %s", since.stream, following, error)
            headers_only = False  # nats-server 2.15.1 may have ended because of it, see delivery.read
            time.sleep(0.2)


def _consume(wire: Wire, stream: str, first: int, last: int, *, headers_only: bool) -> Iterator[tuple[int, bytes]]:
    name = f"airflow_{secrets.token_hex(6)}"
    config = {
        "name": name,
        "ack_policy": "none",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": first,
        "headers_only": headers_only,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": 30 * 10**9,
    }
    created = wire.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
    if not created["num_pending"]:
        return
    inbox = wire.new_inbox()
    wire.subscribe(f"{inbox}.*")
    window = PullWindow(last - first + 1, now=time.monotonic())
    try:
        while True:
            while request := window.next_request(time.monotonic()):
                number, body = request
                subject = f"{wire.settings.prefix}.CONSUMER.MSG.NEXT.{stream}.{name}"
                wire.send(encode_publish(subject, f"{inbox}.{number}", json.dumps(body).encode()))
            now = time.monotonic()
            for frame in wire.receive(ANSWERED_WITHIN):
                status, description = decode_status(frame.header)
                if status and not frame.reply.startswith(DELIVERY):
                    number = inbox_number(frame.subject)
                    window.on_status(number, status, description, decode_headers(frame.header), now)
                    continue
                window.on_message(now)
                place = AckSubject.parse(frame.reply.decode("utf-8", "replace"))
                if place.sequence <= last:
                    yield place.sequence, frame.header
                if place.sequence >= last or not place.pending:
                    return
    finally:
        with contextlib.suppress(ConnectionLost):
            wire.send(encode_publish(f"{wire.settings.prefix}.CONSUMER.DELETE.{stream}.{name}", "", b""))
