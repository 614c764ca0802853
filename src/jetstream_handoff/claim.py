"""A claim: which sequences of which stream were handed on, never the messages."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jetstream_client.consume.address import AckAddress
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_stream_name
from jetstream_client.sequences import Sequences
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.errors import ClaimInvalid

VERSION = 1
_ID = re.compile(r"[0-9a-f]{8,32}")
_TIMES = ("stream_created", "consumer_created", "taken_at")
_COUNTS = ("count", "bytes", "consumer_sequence")
_LARGEST_COUNT = 100_000_000
_LARGEST_NUMBER = 2**63 - 1


def new_claim_id() -> str:
    return secrets.token_hex(6)


def is_claim_id(text: str) -> bool:
    """Whether it can be the id of a claim. Anything else could be a wildcard in the ledger's subjects."""
    return _ID.fullmatch(text) is not None


KEEPER = 0
"""The try number of who keeps a claim for others. An attempt takes it over from a keeper, and never the reverse."""


def new_token(try_number: int) -> str:
    """The name of one attempt: two attempts of one task can be alive at once."""
    return f"{try_number}-{secrets.token_hex(4)}"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The value in XCom. No payload, no secret, no connection.

    Times are the server's, RFC 3339 as it wrote them. ``consumer_sequence`` is the highest of the claimed deliveries,
    ``bytes`` the sum of the messages' sizes. ``domain`` and ``account`` (a hash) are those of the consumer's
    :class:`~jetstream_client.consume.address.AckAddress`, empty without a domain.
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
        """Where its messages are acknowledged."""
        return AckAddress(self.stream, self.consumer, self.domain, self.account)

    @property
    def count(self) -> int:
        """How many messages are claimed."""
        return self.sequences.count

    def to_json(self) -> dict[str, Any]:
        """The JSON value; under 8 KiB of ranges as lists, past that as one packed text."""
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
        """The reverse, from the JSON value or its text. Everything that can contradict something else is checked.

        Raises:
            ClaimInvalid: with the first thing that is wrong.
        """
        fields = _object(value)
        if not isinstance(fields["id"], str) or not is_claim_id(fields["id"]):
            raise ClaimInvalid(f"claim id {_short(fields['id'])}: 8 to 32 hexadecimal digits")
        try:
            stream = check_stream_name(fields["stream"])
            consumer = check_consumer_name(fields["consumer"])
            sequences = Sequences.from_json(fields["ranges"])
            address = AckAddress.parse(fields["ack_prefix"])
        except InvalidValue as wrong:
            raise ClaimInvalid(f"claim {fields['id']}: {wrong}") from None
        for name in _TIMES:
            try:
                time_nanoseconds(fields[name])
            except (ValueError, TypeError):
                raise ClaimInvalid(f"claim {fields['id']}: {name}={_short(fields[name])} is no RFC 3339 time") from None
        for name in _COUNTS:
            if type(fields[name]) is not int or not 0 <= fields[name] <= _LARGEST_NUMBER:
                raise ClaimInvalid(f"claim {fields['id']}: {name}={_short(fields[name])} is no count")
        if not 0 < sequences.count == fields["count"] <= _LARGEST_COUNT:
            raise ClaimInvalid(f"claim {fields['id']}: count={fields['count']}, but its ranges hold {sequences.count}")
        if fields["consumer_sequence"] < sequences.count:
            raise ClaimInvalid(f"claim {fields['id']}: consumer_sequence is below the count of its messages")
        if (address.stream, address.consumer) != (stream, consumer):
            raise ClaimInvalid(
                f"claim {fields['id']}: ack_prefix={_short(fields['ack_prefix'])} names another stream or consumer"
            )
        same = {name: fields[name] for name in ("id", "bytes", "consumer_sequence", *_TIMES)}
        domain, account = address.domain, address.account
        return cls(stream=stream, consumer=consumer, sequences=sequences, domain=domain, account=account, **same)


_FIELDS = {"v", "id", "stream", "consumer", "ranges", "ack_prefix", *_COUNTS, *_TIMES}


def _remedy(value: object) -> str:
    if value is None:
        return "the task got no claim; hand on one that the sensor returned, and see whether the sensor was skipped"
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return "a sensor returns a list of claims, and a task takes one: map over it, with .expand(claim=claims)"
    return "hand on one that the sensor returned, as it is"


def _object(value: object) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ClaimInvalid("this text is no claim: it is not JSON") from None
    if not isinstance(value, Mapping):
        raise ClaimInvalid(f"a claim is a JSON object, not {type(value).__name__}: {_remedy(value)}")
    version = value.get("v", VERSION)  # before the fields, which another version may have others of
    if type(version) is not int or version != VERSION:
        raise ClaimInvalid(
            f"claim version {_short(version)}: this release reads version {VERSION}. Let all who work on the claims of "
            "one consumer have the same release"
        )
    if value.keys() != _FIELDS:
        odd = ", ".join(sorted(map(str, value.keys() ^ _FIELDS)))
        raise ClaimInvalid(f"not a claim: missing or unknown {odd[:400]}")
    return value


def _short(value: object) -> str:
    """A value in an error: what is long, or cannot be printed, by its type."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer that is too long to print
        text = ""
    return text if 0 < len(text) <= 100 else f"a {type(value).__name__}"
