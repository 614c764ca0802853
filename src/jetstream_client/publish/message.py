# SPDX-License-Identifier: Apache-2.0
"""A message to be published: checking it, and encoding its headers and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_subject
from jetstream_client.publish.options import option_headers
from jetstream_client.requirements import of_headers
from jetstream_client.wire.protocol import decode_headers, encode_headers

if TYPE_CHECKING:
    from jetstream_client.api import Api
    from jetstream_client.publish.options import PublishOptions

Headers = Mapping[str, str | Sequence[str]]
"""Name → value, or several values, each of which is sent as a separate header."""
Publishable = tuple[str, bytes] | tuple[str, bytes, Headers]
"""Subject and data, or subject, data and headers."""


class OutgoingMessage(NamedTuple):
    """A message as it is sent. ``header`` is an encoded block, which is empty if there are no headers. ``position`` is
    the index of the message among those that are sent together, from 0."""

    subject: str
    data: bytes
    header: bytes = b""
    position: int = 0

    @property
    def headers(self) -> dict[str, list[str]]:
        """Every name with all its values, including the headers of options."""
        return decode_headers(self.header)

    @property
    def size(self) -> int:
        return len(self.header) + len(self.data)

    def __repr__(self) -> str:
        return f"OutgoingMessage({self.subject!r}, {len(self.data)} bytes)"


def not_a_message(value: object) -> InvalidValue:
    """Return the error for a value that is not a :data:`Publishable`."""
    found = f"{len(value)} items" if isinstance(value, tuple | list) else type(value).__name__
    remedy = f"each message must be (subject, data) or (subject, data, headers), not {found}"
    return InvalidValue("messages", "…", remedy)


async def outgoing(
    api: Api, subject: str, data: bytes, headers: Headers | None, options: PublishOptions
) -> OutgoingMessage:
    """Check and encode a message, without sending it. Raises InvalidValue, and ServerTooOld if the servers do not
    support one of its headers."""
    merged = merged_headers(subject, data, headers, options)
    message = OutgoingMessage(subject, data, encode_headers(merged) if merged else b"")
    await api.require(of_headers(merged))
    return message


def merged_headers(
    subject: str, data: bytes, headers: Headers | None, options: PublishOptions
) -> dict[str, tuple[str, ...]]:
    """Check a message. Returns its headers together with the headers of its options.

    The caller's headers are copied and not changed. Raises InvalidValue for the first invalid value, and for a header
    that contradicts an option; the error then names both.
    """
    check_subject(subject)
    if not isinstance(data, bytes):
        raise InvalidValue("data", "…", f"must be bytes, not {type(data).__name__}")
    if options.get("increment") is not None and data:
        raise InvalidValue("data", f"{len(data)} bytes", "must be empty, because an increment has no data")
    merged = check_headers(headers or {})
    asked = {name: (option, value) for option, name, value in option_headers(options)}
    same = {name.lower(): name for name in merged}
    for name, (option, value) in asked.items():
        given = same.get(name.lower(), name)
        if merged.setdefault(given, (value,)) != (value,) or given != name:
            remedy = f"the option {option} sets {name} to {value!r}; set either this header or the option, not both"
            raise InvalidValue(f"headers[{given!r}]", ", ".join(merged[given]), remedy)
    return merged


def check_headers(headers: object) -> dict[str, tuple[str, ...]]:
    """Check headers. Returns a copy with all values of each name. Raises InvalidValue."""
    if not isinstance(headers, Mapping):
        raise InvalidValue("headers", "…", f"must be a mapping of names to strings, not {type(headers).__name__}")
    return {name: _values(name, values) for name, values in headers.items()}


def headers_of_all(headers: object) -> dict[str, tuple[str, ...]]:
    """Check headers that each of many messages gets. Returns a copy with all values of each name. Raises InvalidValue,
    also for a name with which a header tells the server what to do: two messages with one id would be one message."""
    checked = check_headers(headers)
    encode_headers(checked)
    if told := next((name for name in checked if name.lower().startswith("nats-")), None):
        remedy = "headers that begin with Nats- are instructions to the server; set the option of each message instead"
        raise InvalidValue(f"headers[{told!r}]", ", ".join(checked[told]), remedy)
    return checked


def _values(name: object, values: object) -> tuple[str, ...]:
    several = (values,) if isinstance(values, str) else values
    if not isinstance(name, str) or not isinstance(several, Sequence) or isinstance(several, bytes):
        raise InvalidValue("headers", name, "a name must be a string, and its value a string or a list of strings")
    if not all(isinstance(value, str) for value in several):
        raise InvalidValue(f"headers[{name!r}]", "…", "the values of a header must be strings")
    return tuple(several)
