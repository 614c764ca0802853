# SPDX-License-Identifier: Apache-2.0
"""The position in a stream at which a publish began, and the messages that the stream has stored since.

A stream recognises a repeated ``Nats-Msg-Id`` only for its ``duplicate_window`` (``checkMsgId`` in nats-server's
``server/stream.go``). A position that was recorded before the first message has no such limit: each message that the
publish stored has a higher sequence, whatever the order, and contains its id.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from jetstream_client.errors import (
    ApiError,
    BatchPartlyStored,
    ConnectionLost,
    ConsumerRefused,
    DuplicatesPossible,
    InvalidValue,
    MessagesMissing,
    PermissionDenied,
    PullError,
    RequestTimeout,
    StreamNotFound,
    StreamRecreated,
)
from jetstream_client.publish.ids import MessageIds, message_id
from jetstream_client.read import by_consumer, direct
from jetstream_client.sequences import Sequences
from jetstream_client.times import seconds_between
from jetstream_client.wire.blocking import Wire

if TYPE_CHECKING:
    from jetstream_client.publish.window import PublishWindow
    from jetstream_client.wire.settings import ConnectionSettings

log = logging.getLogger(__name__)

MARGIN = 10.0
"""Seconds at the end of the duplicate window that are not used, because messages may be in transit and clocks may
differ.
"""


@dataclass(frozen=True, slots=True)
class Position:
    """The end of a stream at one moment.

    stream:   name of the stream.
    created:  when the stream was created, which identifies it.
    last:     its last sequence.
    at:       the server's time at that moment (RFC 3339).
    """

    stream: str
    created: str
    last: int
    at: str

    @classmethod
    def current(cls, settings: ConnectionSettings, stream: str) -> Position:
        """The current end of the stream. Blocking.

        settings:  the servers, and how to connect to them.

        Raises:
            StreamNotFound: the stream does not exist.
            PermissionDenied: the user lacks the permission for ``$JS.API.STREAM.INFO.<stream>``.
            RequestTimeout: no answer arrived in time.
            ConnectionFailed: no connection could be made.
        """
        info = _info(settings, stream)
        return cls(stream, info["created"], info["state"]["last_seq"], info["ts"])

    def to_json(self) -> dict[str, Any]:
        """The position as a JSON value."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Position:
        """Read ``value``, which :meth:`to_json` returned. Raises InvalidValue for anything else."""
        kinds = {"stream": str, "created": str, "last": int, "at": str}
        if not isinstance(value, Mapping) or {name: type(part) for name, part in value.items()} != kinds:
            names = ", ".join(each.name for each in fields(cls))
            raise InvalidValue("position", value, f"must be a mapping with {names}, as Position.to_json() returns it")
        return cls(**value)


class Found(NamedTuple):
    """The result of :func:`find`.

    ids:      message ids that the stream holds, and their sequences.
    unclear:  the reason why messages may be missing from ``ids``; empty if ``ids`` is complete.
    age:      seconds since the position, by the server's clock.
    window:   the stream's duplicate window in seconds; 0 if the stream was deleted, recreated or rolled back, and so
              does not know the ids.
    """

    ids: dict[bytes, int]
    unclear: str
    age: float
    window: float


def find(settings: ConnectionSettings, since: Position, own: MessageIds | None = None) -> Found:
    """Find the ids of messages that the stream has stored since a position. Blocking.

    The stream is read by direct get if it allows this. Otherwise a stream with ``limits`` retention is read with an
    ephemeral consumer that gets headers only. Ids of other scopes than ``own`` are left out. Each id takes about 200
    bytes of memory.

    After a lost connection, another connection is opened and reading continues, until there is no progress for 60 s.

    Raises:
        RequestTimeout, PermissionDenied, ApiError: the state of the stream could not be read.
        ConnectionFailed: no connection could be made, or there was no progress for 60 s.
    """
    try:
        info = _info(settings, since.stream)
    except StreamNotFound:
        return Found({}, "the stream no longer exists", 0, 0)
    state, config = info["state"], info["config"]
    age = abs(seconds_between(since.at, info["ts"]))  # the clock may have been set back
    if info["created"] != since.created:
        return Found({}, f"the stream was recreated at {info['created']}", age, 0)
    window = config.get("duplicate_window", 0) / 1e9
    first, last = since.last + 1, state["last_seq"]
    if last < since.last:
        return Found({}, f"the stream's last sequence is {last}, but was {since.last} before", age, 0)
    there = max(first, state["first_seq"])
    by_direct_get = bool(config.get("allow_direct"))
    if not by_direct_get and config["retention"] != "limits" and there <= last:
        why = (
            f"the stream's retention is {config['retention']!r}, so only direct get can read its messages without "
            "consuming them; set allow_direct"
        )
        return Found({}, why, age, window)
    ids: dict[bytes, int] = {}
    unclear, read = "", 0
    try:
        for sequence, header in _stored(settings, since, there, last, by_direct_get=by_direct_get):
            read += 1
            identity = message_id(header)
            if identity and not (own and own.foreign(identity)):
                ids[identity] = sequence
    except MessagesMissing:
        pass  # the count below shows that messages are missing
    except (ApiError, ConsumerRefused, PermissionDenied, PullError, RequestTimeout, StreamRecreated) as error:
        unclear = f"sequences {there} to {last} could not be read: {error}"
    if not unclear and read < last - since.last:
        gone = last - since.last - read
        unclear = f"{gone} of the messages from sequence {first} to {last} are no longer in the stream"
    return Found(ids, unclear, age, window)


def find_batch(
    settings: ConnectionSettings,
    since: Position | None,
    own: MessageIds,
    batch: Sequence[bytes],
    *,
    accept_duplicates: bool,
) -> tuple[int, int] | None:
    """Find the messages of an atomic batch that the stream has stored since a position. Blocking.

    since:  the position; None if it is unknown, and then nothing is found.
    own:    the ids that were made for the batch.
    batch:  the id of each message.

    Returns the lowest and the highest sequence if the stream has all of them, and None if it has none of them.

    Raises:
        BatchPartlyStored: the stream has only some of them.
        DuplicatesPossible: none was found, it is unclear whether all were found, and duplicates are not accepted.
        RequestTimeout, PermissionDenied, ApiError, ConnectionFailed: as :func:`find`.
    """
    if since is None:
        return None
    found = find(settings, since, own)
    known = [found.ids.get(each, 0) for each in batch]
    if all(known):
        return min(known), max(known)
    if any(known):
        why = found.unclear or "an earlier attempt stored another batch that contains some of the messages"
        raise BatchPartlyStored(since.stream, sum(map(bool, known)), len(batch), why)
    if found.unclear and not accept_duplicates:
        raise DuplicatesPossible(since.stream, found.unclear)
    return None


class Recovery:
    """Finds the messages of a publish that the stream holds already, and decides whether the rest may be sent."""

    def __init__(
        self,
        settings: ConnectionSettings,
        window: PublishWindow,
        since: Position,
        ids: MessageIds | None,
        accept_duplicates: bool,
    ) -> None:
        self._settings = settings
        self._window = window
        self._since = since
        self._ids = ids
        self._accept = accept_duplicates
        self._stored: Mapping[bytes, int] = {}  # by earlier attempts: ids and their sequences
        self._unclear = ""
        self.sends_until = math.inf
        """The time when sending must end, by the monotonic clock. After it, a message that was not found could be
        stored twice."""

    def before_the_first(self) -> None:
        """Find the messages that earlier attempts stored. Raises DuplicatesPossible."""
        now = time.monotonic()
        found = find(self._settings, self._since, self._ids)
        self._stored, self._unclear = found.ids, found.unclear
        self.sends_until = self._until(found, now - found.age)
        self.check_time()

    def check_time(self) -> None:
        """Raises DuplicatesPossible if it is too late to send messages that were not found in the stream."""
        if time.monotonic() > self.sends_until:
            raise DuplicatesPossible(self._since.stream, self._unclear)

    def holds(self, position: int, header: bytes) -> bool:
        """Whether an earlier attempt stored this message. If so, the window counts it, and it must not be sent."""
        sequence = self._stored.get(message_id(header)) if self._stored else None
        if sequence:
            self._window.found(position, sequence)
        return bool(sequence)

    def after_a_loss(self) -> None:
        """Find out which of the unanswered messages are stored, so that they are not sent again. Raises
        DuplicatesPossible."""
        if (oldest := self._window.oldest) is None:
            return
        last, sent = oldest
        found = find(self._settings, replace(self._since, last=max(last, self._since.last)), self._ids)
        for message in self._window.unanswered:
            if sequence := found.ids.get(message_id(message.header)):
                self._window.found(message.position, sequence)
        if time.monotonic() > self._until(found, sent):
            raise DuplicatesPossible(self._since.stream, found.unclear)

    def _until(self, found: Found, began: float) -> float:
        """The time until which messages that were not found may be sent, by the monotonic clock."""
        if not found.unclear:
            return math.inf
        if self._accept:
            log.warning(
                "it is unknown which messages stream %s has stored (%s); messages that were not found are sent "
                "again, because duplicates are accepted",
                self._since.stream,
                found.unclear,
            )
            return math.inf
        log.warning(
            "it is unknown which messages stream %s has stored (%s); messages that were not found are sent only while "
            "the stream's duplicate_window prevents duplicates",
            self._since.stream,
            found.unclear,
        )
        return began + found.window - MARGIN


def _info(settings: ConnectionSettings, stream: str) -> Any:
    with Wire.open(settings) as wire:
        return wire.api(f"STREAM.INFO.{stream}")


def _stored(
    settings: ConnectionSettings, since: Position, first: int, last: int, *, by_direct_get: bool
) -> Iterator[tuple[int, bytes]]:
    """Sequence and header lines of each message that the stream holds."""
    if first > last:
        return
    what = (settings, since.stream, Sequences.from_ranges([(first, last)]), since.created)
    if by_direct_get:
        with Wire.open(settings) as wire:  # raises at once without the permission; reading would wait longer
            wire.request(f"{settings.prefix}.DIRECT.GET.{since.stream}", json.dumps({"seq": first}).encode())
    try:
        for batch in direct.read(*what) if by_direct_get else by_consumer.read(*what, headers_only=True):
            yield from zip(batch.sequences, batch.headers, strict=True)
            if batch.sequences[-1] == last:
                return  # skipped sequences were removed, so the leader need not be asked for them
    except ConnectionLost as lost:
        if isinstance(lost.__cause__, PullError | RequestTimeout):
            raise lost.__cause__ from None  # the connection was not the cause
        raise
