# SPDX-License-Identifier: Apache-2.0
"""Finding the streams that a message would reach, with the servers' message tracing (ADR-41, nats-server 2.11). Nothing
is delivered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import ProtocolError, RequestTimeout
from jetstream_client.publish.message import outgoing
from jetstream_client.requirements import MESSAGE_TRACING
from jetstream_client.wire.protocol import decode_object

if TYPE_CHECKING:
    from jetstream_client.api import Api
    from jetstream_client.publish.message import Headers
    from jetstream_client.wire.protocol import Reply

_NO_TRACE = "the trace of a message is invalid: a field is missing or has an invalid value"


@dataclass(frozen=True)
class Route:
    """The route that a message would take.

    raw:      report of each server on the way (nats-server ``MsgTraceEvent``), in the order of arrival.
    streams:  names of the streams that would get the message.
    refused:  reasons why servers would not pass the message on, in the servers' own words.
    """

    raw: list[dict[str, Any]] = field(repr=False)
    streams: list[str]
    refused: list[str]

    @classmethod
    def parse(cls, raw: list[dict[str, Any]]) -> Route:
        """Parse the servers' reports. Raises ProtocolError."""
        try:
            events = [event for each in raw for event in each["events"]]
            streams = [str(event["stream"]) for event in events if event["type"] == "js"]
            return cls(raw, streams, [str(event["error"]) for event in events if "error" in event])
        except (KeyError, TypeError):
            raise ProtocolError(_NO_TRACE) from None


def onward(said: dict[str, Any]) -> int:
    """Number of servers to which the reporting server passed the message; each of them sends a report too. Raises
    ProtocolError."""
    hops = said.get("hops", 0)
    if type(hops) is not int or hops < 0:
        raise ProtocolError(_NO_TRACE)
    return hops


def came_on(said: dict[str, Any]) -> bool:
    """Whether the reporting server got the message from another server."""
    try:
        return "Nats-Trace-Hop" in said["request"]["header"]
    except (KeyError, TypeError):
        return False


async def find(api: Api, subject: str, data: bytes, headers: Headers | None) -> Route:
    """Trace a message. Raises RequestTimeout, PermissionDenied, InvalidValue, ServerTooOld."""
    await api.require(MESSAGE_TRACING)
    connection = api.connection
    arrived: asyncio.Queue[Reply] = asyncio.Queue()
    async with connection.inbox(arrived.put_nowait) as inbox:
        tracing = {"Nats-Trace-Dest": inbox.subject(1), "Nats-Trace-Only": "true"}
        message = await outgoing(api, subject, data, {**(headers or {}), **tracing}, {})
        await connection.publish(subject, data, headers=message.header)
        said: list[dict[str, Any]] = []
        expected, begun = 1, False
        try:
            async with connection.timeout(api.settings.request_timeout):
                while not begun or len(said) < expected:
                    said.append(decode_object((await arrived.get()).data, "a trace of a message"))
                    expected += onward(said[-1])
                    begun = begun or not came_on(said[-1])  # reports of more distant servers may arrive first
        except TimeoutError:
            connection.check_permitted(subject)
            text = f"only {len(said)} of {expected} servers reported the route of {subject!r}"
            raise RequestTimeout(f"{text}; try again, or raise request_timeout") from None
    route = Route.parse(said)
    if route.refused:
        await connection.flush()  # a missing permission is not reported as an answer
        connection.check_permitted(subject)
    return route
