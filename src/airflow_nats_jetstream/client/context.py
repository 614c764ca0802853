"""The JetStream context: the API's requests, and the way to streams and publishing."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from airflow_nats_jetstream.client import config as configs
from airflow_nats_jetstream.client.errors import (
    ApiError,
    ConnectionLost,
    JetStreamNotEnabled,
    NoStreamResponse,
    RequestTimeout,
    StreamNotFound,
    WrongDomain,
)
from airflow_nats_jetstream.client.names import check_subject
from airflow_nats_jetstream.client.protocol import NO_RESPONDERS, decode_object
from airflow_nats_jetstream.client.publish import PubAck
from airflow_nats_jetstream.client.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_nats_jetstream.client.connection import Connection
    from airflow_nats_jetstream.client.settings import ConnectionSettings

_PATIENCE_STEP = 0.1  # seconds between two attempts of a patient request


class JetStream:
    """What :func:`airflow_nats_jetstream.client.connect` gives."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @property
    def settings(self) -> ConnectionSettings:
        return self.connection.settings

    async def api(self, request: str, payload: Mapping[str, Any] | None = None, *, patience: float = 0) -> Any:
        """One request of the JetStream API, e.g. ``STREAM.INFO.ORDERS``; the decoded answer.

        ``patience``: seconds during which a lost connection, a missing leader and an unanswered request are tried
        again. Only for requests that may be repeated.

        Raises:
            ApiError: or a subclass, the server's refusal.
            JetStreamNotEnabled: nobody answers the API.
            RequestTimeout, ConnectionLost: see :meth:`Connection.request`.
        """
        clock = asyncio.get_running_loop()
        deadline = clock.time() + patience
        subject = f"{self.settings.prefix}.{request}"
        data = json.dumps(payload).encode() if payload is not None else b""
        while True:
            try:
                return self._decoded(subject, await self.connection.request(subject, data))
            except (ConnectionLost, RequestTimeout, JetStreamNotEnabled, _Unavailable):
                if clock.time() + _PATIENCE_STEP > deadline:
                    raise
                await asyncio.sleep(_PATIENCE_STEP)

    @staticmethod
    def _decoded(subject: str, reply: Any) -> Any:
        if reply.status == NO_RESPONDERS:
            raise JetStreamNotEnabled(
                503, 0, f"nobody answers {subject!r}: JetStream is off, or domain, API prefix or permissions are wrong"
            )
        answer = decode_object(reply.data, f"the answer to {subject!r}")
        if "error" in answer:
            error = ApiError.from_response(answer["error"])
            if type(error) is ApiError and error.code == 503:
                raise _Unavailable(error.code, error.err_code, error.description)
            raise error
        return answer

    async def account_info(self) -> dict[str, Any]:
        """Memory, storage, streams, consumers, their limits, and the API level (``api.level``)."""
        answer: dict[str, Any] = await self.api("INFO")
        return answer

    def stream(self, name: str) -> Stream:
        """A handle, without a round trip. Raises InvalidValue for a name that JetStream forbids."""
        return Stream(self, name)

    async def create_stream(self, config: configs.Config) -> Stream:
        """Create; an equal one that exists is fine.

        Raises:
            StreamNameInUse: one with another configuration exists.
        """
        wanted = configs.check_stream_config(config)
        await self.api(f"STREAM.CREATE.{wanted['name']}", wanted)
        return Stream(self, wanted["name"])

    async def create_or_update_stream(self, config: configs.Config) -> tuple[Stream, configs.Difference | None]:
        """Make the stream as wanted: create it, or update what differs and leave every other field as it is.

        Returns the stream and the difference that was updated: ``{}`` when nothing differed, ``None`` when created.
        """
        wanted = configs.check_stream_config(config)
        stream = Stream(self, wanted["name"])
        try:
            changes = configs.difference((await stream.info()).config, wanted)
        except StreamNotFound:
            return await self.create_stream(wanted), None
        if changes:
            await stream.update(wanted)
        return stream, changes

    async def publish(
        self, subject: str, data: bytes = b"", *, headers: Mapping[str, str] | None = None, msg_id: str | None = None
    ) -> PubAck:
        """Publish one message and wait for the stream's answer.

        Raises:
            NoStreamResponse: no stream listens on the subject.
            WrongDomain: the connection has a domain, and a stream of another one was the first to answer.
            ApiError: the stream refused it.
            RequestTimeout, ConnectionLost: it may have been stored.
        """
        check_subject(subject)
        sent = dict(headers or {})
        if msg_id is not None:
            sent["Nats-Msg-Id"] = msg_id
        reply = await self.connection.request(subject, data, headers=sent or None)
        if reply.status == NO_RESPONDERS:
            raise NoStreamResponse(subject)
        ack = PubAck.parse(reply.data)
        domain = self.settings.domain
        if domain and ack.domain != domain:
            raise WrongDomain(subject, ack.domain, domain)
        return ack


class _Unavailable(ApiError):
    """503 from the API itself: no leader at the moment, or insufficient resources."""
