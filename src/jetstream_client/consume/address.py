"""Where the acknowledgements of a consumer go, so that they reach this consumer and no other of the same name.

``$JS.ACK.<stream>.<consumer>.…`` reaches every consumer of that name that hears the account: across a leaf node those
of both domains. ``$JS.ACK.<domain>.<account hash>.<stream>.<consumer>.…`` reaches one. nats-server listens on both
since 2.14, and writes the second into its own replies with the feature flag ``js_ack_fc_v2`` (``ackSubjOld`` and
``ackSubj`` in its ``server/consumer.go``). So a client that knows domain and account may always use the second.
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
"""Seconds until the address must be found: a failover took up to 8, and a leaf node connects again after 1."""
_USER_INFO = "$SYS.REQ.USER.INFO"
_ANSWERED_WITHIN = 1.0
_PAUSE = 0.2
NO_MESSAGE = 1 << 62
"""A sequence that no stream reaches."""
_DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_HASH = re.compile(r"[0-9A-Za-z]{8}")


class AckAddress(NamedTuple):
    """Of one consumer. ``domain`` and ``account`` (the hash of its name) are empty for JetStream without a domain."""

    stream: str
    consumer: str
    domain: str = ""
    account: str = ""

    @property
    def prefix(self) -> str:
        """What the acknowledgement subjects of all its messages begin with."""
        place = f"{self.domain}.{self.account}." if self.domain else ""
        return f"$JS.ACK.{place}{self.stream}.{self.consumer}"

    @classmethod
    def parse(cls, prefix: object) -> AckAddress:
        """The reverse of :attr:`prefix`. Raises InvalidValue."""
        words = prefix.split(".") if isinstance(prefix, str) else []
        if words[:2] != ["$JS", "ACK"] or len(words) not in (4, 6):
            raise InvalidValue("ack_prefix", prefix, "$JS.ACK.[<domain>.<account hash>.]<stream>.<consumer>")
        stream, consumer = check_stream_name(words[-2]), check_consumer_name(words[-1])
        if len(words) == 4:
            return cls(stream, consumer)
        domain, account = check_stream_name(words[2], "domain"), words[3]
        if domain == "_" or not _HASH.fullmatch(account):
            raise InvalidValue("ack_prefix", prefix, "a domain and the eight letters and digits of an account")
        return cls(stream, consumer, domain, account)

    def covers(self, delivery: AckSubject) -> bool:
        """Whether a delivered message is this consumer's, by its reply subject; nine tokens name no domain."""
        same = (delivery.stream, delivery.consumer) == (self.stream, self.consumer)
        if delivery.tokens == 9:
            return same
        return same and delivery.domain == self.domain and self.account in ("", delivery.account)


def account_hash(name: str) -> str:
    """As nats-server computes it for reply subjects: ``getHash`` in its ``server/events.go``."""
    return "".join(_DIGITS[byte % len(_DIGITS)] for byte in hashlib.sha256(name.encode()).digest()[:8])


async def find(stream: Stream, consumer: str, *, patience: float = 0) -> AckAddress:
    """The address of a consumer that exists. Asks the servers, and believes only what the consumer itself confirms.

    The stream's INFO names the domain; without one, the plain form stays. ``$SYS.REQ.USER.INFO`` is answered by the
    connected server and over leaf nodes by one of each domain, with the account that the connection has there: a leaf
    node may bind another one than its own. An "in progress" for no message must then be answered by the consumer.

    Raises:
        AddressUnknown: no answer from that domain, or no consumer at that address.
        PermissionDenied: this user may not acknowledge there.
        StreamNotFound: there is no such stream.
    """
    js = stream.js
    domain = (await stream.info(patience=patience)).domain
    if js.settings.domain and domain != js.settings.domain:
        raise AddressUnknown(js.settings.domain, f"stream {stream.name!r} says that it is in domain {domain!r}")
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
                problem = f"no server of the domain answers {_USER_INFO}: allow it over the leaf node"
            else:
                address = AckAddress(stream.name, consumer, domain, account_hash(account))
                if await _answers(js, address):
                    return address
                problem = (
                    f"no consumer listens on {address.prefix}.>: it needs nats-server 2.14, "
                    f"and the JetStream of this connection must be of account {account!r} there"
                )
        except (ConnectionLost, RequestTimeout) as error:
            problem = str(error)
        if clock() + _PAUSE > deadline:
            raise AddressUnknown(domain, problem)
        await js.connection.pause(_PAUSE)


async def _account(js: JetStream, domain: str) -> str | None:
    """The account of this connection in a domain, as a server there knows it."""
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def receive(reply: Reply) -> None:
        try:
            answer: Any = json.loads(reply.data)
            there, account = answer["server"].get("domain"), answer["data"]["account"]
        except (ValueError, TypeError, KeyError, AttributeError):
            return  # nobody listens, or somebody answers who is no server
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
    """Whether a consumer hears this address. It is told that work on no message goes on, which changes nothing."""
    reply = await js.connection.request(f"{address.prefix}.1.{NO_MESSAGE}.0.0.0", IN_PROGRESS)
    return not reply.status
