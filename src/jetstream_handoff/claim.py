# SPDX-License-Identifier: Apache-2.0
"""A claim: the sequences of a stream that one take assigned to one unit of work. It contains no messages."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jetstream_client.consume.address import AckAddress
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_stream_name
from jetstream_client.sequences import Sequences
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.errors import ClaimInvalid

if TYPE_CHECKING:
    from uuid import UUID

VERSION = 1
_ID = re.compile(r"[0-9a-f]{8,32}")
_TOKEN = re.compile(r"\d{1,10}-[0-9a-f]{1,32}", re.ASCII)
_TIMES = ("stream_created", "consumer_created", "taken_at")
_COUNTS = ("count", "bytes", "consumer_sequence")
_LARGEST_COUNT = 100_000_000
_LARGEST_NUMBER = 2**63 - 1


def new_claim_id() -> str:
    return secrets.token_hex(6)


def is_claim_id(text: str) -> bool:
    """Whether this string can be the id of a claim. Other strings are refused, because a wildcard in one of the
    ledger's subjects would select other entries."""
    return _ID.fullmatch(text) is not None


def is_token(text: str) -> bool:
    """Whether this string can be the name of an attempt without the id of its claim."""
    return _TOKEN.fullmatch(text) is not None


KEEPER = 0
"""The try number of a keeper, which holds a claim for other tasks (:mod:`.hold.keep`). An attempt takes a claim over
from a keeper. A keeper never takes a claim over from an attempt."""


def new_token(try_number: int) -> str:
    """A new name for an attempt. The name is random, because two attempts of one task can be alive at the same time."""
    return f"{try_number}-{secrets.token_hex(4)}"


def token_of(try_number: int, instance: UUID) -> str:
    """The name of an attempt that is known before the attempt holds its claim, and that several processes can derive.

    try_number:  the number of the task's try, from 1.
    instance:    the random id of this try. Another try of the task must have another id.
    """
    return f"{try_number}-{instance.hex[-8:]}"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The set of messages that one take assigned to one unit of work. In Airflow it is a value in XCom.

    It contains no payload, no secret and no connection.

    id:                 a random name for the claim.
    stream, consumer:   the names of the claim's stream and consumer.
    stream_created, consumer_created:  when they were created, in the server's time, RFC 3339.
    sequences:          the stream sequences of the claimed messages.
    bytes:              the sum of the messages' sizes.
    consumer_sequence:  the highest consumer sequence of the claimed deliveries.
    taken_at:           when the claim was entered in the ledger, in the server's time, RFC 3339.
    domain, account:    the consumer's JetStream domain and a hash of its account, as in
                        :class:`~jetstream_client.consume.address.AckAddress`; empty without a domain.
    """

    id: str
    stream: str
    stream_created: str
    consumer: str
    consumer_created: str
    sequences: Sequences = field(repr=False)
    bytes: int
    consumer_sequence: int
    taken_at: str
    domain: str = ""
    account: str = ""

    @property
    def address(self) -> AckAddress:
        """The address at which the messages are acknowledged."""
        return AckAddress(self.stream, self.consumer, self.domain, self.account)

    @property
    def count(self) -> int:
        """Number of claimed messages."""
        return self.sequences.count

    def to_json(self) -> dict[str, Any]:
        """Return the claim as a JSON value. Its ranges are lists, or a packed string if the lists exceed 8 KiB."""
        return {
            "v": VERSION,
            "id": self.id,
            "stream": self.stream,
            "stream_created": self.stream_created,
            "consumer": self.consumer,
            "consumer_created": self.consumer_created,
            "ranges": self.sequences.to_json(),
            "count": self.count,
            "bytes": self.bytes,
            "consumer_sequence": self.consumer_sequence,
            "ack_prefix": self.address.prefix,
            "taken_at": self.taken_at,
        }

    @classmethod
    def from_json(cls, value: object) -> Claim:
        """Create a claim from its JSON value. All fields are checked, also against each other.

        value:  the return value of :meth:`to_json`, or the same as a JSON string.

        Raises:
            ClaimInvalid: names the first field that is wrong.
        """
        fields = _object(value)
        if not isinstance(fields["id"], str) or not is_claim_id(fields["id"]):
            raise ClaimInvalid(
                f"claim id {_short(fields['id'])} does not consist of 8 to 32 hexadecimal digits; {_UNCHANGED}"
            )
        try:
            stream = check_stream_name(fields["stream"])
            consumer = check_consumer_name(fields["consumer"])
            sequences = Sequences.from_json(fields["ranges"])
            address = AckAddress.parse(fields["ack_prefix"])
        except InvalidValue as wrong:
            raise _invalid(fields, str(wrong)) from None
        for name in _TIMES:
            try:
                time_nanoseconds(fields[name])
            except (ValueError, TypeError):
                raise _invalid(fields, f"{name}={_short(fields[name])} is not an RFC 3339 time") from None
        for name in _COUNTS:
            if type(fields[name]) is not int or not 0 <= fields[name] <= _LARGEST_NUMBER:
                raise _invalid(fields, f"{name}={_short(fields[name])} is not a valid number")
        if not 0 < sequences.count == fields["count"] <= _LARGEST_COUNT:
            counts = f"count={fields['count']} and ranges with {sequences.count} messages"
            raise _invalid(fields, f"it has {counts} (these must be equal, and from 1 to {_LARGEST_COUNT:,})")
        if fields["consumer_sequence"] < sequences.count:
            raise _invalid(fields, "its consumer_sequence is less than its number of messages")
        if (address.stream, address.consumer) != (stream, consumer):
            raise _invalid(fields, f"ack_prefix={_short(fields['ack_prefix'])} names another stream or consumer")
        same = {name: fields[name] for name in ("id", "bytes", "consumer_sequence", *_TIMES)}
        domain, account = address.domain, address.account
        return cls(stream=stream, consumer=consumer, sequences=sequences, domain=domain, account=account, **same)


_FIELDS = {"v", "id", "stream", "consumer", "ranges", "ack_prefix", *_COUNTS, *_TIMES}
_UNCHANGED = "pass a claim exactly as the sensor returned it"


def _invalid(fields: Mapping[str, Any], problem: str) -> ClaimInvalid:
    return ClaimInvalid(f"claim {fields['id']} is invalid, because {problem}; {_UNCHANGED}")


def _remedy(value: object) -> str:
    if value is None:
        return "the task received no claim; let the sensor run before the task, and pass one of its claims to the task"
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return (
            "a sensor returns a list of claims, and a task processes one; map the task with .expand(claim=claims), or "
            "let a task upstream pick one claim of the list; if the sensor is mapped, too, first make one list of its "
            "lists"
        )
    return _UNCHANGED


def _object(value: object) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ClaimInvalid(
                f"this string is not a claim, because it is not JSON; {_UNCHANGED}; in a template, add the filter "
                "tojson"
            ) from None
    if not isinstance(value, Mapping):
        raise ClaimInvalid(f"a claim is a JSON object, not {type(value).__name__}; {_remedy(value)}")
    version = value.get("v", VERSION)  # checked first, because another version may have other fields
    if type(version) is not int or version != VERSION:
        raise ClaimInvalid(
            f"the claim has version {_short(version)}, but this release reads version {VERSION}; install the same "
            "release wherever claims of this consumer are taken or processed"
        )
    if value.keys() != _FIELDS:
        odd = ", ".join(sorted(map(str, value.keys() ^ _FIELDS)))
        raise ClaimInvalid(f"this is not a claim, because fields are missing or unknown ({odd[:400]}); {_UNCHANGED}")
    return value


def _short(value: object) -> str:
    """Return a value for an error message, or only its type if the value is long or cannot be printed."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer that is too long to print
        text = ""
    return text if 0 < len(text) <= 100 else f"a {type(value).__name__}"
