# SPDX-License-Identifier: Apache-2.0
"""The parameters of a take as a value, which an orchestrator can store while a sensor waits (``taking``)."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from jetstream_client.config import normalise
from jetstream_client.consume.priority import Priority
from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_stream_name
from jetstream_client.quantities import check_count, check_duration
from jetstream_client.times import time_nanoseconds, unix_time
from jetstream_handoff.durations import GATHER, HAND_OFF_TIMEOUT, LOOK_EVERY
from jetstream_handoff.ledger.record import Heir
from jetstream_handoff.letters.dead_letters import dead_letters_of
from jetstream_handoff.rules.order_key import ON_POISON, OrderKey, check_on_poison
from jetstream_handoff.take.threshold import Threshold

if TYPE_CHECKING:
    from jetstream_client.config import Config
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.ledger.history import Owner

_DURATIONS = ("gather", "hand_off_timeout", "look_every")
_NOT_IN_ORDER = {
    "messages_per_claim": "a key is in one claim, however many messages it has; claims is the number of claims",
    "until": "a batch must contain everything that is delivered, also from after the period",
    "priority": "one take at a time gathers the messages, and it must be the one that the server serves",
}
"""Parameters that cannot be combined with ``ordered_by``, and why."""


@dataclass(frozen=True, kw_only=True)
class Taking:
    """The parameters of a take. Durations are ``timedelta``.

    stream, consumer:    the names of the stream and of its consumer.
    owner:               the owner for which claims are taken; see :data:`jetstream_handoff.ledger.history.Owner`.
    max_messages:        the largest number of messages in a batch. The take ends when that many have arrived.
    messages_per_claim:  the largest number of messages in a claim; default: the batch becomes one claim.
    ordered_by:          the key of a message, for order per key: ``{2}`` or ``{1}.{3}`` for tokens of its subject
                         (counted from 1), ``subject``, or ``header:<name>``; see :mod:`.in_order`. Default: no order.
    claims:              with ``ordered_by``, instead of ``messages_per_claim``: the number of claims into which a batch
                         is divided by key. Default: 1.
    on_poison:           with ``ordered_by`` and ``max_failures``, what becomes of a key whose message becomes a dead
                         letter: ``skip`` goes on with the next message (default); ``stop_key`` makes dead letters of
                         all later messages of the key, too.
    max_claims:          the largest number of claims that the take may hand on. The messages of further claims are
                         negatively acknowledged, for the next take. Default: no limit.
    min_messages:        the smallest number of messages in a batch; default: 1.
    min_bytes:           the smallest size of a batch, as the sum of its payloads; default: any. A batch of
                         ``max_messages`` may be smaller.
    max_wait:            how long the oldest message waits for others, counted from when the stream stored it; after
                         that, a batch may be smaller than ``min_messages`` and ``min_bytes``. Default: no limit.
    until:               take only messages that the stream stored before this time (RFC 3339), and begin when all of
                         them are stored. Default: no end.
    gather:              the take ends this long after the first message if enough messages have arrived, or earlier
                         after a pause (:data:`~jetstream_handoff.take.gather.QUIET`); default: 5 s.
    hand_off_timeout:    the lease of a claim until its task begins; default: 15 minutes.
    consumer_config:     fields of the consumer.
    create_consumer:     whether to create the consumer if it does not exist. Otherwise that is an error. Default: True.
    max_failures:        dead-letter a message that has failed alone this many times. Messages that failed are taken in
                         smaller claims; see :mod:`jetstream_handoff.ledger.failures`. Default: never.
    dead_letters:        the name of the dead-letter stream; default: ``DEAD_<stream>``.
    backlog:             the path ``package.module.function`` of a function. It is called with the consumer's INFO, in a
                         separate thread of the process that takes, and nothing is pulled until it returns True. Then
                         the available messages are taken. If they are too few, the function is called again.
    look_every:          how often ``backlog`` is called; default: 1 minute.
    priority:            the priority to send with every pull, for a consumer with priority groups.
    predecessors:        other owners, whose runs have ended. Their claims that no attempt holds become this owner's and
                         are handed on first, without waiting for the end of their leases. Default: none.
    even_if_held:        whether to hand on also those claims of this owner that an attempt holds. This suits a task
                         that takes and processes a claim in one try, because its earlier try has died. If that try is
                         still alive, it loses the claim. Default: False.

    Raises:
        InvalidValue: a value is not allowed.
    """

    stream: str
    consumer: str
    owner: Owner
    max_messages: int
    messages_per_claim: int | None = None
    ordered_by: str | None = None
    claims: int | None = None
    on_poison: str = ON_POISON[0]
    max_claims: int | None = None
    min_messages: int = 1
    min_bytes: int | None = None
    max_wait: timedelta | None = None
    until: str | None = None
    gather: timedelta = GATHER
    hand_off_timeout: timedelta = HAND_OFF_TIMEOUT
    consumer_config: Config | None = None
    max_failures: int | None = None
    dead_letters: str | None = None
    backlog: str | None = None
    look_every: timedelta = LOOK_EVERY
    priority: Priority | None = None
    predecessors: tuple[Owner, ...] = ()
    even_if_held: bool = False
    create_consumer: bool = True

    @property
    def heir(self) -> Heir:
        """Which open claims the take hands on instead of pulling."""
        return Heir(self.owner, self.predecessors, self.even_if_held)

    @property
    def threshold(self) -> Threshold:
        """When enough messages have arrived."""
        return Threshold(self.min_messages, self.min_bytes, self.max_wait)

    def __post_init__(self) -> None:
        check_stream_name(self.stream)
        check_consumer_name(self.consumer)
        dead_letters_of(self.stream, self.dead_letters)
        for name in ("max_messages", "messages_per_claim", "claims", "max_claims", "max_failures"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        self.threshold  # noqa: B018 - its values are checked
        if self.min_messages > self.max_messages:
            raise InvalidValue("min_messages", self.min_messages, f"give at most max_messages={self.max_messages}")
        if self.until is not None:
            try:
                time_nanoseconds(self.until)
            except ValueError:
                remedy = unix_time(self.until) or "give a time with a time zone, such as 2026-11-21T03:00:00Z"
                raise InvalidValue("until", self.until, remedy) from None
            if self.threshold != Threshold():
                remedy = (
                    "leave min_messages, min_bytes and max_wait out: when the period has ended, no other message of it "
                    "will arrive"
                )
                raise InvalidValue("until", self.until, remedy)
        self._check_order()
        for name in ("gather", "look_every"):
            check_duration(name, getattr(self, name))
        if not isinstance(self.consumer_config or {}, Mapping):
            raise InvalidValue("consumer_config", self.consumer_config, "give a mapping of fields of the consumer")
        check_duration("hand_off_timeout", self.hand_off_timeout, timedelta(seconds=1))
        if not isinstance(self.create_consumer, bool):
            raise InvalidValue("create_consumer", self.create_consumer, "give True or False")

    def _check_order(self) -> None:
        check_on_poison(self.on_poison, self.ordered_by, self.max_failures)
        if self.ordered_by is None:
            if self.claims is not None:
                remedy = "give ordered_by too; without an order, messages_per_claim divides a batch"
                raise InvalidValue("claims", self.claims, remedy)
            return
        OrderKey.parse(self.ordered_by)
        for name, remedy in _NOT_IN_ORDER.items():
            if getattr(self, name) is not None:
                raise InvalidValue(name, getattr(self, name), f"leave it out with ordered_by: {remedy}")

    def to_json(self) -> dict[str, Any]:
        """Return the parameters as JSON, with durations in seconds. Orchestrators store this format (in Airflow, with
        a trigger), so it must stay readable for older releases."""
        value = {
            "stream": self.stream,
            "consumer": self.consumer,
            "owner": list(self.owner),
            "max_messages": self.max_messages,
            "messages_per_claim": self.messages_per_claim,
            "min_messages": self.min_messages,
            **{name: getattr(self, name).total_seconds() for name in _DURATIONS},
            "max_failures": self.max_failures,
            "priority": asdict(self.priority) if self.priority else None,
            "dead_letters": self.dead_letters,
            "consumer_config": None if self.consumer_config is None else normalise(self.consumer_config),
        }
        # Only if they are used: an older release does not know these fields.
        newer = {
            "backlog": self.backlog,
            "predecessors": [list(each) for each in self.predecessors],
            "even_if_held": self.even_if_held,
            "ordered_by": self.ordered_by,
            "claims": self.claims,
            "on_poison": self.on_poison if self.on_poison != ON_POISON[0] else None,
            "max_claims": self.max_claims,
            "min_bytes": self.min_bytes,
            "until": self.until,
            "max_wait": self.max_wait and self.max_wait.total_seconds(),
        }
        value |= {name: each for name, each in newer.items() if each}
        return value if self.create_consumer else {**value, "create_consumer": False}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Taking:
        """Return the parameters from which :meth:`to_json` made ``value``. Raises InvalidValue."""
        fields = {**value, "owner": tuple(value["owner"])}
        for name in fields.keys() - cls.__dataclass_fields__.keys():
            remedy = (
                "this process has an older release than the one that has stored this parameter; install the same "
                "release for all workers and triggerers"
            )
            raise InvalidValue(name, "…", remedy)
        fields["predecessors"] = tuple(map(tuple, value.get("predecessors", ())))
        for name in (*_DURATIONS, "max_wait"):
            if name in fields:
                fields[name] = timedelta(seconds=fields[name])
        if fields.get("priority"):
            fields["priority"] = Priority(**fields["priority"])
        return cls(**fields)

    def backlog_function(self) -> Callable[[ConsumerInfo], bool] | None:
        """Return the function whose path is ``backlog``; None if no path was given.

        Raises:
            InvalidValue: this process cannot import the function.
        """
        if self.backlog is None:
            return None
        try:
            found = pkgutil.resolve_name(self.backlog)
        except (ImportError, AttributeError, ValueError) as error:
            remedy = (
                f"this process cannot import this function ({error}); correct the path package.module.function, or "
                "install the function's package here and on all workers and triggerers"
            )
            raise InvalidValue("backlog", self.backlog, remedy) from None
        if not callable(found):
            raise InvalidValue("backlog", self.backlog, "this is not a function; give the import path of a function")
        return found  # type: ignore[no-any-return]
