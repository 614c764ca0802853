# SPDX-License-Identifier: Apache-2.0
"""The tree of all errors of the project. This module defines the client's errors; the errors of another package are
defined in that package.

    JetStreamError
    ├── InvalidValue (ValueError)         a value that was refused before anything was sent
    │   └── SettingsMissing               the settings of a connection are missing where Spark runs
    ├── ProtocolError                     received data that breaks the NATS protocol or the JetStream API
    │   └── NotJetStreamMessage           a message that no consumer delivered
    ├── ConnectionFailed (ConnectionError)
    │   ├── ConnectionDenied              the client or the server refuses the connection; trying again does not help
    │   │   ├── AuthenticationFailed      wrong or missing credentials
    │   │   └── TlsFailed                 a certificate was not accepted, or the server requires TLS and tls is not set
    │   │       └── TlsNotOffered         tls is set and the server does not offer TLS
    │   └── ConnectionLost                an established connection ended; carries the last sequence that arrived
    │       └── ConnectionEnded           the connection ended and will not be restored
    ├── RequestTimeout (TimeoutError)     no answer arrived in time
    ├── PermissionDenied                  no permission to publish on a subject, or to subscribe to it
    ├── ApiError                          a refusal by the server: code, err_code, description
    │   ├── StreamNotFound, StreamNameInUse, BadRequest, InvalidRequest, InvalidStreamConfig, ConsumerCreateFailed,
    │   │   MessageDeleteFailed, PurgeFailed, TooManyResults, WrongLastSequence, WrongLastMessageId, WrongStream,
    │   │   TooManyRequests
    │   ├── StreamSealed, MessageTooLarge, StoreFailed, ResourcesExceeded, LastSequenceNotReady, ApiLevelRequired
    │   ├── TtlRefused, CounterRefused, ScheduleRefused, WorkQueueRefused
    │   ├── UpdateRefused                 the server refused to change a stream or consumer; carries the fields
    │   ├── BatchRefused
    │   │   └── BatchesDisabled, BatchIncomplete, BatchTooLarge, BatchDuplicate, BatchUnknown, TooManyBatches
    │   ├── ConsumerNotFound
    │   │   └── ConsumerDoesNotExist      update of a consumer that does not exist
    │   ├── ConsumerNameInUse
    │   │   └── ConsumerAlreadyExists     creation of a consumer that exists with another configuration
    │   ├── MessageNotFound
    │   │   └── SequenceNotFound          deletion of a message that does not exist
    │   └── JetStreamNotEnabled
    │       └── JetStreamNotEnabledForAccount
    ├── ServerTooOld                      names the version that is needed
    ├── ListingIncomplete                 a list lacks the state of some streams or consumers
    ├── TooManyPending                    publish_async has reached its limit of unanswered messages
    ├── PublisherClosed                   publish_async was closed by its caller
    ├── NoStreamResponse                  no stream listens on the subject of a message
    ├── WrongDomain                       a stream of another domain stored the message and answered
    ├── PublishFailed                     names the first unconfirmed message, and the number of confirmed messages
    │   └── BatchGap                      a fast-ingest batch ended because messages did not arrive
    ├── DuplicatesPossible                it is unknown which messages an earlier attempt stored
    │   └── BatchPartlyStored             only some messages of an atomic batch were found in the stream
    ├── PullError                         a pull ended before it had received all messages
    │   ├── BadPullRequest (400), NoMessages (404, 408), ApiLevelTooLow (412), PinLost (423), NoResponders (503)
    │   ├── ConsumerDeleted, ConsumerIsPushBased, LeadershipChanged, BatchCompleted (409)
    │   ├── PullLimitExceeded (409)
    │   │   └── TooManyPulls, MaxBytesExceeded
    │   ├── HeartbeatMissed               the server was silent for two heartbeats
    │   └── DeliveriesMissed              deliveries of a consumer did not arrive
    ├── ConsumerIsPullBased, ConsumerIsBound   the consumer is not a push consumer, or has another subscriber
    ├── ConsumingMisused                  consuming was started twice, or a callback waits for the end of consuming
    ├── OrderedConsumerMisused, OrderedConsumerFailed
    ├── SlowConsumer                      messages arrived faster than they were read
    ├── MessageAlreadyAnswered            the message was answered before
    ├── DirectGetDisabled                 the stream has no allow_direct
    ├── StreamRecreated                   the name now belongs to another stream
    │   └── BucketRecreated               the name now belongs to another bucket
    ├── BucketNotFound                    the key-value bucket or object store does not exist
    ├── BucketUnsuitable                  the object store could lose an object before the message that refers to it
    ├── ObjectRefused                     the server refused to store an object
    ├── ObjectUnresolved                  the object that a message refers to cannot be read
    │   ├── ReferenceInvalid              the message's headers are invalid, or name another bucket
    │   ├── ObjectTooLarge                the object is larger than the reader allows
    │   ├── ObjectMissing                 the object does not exist
    │   └── ObjectDiffers                 the object has another size or digest
    ├── ReferencesUnresolved              names the messages whose objects cannot be read, and why
    ├── KeyExists                         a key that should be created has a value
    ├── WrongRevision                     a key's last entry has another revision than expected
    ├── ConsumerRefused                   the stream's messages cannot be read with a consumer
    ├── AddressUnknown                    the acknowledgement subject of a consumer in a domain cannot be determined
    ├── MessagesMissing                   the stream does not contain some of the requested sequences
    └── HandoffError, SparkError          see ``errors`` of the packages that raise them

The server's codes are listed in ``server/errors.json`` of nats-server.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from jetstream_client.words import OF_CLIENT, Words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_LONGEST_VALUE = 400  # the largest number of characters of a value in an error
LONGEST_TEXT = 1_000
"""Characters of the server's text, at most, that an error message contains. The limit keeps logs readable."""


class JetStreamError(Exception):
    """Base class of every error of this package. Every error can be pickled, because Spark pickles the exceptions of
    its workers."""

    messages: Sequence[Any] = ()
    """Each :class:`~jetstream_client.consume.message.Message` that a fetch had received before it failed. Unless they
    are answered, they are redelivered. A pickled error does not contain them."""

    def __reduce__(self) -> tuple[Any, ...]:
        attributes = {name: value for name, value in self.__dict__.items() if name != "messages"}
        return _carried, (type(self), self.args, attributes)

    def about(self, what: str) -> Self:
        """Put ``what`` in front of this error's message, and return this error."""
        self.args = (f"{what}: {self}",)
        return self


def _carried(kind: type[JetStreamError], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> JetStreamError:
    """Rebuild a pickled error without its constructor, because the constructor does not accept the message."""
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(attributes)
    return error


def shown(value: object) -> str:
    """Format a value for an error message. A long value is cut; a value that cannot be printed is shown as its type."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list of itself
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


class ProtocolError(JetStreamError):
    """Received data breaks the NATS protocol, or is not a valid answer of the JetStream API."""


@contextmanager
def promised(what: str) -> Iterator[None]:
    """Raise ProtocolError if reading received data fails because a field is missing or has the wrong type.

    what: name of the data in the error message.
    """
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
        raise ProtocolError(f"{what} is invalid: a field is missing or has an invalid value") from None


class NotJetStreamMessage(ProtocolError):
    """A message was not delivered by a JetStream consumer, so it has no sequence and cannot be acknowledged."""


class InvalidValue(JetStreamError, ValueError):
    """A value was refused before anything was sent. The message names the field, the value and a remedy."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}={shown(value)}: {remedy[:LONGEST_TEXT]}")
        self.field = field
        self.value = value
        self.remedy = remedy


class SettingsMissing(InvalidValue):
    """The settings of a connection are missing where Spark runs: neither the environment nor a file contains them."""


class ConnectionFailed(JetStreamError, ConnectionError):
    """No connection could be made. This is a :class:`ConnectionError`."""


class ConnectionDenied(ConnectionFailed):
    """The client or the server refuses the connection. No attempt can succeed until a setting of one of them
    changes."""


class AuthenticationFailed(ConnectionDenied):
    """The server refused the credentials, or requires credentials and none are set."""


class TlsFailed(ConnectionDenied):
    """One side does not accept the other's certificate, or the server requires TLS and ``tls`` is not set."""


class TlsNotOffered(TlsFailed):
    """``tls`` is set and the server does not offer TLS. No secret was sent."""


class ConnectionLost(ConnectionFailed):
    """An established connection ended. After a read of stored messages, ``last_sequence`` is the stream sequence of the
    last message that was returned, or 0 if none was."""

    def __init__(self, message: str, last_sequence: int = 0) -> None:
        super().__init__(message)
        self.last_sequence = last_sequence


class ConnectionEnded(ConnectionLost):
    """The connection will not be restored, because its ``async with`` block has ended or the server closed it with an
    error; or all attempts to reconnect were refused for ``connect_timeout``. Open another connection. ``last_sequence``
    is 0.
    """


class RequestTimeout(JetStreamError, TimeoutError):
    """A request was not answered in time. The server may have carried out the request."""


class PermissionDenied(JetStreamError):
    """The user lacks the permission to publish on ``subject`` or to subscribe to it. ``act`` says which of the two:
    ``publish on`` or ``subscribe to``.

    The server drops a refused message, and reports the refusal separately instead of answering.
    """

    def __init__(self, subject: str, act: str = "publish on") -> None:
        super().__init__(f"no permission to {act} {subject!r}; grant it to the user of this connection")
        self.subject = subject
        self.act = act


_BY_CODE: dict[int, type[ApiError]] = {}
_NAMES = re.compile(r"(STREAM|CONSUMER)\.(?:(?:DURABLE|LEADER|MSG|PEER)\.)?[A-Z]+\.([^.]+)(?:\.([^.]+))?")
"""Finds the stream and the consumer that a request of the JetStream API names."""


class ApiError(JetStreamError):
    """A refusal by the server. ``code`` is like an HTTP status, ``err_code`` identifies the reason, ``description`` is
    the server's message."""

    remedy = ""
    """The remedy, if it is the same for every error of the class. ``{words.…}`` stands for a word of the connection."""

    def __init_subclass__(cls, codes: Sequence[int] = ()) -> None:
        """``codes``: the server's ``err_code`` values for which :meth:`from_response` creates this class."""
        _BY_CODE.update(dict.fromkeys(codes, cls))

    def __init__(self, code: int, err_code: int, description: str) -> None:
        numbers = [f"{name} {number}" for name, number in (("err_code", err_code), ("code", code)) if number]
        super().__init__(f"{description} ({', '.join(numbers)})" if numbers else description)
        self.code = code
        self.err_code = err_code
        self.description = description

    @staticmethod
    def from_response(error: object, request: str = "", words: Words = OF_CLIENT) -> ApiError:
        """Convert the ``error`` of an API answer to an exception. If no class is registered for the ``err_code``, the
        result is a plain :class:`ApiError`. If ``error`` is not a JSON object (a dict), the result is an ApiError whose
        ``code`` and ``err_code`` are 0.

        request: subject of the request without the prefix, for example ``STREAM.INFO.ORDERS``. The error message names
            the stream or consumer in it.
        words: the words of the connection, for the remedy.
        """
        invalid = f"the field 'error' of the answer must be a JSON object, not {type(error).__name__}"
        fields = error if isinstance(error, dict) else {"description": invalid}
        code, err_code = fields.get("code"), fields.get("err_code")
        code, err_code = code if type(code) is int else 0, err_code if type(err_code) is int else 0
        refusal = _BY_CODE.get(err_code, ApiError)(code, err_code, str(fields.get("description", ""))[:LONGEST_TEXT])
        refusal.args = (f"{refusal}{refusal.remedy.format(words=words)}",)
        if names := _NAMES.match(request):
            kind, stream, consumer = names.groups()
            about = f"stream {stream!r}"
            if kind == "CONSUMER" and consumer and not isinstance(refusal, StreamNotFound):
                about = f"consumer {consumer!r} of {about}"
            refusal.about(about)
        return refusal


class JetStreamNotEnabled(ApiError, codes=(10076,)):
    """JetStream is disabled on the server, or no server answers the request."""


class JetStreamNotEnabledForAccount(JetStreamNotEnabled, codes=(10039,)):
    """JetStream is not enabled for the account (10039)."""

    remedy = "; enable JetStream for this account on the server, or connect as a user of an account that has it"


class StreamNotFound(ApiError, codes=(10059,)):
    """The stream does not exist (10059)."""

    remedy = (
        "; check its name, the account and the domain (`nats stream ls`, JetStream.stream_names()), or create it "
        "({words.create_stream})"
    )


class StreamNameInUse(ApiError, codes=(10058,)):
    """A stream of this name exists with another configuration."""


class InvalidStreamConfig(ApiError, codes=(10052,)):
    """JetStream does not allow this configuration of a stream, or this change of its configuration."""


class ConsumerNotFound(ApiError, codes=(10014,)):
    """The consumer does not exist (10014)."""

    remedy = "; check its name (`nats consumer ls`, Stream.consumer_names()), or create it ({words.create_consumer})"


class ConsumerDoesNotExist(ConsumerNotFound, codes=(10149,)):
    """The consumer to be updated does not exist (10149)."""


class ConsumerNameInUse(ApiError, codes=(10013,)):
    """A consumer of this name exists (10013)."""


class ConsumerAlreadyExists(ConsumerNameInUse, codes=(10105, 10148)):
    """A consumer of this name exists with another configuration, or is still active."""


class ConsumerCreateFailed(ApiError, codes=(10012,)):
    """The server cannot create the consumer, or cannot change it: some fields are fixed once it exists."""


class WorkQueueRefused(ApiError, codes=(10084, 10098, 10099, 10100, 10101)):
    """A work-queue stream does not accept the consumer: because of its ``ack_policy`` (10084, 10098), because it would
    get messages of an existing consumer (10099, 10100), or because of its ``deliver_policy`` (10101)."""

    remedy = (
        "; a consumer of a work-queue stream needs ack_policy 'explicit', deliver_policy 'all', and filters that do "
        "not overlap those of another consumer, because each message goes to only one consumer"
    )


class MessageNotFound(ApiError, codes=(10037,)):
    """The stream does not contain the message (10037)."""


class SequenceNotFound(MessageNotFound, codes=(10043,)):
    """The message to be deleted does not exist (10043)."""


class MessageDeleteFailed(ApiError, codes=(10057,)):
    """The message cannot be deleted, for example because the stream has ``deny_delete``."""


class PurgeFailed(ApiError, codes=(10110,)):
    """The stream cannot be purged, for example because it has ``deny_purge``."""


class BadRequest(ApiError, codes=(10003, 10193)):
    """The server does not understand the request (10003), or a message has an expected subject without an expected
    sequence (10193)."""


class InvalidRequest(ApiError, codes=(10025,)):
    """The server does not know a field of the request, or a value has the wrong type."""


class TooManyResults(ApiError):
    """The filters of a direct get match more than 1,024 subjects (status 413, ADR-31)."""


class WrongLastSequence(ApiError, codes=(10071, 10164)):
    """The last sequence is not the expected one: another client has published in the meantime."""


class WrongLastMessageId(ApiError, codes=(10070,)):
    """The stream's last message does not have the expected id (10070)."""


class WrongStream(ApiError, codes=(10060,)):
    """The subject belongs to a stream other than the expected one."""


class TooManyRequests(ApiError, codes=(10167,)):
    """The server dropped the message because more than ``max_buffered_msgs`` messages (default 10,000) waited for the
    stream."""


class StreamSealed(ApiError, codes=(10109,)):
    """The stream is sealed: it accepts no more messages, and this cannot be undone."""


class MessageTooLarge(ApiError, codes=(10054,)):
    """Data and headers together exceed the stream's ``max_msg_size``."""


class StoreFailed(ApiError, codes=(10077,)):
    """The stream did not store the message. ``description`` says why, for example because of a limit with ``discard``
    ``new``, or because the disk is full."""


class ResourcesExceeded(ApiError, codes=(10002, 10047)):
    """The storage of the account or the server is used up."""


class LastSequenceNotReady(ApiError, codes=(10163,)):
    """The server has not yet stored or refused an earlier message on the subject. Try again."""


class ApiLevelRequired(ApiError, codes=(10185,)):
    """The server's API level is below the ``Nats-Required-Api-Level`` of the request."""


class TtlRefused(ApiError, codes=(10165, 10166)):
    """The stream has no ``allow_msg_ttl`` (10166), or the TTL of the message is invalid (10165)."""


class CounterRefused(ApiError, codes=(10168, 10169, 10170, 10171, 10172)):
    """The server refused an increment, or another message to a stream of counters. 10168: the stream has no
    ``allow_msg_counter``. 10169: the stream accepts increments only. 10170: the increment has data. 10171: the
    increment is not an integer, or has a header that counters do not allow. 10172: the message stored on the subject is
    not a counter."""


class ScheduleRefused(ApiError, codes=(10188, 10189, 10190, 10191, 10192, 10203, 10212, 10223)):
    """10188: the stream has no ``allow_msg_schedules``. The other codes name the invalid part: 10189 the schedule,
    10190 its target, 10191 its TTL, 10192 its rollup, 10203 its source, 10212 its scheduler, 10223 its time zone."""


class BatchRefused(ApiError, codes=(10175, 10177, 10179, 10200, 10206, 10207)):
    """The server refused a batch and stored nothing of it. 10175: a message has no batch sequence. 10177: a message has
    a header that batches do not allow. 10179, 10207: the id of the batch is invalid. 10200: the commit is invalid.
    10206: the reply subject is invalid."""


class BatchesDisabled(BatchRefused, codes=(10174, 10205)):
    """The stream has no ``allow_atomic`` (10174), or no ``allow_batched`` (10205)."""


class BatchIncomplete(BatchRefused, codes=(10176,)):
    """A message of the batch did not arrive, or the server dropped the batch because nothing arrived for 10 s."""


class BatchTooLarge(BatchRefused, codes=(10199,)):
    """The batch has more messages than the server's ``max_batch_size`` (default 1,000)."""


class BatchDuplicate(BatchRefused, codes=(10201,)):
    """The stream already has a message with the ``Nats-Msg-Id`` of one of the batch's messages. Either the batch was
    stored before, or one of its messages was stored without the batch."""


class BatchUnknown(BatchRefused, codes=(10208,)):
    """The server does not know the batch: nothing arrived for 10 s, or the server was restarted."""


class TooManyBatches(BatchRefused, codes=(10210, 10211)):
    """The stream or the server has as many open batches as it allows. Try again when some of them have ended."""


class UpdateRefused(ApiError):
    """The server refused to change a stream or consumer, whose configuration stays as it is.

    ``changes`` contains the fields that caused the refusal, or all fields of the change if the cause is unknown. Each
    field is mapped to its current and its wanted value.
    """

    def __init__(self, error: ApiError, what: str, changes: Mapping[str, tuple[object, object]], remedy: str) -> None:
        super().__init__(error.code, error.err_code, error.description)
        fields = ", ".join(f"{name}: {shown(old)} → {shown(new)}" for name, (old, new) in changes.items())
        self.args = (f"{what} was not changed: {self.args[0]}; the server refused {fields}; {remedy}",)
        self.changes = changes
        self.remedy = remedy


class ServerTooOld(JetStreamError):
    """The server is too old for ``what``, which needs nats-server ``version`` or newer. Nothing was sent."""

    def __init__(self, what: str, version: str, server: str, instead: str = "") -> None:
        other = f", or {instead}" if instead else ""
        super().__init__(
            f"nats-server {version} or newer is needed for {what}, and this is {server}; upgrade the server{other}"
        )
        self.what = what
        self.version = version
        self.server = server


class TooManyPending(JetStreamError):
    """``publish_async`` has ``max_pending`` unanswered messages. Nothing was sent."""

    def __init__(self, pending: int) -> None:
        super().__init__(
            f"the message was not sent because {pending} earlier messages wait for the stream's answer; publish fewer "
            "at a time, or raise max_pending"
        )
        self.pending = pending


class PublisherClosed(JetStreamError):
    """The publisher was closed by its caller. The message was not sent, or its answer can no longer arrive, because the
    publisher has stopped listening."""


class ListingIncomplete(JetStreamError):
    """A list lacks the state of the streams or consumers in ``names``: they are offline, or their leaders did not
    answer the server in time. The rest of the list is complete."""

    def __init__(self, request: str, names: list[str]) -> None:
        super().__init__(
            f"the answer to {request} lacks the state of {shown(names)}, because they are offline or their leaders did "
            "not answer the server; request the list again, or find the reason with `nats stream info` or `nats "
            "consumer info`"
        )
        self.request = request
        self.names = names


class NoStreamResponse(JetStreamError):
    """A publish was not answered because no stream listens on the subject, or the stream has no leader at this
    moment."""

    def __init__(self, subject: str) -> None:
        super().__init__(
            f"no stream listens on {subject!r}; create a stream whose subjects match it, or correct the subject. If "
            "such a stream exists, it may have no leader at this moment, so publish again later; or JetStream is not "
            "enabled for this account"
        )
        self.subject = subject


class WrongDomain(JetStreamError):
    """The settings name a domain, but the answer came from a stream of another domain, which also listens on the
    subject and stored the message."""

    def __init__(self, subject: str, stored: str, domain: str) -> None:
        place = f"in domain {stored!r}" if stored else "outside any domain"
        super().__init__(
            f"the message for {subject!r} was stored {place}, but no stream of domain {domain!r} has confirmed it; a "
            "subject does not name a domain, so give the streams of the two domains different subjects"
        )
        self.subject = subject
        self.stored = stored
        self.domain = domain


class PublishFailed(JetStreamError):
    """Not every message of a bulk publish was confirmed as stored.

    ``position`` is the index of the first failed message in the input (from 0), ``subject`` is its subject, ``stored``
    is the number of messages that the server confirmed, and ``cause`` is the refusal or the reason for a lost answer.
    If the answer was lost, the message may be stored nevertheless.
    """

    def __init__(self, position: int, subject: str, stored: int, cause: Exception) -> None:
        where = f" for {shown(subject)}" if subject else ""
        super().__init__(
            f"message {position}{where} (counted from 0) was not confirmed as stored: {cause}. {stored} other messages "
            "were confirmed"
        )
        self.position = position
        self.subject = subject
        self.stored = stored
        self.cause = cause


class BatchGap(PublishFailed):
    """Messages of a fast-ingest batch did not reach the stream, which ended the batch. Earlier messages are stored.

    ``position`` is the index of the first missing message in the input. ``arrived`` is the index of the message that
    arrived in its place, or -1 if that is unknown.
    """

    def __init__(self, position: int, arrived: int, stored: int) -> None:
        instead = f", and message {arrived} arrived instead" if arrived >= 0 else ""
        cause = JetStreamError(f"it did not arrive{instead}")
        super().__init__(position, "", stored, cause)
        self.arrived = arrived


class DuplicatesPossible(JetStreamError):
    """An earlier attempt may have stored some of the messages, and it is unknown which messages these are."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(
            f"it is unknown which messages an earlier attempt stored in stream {stream!r}, because {reason}. "
            f"Publishing them again could store them twice. Run `nats stream view {stream}` to see the stored "
            "messages. Then accept duplicates (accept_duplicates=True, or acceptDuplicates in Spark), or publish the "
            "missing messages in a new run"
        )
        self.stream = stream
        self.reason = reason


class BatchPartlyStored(DuplicatesPossible):
    """Only some messages of an atomic batch were found in the stream. If the batch were published again, the stream
    would contain these messages twice. Nothing was sent.

    stream:  name of the stream.
    stored:  number of messages that were found.
    wanted:  number of messages in the batch.
    reason:  why the others were not found.
    """

    def __init__(self, stream: str, stored: int, wanted: int, reason: str) -> None:
        JetStreamError.__init__(
            self,
            f"only {stored} of the {wanted} messages of this batch were found in stream {stream!r}, because {reason}. "
            f"Nothing was sent, even if accept_duplicates is set. Run `nats stream view {stream}` to see the stored "
            "messages, and publish the missing messages in a new run",
        )
        self.stream = stream
        self.stored = stored
        self.wanted = wanted
        self.reason = reason


_BY_LINE: dict[str, type[PullError]] = {}


class PullError(JetStreamError):
    """A pull ended before it had received all messages, or a push consumer failed. ``status`` and ``description`` are
    the server's; a status of 0 means that the client found the error."""

    def __init_subclass__(cls, lines: Sequence[str] = ()) -> None:
        """``lines``: the lower-case beginnings of the status lines for which :meth:`from_status` creates this class."""
        _BY_LINE.update(dict.fromkeys(lines, cls))

    def __init__(self, status: int, description: str) -> None:
        super().__init__(f"{status} {description}" if status else description)
        self.status = status
        self.description = description

    @staticmethod
    def from_status(status: int, description: str) -> PullError:
        """Convert a status line (nats-server's ``server/consumer.go``) to an error: a plain PullError if the line is
        unknown."""
        line = f"{status} {description}".lower()
        if status == 408 and "bad" in line:
            return PullError(status, description)
        beginnings = sorted(_BY_LINE, reverse=True)  # a longer beginning precedes a shorter one that it contains
        kind = next((_BY_LINE[beginning] for beginning in beginnings if line.startswith(beginning)), PullError)
        return kind(status, description or ("no responders" if kind is NoResponders else ""))


class BadPullRequest(PullError, lines=("400",)):
    """400: the heartbeat exceeds half of the expiry, or the priority group is missing or unknown to the consumer."""


class NoMessages(PullError, lines=("404", "408")):
    """404 No Messages, 408 Request Timeout, Interest Expired or Requests Pending: no message arrived in time."""


class ConsumerDeleted(PullError, lines=("409 consumer deleted",)):
    """409 Consumer Deleted, or the consumer no longer exists (503)."""


class ConsumerIsPushBased(PullError, lines=("409 consumer is push based",)):
    """409 Consumer is push based."""


class BatchCompleted(PullError, lines=("409 batch completed",)):
    """409 Batch Completed: a pull request that also limits bytes has received all its messages. This class is
    never raised."""


class PullLimitExceeded(PullError, lines=("409 exceeded max",)):
    """409 Exceeded MaxRequestBatch, MaxRequestExpires or MaxRequestMaxBytes: the request exceeds a limit in the
    consumer's configuration."""


class TooManyPulls(PullLimitExceeded, lines=("409 exceeded maxwaiting",)):
    """409 Exceeded MaxWaiting: as many pull requests wait as the consumer's ``max_waiting`` (default 512) allows. The
    server reports this only to requests without a heartbeat; other requests get no answer and end with
    HeartbeatMissed."""


class MaxBytesExceeded(PullLimitExceeded, lines=("409 message size exceeds maxbytes",)):
    """409 Message Size Exceeds MaxBytes: the first message is larger than the request allows. Request more bytes."""


class LeadershipChanged(PullError, lines=("409 leadership change", "409 server shutdown")):
    """409 Leadership Change or Server Shutdown: pull again."""


class ApiLevelTooLow(PullError, lines=("412",)):
    """412 Required Api Level: the request requires a higher API level than the server has."""


class PinLost(PullError, lines=("423",)):
    """423 Nats-Pin-Id mismatch or Nats-Wrong-Pin-Id: another client of the priority group is now pinned (ADR-42)."""


class NoResponders(PullError, lines=("503",)):
    """503: nothing listens for pull requests of the consumer."""


class HeartbeatMissed(PullError):
    """Two idle heartbeats of a pull or of a push consumer did not arrive. The server or the network has failed, too
    many pull requests wait (:class:`TooManyPulls`), or the push consumer no longer exists."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            0,
            f"no message and no heartbeat arrived for {seconds:.1f} s; run `nats rtt` to see whether the server "
            "answers, and `nats consumer info` to see whether the consumer exists and whether too many pulls are "
            "waiting",
        )
        self.seconds = seconds


class DeliveriesMissed(PullError):
    """The server sent deliveries of a consumer up to number ``last``, but the client received only the deliveries up to
    number ``arrived``.

    The missed messages are redelivered only if the consumer requires acknowledgements.
    """

    def __init__(self, arrived: int, last: int) -> None:
        super().__init__(0, f"deliveries {arrived + 1} to {last} of the consumer did not arrive")
        self.arrived = arrived
        self.last = last


class ConsumerIsPullBased(JetStreamError):
    """The consumer has no ``deliver_subject``: it is a pull consumer."""

    def __init__(self, consumer: str) -> None:
        super().__init__(
            f"consumer {consumer!r} is a pull consumer (it has no deliver_subject); read it with Stream.consumer(name)"
        )
        self.consumer = consumer


class ConsumerIsBound(JetStreamError):
    """Another subscriber listens to this push consumer, which has no ``deliver_group`` to share its messages."""

    def __init__(self, consumer: str) -> None:
        super().__init__(
            f"consumer {consumer!r} is bound to another subscriber; end the other subscription, or set deliver_group "
            "to share the messages"
        )
        self.consumer = consumer


class ConsumingMisused(JetStreamError):
    """The context manager that ``consume`` returned was entered again before it had ended, or a callback waited until
    consuming ends. Consuming ends only after the callback."""


class OrderedConsumerMisused(JetStreamError):
    """An ordered consumer was read twice at the same time, was read by fetching and by consuming, or was asked for its
    state before the first read."""


class OrderedConsumerFailed(JetStreamError):
    """An ordered consumer was recreated ``max_resets`` times without receiving a message."""


class SlowConsumer(JetStreamError):
    """``dropped`` messages of a push consumer were dropped because too many waited unread."""

    def __init__(self, dropped: int) -> None:
        super().__init__(
            f"{dropped} messages were dropped because too many unread messages were waiting; set flow_control on the "
            "push consumer, or use a pull consumer"
        )
        self.dropped = dropped


class MessageAlreadyAnswered(JetStreamError):
    """The message was already acknowledged, negatively acknowledged or terminated. A message can be answered only
    once."""

    def __init__(self, stream: str, sequence: int) -> None:
        super().__init__(
            f"message {sequence} of stream {stream!r} has already been answered; answer each message only once"
        )
        self.stream = stream
        self.sequence = sequence


class DirectGetDisabled(JetStreamError):
    """The stream does not allow direct get."""

    def __init__(self, stream: str, words: Words = OF_CLIENT) -> None:
        super().__init__(
            f"stream {stream!r} does not allow direct get, so its messages cannot be read in this way; set "
            f"allow_direct=true (`nats stream edit {stream} --allow-direct`, {words.update_stream})"
        )
        self.stream = stream


class StreamRecreated(JetStreamError):
    """The stream does not have the expected creation time, so its sequences belong to other messages."""


class BucketRecreated(StreamRecreated):
    """A key-value bucket was deleted and created again, so that its revisions begin at 1 again."""

    def __init__(self, bucket: str) -> None:
        super().__init__(
            f"bucket {bucket!r} was deleted and created again, so that its revisions begin at 1 again; find out why, "
            "and begin anew with the new bucket"
        )
        self.bucket = bucket


class BucketNotFound(JetStreamError):
    """The key-value bucket or object store does not exist.

    command:  how to create it, for the error's message. Default: that of a key-value bucket.
    """

    def __init__(self, bucket: str, command: str = "nats kv add") -> None:
        super().__init__(
            f"bucket {bucket!r} does not exist; check its name, the account and the domain, or create it (`{command} "
            f"{bucket}`)"
        )
        self.bucket = bucket


class BucketUnsuitable(JetStreamError):
    """The configuration of an object store allows that an object is removed before the message that refers to it."""

    def __init__(self, bucket: str, field: str, value: object, remedy: str) -> None:
        super().__init__(f"object store {bucket!r} (stream OBJ_{bucket}) has {field}={shown(value)}: {remedy}")
        self.bucket = bucket
        self.field = field
        self.value = value


class ObjectRefused(JetStreamError):
    """The server refused to store an object, for example because the bucket is full. What was stored of it belongs to
    no object."""

    def __init__(self, bucket: str, reason: str) -> None:
        super().__init__(
            f"the server refused an object for bucket {bucket!r}: {reason}; make room there, or raise its limits"
        )
        self.bucket = bucket


class ObjectUnresolved(JetStreamError):
    """The object that a message refers to cannot be read, and another attempt would not change this."""


class ReferenceInvalid(ObjectUnresolved):
    """The headers with which a message refers to an object are invalid, or they name what this reader does not read."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the message does not refer to an object that can be read: {problem}")


class ObjectTooLarge(ObjectUnresolved):
    """The object that a message refers to has more bytes than the reader allows. It was not read."""

    def __init__(self, name: str, size: int, largest: int) -> None:
        super().__init__(
            f"object {shown(name)} has {size} bytes, and at most {largest} are read; raise max_object_size if it should"
            " be read"
        )
        self.name = name
        self.size = size


class ObjectMissing(ObjectUnresolved):
    """The object that a message refers to does not exist any more, or not completely."""

    def __init__(self, bucket: str, name: str, how: str) -> None:
        super().__init__(f"object {shown(name)} of bucket {bucket!r} {how}")
        self.bucket = bucket
        self.name = name


class ObjectDiffers(ObjectUnresolved):
    """The object that a message refers to has another size or another digest than the message says."""

    def __init__(self, bucket: str, name: str, how: str) -> None:
        super().__init__(f"object {shown(name)} of bucket {bucket!r} is not the one that the message refers to: {how}")
        self.bucket = bucket
        self.name = name


class ReferencesUnresolved(JetStreamError):
    """Some messages refer to objects that cannot be read. ``reasons`` says why, by stream sequence."""

    def __init__(self, stream: str, reasons: Mapping[int, str]) -> None:
        first = min(reasons)
        count = f"{len(reasons)} messages" if len(reasons) > 1 else "1 message"
        super().__init__(
            f"{count} of stream {stream!r} cannot be read completely, the first of them is {first}: {reasons[first]}; "
            "reject these messages with the reasons in the error's attribute 'reasons', or store the objects again"
        )
        self.stream = stream
        self.reasons = dict(reasons)


class KeyExists(JetStreamError):
    """A key that should be created has a value. Nothing was written."""

    def __init__(self, key: str, revision: int) -> None:
        super().__init__(
            f"{key} has a value already, with revision {revision}, which another client has written; update it with "
            f"revision={revision}, or put it without a condition"
        )
        self.revision = revision


class WrongRevision(JetStreamError):
    """The last entry of a key has another ``revision`` than ``expected``. Nothing was written."""

    def __init__(self, key: str, revision: int, expected: int) -> None:
        found = f"revision {revision}, which another client has written" if revision else "no entry"
        super().__init__(f"{key} has {found}, and not revision {expected}; read it again, and decide again")
        self.revision = revision
        self.expected = expected


class ConsumerRefused(JetStreamError):
    """The stream's messages cannot be read with a consumer: the user lacks the permission to create one, or the stream
    accepts none. Direct get does not need a consumer."""


class AddressUnknown(JetStreamError):
    """The acknowledgement subject of a consumer in a domain cannot be determined. Acknowledgements on a guessed subject
    could reach a consumer of the same name in another domain."""

    def __init__(self, domain: str, problem: str) -> None:
        super().__init__(
            f"acknowledgements in domain {domain!r} could reach another consumer of the same name, so none is sent: "
            f"{problem}. If this cannot be changed, connect to a server on the stream's side of the leaf node, with "
            "the account that has the stream"
        )
        self.domain = domain
        self.problem = problem


class MessagesMissing(JetStreamError):
    """The stream's leader does not hold some of the requested messages, because they were removed.

    sequences:  the missing ones, as :class:`~jetstream_client.sequences.Sequences`.
    remedy:     sentences for the end of the error's message. Default: none.
    """

    def __init__(self, stream: str, sequences: Any, remedy: str = "") -> None:
        super().__init__(
            f"stream {stream!r} does not contain {sequences.count} of the requested messages (sequences {sequences}): "
            "they were removed by a limit of the stream (max_age, max_msgs, max_msgs_per_subject, …), expired, "
            "deleted, purged, or removed after their acknowledgement" + (f". {remedy}" if remedy else "")
        )
        self.stream = stream
        self.sequences = sequences
