"""Every error of the project, in one tree: those of the client here, the others in the package that raises them.

    JetStreamError
    ├── InvalidValue (ValueError)         a value that can be refused before anything is sent
    ├── ProtocolError                     what came is not the NATS protocol, or not the JetStream API
    │   └── NotJetStreamMessage           a message that no consumer delivered
    ├── ConnectionFailed (ConnectionError)
    │   ├── ConnectionDenied              one side refuses the other: trying again does not help
    │   │   ├── AuthenticationFailed      wrong or missing credentials
    │   │   └── TlsFailed                 a certificate that is not accepted, or TLS required and not asked for
    │   │       └── TlsNotOffered         TLS was asked for and the server does not speak it
    │   └── ConnectionLost                was connected; carries the last sequence where there is one
    │       └── ConnectionEnded           for good: nothing is worth waiting for on this connection
    ├── RequestTimeout (TimeoutError)     no answer in time
    ├── PermissionDenied                  the account may not publish or subscribe there
    ├── ApiError                          the server's own refusal: code, err_code, description
    │   ├── StreamNotFound, StreamNameInUse, BadRequest, InvalidRequest, InvalidStreamConfig, ConsumerCreateFailed,
    │   │   MessageDeleteFailed, PurgeFailed, TooManyResults, WrongLastSequence, WrongLastMessageId, WrongStream,
    │   │   TooManyRequests
    │   ├── StreamSealed, MessageTooLarge, StoreFailed, ResourcesExceeded, LastSequenceNotReady, ApiLevelRequired
    │   ├── TtlRefused, CounterRefused, ScheduleRefused, WorkQueueRefused
    │   ├── UpdateRefused                 a stream or consumer that cannot be made as wanted; carries what and why
    │   ├── BatchRefused
    │   │   └── BatchesDisabled, BatchIncomplete, BatchTooLarge, BatchDuplicate, BatchUnknown, TooManyBatches
    │   ├── ConsumerNotFound
    │   │   └── ConsumerDoesNotExist      an update of one
    │   ├── ConsumerNameInUse
    │   │   └── ConsumerAlreadyExists     created where one with another configuration exists
    │   ├── MessageNotFound
    │   │   └── SequenceNotFound          a deletion of one
    │   └── JetStreamNotEnabled
    │       └── JetStreamNotEnabledForAccount
    ├── ServerTooOld                      names the version that is needed
    ├── ListingIncomplete                 the server could not answer for everything in a list
    ├── TooManyPending                    publish_async has as many unanswered messages as it may
    ├── PublisherClosed                   publish_async was ended by its caller
    ├── NoStreamResponse                  published where no stream listens
    ├── WrongDomain                       published, and stored by a stream of another domain alone
    ├── PublishFailed                     which message was refused or unanswered, how many were stored
    │   └── BatchGap                      a fast-ingest batch ended at messages that did not arrive
    ├── DuplicatesPossible                what an earlier attempt stored cannot be found out
    ├── PullError                         a status line that ends a pull and does not mean "empty"
    │   ├── BadPullRequest (400), NoMessages (404, 408), ApiLevelTooLow (412), PinLost (423), NoResponders (503)
    │   ├── ConsumerDeleted, ConsumerIsPushBased, LeadershipChanged, BatchCompleted (409)
    │   ├── PullLimitExceeded (409)
    │   │   └── TooManyPulls, MaxBytesExceeded
    │   ├── HeartbeatMissed               a silent server
    │   └── DeliveriesMissed              a push consumer delivered what did not arrive
    ├── ConsumerIsPullBased, ConsumerIsBound   a push consumer's subject cannot be listened to
    ├── ConsumingMisused                  entered twice, or a callback that waits for its own end
    ├── OrderedConsumerMisused, OrderedConsumerFailed
    ├── SlowConsumer                      messages came faster than they were read
    ├── MessageAlreadyAnswered            acknowledged, refused or ended before
    ├── DirectGetDisabled                 the stream has no allow_direct
    ├── StreamRecreated                   same name, another stream
    ├── ConsumerRefused                   no consumer can be made to read by
    ├── AddressUnknown                    where a consumer in a domain is acknowledged cannot be learned
    ├── MessagesMissing                   sequences that should be there and are not
    └── HandoffError, SparkError          of :mod:`jetstream_handoff.errors` and :mod:`airflow_nats_jetstream.errors`

The server's codes are those of nats-server's ``server/errors.json``.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jetstream_client.consume.message import Message
    from jetstream_client.sequences import Sequences


_LONGEST_VALUE = 400  # characters of a value in an error
LONGEST_TEXT = 1_000
"""Characters of a server's text in an error: logs are for people."""


class JetStreamError(Exception):
    """Root of every error of this package. All of them can be pickled: Spark carries them from its workers."""

    messages: Sequence[Message] = ()
    """What a fetch had received before it failed: to be answered or left for redelivery. Not pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        attributes = {name: value for name, value in self.__dict__.items() if name != "messages"}
        return _carried, (type(self), self.args, attributes)

    def about(self, what: str) -> Self:
        """The same error; its text begins with what it is about."""
        self.args = (f"{what}: {self}",)
        return self


def _carried(kind: type[JetStreamError], args: tuple[Any, ...], attributes: Mapping[str, Any]) -> JetStreamError:
    """The error again, without its constructor, whose parameters are not the message."""
    error = kind.__new__(kind)
    error.args = args
    vars(error).update(attributes)
    return error


def shown(value: object) -> str:
    """A value for people: its beginning when it is long, its type when it cannot be printed."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list of itself
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


class ProtocolError(JetStreamError):
    """What came is not the NATS protocol, or not the JetStream API. A connection cannot be used any more then."""


@contextmanager
def promised(what: str) -> Iterator[None]:
    """Reading what somebody sent: ProtocolError where a part of it is missing or of another kind."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
        raise ProtocolError(f"{what} is not what the API promises") from None


class NotJetStreamMessage(ProtocolError):
    """A message that no JetStream consumer delivered: it has no place in a stream and cannot be acknowledged."""


class InvalidValue(JetStreamError, ValueError):
    """A value refused before anything was sent: which field, which value, and what to do."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}={shown(value)}: {remedy[:LONGEST_TEXT]}")
        self.field = field
        self.value = value
        self.remedy = remedy


class ConnectionFailed(JetStreamError, ConnectionError):
    """No connection could be made. A :class:`ConnectionError`, so nats-py treats it as one failed attempt."""


class ConnectionDenied(ConnectionFailed):
    """One side refuses the other: settings have to change, here or on the server."""


class AuthenticationFailed(ConnectionDenied):
    """The server refused the credentials, or asked for some and none were given."""


class TlsFailed(ConnectionDenied):
    """A certificate that the other side does not accept, or a server that requires TLS which was not asked for."""


class TlsNotOffered(TlsFailed):
    """TLS was asked for and the server offers none. Nothing secret was sent."""


class ConnectionLost(ConnectionFailed):
    """An established connection ended. ``last_sequence`` is the last stream sequence that arrived, 0 if none."""

    def __init__(self, message: str, last_sequence: int = 0) -> None:
        super().__init__(message)
        self.last_sequence = last_sequence


class ConnectionEnded(ConnectionLost):
    """It does not come back: its block was left, the server ended it with an error, or refuses to let it in again.

    Open another connection. ``last_sequence`` is 0.
    """


class RequestTimeout(JetStreamError, TimeoutError):
    """A request was not answered in time. What it asked for may have happened."""


class PermissionDenied(JetStreamError):
    """The account may not ``act`` (publish on, subscribe to) the subject.

    The server drops what it may not take, and says so on the side.
    """

    def __init__(self, subject: str, act: str = "publish on") -> None:
        super().__init__(f"no permission to {act} {subject!r}: allow it for this user")
        self.subject = subject
        self.act = act


_BY_CODE: dict[int, type[ApiError]] = {}
_NAMES = re.compile(r"(STREAM|CONSUMER)\.(?:(?:DURABLE|LEADER|MSG|PEER)\.)?[A-Z]+\.([^.]+)(?:\.([^.]+))?")
"""In a request of the JetStream API: the stream that it is about, and the consumer."""


class ApiError(JetStreamError):
    """A refusal by the server: ``code`` is HTTP-like, ``err_code`` the precise one, ``description`` its text."""

    remedy = ""
    """What to do next, where the class alone tells it."""

    def __init_subclass__(cls, codes: Sequence[int] = ()) -> None:
        """``codes``: the server's, for which :meth:`from_response` makes an error of this class."""
        _BY_CODE.update(dict.fromkeys(codes, cls))

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{description} (err_code {err_code}, code {code})")
        self.code = code
        self.err_code = err_code
        self.description = description

    @staticmethod
    def from_response(error: object, request: str = "") -> ApiError:
        """The class for the ``error`` of an API answer; plain :class:`ApiError` for codes without a class. Its text
        names the stream or consumer of the ``request``, for example ``STREAM.INFO.ORDERS``.

        Whatever was answered instead of an error object is an error too: code 0.
        """
        fields = error if isinstance(error, dict) else {"description": f"no error object: {type(error).__name__}"}
        code, err_code = fields.get("code"), fields.get("err_code")
        code, err_code = code if type(code) is int else 0, err_code if type(err_code) is int else 0
        refusal = _BY_CODE.get(err_code, ApiError)(code, err_code, str(fields.get("description", ""))[:LONGEST_TEXT])
        if names := _NAMES.match(request):
            kind, stream, consumer = names.groups()
            about = f"stream {stream!r}"
            if kind == "CONSUMER" and consumer and not isinstance(refusal, StreamNotFound):
                about = f"consumer {consumer!r} of {about}"
            refusal.args = (f"{refusal}{refusal.remedy}",)
            refusal.about(about)
        return refusal


class JetStreamNotEnabled(ApiError, codes=(10076,)):
    """JetStream is off on the server, or nobody answers its API."""


class JetStreamNotEnabledForAccount(JetStreamNotEnabled, codes=(10039,)):
    """10039."""


class StreamNotFound(ApiError, codes=(10059,)):
    """10059."""

    remedy = (
        "; check its name, the account and the domain (`nats stream ls`, JetStream.stream_names()), or create it "
        "(JetStreamCreateStreamOperator, JetStream.create_stream())"
    )


class StreamNameInUse(ApiError, codes=(10058,)):
    """A stream of this name exists with another configuration."""


class InvalidStreamConfig(ApiError, codes=(10052,)):
    """A configuration, or a change of one, that JetStream does not allow."""


class ConsumerNotFound(ApiError, codes=(10014,)):
    """10014."""

    remedy = (
        "; check its name (`nats consumer ls`, Stream.consumer_names()), or create it "
        "(JetStreamCreateConsumerOperator, Stream.create_consumer())"
    )


class ConsumerDoesNotExist(ConsumerNotFound, codes=(10149,)):
    """An update of a consumer that is not there."""


class ConsumerNameInUse(ApiError, codes=(10013,)):
    """10013."""


class ConsumerAlreadyExists(ConsumerNameInUse, codes=(10105, 10148)):
    """Created where one with another configuration exists, or one that is still active."""


class ConsumerCreateFailed(ApiError, codes=(10012,)):
    """A consumer, or a change of one, that the server cannot make: some fields stay for life."""


class WorkQueueRefused(ApiError, codes=(10084, 10098, 10099, 10100, 10101)):
    """A consumer that a work queue does not take. 10084, 10098: its ``ack_policy``. 10099, 10100: it would get messages
    of a consumer that exists. 10101: its ``deliver_policy``."""

    remedy = (
        "; a work queue gives each message to one consumer: use the consumer that exists, or give all of them filters "
        "that do not overlap, ack_policy 'explicit' and deliver_policy 'all'"
    )


class MessageNotFound(ApiError, codes=(10037,)):
    """10037."""


class SequenceNotFound(MessageNotFound, codes=(10043,)):
    """A deletion of a message that is not there."""


class MessageDeleteFailed(ApiError, codes=(10057,)):
    """For example in a stream with ``deny_delete``."""


class PurgeFailed(ApiError, codes=(10110,)):
    """For example in a stream with ``deny_purge``."""


class BadRequest(ApiError, codes=(10003, 10193)):
    """No request that the server understands. 10193: an expected subject without a sequence that is expected there."""


class InvalidRequest(ApiError, codes=(10025,)):
    """A field that this server does not know, or a value that is not of its type."""


class TooManyResults(ApiError):
    """413 of a direct get: the subjects match more than 1,024 others (ADR-31)."""


class WrongLastSequence(ApiError, codes=(10071, 10164)):
    """Somebody else wrote first."""


class WrongLastMessageId(ApiError, codes=(10070,)):
    """10070."""


class WrongStream(ApiError, codes=(10060,)):
    """The subject belongs to another stream than the expected one."""


class TooManyRequests(ApiError, codes=(10167,)):
    """Dropped, because more messages waited for the stream than ``max_buffered_msgs`` (10,000) allows."""


class StreamSealed(ApiError, codes=(10109,)):
    """A sealed stream takes no message any more, and cannot be opened again."""


class MessageTooLarge(ApiError, codes=(10054,)):
    """Data and headers are more than the stream's ``max_msg_size``."""


class StoreFailed(ApiError, codes=(10077,)):
    """The stream did not store it. ``description`` says why: a limit with ``discard`` ``new``, a full disk."""


class ResourcesExceeded(ApiError, codes=(10002, 10047)):
    """The account's or the server's storage is used up."""


class LastSequenceNotReady(ApiError, codes=(10163,)):
    """What is on its way to the subject is not decided yet. Try again."""


class ApiLevelRequired(ApiError, codes=(10185,)):
    """The server is older than the ``Nats-Required-Api-Level`` of the request."""


class TtlRefused(ApiError, codes=(10165, 10166)):
    """10166: the stream has no ``allow_msg_ttl``. 10165: no TTL that the server reads."""


class CounterRefused(ApiError, codes=(10168, 10169, 10170, 10171, 10172)):
    """10168: the stream has no ``allow_msg_counter``. 10169: it has, and takes nothing but increments. 10170: an
    increment with data. 10171: no integer, or with a header that counters do not allow. 10172: what is stored on the
    subject is no counter."""


class ScheduleRefused(ApiError, codes=(10188, 10189, 10190, 10191, 10192, 10203, 10212, 10223)):
    """10188: the stream has no ``allow_msg_schedules``. Else what is wrong: 10189 the schedule, 10190 its target, 10191
    its TTL, 10192 its rollup, 10203 its source, 10212 its scheduler, 10223 its time zone."""


class BatchRefused(ApiError, codes=(10175, 10177, 10179, 10200, 10206, 10207)):
    """A batch, of which nothing is stored. 10175: without sequence. 10177: a header that batches do not allow. 10179,
    10207: an id that the server does not take. 10200: no way to commit. 10206: no reply subject of a batch."""


class BatchesDisabled(BatchRefused, codes=(10174, 10205)):
    """10174: the stream has no ``allow_atomic``. 10205: no ``allow_batched``."""


class BatchIncomplete(BatchRefused, codes=(10176,)):
    """A message of the batch did not arrive, or nothing came for 10 s and the server gave it up."""


class BatchTooLarge(BatchRefused, codes=(10199,)):
    """More messages than the server takes in one batch: 1,000, or its ``max_batch_size``."""


class BatchDuplicate(BatchRefused, codes=(10201,)):
    """The stream has the ``Nats-Msg-Id`` of one of the messages: the batch was stored before, or is not one."""


class BatchUnknown(BatchRefused, codes=(10208,)):
    """The server knows no such batch (any more): nothing came for 10 s, or it was restarted."""


class TooManyBatches(BatchRefused, codes=(10210, 10211)):
    """As many batches are open as the stream or the server allows. Try again when some have ended."""


class UpdateRefused(ApiError):
    """The server refused to change a stream or consumer, which stays as it is. ``changes``: the fields that the refusal
    is about, as far as that can be told, each with what it is and what was wanted."""

    def __init__(self, error: ApiError, what: str, changes: Mapping[str, tuple[object, object]], remedy: str) -> None:
        super().__init__(error.code, error.err_code, error.description)
        fields = ", ".join(f"{name}: {shown(old)} → {shown(new)}" for name, (old, new) in changes.items())
        self.args = (f"{what} stays as it is: {self.args[0]}: {fields}: {remedy}",)
        self.changes = changes
        self.remedy = remedy


class ServerTooOld(JetStreamError):
    """The server is older than what was asked of it: ``version`` is the first that has ``what``. Nothing was sent."""

    def __init__(self, what: str, version: str, server: str) -> None:
        super().__init__(f"{what}: needs nats-server {version} or newer; this is {server}")
        self.what = what
        self.version = version
        self.server = server


class TooManyPending(JetStreamError):
    """``publish_async`` has as many unanswered messages as it may: nothing was sent."""

    def __init__(self, pending: int) -> None:
        super().__init__(f"{pending} messages wait for the stream's answer: publish less at once, or raise max_pending")
        self.pending = pending


class PublisherClosed(JetStreamError):
    """The publisher was closed by its caller: nothing was sent, or the answer to what was sent is not listened for."""


class ListingIncomplete(JetStreamError):
    """Everything that the server could tell was listed, and these ``names`` were not: their leaders did not answer it
    in time, or they are offline."""

    def __init__(self, request: str, names: list[str]) -> None:
        super().__init__(f"{request} lacks {len(names)}, which did not answer: {shown(names)}; ask again")
        self.request = request
        self.names = names


class NoStreamResponse(JetStreamError):
    """Nobody answered a publish: no stream listens on the subject."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"no stream listens on {subject!r}: create a stream whose subjects match it, or correct it")
        self.subject = subject


class WrongDomain(JetStreamError):
    """Published on a connection with a domain, and stored by a stream of another domain, which listens, too."""

    def __init__(self, subject: str, stored: str, domain: str) -> None:
        super().__init__(
            f"{subject!r} was stored in domain {stored!r}, and no stream of domain {domain!r} said that it has it: a "
            "subject names no domain; give the streams of both domains different subjects"
        )
        self.subject = subject
        self.stored = stored
        self.domain = domain


class PublishFailed(JetStreamError):
    """A bulk publish did not store everything.

    ``position`` is the index of the message in the input (from 0), ``subject`` where it was to go, ``stored`` how
    many messages the server confirmed, ``cause`` the server's refusal or the lost answer.
    """

    def __init__(self, position: int, subject: str, stored: int, cause: Exception) -> None:
        super().__init__(
            f"message {position} for {shown(subject)} was not stored: {cause}; {stored} messages were stored"
        )
        self.position = position
        self.subject = subject
        self.stored = stored
        self.cause = cause


class BatchGap(PublishFailed):
    """Messages of a fast-ingest batch did not reach the stream, which ended it there: those before are stored.

    ``position`` is the first that is missing, ``arrived`` the one that came instead, -1 if that is not known.
    """

    def __init__(self, position: int, arrived: int, stored: int) -> None:
        cause = JetStreamError(f"it did not arrive, message {arrived} came instead" if arrived >= 0 else "nothing came")
        super().__init__(position, "", stored, cause)
        self.arrived = arrived


class DuplicatesPossible(JetStreamError):
    """An earlier attempt may have stored some of the messages, and which ones cannot be found out."""

    def __init__(self, stream: str, reason: str) -> None:
        super().__init__(
            f"what was published to stream {stream!r} before cannot be found out: {reason}; sent again it could be "
            "stored twice. See what is there, then accept duplicates (accept_duplicates=True) or publish in a new run"
        )
        self.stream = stream
        self.reason = reason


_BY_LINE: dict[str, type[PullError]] = {}


class PullError(JetStreamError):
    """A pull ended for a reason that is not "nothing there". ``status`` and ``description`` are the server's."""

    def __init_subclass__(cls, lines: Sequence[str] = ()) -> None:
        """``lines``: how the status lines begin, in small letters, that :meth:`from_status` takes for this class."""
        _BY_LINE.update(dict.fromkeys(lines, cls))

    def __init__(self, status: int, description: str) -> None:
        super().__init__(f"{status} {description}")
        self.status = status
        self.description = description

    @staticmethod
    def from_status(status: int, description: str) -> PullError:
        """The class for a status line (nats-server's ``server/consumer.go``); plain PullError for an unknown one."""
        line = f"{status} {description}".lower()
        if status == 408 and "bad" in line:
            return PullError(status, description)
        beginnings = sorted(_BY_LINE, reverse=True)  # a longer one before its own beginning
        kind = next((_BY_LINE[beginning] for beginning in beginnings if line.startswith(beginning)), PullError)
        return kind(status, description or ("no responders" if kind is NoResponders else ""))


class BadPullRequest(PullError, lines=("400",)):
    """400: a heartbeat above half of the expiry, a priority group that is missing or not the consumer's."""


class NoMessages(PullError, lines=("404", "408")):
    """404 No Messages, 408 Request Timeout, Interest Expired or Requests Pending: nothing came in time."""


class ConsumerDeleted(PullError, lines=("409 consumer deleted",)):
    """409 Consumer Deleted, or nobody answers for the consumer any more (503)."""


class ConsumerIsPushBased(PullError, lines=("409 consumer is push based",)):
    """409 Consumer is push based."""


class BatchCompleted(PullError, lines=("409 batch completed",)):
    """409 Batch Completed: a request that was also bound by bytes has brought all its messages. Never raised."""


class PullLimitExceeded(PullError, lines=("409 exceeded max",)):
    """409 Exceeded MaxRequestBatch, MaxRequestExpires or MaxRequestMaxBytes: the consumer's own limits."""


class TooManyPulls(PullLimitExceeded, lines=("409 exceeded maxwaiting",)):
    """409 Exceeded MaxWaiting: as many pulls wait as the consumer's ``max_waiting`` (512) allows. Said only to pulls
    without a heartbeat; others hear nothing, which is HeartbeatMissed."""


class MaxBytesExceeded(PullLimitExceeded, lines=("409 message size exceeds maxbytes",)):
    """409 Message Size Exceeds MaxBytes, for the first message of a request: ask for more bytes."""


class LeadershipChanged(PullError, lines=("409 leadership change", "409 server shutdown")):
    """409 Leadership Change or Server Shutdown: ask again."""


class ApiLevelTooLow(PullError, lines=("412",)):
    """412 Required Api Level: the request names a level that the server does not have."""


class PinLost(PullError, lines=("423",)):
    """423 Nats-Pin-Id mismatch, Nats-Wrong-Pin-Id: another client of the priority group is pinned now (ADR-42)."""


class NoResponders(PullError, lines=("503",)):
    """503: nobody listens for the consumer's pulls."""


class HeartbeatMissed(PullError):
    """Two idle heartbeats of a pull did not come: the server or the way to it is gone."""

    def __init__(self, seconds: float) -> None:
        super().__init__(0, f"no message and no heartbeat for {seconds:.1f} s")
        self.seconds = seconds


class DeliveriesMissed(PullError):
    """A push consumer has made deliveries that did not arrive: up to ``last`` of them, here up to ``arrived``.

    What needs an acknowledgement is delivered again; without acknowledgements it is not.
    """

    def __init__(self, arrived: int, last: int) -> None:
        super().__init__(0, f"deliveries {arrived + 1} to {last} of the consumer did not arrive")
        self.arrived = arrived
        self.last = last


class ConsumerIsPullBased(JetStreamError):
    """A consumer without ``deliver_subject`` does not push: pull from it."""

    def __init__(self, consumer: str) -> None:
        super().__init__(f"consumer {consumer!r} has no deliver_subject: pull from it, with Stream.consumer(name)")
        self.consumer = consumer


class ConsumerIsBound(JetStreamError):
    """Somebody listens to this push consumer already, and it has no ``deliver_group`` to share the messages."""

    def __init__(self, consumer: str) -> None:
        super().__init__(f"consumer {consumer!r} is bound by another subscriber: give it a deliver_group to share it")
        self.consumer = consumer


class ConsumingMisused(JetStreamError):
    """What ``consume`` returned was entered while it was under way, or its callback waits for the end of it."""


class OrderedConsumerMisused(JetStreamError):
    """Two uses of one ordered consumer at the same time, fetching mixed with consuming, or asked before its first."""


class OrderedConsumerFailed(JetStreamError):
    """An ordered consumer was created again so often without a message between as ``max_resets`` allows."""


class SlowConsumer(JetStreamError):
    """So many messages of a push consumer were dropped, because so many waited unread."""

    def __init__(self, dropped: int) -> None:
        super().__init__(f"{dropped} messages were dropped: give the push consumer flow_control, or pull")
        self.dropped = dropped


class MessageAlreadyAnswered(JetStreamError):
    """A message can be acknowledged, refused or ended once."""

    def __init__(self, stream: str, sequence: int) -> None:
        super().__init__(f"message {sequence} of {stream!r} was answered before")
        self.stream = stream
        self.sequence = sequence


class DirectGetDisabled(JetStreamError):
    """The stream does not allow direct get."""

    def __init__(self, stream: str) -> None:
        super().__init__(
            f"stream {stream!r} does not allow direct get, by which its messages are read: update it with "
            f"allow_direct=true (nats stream edit {stream} --allow-direct, or JetStreamCreateStreamOperator)"
        )
        self.stream = stream


class StreamRecreated(JetStreamError):
    """The stream has the name but not the creation time that was expected: its sequences mean other messages."""


class ConsumerRefused(JetStreamError):
    """This user may not make a consumer to read by, or the stream takes none: direct get needs none."""


class AddressUnknown(JetStreamError):
    """Where the acknowledgements of a consumer in a domain go cannot be learned: a guess could reach another's."""

    def __init__(self, domain: str, problem: str) -> None:
        super().__init__(
            f"acknowledgements in domain {domain!r} could reach another consumer of the same name: {problem}; "
            "or connect to a server of that domain, with the account that has the stream"
        )
        self.domain = domain
        self.problem = problem


class MessagesMissing(JetStreamError):
    """Sequences that were promised and that the leader of the stream does not hold (any more)."""

    def __init__(self, stream: str, sequences: Sequences) -> None:
        super().__init__(f"stream {stream!r} lacks {sequences.count} of the messages asked for: {sequences}")
        self.stream = stream
        self.sequences = sequences
