# SPDX-License-Identifier: Apache-2.0
"""The parameter ``ordered_by``: which messages have the same key and are processed in order, and what must be true of
their stream and consumer. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue, shown
from jetstream_client.filters import filters_of
from jetstream_handoff.errors import ConsumerUnsuitable
from jetstream_handoff.rules import missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

_TOKENS = re.compile(r"\{[1-9][0-9]?\}(?:\.\{[1-9][0-9]?\})*")
_HEADER = re.compile(r"header:([!-9;-~]{1,200})")  # printable ASCII without a space and a colon, as the server sends it
_FORMS = (
    "give tokens of the subject, counted from 1, such as '{2}' or '{1}.{3}'; 'subject' for the whole subject; or "
    "'header:<name>' for the value of a header"
)
_SUBJECT = "subject"
STOP_KEY = "stop_key"
ON_POISON = ("skip", STOP_KEY)
"""The values of the parameter ``on_poison``."""
BATCHES = 4
"""How many times ``max_messages`` may be delivered and not acknowledged: a batch must contain all of it."""


@dataclass(frozen=True, slots=True)
class OrderKey:
    """A checked key rule.

    rule:     the value of ``ordered_by``.
    tokens:   the numbers of the tokens whose values are the key, counted from 1; empty for another rule.
    header:   the name of the header whose value is the key; empty for another rule.
    """

    rule: str
    tokens: tuple[int, ...] = ()
    header: str = ""

    @classmethod
    def parse(cls, rule: object) -> OrderKey:
        """Return the key rule that ``ordered_by`` describes: ``{2}``, ``{1}.{3}``, ``subject`` or ``header:<name>``.

        Raises:
            InvalidValue: it describes none.
        """
        if rule == _SUBJECT:
            return cls(_SUBJECT)
        if isinstance(rule, str) and _TOKENS.fullmatch(rule):
            return cls(rule, tuple(int(each.strip("{}")) for each in rule.split(".")))
        if isinstance(rule, str) and (found := _HEADER.fullmatch(rule)):
            return cls(rule, header=found[1])
        raise InvalidValue("ordered_by", rule, _FORMS)

    def keys(self, subjects: Sequence[bytes], headers: Sequence[bytes]) -> Iterator[str]:
        """Yield the key of each message. Bytes that are not UTF-8 are replaced.

        subjects:  the subjects of the messages.
        headers:   their header blocks. Messages without the header have the empty key in common; of several values, the
                   first one counts.

        Raises:
            InvalidValue: a subject has too few tokens. The error names it.
        """
        if self.header:
            start = b"\r\n%b:" % self.header.encode()
            found: Iterator[bytes] = (block.partition(start)[2].partition(b"\r\n")[0].strip() for block in headers)
        else:
            found = map(self._of_subject, subjects) if self.tokens else iter(subjects)
        return (each.decode("utf-8", "replace") for each in found)

    def _of_subject(self, subject: bytes) -> bytes:
        tokens = subject.split(b".")
        if max(self.tokens) > len(tokens):
            named = f"subject {shown(subject.decode('utf-8', 'replace'))}"
            raise InvalidValue("ordered_by", self.rule, _short(named, len(tokens)))
        return b".".join([tokens[each - 1] for each in self.tokens])

    def check_config(self, consumer: str, config: Mapping[str, Any] | None, max_messages: int) -> None:
        """Check the fields of a consumer that is created with them, as :meth:`check_consumer`."""
        self.check_consumer(consumer, {"max_ack_pending": BATCHES * max_messages, **(config or {})}, max_messages)

    def check_consumer(self, consumer: str, config: Mapping[str, Any], max_messages: int) -> None:
        """Check a consumer whose messages are taken in the order of this key.

        config:        its configuration.
        max_messages:  the largest number of messages that a take enters.

        Raises:
            ConsumerUnsuitable: more may be unacknowledged than one batch can contain.
            InvalidValue: all subjects that match one of its filters have too few tokens.
        """
        allowed = config.get("max_ack_pending", 1_000)
        if not 0 < allowed <= BATCHES * max_messages:
            most = f"set max_messages={-(-allowed // BATCHES)} or more, or" if allowed > 0 else "set"
            remedy = f"with ordered_by, a batch must contain everything that is delivered; {most} max_ack_pending="
            remedy += f"{BATCHES * max_messages} or less"
            raise ConsumerUnsuitable(consumer, "max_ack_pending", allowed, remedy)
        for each in filters_of(config):
            count = len(each.split("."))
            if self.tokens and not each.endswith(">") and count < max(self.tokens):
                raise InvalidValue("ordered_by", self.rule, _short(f"the filter {each!r}", count))

    def check_stream(self, stream: str, consumer: str, config: Mapping[str, Any]) -> None:
        """Raise ConsumerUnsuitable for a stream that removes messages that wait, as the newer ones of their subject
        arrive: a message that is removed from a batch hides one that is missing in it.

        config:  the stream's configuration, as the server reports it.
        """
        if most := missing.vanishing(config).get("max_msgs_per_subject"):
            remedy = (
                f"stream {stream!r} has max_msgs_per_subject={most}, which removes messages that wait, so that their "
                "order cannot be kept; leave ordered_by out, or take from a stream without this limit"
            )
            raise ConsumerUnsuitable(consumer, "ordered_by", self.rule, remedy)


def check_on_poison(on_poison: object, ordered_by: object, max_failures: object) -> None:
    """Raise InvalidValue for a value of ``on_poison`` that is unknown, or has no effect without other parameters."""
    if on_poison not in ON_POISON:
        raise InvalidValue("on_poison", on_poison, f"give one of {', '.join(map(repr, ON_POISON))}")
    if on_poison == STOP_KEY and ordered_by is None:
        raise InvalidValue("on_poison", on_poison, "give ordered_by too: without it, a message has no key")
    if on_poison == STOP_KEY and max_failures is None:
        raise InvalidValue("on_poison", on_poison, "give max_failures too: without it, no message is given up")


def check_same(consumer: str, by: str | None, asked: str | None) -> None:
    """Raise ConsumerUnsuitable if a take would break the order of the other takes of its consumer.

    by:     the key rule that the consumer's record contains; None if there is none.
    asked:  that of the take; None for a take without an order.
    """
    if by is not None and by != asked:
        remedy = (
            f"other takes of this consumer have ordered_by={by!r}, and its messages would no longer be processed in "
            "this order; give the same ordered_by, or take from another consumer"
        )
        raise ConsumerUnsuitable(consumer, "ordered_by", asked, remedy)


def _short(what: str, count: int) -> str:
    return f"{what} has {count} tokens; {_FORMS}, or give the consumer a filter that does not select such subjects"
