# SPDX-License-Identifier: Apache-2.0
"""Objects that messages refer to, in an object store (ADR-20): putting one, and reading one whose digest is known.

This is what publishing and reading large messages need, and no client for object stores: nats-py is one. Its reader
would follow a link into another bucket, and has no limit.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

from jetstream_client.errors import (
    ApiError,
    BucketNotFound,
    BucketUnsuitable,
    InvalidValue,
    JetStreamError,
    JetStreamNotEnabled,
    MessageNotFound,
    NoStreamResponse,
    ObjectDiffers,
    ObjectMissing,
    ObjectRefused,
    ObjectUnresolved,
    ProtocolError,
    ReferenceInvalid,
    StreamNotFound,
    promised,
)
from jetstream_client.info import StreamInfo
from jetstream_client.publish.ack import acknowledged
from jetstream_client.publish.ids import MessageIds
from jetstream_client.publish.message import check_headers
from jetstream_client.quantities import number
from jetstream_client.read.answers import answered_message
from jetstream_client.read.message import RawMessage, RawMessages
from jetstream_client.sequences import Sequences
from jetstream_client.stores.key_value import check_bucket
from jetstream_client.stores.reference import (
    LONGEST_NAME,
    NAMED,
    Objects,
    Reference,
    check_no_reference,
    digest_of,
    is_reference,
    reference,
    shown_digest,
)
from jetstream_client.wire.attempts import PASSING, Attempts, is_passing
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import STATUS_LINE, decode_status, encode_headers

if TYPE_CHECKING:
    from jetstream_client.publish.message import Publishable
    from jetstream_client.wire.settings import ConnectionSettings

log = logging.getLogger(__name__)

CHUNK = 128 << 10
"""Bytes of one chunk, as in the other clients (ADR-20)."""
TOGETHER = 16 << 20
"""Bytes of messages and objects that are yielded together, at least. The last object comes on top."""
REPEATS = 3
"""How many messages of one read may refer to the same object. Each message has its own object, but a message may have
been published again. Without this limit, who may publish could make a reader read one large object for each small
message."""

_NUID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_TTL, _SCHEDULE = "Nats-TTL", "Nats-Schedule"

Result = TypeVar("Result")


class ObjectStore:
    """One object store, on a blocking connection that is opened again when it is lost. A context manager, for one
    thread.

    settings:  the servers, and how to connect to them.
    bucket:    the name of the object store.
    """

    def __init__(self, settings: ConnectionSettings, bucket: str) -> None:
        self.bucket = check_bucket(bucket, "objects")
        self.stream = f"OBJ_{bucket}"
        self._settings = settings
        self._wire: Wire | None = None
        self._direct = False
        self._read: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def _tried(self, function: Callable[[Wire], Result]) -> Result:
        """Call the function with the connection. After a lost connection or another passing error, repeat this for 60
        s."""
        attempts = Attempts(lambda: f"working on the object store {self.bucket} was interrupted")
        while True:
            with attempts:
                try:
                    if self._wire is None:
                        self._wire = Wire.open(self._settings)
                        self._direct = bool(self._info(self._wire, self.stream).config.get("allow_direct"))
                    return function(self._wire)
                except JetStreamError as error:
                    if is_passing(error):
                        self.close()
                    raise

    def _info(self, wire: Wire, stream: str) -> StreamInfo:
        try:
            return StreamInfo(wire.api(f"STREAM.INFO.{stream}"))
        except StreamNotFound as missing:
            if stream != self.stream:
                raise
            raise BucketNotFound(self.bucket, "nats object add") from missing

    def open(self) -> None:
        """Connect, unless this was done before. Raises BucketNotFound."""
        if self._wire is None:
            self._tried(lambda _: None)

    def keeps_for(self, stream: str) -> tuple[int, int]:
        """Check that the object store keeps objects at least as long as a stream keeps the messages that refer to them.
        Returns the server's ``max_payload``, and how long objects are kept, in nanoseconds; 0: without limit.

        Raises:
            BucketNotFound, StreamNotFound: the object store, or the stream, does not exist.
            BucketUnsuitable: the object store could lose an object before its message.
        """

        def check(wire: Wire) -> tuple[int, int]:
            bucket, messages = self._info(wire, self.stream).config, self._info(wire, stream).config
            age, needed = int(bucket.get("max_age") or 0), int(messages.get("max_age") or 0)
            if age and not needed:
                remedy = f"stream {stream!r} keeps messages without a limit of time; set 0, or a max_age of the stream"
                raise BucketUnsuitable(self.bucket, "max_age", age, remedy)
            if age and age < needed:
                remedy = f"stream {stream!r} has max_age={needed}, so a message could outlive its object; set more"
                raise BucketUnsuitable(self.bucket, "max_age", age, remedy)
            for field in ("max_msgs", "max_msgs_per_subject"):
                if int(bucket.get(field) or -1) > 0:
                    remedy = "it must be -1, because the chunks of an object are messages"
                    raise BucketUnsuitable(self.bucket, field, bucket[field], remedy)
            for field, right in (("discard", "new"), ("retention", "limits")):
                if bucket.get(field) != right:
                    remedy = f"it must be {right!r}, so that no object is removed before its message"
                    raise BucketUnsuitable(self.bucket, field, bucket.get(field), remedy)
            return wire.max_payload, age

        return self._tried(check)

    def put(self, name: str, data: bytes) -> Reference:
        """Store an object. If the bucket has it already, with this content, nothing is stored.

        Each try writes its chunks on another subject, and the object is there with the write of its information, which
        comes last. A try that is killed leaves chunks that belong to no object.

        name:  the name of the object, 1 to 1,000 bytes.
        data:  the content.

        Raises:
            BucketNotFound: the object store does not exist.
            ObjectRefused: the server refuses it, for example because the bucket is full.
            ConnectionFailed, RequestTimeout: no server has answered for 60 s.
        """
        if not name or len(name.encode()) > LONGEST_NAME:
            raise InvalidValue("name", name, f"the name of an object has 1 to {LONGEST_NAME} bytes")
        wanted = Reference.of(self.bucket, name, data)

        def put(wire: Wire) -> None:
            information = self._information(wire, name)
            if information and not information.get("deleted") and _same(information, wanted):
                return
            nuid = secrets.token_hex(11)
            for start in range(0, len(data), CHUNK):
                self._publish(wire, f"$O.{self.bucket}.C.{nuid}", data[start : start + CHUNK])
            self._publish(wire, self._meta(name), self._described(wanted, nuid), {"Nats-Rollup": "sub"})
            if information and (old := information.get("nuid")) and _NUID.fullmatch(str(old)):
                wire.api(f"STREAM.PURGE.{self.stream}", {"filter": f"$O.{self.bucket}.C.{old}"})

        self._tried(put)
        return wanted

    def _described(self, wanted: Reference, nuid: str) -> bytes:
        information = {
            "name": wanted.name,
            "bucket": self.bucket,
            "nuid": nuid,
            "size": wanted.size,
            "chunks": -(-wanted.size // CHUNK),
            "digest": shown_digest(wanted.digest),
            "mtime": datetime.now(UTC).isoformat(),
            "options": {"max_chunk_size": CHUNK},
        }
        return json.dumps(information).encode()

    def _publish(self, wire: Wire, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        header = encode_headers({**(headers or {}), "Nats-Expected-Stream": self.stream})
        to = self._settings.sent_to(subject)
        answer = wire.request(to, data, header=header)
        status = decode_status(answer.header)[0] if answer.header else 0
        try:
            acknowledged(answer.data, to, self._settings.domain, status)
        except NoStreamResponse:  # the bucket has no leader at this moment
            raise JetStreamNotEnabled(503, 0, f"no stream listens on {to!r}") from None
        except ApiError as error:
            if not error.err_code:
                raise
            raise ObjectRefused(self.bucket, str(error)) from error  # a full bucket has the code 503, but stays full

    def get(self, wanted: Reference) -> bytes:
        """The content of the object that a message refers to, with this size and this digest.

        Raises:
            BucketNotFound: the object store does not exist.
            ObjectMissing: the leader has no such object, it was deleted, or a chunk of it is missing.
            ObjectDiffers: its size or its digest is another one.
            ReferenceInvalid: the object is a link, or too many messages refer to it.
            ConnectionFailed, RequestTimeout: no server has answered for 60 s.
        """
        self._read[wanted.name] += 1
        if self._read[wanted.name] > REPEATS:
            raise ReferenceInvalid(f"{REPEATS} other messages of this read refer to the same object {wanted.name!r}")
        return self._tried(lambda wire: self._content(wire, wanted))

    def _content(self, wire: Wire, wanted: Reference) -> bytes:
        information = self._information(wire, wanted.name)
        if information is None or information.get("deleted"):
            how = "does not exist" if information is None else "was deleted"
            raise ObjectMissing(self.bucket, wanted.name, how)
        options = information.get("options")
        if isinstance(options, dict) and options.get("link"):
            raise ReferenceInvalid(f"the object {wanted.name!r} is a link")
        if not _same(information, wanted):
            raise ObjectDiffers(self.bucket, wanted.name, "its information has another size or digest")
        nuid, count = information.get("nuid"), information.get("chunks")
        if not isinstance(nuid, str) or not _NUID.fullmatch(nuid) or type(count) is not int:
            raise ObjectDiffers(self.bucket, wanted.name, "its information is invalid")
        chunks: list[bytes] = []
        size = sequence = 0
        while len(chunks) < count and size < wanted.size:
            chunk = self._stored(wire, f"$O.{self.bucket}.C.{nuid}", sequence + 1)
            if chunk is None:
                raise ObjectMissing(self.bucket, wanted.name, f"lacks its chunk {len(chunks) + 1} of {count}")
            sequence = chunk.sequence
            chunks.append(chunk.data)
            size += len(chunk.data)
        if size != wanted.size or len(chunks) != count:
            raise ObjectDiffers(self.bucket, wanted.name, f"its {len(chunks)} chunks have {size} bytes")
        data = b"".join(chunks)
        if hashlib.sha256(data).digest() != wanted.digest:
            raise ObjectDiffers(self.bucket, wanted.name, "its content has another digest")
        return data

    def _meta(self, name: str) -> str:
        return f"$O.{self.bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"

    def _information(self, wire: Wire, name: str) -> dict[str, Any] | None:
        """The information about an object; None if there is none; empty if it is invalid."""
        message = self._stored(wire, self._meta(name))
        if message is None:
            return None
        try:
            information = json.loads(message.data)
        except (ValueError, RecursionError):
            return {}
        return information if isinstance(information, dict) else {}

    def _stored(self, wire: Wire, subject: str, start: int | None = None) -> RawMessage | None:
        """The last message on a subject, or the first one from a sequence on. A replica may not have it yet, so that
        only the leader says that there is none."""
        which = {"last_by_subj": subject} if start is None else {"seq": start, "next_by_subj": subject}
        message = self._by_direct_get(wire, which) if self._direct else None
        if message is None:
            try:
                message = RawMessage.parse(wire.api(f"STREAM.MSG.GET.{self.stream}", which))
            except MessageNotFound:
                return None
        if message.subject != subject.encode() or message.sequence < (start or 1):
            raise ProtocolError(f"the server has answered with another message than the one on {subject!r}")
        return message

    def _by_direct_get(self, wire: Wire, which: dict[str, Any]) -> RawMessage | None:
        subject = f"{self._settings.prefix}.DIRECT.GET.{self.stream}"
        frame = wire.request(subject, json.dumps(which).encode())
        status, description = decode_status(frame.header) if frame.header.startswith(STATUS_LINE) else (0, "")
        if not status:
            with promised("the answer to a direct get"):
                return answered_message(frame.header, frame.data)
        if status in PASSING:
            raise JetStreamNotEnabled(status, 0, description or "no server answers direct gets at this moment")
        return None


def _same(information: dict[str, Any], wanted: Reference) -> bool:
    return information.get("size") == wanted.size and digest_of(information.get("digest")) == wanted.digest


def resolved(
    settings: ConnectionSettings, batches: Iterable[RawMessages], objects: Objects
) -> Iterator[tuple[RawMessages, list[str | None]]]:
    """Replace the payloads of messages that refer to objects by the objects' contents. Yields the messages, and for
    each the reason why its object cannot be read; None if it can, or if the message is no reference. A message with a
    reason keeps its payload.

    What is yielded together has about 16 MiB and one object more.

    Raises:
        BucketNotFound: the object store does not exist. This is no fault of a message.
        ConnectionFailed, RequestTimeout, PermissionDenied: the object store cannot be read.
    """
    with ObjectStore(settings, objects.bucket) as store:
        for batch in batches:
            rows: list[RawMessage] = []
            reasons: list[str | None] = []
            size = 0
            for message in batch:
                data, reason = _payload(store, message, objects)
                rows.append(message if data is None else message._replace(data=data))
                reasons.append(reason)
                size += len(rows[-1].data) if data is not None else 0
                if size >= TOGETHER:
                    yield RawMessages.of(rows), reasons
                    rows, reasons, size = [], [], 0
            if rows:
                yield RawMessages.of(rows), reasons


def _payload(store: ObjectStore, message: RawMessage, objects: Objects) -> tuple[bytes | None, str | None]:
    if not is_reference(message.header):
        return None, None
    store.open()  # before the reference is judged: a reader that names no object store must not reject every message
    try:
        found = reference(message.header, objects)
        return store.get(found), None
    except ObjectUnresolved as unresolved:
        return None, f"object: {unresolved}"


def unresolved(batches: Iterator[RawMessages], stream: str) -> Iterator[RawMessages]:
    """Pass messages on for a reader that reads no objects, and warn at the end if some of them refer to objects."""
    found: list[int] = []
    try:
        for batch in batches:
            if NAMED in b"".join(batch.headers):
                pairs = zip(batch.sequences, batch.headers, strict=True)
                found += [sequence for sequence, header in pairs if is_reference(header)]
            yield batch
    finally:
        if found:
            text = (
                "%s of stream %s refer to objects, which were not read: in place of the content, the payload is a "
                "sentence; name the object store (objects) where they are read; sequences %s"
            )
            log.warning(text, number(len(found), "message"), stream, Sequences.of(found))


def referring(
    settings: ConnectionSettings, messages: Iterable[Publishable], bucket: str, *, stream: str, scope: str
) -> Iterator[Publishable]:
    """Put the payloads of messages that are larger than the server's ``max_payload`` into an object store, and return
    an iterator of the messages with references in their places. Other messages stay as they are. Blocking: the object
    store is checked by this call.

    messages:  each message as ``(subject, data)`` or ``(subject, data, headers)``.
    bucket:    the name of the object store.
    stream:    the stream that will store the messages.
    scope:     as for :func:`~jetstream_client.publish.bulk.publish_all`: an object's name is made of scope, content and
               occurrence, so that a repeated call finds the object.

    Raises:
        BucketNotFound, BucketUnsuitable, StreamNotFound: as :meth:`ObjectStore.keeps_for`.
        InvalidValue: a message has a header of references, or would outlive its object.
        ObjectRefused, ConnectionFailed, RequestTimeout: an object could not be stored.
    """
    with ObjectStore(settings, bucket) as store:
        largest, kept = store.keeps_for(stream)
    return _referring(ObjectStore(settings, bucket), messages, MessageIds(f"{scope}\nobjects"), largest - _ADDED, kept)


def _referring(
    opened: ObjectStore, messages: Iterable[Publishable], ids: MessageIds, largest: int, kept: int
) -> Iterator[Publishable]:
    with opened as store:
        for message in messages:
            if not isinstance(message, list | tuple) or len(message) not in (2, 3) or not isinstance(message[1], bytes):
                yield message  # the publisher refuses it
                continue
            subject, data = message[0], message[1]
            headers = check_headers(message[2]) if len(message) == 3 and message[2] else {}
            check_no_reference(headers)
            header = encode_headers(headers) if headers else b""
            if len(data) + len(header) <= largest:
                yield message
                continue
            if _SCHEDULE in headers or (kept and headers.get(_TTL) == ("never",)):
                given = _SCHEDULE if _SCHEDULE in headers else _TTL
                remedy = "a message with this header would outlive the object with its payload; leave it out"
                raise InvalidValue(f"headers[{given!r}]", headers[given], remedy)
            found = store.put(ids.next(subject, data, header), data)
            log.debug("the payload of a message on %s is in object %s of bucket %s", subject, found.name, found.bucket)
            yield subject, found.payload, {**headers, **found.headers}


_ADDED = 1 << 10
"""Bytes of ``max_payload`` that are left for the headers that publishing adds."""
