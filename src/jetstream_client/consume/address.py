# SPDX-License-Identifier: Apache-2.0
"""The subject of a consumer's acknowledgements, chosen so that they reach no other consumer of the same name.

``$JS.ACK.<stream>.<consumer>.…`` reaches every consumer of that name in the account. If a leaf node connects two
domains, it reaches the consumers of both. ``$JS.ACK.<domain>.<account hash>.<stream>.<consumer>.…`` reaches only one.
nats-server has listened on both forms since 2.14, and uses the second form in its own reply subjects with the feature
flag ``js_ack_fc_v2`` (``ackSubjOld`` and ``ackSubj`` in its ``server/consumer.go``). So a client that knows domain and
account can always use the second form.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import string
from typing import TYPE_CHECKING, Any, NamedTuple

from jetstream_client.consume.message import IN_PROGRESS
from jetstream_client.errors import AddressUnknown, ConnectionLost, InvalidValue, PermissionDenied, RequestTimeout
from jetstream_client.names import check_consumer_name, check_stream_name

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.stream import Stream
    from jetstream_client.wire.protocol import AckSubject, Reply

FOUND_WITHIN = 15.0
"""Seconds within which the address must be found. A failover took up to 8 s, and a leaf node reconnects after 1 s."""
_USER_INFO = "$SYS.REQ.USER.INFO"
_ANSWERED_WITHIN = 1.0
_PAUSE = 0.2
NO_MESSAGE = 1 << 62
"""A sequence that is higher than that of any real message."""
_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_HASH = re.compile(r"[0-9A-Za-z]{8}")


class AckAddress(NamedTuple):
    """The acknowledgement address of one consumer. ``domain`` and ``account`` (the hash of the account's name) are
    empty without a JetStream domain."""

    stream: str
    consumer: str
    domain: str = ""
    account: str = ""

    @property
    def prefix(self) -> str:
        """Beginning of the acknowledgement subjects of all messages of the consumer."""
        place = f"{self.domain}.{self.account}." if self.domain else ""
        return f"$JS.ACK.{place}{self.stream}.{self.consumer}"

    @classmethod
    def parse(cls, prefix: object) -> AckAddress:
        """Parse a :attr:`prefix`. Raises InvalidValue."""
        words = prefix.split(".") if isinstance(prefix, str) else []
        if words[:2] != ["$JS", "ACK"] or len(words) not in (4, 6):
            remedy = "must have the form $JS.ACK.[<domain>.<account hash>.]<stream>.<consumer>"
            raise InvalidValue("ack_prefix", prefix, remedy)
        stream, consumer = check_stream_name(words[-2]), check_consumer_name(words[-1])
        if len(words) == 4:
            return cls(stream, consumer)
        domain, account = check_stream_name(words[2], "domain"), words[3]
        if domain == "_" or not _HASH.fullmatch(account):
            remedy = "must contain a domain and an account hash of eight letters and digits"
            raise InvalidValue("ack_prefix", prefix, remedy)
        return cls(stream, consumer, domain, account)

    def covers(self, delivery: AckSubject) -> bool:
        """Whether this is the address of the consumer that delivered the message with this reply subject. Reply
        subjects of nine tokens name no domain."""
        same = (delivery.stream, delivery.consumer) == (self.stream, self.consumer)
        if delivery.tokens == 9:
            return same
        return same and delivery.domain == self.domain and self.account in ("", delivery.account)


def account_hash(name: str) -> str:
    """The hash of an account's name in reply subjects: ``getHash`` in nats-server's ``server/events.go``."""
    return "".join(_DIGITS[byte % len(_DIGITS)] for byte in hashlib.sha256(name.encode()).digest()[:8])


async def find(stream: Stream, consumer: str, *, patience: float = 0) -> AckAddress:
    """Find the address of an existing consumer. In a domain, the consumer itself must confirm the address.

    The stream's INFO names the domain; without a domain, the form with nine tokens is used. The connected server
    answers ``$SYS.REQ.USER.INFO``, and so does one server of each domain that is connected by leaf nodes. Each answer
    names the account of this connection in that domain. The accounts can differ, because a leaf node can be bound to
    another account. Finally, an in-progress acknowledgement that belongs to no message is sent to the address, and the
    consumer must answer it.

    patience:  see :meth:`JetStream.api`.

    Raises:
        AddressUnknown: no server of the domain answered, or no consumer answered at the address.
        PermissionDenied: the user lacks the permission to acknowledge there.
        StreamNotFound: the stream does not exist.
    """
    js = stream.js
    domain = (await stream.info(patience=patience)).domain
    if js.settings.domain and domain != js.settings.domain:
        place = f"domain {domain!r}" if domain else "no domain"
        problem = f"the settings name domain {js.settings.domain!r}, but stream {stream.name!r} is in {place}"
        raise AddressUnknown(js.settings.domain, problem)
    if not domain:
        return AckAddress(stream.name, consumer)
    clock = asyncio.get_running_loop().time
    deadline = clock() + FOUND_WITHIN
    while True:
        try:
            try:
                account = await _account(js, domain)
            except PermissionDenied as denied:
                raise AddressUnknown(domain, str(denied)) from denied
            if account is None:
                problem = f"no server of the domain answers {_USER_INFO}; allow this subject over the leaf node"
            else:
                address = AckAddress(stream.name, consumer, domain, account_hash(account))
                if await _answers(js, address):
                    return address
                problem = (
                    f"no consumer listens on {address.prefix}.>; use nats-server 2.14 or newer in that domain, and an "
                    f"account that has the stream there (this connection uses {account!r})"
                )
        except (ConnectionLost, RequestTimeout) as error:
            problem = str(error)
        if clock() + _PAUSE > deadline:
            raise AddressUnknown(domain, problem)
        await js.connection.pause(_PAUSE)


async def _account(js: JetStream, domain: str) -> str | None:
    """The account of this connection in a domain, as a server of the domain reports it."""
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def receive(reply: Reply) -> None:
        try:
            answer: Any = json.loads(reply.data)
            there, account = answer["server"].get("domain"), answer["data"]["account"]
        except (ValueError, TypeError, KeyError, AttributeError):
            return  # nothing listens, or the answer is not from a server
        if there == domain and isinstance(account, str) and not found.done():
            found.set_result(account)

    async with js.connection.inbox(receive) as inbox:
        await js.connection.publish(_USER_INFO, reply=inbox.subject(1))
        try:
            async with js.connection.timeout(_ANSWERED_WITHIN):
                return await found
        except TimeoutError:
            js.connection.check_permitted(_USER_INFO)
            return None


async def _answers(js: JetStream, address: AckAddress) -> bool:
    """Whether a consumer listens on this address. The in-progress acknowledgement of a nonexistent message changes
    nothing."""
    reply = await js.connection.request(f"{address.prefix}.1.{NO_MESSAGE}.0.0.0", IN_PROGRESS)
    return not reply.status
