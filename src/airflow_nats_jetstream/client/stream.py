"""A stream: its state and configuration, purging, stored messages, its consumers."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_nats_jetstream.client import config as configs
from airflow_nats_jetstream.client.consumer import Consumer
from airflow_nats_jetstream.client.errors import InvalidValue
from airflow_nats_jetstream.client.names import check_filter, check_stream_name
from airflow_nats_jetstream.client.protocol import ProtocolError, decode_headers, time_nanoseconds

if TYPE_CHECKING:
    from airflow_nats_jetstream.client.context import JetStream


@dataclass(frozen=True)
class StreamInfo:
    """``STREAM.INFO`` as the server sent it; durations are integer nanoseconds. Raises ProtocolError for less."""

    raw: dict[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        try:
            if not (isinstance(self.raw["config"], dict) and isinstance(self.raw["state"], dict)):
                raise ValueError  # noqa: TRY004, TRY301
            time_nanoseconds(self.created)
        except (KeyError, TypeError, ValueError):
            raise ProtocolError("the answer to STREAM.INFO is not what the API promises") from None

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.raw["config"])

    @property
    def state(self) -> dict[str, Any]:
        """messages, bytes, first_seq, last_seq, consumer_count, …"""
        return dict(self.raw["state"])

    @property
    def created(self) -> str:
        """RFC 3339, with the server's nanoseconds. Another stream of the same name has another."""
        return str(self.raw["created"])

    @property
    def now(self) -> str:
        """The server's clock at the answer, RFC 3339."""
        return str(self.raw["ts"])

    @property
    def domain(self) -> str:
        """The JetStream domain that the stream is in; empty without one."""
        return str(self.raw.get("domain") or "")


@dataclass(frozen=True)
class StoredMessage:
    """A message as its stream holds it."""

    subject: str
    sequence: int
    time: str
    headers: dict[str, list[str]] = field(repr=False)
    data: bytes = field(repr=False)


def stored_message(message: Any) -> StoredMessage:
    """The ``message`` of an answer to ``STREAM.MSG.GET``. Raises ProtocolError."""
    try:
        return StoredMessage(
            str(message["subject"]),
            int(message["seq"]),
            str(message["time"]),
            decode_headers(base64.b64decode(message.get("hdrs", ""))),
            base64.b64decode(message.get("data", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise ProtocolError("the answer to STREAM.MSG.GET is not what the API promises") from None


class Stream:
    """A handle; :meth:`JetStream.stream` makes one without a round trip."""

    def __init__(self, js: JetStream, name: str) -> None:
        self.js = js
        self.name = check_stream_name(name)

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    async def info(self, *, deleted: bool = False, patience: float = 0) -> StreamInfo:
        """Fresh; with ``deleted``, ``state["deleted"]`` lists what is missing between first and last sequence, if
        anything is. Raises StreamNotFound."""
        request = {"deleted_details": True} if deleted else None
        return StreamInfo(await self.js.api(f"STREAM.INFO.{self.name}", request, patience=patience))

    async def update(self, config: configs.Config) -> None:
        """Change the given fields and no other: the current configuration is read, merged and written.

        Raises:
            StreamNotFound: there is none.
            ApiError: the server refuses a change.
        """
        wanted = configs.normalise(config)
        merged = configs.merge((await self.info()).config, wanted)
        await self.js.api(f"STREAM.UPDATE.{self.name}", merged)

    async def delete(self) -> None:
        """Raises StreamNotFound."""
        await self.js.api(f"STREAM.DELETE.{self.name}")

    async def purge(self, *, subject: str | None = None, sequence: int | None = None, keep: int | None = None) -> int:
        """Remove messages; returns how many.

        subject:  only those that match this filter.
        sequence: only those below it (not including it).
        keep:     all but the last so many. Not together with ``sequence``.

        0 is refused for both: the server takes it for "not given" and purges everything.
        """
        body = purge_request(subject=subject, sequence=sequence, keep=keep)
        answer = await self.js.api(f"STREAM.PURGE.{self.name}", body or None)
        return int(answer["purged"])

    async def get_message(self, sequence: int | None = None, *, last_by_subject: str | None = None) -> StoredMessage:
        """One stored message from the stream's leader, by sequence or the last one on a subject.

        Raises:
            MessageNotFound: the leader has none.
        """
        body: dict[str, Any] = {"seq": sequence} if sequence is not None else {"last_by_subj": last_by_subject}
        message = await self.js.api(f"STREAM.MSG.GET.{self.name}", body)
        return stored_message(message.get("message"))

    def consumer(self, name: str) -> Consumer:
        """A handle, without a round trip."""
        return Consumer(self.js, self.name, name)

    async def create_consumer(self, config: configs.Config) -> Consumer:
        """Create; an equal one that exists is fine.

        Raises:
            ConsumerNameInUse: one with another configuration exists.
            StreamNotFound: there is no such stream.
        """
        wanted = configs.check_consumer_config(config)
        body = {"stream_name": self.name, "config": wanted, "action": "create"}
        if "name" not in wanted:
            answer = await self.js.api(f"CONSUMER.CREATE.{self.name}", body)
            return Consumer(self.js, self.name, answer["name"])
        filters = wanted.get("filter_subject")
        suffix = f".{filters}" if filters else ""
        await self.js.api(f"CONSUMER.CREATE.{self.name}.{wanted['name']}{suffix}", body)
        return Consumer(self.js, self.name, wanted["name"])


def purge_request(*, subject: str | None, sequence: int | None, keep: int | None) -> dict[str, Any]:
    """The checked body of a purge. Raises InvalidValue."""
    if sequence is not None and keep is not None:
        raise InvalidValue("keep", keep, "give sequence or keep, not both")
    for name, number in (("sequence", sequence), ("keep", keep)):
        if number is not None and number < 1:
            raise InvalidValue(name, number, "the server takes 0 for everything; give 1 or more, or leave it out")
    if subject is not None:
        check_filter(subject, "subject")
    body = {"filter": subject, "seq": sequence, "keep": keep}
    return {name: value for name, value in body.items() if value is not None}
