# SPDX-License-Identifier: Apache-2.0
"""The parameter ``missing``: what reading a claim does with messages that the stream no longer contains. No I/O.

Some messages vanish by design: they expire, newer ones on their subject replace them, or they are scheduled messages
that were sent. Every reader of claims decides here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from jetstream_client.errors import InvalidValue, MessagesMissing

if TYPE_CHECKING:
    from jetstream_client.sequences import Sequences

Missing = Literal["error", "skip"]
"""``"error"``: reading fails. ``"skip"``: the others are read, and the claim's receipt names the missing ones."""
Batch = TypeVar("Batch")

_REMEDY = (
    "They cannot be read again, so a retry does not help. To process the messages that still exist, set "
    "missing='skip', which names the others in the claim's receipt; otherwise, let the stream keep messages until "
    "their claims are settled"
)
_IN_TEXT = re.compile(rf"{re.escape(MessagesMissing.__module__)}\.{MessagesMissing.__name__}: (.+)")


def check_missing(value: object) -> Missing:
    """Return the value of the parameter ``missing``. Raises InvalidValue."""
    if value not in get_args(Missing):
        raise InvalidValue("missing", value, "give 'error' or 'skip'")
    return "skip" if value == "skip" else "error"


def reading(batches: Iterator[Batch], missing: Missing, skip: Callable[[Sequences], object]) -> Iterator[Batch]:
    """Yield the batches of a claim's messages.

    batches:  raises MessagesMissing after the last message that exists.
    missing:  what to do with messages that no longer exist.
    skip:     called with their sequences if they are skipped. It records them, or raises an error.

    Raises:
        MessagesMissing: some messages no longer exist, and ``missing`` is ``"error"``.
    """
    try:
        yield from batches
    except MessagesMissing as gone:
        if missing == "error":
            raise MessagesMissing(gone.stream, gone.sequences, _REMEDY) from None
        skip(gone.sequences)


def is_final(error: BaseException | None) -> bool:
    """Whether work failed because messages no longer exist, so that another attempt would fail in the same way.

    Spark passes the error of an executor on as text, with the name of its class.
    """
    return reason_of(error) != ""


def reason_of(error: BaseException | None) -> str:
    """The message of the MessagesMissing because of which work failed; empty if it failed for another reason."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, MessagesMissing):
            return str(error)
        if found := _IN_TEXT.search(str(error)):
            return found[1]
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return ""


VANISHING = {
    "max_msgs_per_subject": "newer messages on a subject replace older ones",
    "allow_msg_ttl": "messages may expire",
    "allow_msg_schedules": "scheduled messages are removed when they are sent",
}
"""Maps each field of a stream's configuration with which single messages vanish by design to what happens then."""


def vanishing(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields, with their values, with which single messages of a stream vanish by design.

    config:  the stream's configuration, as the server reports it.
    """
    found = {field: config[field] for field in VANISHING if _on(config.get(field))}
    if config.get("discard") == "new" and config.get("discard_new_per_subject"):
        found.pop("max_msgs_per_subject", None)  # the stream refuses the newer messages instead
    return found


def warning(config: Mapping[str, Any]) -> str:
    """Return why claimed messages of a stream may vanish before they are processed, with the remedy; empty if only the
    stream's age and size limits remove messages.

    config:  as for :func:`vanishing`.
    """
    fields = ", ".join(f"{field}={value!r} ({VANISHING[field]})" for field, value in vanishing(config).items())
    remedy = "set missing='skip' where its claims are processed, or a claim fails when one of its messages is gone"
    return f"claimed messages may vanish before they are processed, because of {fields}; {remedy}" if fields else ""


def _on(value: object) -> bool:
    return value is True or (isinstance(value, int) and value > 0)
