"""Fast-ingest batches: as many messages as there are, one answer for hundreds (ADR-50, nats-server 2.14).

Not atomic: what arrived before a failure is stored. A batch that lost a message is ended by the server with an answer
that looks like success, so it has succeeded only if the count in that answer is the number of messages that were sent.
Batches that go on over gaps (``ok`` in the reply subject) are not offered: their count says nothing.

The accounting does no I/O; the bulk connection drives it in ``bulk``, the control connection here.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, NamedTuple

from jetstream_client.errors import (
    ApiError,
    BatchGap,
    BatchUnknown,
    ConnectionLost,
    InvalidValue,
    JetStreamError,
    NoStreamResponse,
    PublishFailed,
    RequestTimeout,
    WrongDomain,
)
from jetstream_client.options import OutgoingMessage, outgoing
from jetstream_client.protocol import NO_RESPONDERS, ProtocolError, decode_object
from jetstream_client.publish import Outgoing, PubAck
from jetstream_client.requirements import of_headers

if TYPE_CHECKING:
    from typing import Unpack

    from jetstream_client.options import Headers, PublishOptions
    from jetstream_client.protocol import Reply
    from jetstream_client.publishing import Publishing

PING_AFTER = 2.0
"""Seconds of silence after which the server is asked what it has: it gives a batch up after 10."""
SILENT_FOR = 10.0
"""Seconds of silence, in spite of that, after which the batch is taken for lost."""

_START, _APPEND, _COMMIT, _PING = 0, 1, 2, 4
_OUTSTANDING = 2  # answers: the server works on one lot while the next is on its way (ADR-50)
_MOST_FLOW = 500  # messages for one answer: streams do not go beyond it
_FLOW_BYTES = 4 << 20  # of messages for one answer, by the size of the first


class _Refused(NamedTuple):
    number: int
    cause: JetStreamError


class FastWindow:
    """The accounting of one batch. Messages are numbered from 1 in the order of :meth:`add`.

    The driver listens on :attr:`answers` and sends each message with :meth:`reply`, the last one with ``last``.
    """

    def __init__(self, inbox: str, domain: str | None = None) -> None:
        self.id = secrets.token_hex(12)
        self._prefix = f"{inbox}.{self.id}"
        self._domain = domain
        self._flow = 0  # messages for one answer that the first one asks for
        self._now = 0  # and that the server grants now; 0: it has not answered yet
        self._subjects: dict[int, str] = {}  # of what is not confirmed
        self.added = self.sent = self.confirmed = 0
        self.subject = ""
        """Of the first message: where a ping goes."""
        self._gap: tuple[int, int] | None = None
        self._refused: _Refused | None = None
        self._not_stored: set[int] = set()
        self._unsent: PublishFailed | None = None
        self._ack: PubAck | None = None
        self.ended = False
        """The server has said its last word."""

    @property
    def answers(self) -> str:
        return f"{self._prefix}.>"

    @property
    def full(self) -> bool:
        """Nothing more may be added, beside the one that is held back, before something is confirmed."""
        return self.added > self._room

    @property
    def busy(self) -> bool:
        """Nothing more may be sent before something is confirmed. The first message waits for its answer alone."""
        return self.sent >= self._room

    @property
    def _room(self) -> int:
        return self.confirmed + (self._now * _OUTSTANDING or 1)

    @property
    def failed(self) -> bool:
        """Send no more. What is sent has to be asked for by a ping, unless it has ended."""
        return self.ended or bool(self._gap or self._refused or self._unsent)

    @property
    def broken(self) -> bool:
        """What was sent cannot be committed by a last message."""
        return bool(self._gap or self._refused)

    def add(self, message: Outgoing, now: float = 0.0) -> int:  # noqa: ARG002 # as PublishWindow
        if not self.added:
            self.subject = message.subject
            self._flow = max(1, min(_MOST_FLOW, _FLOW_BYTES // max(1, message.size)))
        self.added += 1
        self._subjects[self.added] = message.subject
        return message.size

    def found(self, position: int, sequence: int) -> None:
        """Nothing is looked for before a fast batch."""
        raise NotImplementedError

    def fail(self, position: int, subject: str, cause: Exception) -> None:
        """A message of the input that cannot be sent."""
        self._unsent = self._unsent or PublishFailed(position, subject, 0, cause)

    def reply(self, *, last: bool = False) -> str:
        """Where the next message is answered."""
        self.sent += 1
        return self._reply(self.sent, _COMMIT if last else _APPEND if self.sent > 1 else _START)

    def ping(self) -> str:
        """Ask for what the server has. Of a broken batch its end: one message more than there are is a gap to it."""
        return self._reply(self.sent + self.broken, _PING)

    def _reply(self, number: int, operation: int) -> str:
        return f"{self._prefix}.{self._flow}.fail.{number}.{operation}.$FI"

    def on_answer(self, subject: str, status: int, data: bytes) -> None:
        """What came on one of the reply subjects. Raises ProtocolError for what no server says."""
        if self.ended:
            return
        words = subject.split(".")
        number = int(words[-3]) if len(words) > 3 and words[-3].isdigit() else 0
        if status == NO_RESPONDERS:
            self._refuse(number, NoStreamResponse(self._subjects.get(number, self.subject)))
            self.ended = number == 1 or words[-2] == str(_PING)  # it did not begin, or the stream is gone
            return
        answer = decode_object(data, "the answer to a fast-ingest batch")
        kind = answer.get("type")
        if kind == "ack":
            self._confirm(_natural(answer, "seq"))
            self._now = min(max(1, _natural(answer, "msgs")), _MOST_FLOW)
        elif kind == "gap" and not self.broken:
            self._gap = _natural(answer, "last_seq"), _natural(answer, "seq")
        elif kind == "gap":
            pass  # it follows from what broke it
        elif kind == "err":
            self._refuse(_natural(answer, "seq"), ApiError.from_response(answer.get("error")))
        elif "error" in answer:
            self._on_error(number, ApiError.from_response(answer["error"]))
        else:
            self._on_ack(number, PubAck.parse(data, nothing_new=True))

    def _on_error(self, number: int, error: ApiError) -> None:
        if isinstance(error, BatchUnknown) and self._refused:
            self.ended = True  # a ping for what the server has given up
            return
        self._refuse(number, error)
        # A first message that is refused opens no batch, and what the server does not know it cannot end.
        self.ended = self.ended or number == 1 or isinstance(error, BatchUnknown)

    def _on_ack(self, number: int, ack: PubAck) -> None:
        if self._domain and ack.domain != self._domain:
            self._refuse(number, WrongDomain(self.subject, ack.domain, self._domain))
        self.ended = True
        if ack.batch_id == self.id:
            self._ack = ack
            self._confirm(ack.batch_size)
        else:
            self._refuse(number, ProtocolError("the answer is not the batch's: it was stored outside of it"))

    def _confirm(self, number: int) -> None:
        for each in range(self.confirmed + 1, min(number, self.sent) + 1):
            del self._subjects[each]
        self.confirmed = max(self.confirmed, min(number, self.sent))

    def _refuse(self, number: int, cause: JetStreamError) -> None:
        self._not_stored.add(number)
        if self._refused is None or number < self._refused.number:
            self._refused = _Refused(number, cause)

    def give_up(self, cause: JetStreamError) -> None:
        """No answer will come any more."""
        if not self.ended:
            self._refuse(self.confirmed + 1, cause)
            self.ended = True

    def result(self) -> PubAck:
        """When it has ended. ``batch_size`` is the number of messages, ``seq`` the last one's sequence.

        Raises:
            BatchGap: messages got lost.
            PublishFailed: the first message that was refused or could not be sent. ``stored`` is what the server has
                confirmed; without its last word (``cause`` is a lost connection) more may be stored.
        """
        # nats-server 2.15.1 counts a message whose Nats-Expected-Last-Msg-Id was wrong, and goes on.
        stored = self.confirmed - sum(number <= self.confirmed for number in self._not_stored)
        if self._refused is not None:
            number, cause = self._refused
            raise PublishFailed(number - 1, self._subjects.get(number, self.subject), stored, cause) from cause
        if self._gap is not None:
            raise BatchGap(self._gap[0] - 1, self._gap[1] - 1, stored)
        if self._ack is not None and self._ack.batch_size != self.sent:
            raise BatchGap(self._ack.batch_size, -1, stored)
        if self._unsent is not None:
            failure = self._unsent
            raise PublishFailed(failure.position, failure.subject, stored, failure.cause) from failure.cause
        assert self._ack is not None  # noqa: S101 # the driver asks when it has ended
        return self._ack


def _natural(answer: dict[str, object], name: str) -> int:
    value = answer.get(name)
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ProtocolError(f"the answer to a fast-ingest batch has a {name} that is none")
    return value


class FastBatch:
    """A fast-ingest batch on the control connection. Get one from :meth:`JetStream.fast_batch`.

    Messages are stored as they come. While nothing is added the server is told every 2 s that the batch goes on.
    """

    def __init__(self, js: Publishing, window: FastWindow) -> None:
        self._js = js
        self._window = window
        self._held: OutgoingMessage | None = None
        self._news = asyncio.Event()
        self._heard = asyncio.get_running_loop().time()

    @property
    def id(self) -> str:
        return self._window.id

    @property
    def size(self) -> int:
        """Messages that were added."""
        return self._window.added

    @property
    def ended(self) -> bool:
        return self._window.ended

    async def add(
        self, subject: str, data: bytes = b"", *, headers: Headers | None = None, **options: Unpack[PublishOptions]
    ) -> None:
        """Add a message. It is sent with the next one, or by :meth:`commit`. Waits while the server has enough to do.

        Options as for :meth:`JetStream.publish`. A message whose ``msg_id`` is known counts, and is not stored again.

        Raises:
            InvalidValue, ServerTooOld: the message is not added.
            PublishFailed: one of those before was refused, or no answer came; the batch has ended.
            BatchGap: one of those before did not arrive; the batch has ended.
        """
        if self._window.ended:
            self._window.result()
            raise InvalidValue("batch", self.id, "it was committed: open another")
        if options.get("expected_last_msg_id") is not None:
            remedy = "the server counts the message, stored or not"
            raise InvalidValue("expected_last_msg_id", options["expected_last_msg_id"], remedy)
        message = outgoing(subject, data, headers, options)
        await self._js.require(of_headers(message.headers))
        if self._held is not None:
            await self._send(self._held)
        while self._window.sent and self._window.busy and not self._window.failed:
            await self._hear()
        if self._window.failed:
            await self._end()
            self._window.result()
        self._held = message
        self._window.add(Outgoing(self._window.added, subject, data, message.block))

    async def commit(self) -> PubAck:
        """Send the last message and wait until everything is stored. ``batch_size`` is how many, ``seq`` the last one.

        Raises: as :meth:`add`; InvalidValue without any message.
        """
        if self._held is None:
            raise InvalidValue("messages", 0, "a batch has at least one message")
        held, self._held = self._held, None
        if not self._window.failed:
            await self._send(held, last=True)
        await self._end()
        return self._window.result()

    async def _send(self, message: OutgoingMessage, *, last: bool = False) -> None:
        reply = self._window.reply(last=last)
        try:
            await self._js.connection.publish(message.subject, message.data, reply, message.block)
        except JetStreamError as error:
            self._window.give_up(error)
            self._window.result()

    async def _end(self) -> None:
        while not self._window.ended:
            await self._hear(ask=self._window.broken)

    async def _hear(self, *, ask: bool = False) -> None:
        """Wait for something new, for so long that it is time for a ping, or to give up."""
        if ask:
            await self.ping()
        self._news.clear()
        try:
            async with self._js.connection.timeout(PING_AFTER):
                await self._news.wait()
        except TimeoutError:
            if asyncio.get_running_loop().time() - self._heard > SILENT_FOR:
                self._js.connection.check_permitted(self._window.subject)
                self._window.give_up(RequestTimeout(f"no answer for {SILENT_FOR:g} s"))

    async def ping(self) -> None:
        """Ask the server what it has, which keeps the batch open, too."""
        if self._window.sent and not self._window.ended:
            try:
                await self._js.connection.publish(self._window.subject, b"", self._window.ping())
            except JetStreamError as error:
                self._window.give_up(error)

    async def keep_open(self) -> None:
        """Until it is cancelled."""
        while not self._window.ended:
            await asyncio.sleep(PING_AFTER)
            await self.ping()

    def deliver(self, reply: Reply) -> None:
        self._heard = asyncio.get_running_loop().time()
        try:
            self._window.on_answer(reply.subject, reply.status, reply.data)
        except JetStreamError as error:
            self._window.give_up(error)
        self._news.set()

    def lost(self, error: ConnectionLost) -> None:
        self._window.give_up(error)
        self._news.set()
