# SPDX-License-Identifier: Apache-2.0
"""One key of a key-value bucket (ADR-8): waiting for its value, and writing it with compare-and-set.

This is what a sensor and an operator need, and no client for key-value stores: nats-py is one.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from jetstream_client.errors import (
    BucketNotFound,
    BucketRecreated,
    ConnectionEnded,
    ConnectionLost,
    InvalidValue,
    JetStreamNotEnabled,
    KeyExists,
    MessageNotFound,
    NoStreamResponse,
    RequestTimeout,
    StreamNotFound,
    StreamRecreated,
    WrongLastSequence,
    WrongRevision,
)
from jetstream_client.names import LONGEST_SUBJECT
from jetstream_client.read.message import MARKER_REASON, RawMessage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jetstream_client.context import JetStream
    from jetstream_client.info import StreamInfo
    from jetstream_client.read.message import StoredMessage

OPERATION = "KV-Operation"
"""The header of an entry that deletes (``DEL``) or purges (``PURGE``) its key."""
WRITE_ID = "KV-Write-Id"
"""The header with the name of a write, by which a retry recognises it. It is no ``Nats-Msg-Id``: the server would drop
the second of two equal puts, although another client has written in between."""
PATIENCE = 60.0
"""Reading and writing fail after this many seconds without an answer from the server."""
MOST_HISTORY = 64
"""The largest ``history`` of a bucket (ADR-8)."""

_BUCKET = re.compile(r"[a-zA-Z0-9_-]{1,200}")
_KEY = re.compile(r"[-/_=a-zA-Z0-9]+(?:\.[-/_=a-zA-Z0-9]+)*")
_PAUSE = 0.2  # seconds before another attempt


class Entry(NamedTuple):
    """One entry of a key.

    revision:  the sequence in the bucket's stream.
    value:     the value; None for the entry of a deletion, a purge or an expiry.
    """

    revision: int
    value: bytes | None


class Written(NamedTuple):
    """The result of :meth:`Key.put`.

    revision:  the revision of the entry.
    stored:    whether this call stored it; False if an earlier one with the same ``write_id`` had.
    """

    revision: int
    stored: bool


def check_bucket(name: object, field: str = "bucket") -> str:
    """Check and return the name of a key-value bucket or object store (ADR-8, ADR-20). Raises InvalidValue."""
    if not isinstance(name, str) or not _BUCKET.fullmatch(name):
        raise InvalidValue(field, name, "the name of a bucket consists of 1 to 200 letters, digits, - and _")
    return name


@dataclass(frozen=True)
class Key:
    """One key of a bucket.

    Raises:
        InvalidValue: ADR-8 forbids the name of the bucket or of the key.
    """

    bucket: str
    name: str

    def __post_init__(self) -> None:
        check_bucket(self.bucket)
        if not isinstance(self.name, str) or not _KEY.fullmatch(self.name) or len(self.subject) > LONGEST_SUBJECT:
            remedy = "a key consists of letters, digits and - / _ = ., and has no . at its ends or next to another"
            raise InvalidValue("key", self.name, remedy)

    def __str__(self) -> str:
        return f"key {self.name!r} of key-value bucket {self.bucket!r}"

    @property
    def stream(self) -> str:
        """The name of the bucket's stream."""
        return f"KV_{self.bucket}"

    @property
    def subject(self) -> str:
        return f"$KV.{self.bucket}.{self.name}"

    async def bucket_info(self, js: JetStream) -> StreamInfo:
        """Request the state of the bucket's stream. Raises BucketNotFound."""
        try:
            return await js.stream(self.stream).info(patience=PATIENCE)
        except StreamNotFound as missing:
            raise BucketNotFound(self.bucket) from missing

    async def last(self, js: JetStream) -> StoredMessage | None:
        """The last entry of the key, which may be that of a deletion, from the leader; None if it has none. Raises
        BucketNotFound."""
        return await self._get(js, {"last_by_subj": self.subject})

    @staticmethod
    def revision_of(last: StoredMessage | None) -> int:
        """The revision of the last entry; 0 without one."""
        return 0 if last is None else last.sequence

    @classmethod
    def allows(cls, last: StoredMessage | None, expected: int | None) -> bool:
        """Whether :meth:`put` with ``expected`` may write after this last entry."""
        return expected in (None, cls.revision_of(last)) or (expected == 0 and _value(last) is None)

    async def put(self, js: JetStream, value: bytes, write_id: str, *, expected: int | None = None) -> Written:
        """Write the value. Each write expects the revision that was read before it, so that an unanswered write cannot
        overtake a later one. While no server answers, this is repeated for up to 60 s.

        value:     the value.
        write_id:  the name of this write, one line. A repeated call with the same name recognises the entry that an
                   earlier call has stored, whether or not it was answered.
        expected:  the revision of the key's last entry; 0: the key must have no value. Default None: any.

        Raises:
            BucketNotFound: the bucket does not exist.
            KeyExists: ``expected`` is 0, and the key has a value.
            WrongRevision: the key's last entry has another revision than ``expected``.
            InvalidValue: the value is larger than the server's ``max_payload``.
            ApiError: the server refuses the entry, for example because the bucket is full.
            RequestTimeout, ConnectionLost, JetStreamNotEnabled: no server has answered.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + PATIENCE
        sent_after: int | None = None  # the revision after which an unanswered write of this call would be
        while True:
            last = await self.last(js)
            revision = self.revision_of(last)
            if last is not None and last.headers.get(WRITE_ID) == [write_id] and last.data == value:
                return Written(revision, stored=False)
            met = self.allows(last, expected)
            start = sent_after if sent_after is not None else None if met else expected
            if start is not None and (found := await self._find(js, start + 1, write_id, value)):
                return Written(found, stored=sent_after is not None)
            if not met:
                raise WrongRevision(str(self), revision, expected) if expected else KeyExists(str(self), revision)
            try:
                ack = await js.publish(
                    js.settings.sent_to(self.subject),
                    value,
                    headers={WRITE_ID: write_id},
                    expected_last_subject_sequence=revision,
                    retry_attempts=0,
                )
                return Written(ack.seq, stored=True)
            except ConnectionEnded:
                raise
            except (ConnectionLost, NoStreamResponse, RequestTimeout, JetStreamNotEnabled, WrongLastSequence):
                if clock() > end:
                    raise
            sent_after = revision if sent_after is None else sent_after
            await js.connection.pause(_PAUSE)

    async def _find(self, js: JetStream, start: int, write_id: str, value: bytes) -> int | None:
        """The revision of the entry that an earlier write of this name has stored, from the revision ``start`` on; None
        if the bucket's history has none."""
        for _ in range(MOST_HISTORY):
            entry = await self._get(js, {"seq": start, "next_by_subj": self.subject})
            if entry is None:
                return None
            if entry.headers.get(WRITE_ID) == [write_id] and entry.data == value:
                return entry.sequence
            start = entry.sequence + 1
        return None

    async def _get(self, js: JetStream, which: Mapping[str, object]) -> StoredMessage | None:
        try:
            answer = await js.api(f"STREAM.MSG.GET.{self.stream}", which, patience=PATIENCE)
        except MessageNotFound:
            return None
        except StreamNotFound as missing:
            raise BucketNotFound(self.bucket) from missing
        return RawMessage.parse(answer).decoded()


def digest_of(value: bytes) -> str:
    """The SHA-256 of a value, in hexadecimal digits."""
    return hashlib.sha256(value).hexdigest()


def value_of(headers: Mapping[str, Sequence[str]], data: bytes) -> bytes | None:
    """The value of an entry; None if it deletes or purges its key, or is the server's marker for this."""
    return None if headers.get(OPERATION) or headers.get(MARKER_REASON) else data


def _value(last: StoredMessage | None) -> bytes | None:
    return None if last is None else value_of(last.headers, last.data)


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """What is awaited: that a key has a value; with ``after`` or ``digest``, that one of its entries also fits these.

    bucket, key:  the key.
    created:      when the bucket's stream was created.
    after:        only entries with a higher revision fit. Default 0: all.
    digest:       only a value with this SHA-256, in hexadecimal digits, fits. Default None: any value.
    """

    bucket: str
    key: str
    created: str
    after: int = 0
    digest: str | None = None

    def fits(self, entry: Entry) -> bool:
        if entry.value is None or entry.revision <= self.after:
            return False
        return self.digest is None or self.digest == digest_of(entry.value)

    async def look(self, js: JetStream) -> int | None:
        """The revision of the key's last entry if it fits, otherwise None. Raises BucketNotFound, BucketRecreated."""
        last = await Key(self.bucket, self.key).last(js)
        await self.check(js)
        if last is None:
            return None
        return last.sequence if self.fits(Entry(last.sequence, _value(last))) else None

    async def wait(self, js: JetStream) -> int:
        """Watch the key, and return the revision of the first entry that fits: of the last entry, or of those that are
        stored from now on. A value that is replaced before the watch has read it is seen only if the bucket's
        ``history`` still has it.

        Raises:
            BucketNotFound: the bucket does not exist, or was deleted.
            BucketRecreated: it was created again, so that its revisions begin at 1 again.
            PermissionDenied: no permission to create a consumer of the bucket's stream.
        """
        key = Key(self.bucket, self.key)
        await self.check(js)
        watch = js.stream(key.stream).ordered_consumer(
            {"filter_subject": key.subject, "deliver_policy": "last_per_subject"}
        )
        try:
            async with watch.messages() as entries:
                async for each in entries:
                    if self.fits(Entry(each.metadata.sequence, value_of(each.headers, each.data))):
                        await self.check(js)  # the bucket may have been created again before the watch began
                        return each.metadata.sequence
        except StreamRecreated as recreated:
            raise BucketRecreated(self.bucket) from recreated
        except StreamNotFound as missing:
            raise BucketNotFound(self.bucket) from missing
        raise ConnectionEnded("the connection was closed while a key was watched")

    async def check(self, js: JetStream) -> None:
        """Raises BucketNotFound, and BucketRecreated if the bucket is not the one that was created at ``created``."""
        info = await Key(self.bucket, self.key).bucket_info(js)
        if info.created != self.created:
            raise BucketRecreated(self.bucket)
