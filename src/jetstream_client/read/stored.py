# SPDX-License-Identifier: Apache-2.0
"""Reading stored messages by sequence, subject or time, from the stream's leader or by direct get.

``STREAM.MSG.GET`` asks the leader. Any replica or a mirror can answer a direct get (ADR-31), and may lag behind the
leader. :mod:`~jetstream_client.read.direct` reads many messages over a bulk connection, and resumes if it is lost.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NoReturn

from jetstream_client import config as configs
from jetstream_client import requirements
from jetstream_client.errors import (
    ApiError,
    BadRequest,
    ConnectionLost,
    DirectGetDisabled,
    InvalidValue,
    JetStreamNotEnabled,
    MessageNotFound,
    ProtocolError,
    RequestTimeout,
    TooManyRequests,
    TooManyResults,
)
from jetstream_client.names import check_filter, check_subject
from jetstream_client.read.message import StoredMessage
from jetstream_client.sequences import check_sequence
from jetstream_client.trace import RequestSent, ResponseReceived
from jetstream_client.wire.protocol import NO_RESPONDERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from datetime import datetime

    from jetstream_client.stream import Stream
    from jetstream_client.wire.protocol import Reply

MAX_BYTES = 8 << 20
"""The largest number of bytes in the answer to one request. The server exceeds it by at most one message."""
BATCH = 1_000
"""The largest number of messages in one request. It is limited because the client keeps the messages in memory until
the caller reads them."""

_ADDED = ("Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending", "Nats-Last-Sequence")
_LOST = "messages of stream {!r} were lost on the way from the server, and must be read again"
_STATUSES: dict[int, type[ApiError]] = {
    404: MessageNotFound,
    408: BadRequest,  # "Bad Request", "Empty Request", "Malformed Request"
    413: TooManyResults,
    429: TooManyRequests,
}


def direct_message(reply: Reply) -> tuple[StoredMessage, int]:
    """Parse an answer to a direct get: the message, and the sequence of the previous one in the batch (0: none).

    The publisher may have set a header that the server adds as well. The last value of such a header is the server's.
    Raises ProtocolError.
    """
    headers = {name: list(values) for name, values in reply.headers.items()}
    added = {name: headers[name].pop() for name in _ADDED if name in headers}
    if "Nats-Stream" not in added:  # the publisher's block ended in the middle of a line, which this line continues
        for values in headers.values():
            if values and "Nats-Stream: " in values[-1]:
                values.pop()
    kept = {name: values for name, values in headers.items() if values}
    try:
        sequence, before = int(added["Nats-Sequence"]), int(added.get("Nats-Last-Sequence", 0))
        return StoredMessage(added["Nats-Subject"], sequence, added["Nats-Time-Stamp"], kept, reply.data), before
    except (KeyError, ValueError):
        raise ProtocolError("the answer to a direct get is not a stored message") from None


def selection(
    sequence: int | None,
    next_by_subject: str | None = None,
    last_by_subject: str | None = None,
    start_time: datetime | str | None = None,
) -> dict[str, Any]:
    """Check the parameters of a request for messages, and return its body. Raises InvalidValue."""
    if last_by_subject is not None:
        for name, value in (("sequence", sequence), ("next_by_subject", next_by_subject), ("start_time", start_time)):
            if value is not None:
                raise InvalidValue(name, value, f"set either {name!r} or last_by_subject, not both")
        return {"last_by_subj": check_filter(last_by_subject, "last_by_subject")}
    if sequence is not None and start_time is not None:
        raise InvalidValue("start_time", start_time, "set either 'sequence' or start_time, not both")
    if sequence is None and start_time is None and next_by_subject is None:
        remedy = "no message is selected; set 'sequence' or another parameter that selects a message"
        raise InvalidValue("sequence", None, remedy)
    body: dict[str, Any] = {}
    if sequence is not None:
        body["seq"] = check_sequence(sequence)
    if start_time is not None:
        body |= configs.normalise({"start_time": start_time})
    if next_by_subject is not None:
        body["next_by_subj"] = check_filter(next_by_subject, "next_by_subject")
    return body


def last_selection(
    subjects: Iterable[str], up_to_sequence: int | None, up_to_time: datetime | str | None
) -> dict[str, Any]:
    """Check the parameters of a request for last messages, and return its body. Raises InvalidValue."""
    filters = [check_filter(subject, "subjects") for subject in ([subjects] if isinstance(subjects, str) else subjects)]
    if not filters:
        raise InvalidValue("subjects", filters, "set at least one subject; the wildcard > matches all subjects")
    if up_to_sequence is not None and up_to_time is not None:
        raise InvalidValue("up_to_time", up_to_time, "set either up_to_sequence or up_to_time, not both")
    body: dict[str, Any] = {"multi_last": filters}
    if up_to_sequence is not None:
        body["up_to_seq"] = check_sequence(up_to_sequence, "up_to_sequence")
    if up_to_time is not None:
        body |= configs.normalise({"up_to_time": up_to_time})
    return body


async def request_direct(stream: Stream, body: Mapping[str, Any]) -> Reply:
    """Request one message by direct get. Raises MessageNotFound, DirectGetDisabled."""
    subject, data = f"{stream.js.settings.prefix}.DIRECT.GET.{stream.name}", json.dumps(body).encode()
    last = body.get("last_by_subj")
    if last is not None and len(body) == 1 and not {"*", ">"}.intersection(last.split(".")):
        # Permissions can be set for this subject.
        subject, data = f"{subject}.{check_subject(last, 'last_by_subject')}", b""
    reply = await stream.js.request(subject, data)
    if reply.status:
        await _refused(stream, reply)
    return reply


async def batch(stream: Stream, body: Mapping[str, Any], count: int | None) -> AsyncIterator[StoredMessage]:
    """Like :func:`pages`, but first check that the servers support batched direct get. Also raises ServerTooOld."""
    await stream.js.require(requirements.BATCHED_DIRECT_GET)
    async for message in pages(stream, body, count):
        yield message


async def pages(stream: Stream, body: Mapping[str, Any], count: int | None) -> AsyncIterator[StoredMessage]:
    """Up to ``count`` messages by direct get, in pages; all messages if ``count`` is None.

    A page is requested when the previous one has been read. Between pages the server keeps no state.

    Raises:
        PermissionDenied, DirectGetDisabled, TooManyResults, TooManyRequests.
        RequestTimeout: no message arrived within the context's ``request_timeout``.
        ConnectionLost: messages did not arrive, so the result is incomplete. The error's ``last_sequence`` is that of
            the last message that was returned.
    """
    page, given, returned = dict(body), 0, 0
    while count is None or given < count:
        page |= {"batch": BATCH if count is None else min(BATCH, count - given), "max_bytes": MAX_BYTES}
        messages, end = await _page(stream, page, returned)
        for message in messages:
            yield message
            returned = message.sequence
        given += len(messages)
        if end.status == 404 or not _int(end, "Nats-Num-Pending"):
            return
        page.pop("start_time", None)
        page["seq"] = returned + 1
        if page.pop("up_to_time", None) is not None or "multi_last" in page:
            page["up_to_seq"] = _int(end, "Nats-UpTo-Sequence")  # so that all pages show the state of one moment


async def _page(stream: Stream, body: Mapping[str, Any], returned: int) -> tuple[list[StoredMessage], Reply]:
    """The messages of one request, and the status that follows them: 204, or 404 if there are no messages. The trace
    gets only this status, not the messages."""
    js = stream.js
    subject, data = f"{js.settings.prefix}.DIRECT.GET.{stream.name}", json.dumps(body).encode()
    arrived: asyncio.Queue[Reply] = asyncio.Queue()
    messages: list[StoredMessage] = []
    last = 0
    start = asyncio.get_running_loop().time()
    js.trace.tell(RequestSent(subject, data))
    async with js.connection.inbox(arrived.put_nowait) as inbox:
        await js.connection.publish(subject, data, reply=inbox.subject(1))
        await js.connection.flush()
        js.connection.check_permitted(subject)
        while not (reply := await _next(stream, subject, arrived)).status:
            message, before = direct_message(reply)
            if message.sequence < max(body.get("seq", 1), last + 1) or len(messages) == body["batch"]:
                raise ProtocolError(f"direct get answered with sequence {message.sequence}, which was not requested")
            if before != last:
                raise ConnectionLost(_LOST.format(stream.name), returned)
            last = message.sequence
            messages.append(message)
    js.trace.tell(ResponseReceived.of(subject, reply, asyncio.get_running_loop().time() - start))
    if reply.status not in (204, 404):
        await _refused(stream, reply)
    if reply.status == 204 and _int(reply, "Nats-Last-Sequence") != last:
        raise ConnectionLost(_LOST.format(stream.name), returned)
    if reply.status == 204 and not messages:
        raise ProtocolError("direct get ended a batch without a message")
    return messages, reply


async def _next(stream: Stream, subject: str, arrived: asyncio.Queue[Reply]) -> Reply:
    seconds = stream.js.settings.request_timeout
    try:
        async with stream.js.connection.timeout(seconds):
            return await arrived.get()
    except TimeoutError:
        stream.js.connection.check_permitted(subject)
        raise RequestTimeout(
            f"the request on {subject!r} got no answer for {seconds:g} s; try again, or raise request_timeout"
        ) from None


def _int(reply: Reply, header: str) -> int:
    try:
        return int(reply.headers[header][-1])
    except (KeyError, ValueError):
        raise ProtocolError(f"the last answer to a direct get has no valid {header}") from None


async def _refused(stream: Stream, reply: Reply) -> NoReturn:
    if reply.status == NO_RESPONDERS:
        # Nothing listens: the stream does not exist, does not allow direct get, or has no leader at this moment.
        if not (await stream.info(patience=stream.js.settings.request_timeout)).config.get("allow_direct"):
            raise DirectGetDisabled(stream.name, stream.js.settings.words)
        raise JetStreamNotEnabled(
            reply.status, 0, f"no server answers direct gets of stream {stream.name!r} at this moment; try again"
        )
    kind = _STATUSES.get(reply.status, ApiError)
    raise kind(reply.status, 10037 if kind is MessageNotFound else 0, reply.description)
