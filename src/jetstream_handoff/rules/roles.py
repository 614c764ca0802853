# SPDX-License-Identifier: Apache-2.0
"""The permissions that a user of each role needs (docs/reference/permissions.md), and finding out which are missing.

nats-server drops a message that a user is not permitted to publish, and reports the refusal separately. A message
without a reply subject is therefore enough to learn whether a subject is allowed. The messages sent here change nothing
even if they are allowed: the API rejects a request that is not JSON and a purge with two limits, a write that expects
an impossible revision is not stored, and a message that is only traced is not delivered (ADR-41). The user must also be
allowed to publish on the subject to which the trace is sent, so the trace is sent to the API, which rejects it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from jetstream_client.consume.address import NO_MESSAGE
from jetstream_client.consume.message import IN_PROGRESS
from jetstream_client.errors import PermissionDenied

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jetstream_client.wire.control import Connection

ROLES = ("setup", "publisher", "sensor", "processor", "reader")
OF_CLAIMS = ("sensor", "processor")
"""The roles of the hand-off itself. The user of a connection often has both."""

_NOT_JSON = b"?"
_BOTH = b'{"seq": 1, "keep": 1}'  # refused; a purge whose body is not JSON removes everything
_IMPOSSIBLE = {"Nats-Expected-Last-Subject-Sequence": str(NO_MESSAGE)}
_INFO = "STREAM.INFO.{stream}"
_LEDGER_INFO = ("STREAM.INFO.KV_{claims}", "STREAM.INFO.KV_{receipts}")
_LEDGER = (*_LEDGER_INFO, "STREAM.MSG.GET.KV_{claims}", "STREAM.MSG.GET.KV_{receipts}")
_RESERVE = ("STREAM.INFO.{reserve}", "STREAM.PURGE.{reserve}")
_CONSUMER = "CONSUMER.INFO.{stream}.{consumer}"
_READ = (_INFO, "DIRECT.GET.{stream}", "STREAM.MSG.GET.{stream}")
_REQUESTS = {
    "setup": (
        _INFO,
        "STREAM.CREATE.{stream}",
        "STREAM.UPDATE.{stream}",
        _CONSUMER,
        "CONSUMER.CREATE.{stream}.{consumer}.>",
        "CONSUMER.CREATE.{stream}.{consumer}",
        *_LEDGER_INFO,
        "STREAM.CREATE.KV_{claims}",
        "STREAM.CREATE.KV_{receipts}",
        "STREAM.INFO.{reserve}",
        "STREAM.CREATE.{reserve}",
        "STREAM.INFO.{dead}",
        "STREAM.CREATE.{dead}",
    ),
    "publisher": (_INFO,),
    "sensor": (
        _INFO,
        _CONSUMER,
        "CONSUMER.MSG.NEXT.{stream}.{consumer}",
        *_LEDGER,
        *_RESERVE,
    ),
    "processor": (
        *_READ,
        _CONSUMER,
        *_LEDGER,
        "DIRECT.GET.KV_{receipts}",
        *_RESERVE,
        "STREAM.INFO.{dead}",
        "STREAM.MSG.GET.{dead}",
    ),
    "reader": _READ,
}
"""The requests of the JetStream API that each role sends, without the prefix of the API."""


class Need(NamedTuple):
    """A permission, and a message that shows whether a user has it.

    allow:    the subject to allow for publishing, with wildcards.
    subject:  the subject of the message, which ``allow`` covers.
    """

    allow: str
    subject: str
    data: bytes = _NOT_JSON
    headers: Mapping[str, str] | None = None


class Place(NamedTuple):
    """The names and subjects that a user of a role works with, for :func:`needs`; empty if the role does not need them.

    prefix:      subject prefix of the JetStream API.
    ack_prefix:  the beginning of the subjects of the consumer's acknowledgements.
    record:      subject on which the consumer's record is written.
    receipt:     subject for a receipt that belongs to no claim.
    reserve:     the stream of the ledger's reserve.
    part:        subject on which a part of the reserve is written.
    subject:     subject on which a publisher publishes.
    """

    prefix: str
    stream: str
    consumer: str = ""
    claims: str = ""
    receipts: str = ""
    dead: str = ""
    ack_prefix: str = ""
    record: str = ""
    receipt: str = ""
    reserve: str = ""
    part: str = ""
    subject: str = ""


def needs(role: str, place: Place) -> list[Need]:
    """The permissions to publish that a user of this role needs."""
    names = {name: value for name, value in place._asdict().items() if name != "prefix"}
    found = []
    for request in _REQUESTS[role]:
        allow = f"{place.prefix}.{request.format(**names)}"
        data = _BOTH if request.startswith("STREAM.PURGE.") else _NOT_JSON
        found.append(Need(allow, allow.replace(".>", ".doctor"), data))
    if role in OF_CLAIMS:
        acknowledgement = f"{place.ack_prefix}.1.{NO_MESSAGE}.0.0.0"
        found.append(Need(f"{place.ack_prefix}.>", acknowledgement, IN_PROGRESS))
        any_receipt = place.receipt.rpartition(".")[0] + ".*"
        found += [
            Need(place.record, place.record, b"", _IMPOSSIBLE),
            Need(any_receipt, place.receipt, b"", _IMPOSSIBLE),
        ]
    if role in {"setup", *OF_CLAIMS}:
        any_part = place.part.rpartition(".")[0] + ".*"
        found.append(Need(any_part, place.part, b"", _IMPOSSIBLE))
    if role == "publisher" and place.subject:
        traced = {"Nats-Trace-Dest": found[0].subject, "Nats-Trace-Only": "true"}
        found.append(Need(place.subject, place.subject, b"", _IMPOSSIBLE | traced))
    if role == "processor":
        letters = f"dead.{place.stream}.{place.consumer}"
        found.append(Need(f"{letters}.>", f"{letters}.0.0.doctor", b"", _IMPOSSIBLE))
    return found


def request(prefix: str, words: str) -> Need:
    """The permission to send a request of the JetStream API, for example ``STREAM.INFO.ORDERS``."""
    return Need(f"{prefix}.{words}", f"{prefix}.{words}")


def write(subject: str) -> Need:
    """The permission to write to a stream on this subject."""
    return Need(subject, subject, b"", _IMPOSSIBLE)


async def denied(connection: Connection, needs: Iterable[Need]) -> set[str]:
    """Return the subjects of the messages in ``needs`` on which this user is not permitted to publish.

    Raises:
        PermissionDenied: this user is not permitted to subscribe to its inbox, so no answer can arrive.
    """
    needs = list(needs)
    for need in needs:
        await connection.publish(need.subject, need.data, headers=need.headers)
    await connection.flush()
    found = set()
    for need in needs:
        try:
            connection.check_permitted(need.subject)
        except PermissionDenied as denied:
            if denied.act != "publish on":
                raise
            found.add(need.subject)
    return found


async def check_inbox(connection: Connection) -> None:
    """Raise PermissionDenied if this user is not permitted to subscribe to its inbox."""
    async with connection.inbox(lambda _: None):
        await connection.flush()
        connection.check_permitted("")
