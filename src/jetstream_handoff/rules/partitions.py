# SPDX-License-Identifier: Apache-2.0
"""Partitions: how the server divides the messages of a stream by a key, and which consumer gets which of them. No I/O.

The stream's ``subject_transform`` puts the number of the partition before the subject: ``orders.7.paid`` is stored as
``3.orders.7.paid``. The number is a hash of the tokens that are the key, modulo the number of partitions
(https://docs.nats.io/nats-concepts/subject_mapping, "Deterministic Subject Token Partitioning", and
``getHashPartition`` in nats-server's ``server/subject_transform.go``). A consumer for each partition selects its
number.

The layout is that of the *static* partitioned consumer groups of orbit.go (``pcgroups``: README.md, "Static";
``scripts/static_stream_setup.sh``; ``GeneratePartitionFilters`` in ``stream_consumer_group.go``): the number, from 0,
is the first token, and a consumer is called ``<group>-<member>`` and filters ``<number>.<subject>``. So both can share
a stream: each group has its own consumers. The stream of an *elastic* group is not shared. It is a work queue that
pcgroups fills and empties for this group alone, and its configuration is in a bucket that only pcgroups writes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_filter, check_stream_name, subject_matches
from jetstream_client.quantities import check_count
from jetstream_handoff.errors import PartitionsUnsuitable
from jetstream_handoff.rules.consumer import check_config
from jetstream_handoff.rules.order_key import OrderKey

if TYPE_CHECKING:
    from collections.abc import Iterable

BETWEEN = "between"
"""The first token, instead of a number, of messages that are stored while the number of partitions changes."""
SINCE = "jetstream_handoff.partitions.since"
"""The key in the stream's metadata of the first sequence that may have the present number of partitions. It is absent
if the number was never changed."""
START = ("deliver_policy", "opt_start_seq", "opt_start_time")
"""The fields of a consumer that say where it begins."""
_PARTITION = re.compile(r"\{\{\s*[pP]artition\s*\(([\d\s,]+)\)\s*\}\}")
_WILDCARD = re.compile(r"\{\{\s*[wW]ildcard\s*\(\s*(\d+)\s*\)\s*\}\}|\$(\d+)")
_ONE_KEY = (
    "a message's partition is a hash of tokens of its subject, so name these tokens, such as '{3}' or '{3}.{4}', or "
    "'subject'. They are counted in the stored subject, in which the partition is the first one: '{3}' is the 7 of "
    "3.orders.7.paid"
)


@dataclass(frozen=True, slots=True)
class Partitions:
    """A checked layout.

    stream:      the name of the stream.
    group:       the beginning of the names of its consumers: ``balances`` for ``balances-0``, ``balances-1``, ….
    subject:     which messages are divided, as they are published: ``orders.*.*``.
    partitions:  the number of partitions.
    ordered_by:  the key, as in a take: tokens of the stored subject, in which the partition is the first one, or
                 ``subject``.

    Raises:
        InvalidValue: a value is invalid, or the server cannot divide messages so.
    """

    stream: str
    group: str
    subject: str
    partitions: int
    ordered_by: str

    def __post_init__(self) -> None:
        check_stream_name(self.stream)
        check_count("partitions", self.partitions)
        check_filter(self.subject, "subject")
        check_consumer_name(self.group, "group")
        self._wildcards()

    def _wildcards(self) -> tuple[int, ...]:
        """Return which ``*`` of the subject are the key, counted from 1; none if the whole subject is the key."""
        key = OrderKey.parse(self.ordered_by)
        tokens = self.subject.split(".")
        stars = {place: count for count, place in enumerate((i for i, each in enumerate(tokens) if each == "*"), 1)}
        if key.header:
            raise InvalidValue("ordered_by", self.ordered_by, f"the server does not divide by headers; {_ONE_KEY}")
        if not key.tokens:
            if not stars and tokens[-1] != ">":
                raise InvalidValue("subject", self.subject, "one subject cannot be divided; give one with * or >")
            return ()
        if 1 in key.tokens:
            raise InvalidValue("ordered_by", self.ordered_by, f"{{1}} is the partition itself; {_ONE_KEY}")
        # in the stored subject, the first token of this one is the second
        chosen = tuple(stars[each - 2] for each in key.tokens if each - 2 in stars)
        if not chosen or any(each - 2 >= len(tokens) or tokens[each - 2] == ">" for each in key.tokens):
            remedy = (
                f"each token must be one of subject={self.subject!r}, and at least one of them a *, because the "
                f"server only hashes what * stands for; {_ONE_KEY}"
            )
            raise InvalidValue("ordered_by", self.ordered_by, remedy)
        return chosen

    def check_consumers(self, config: Mapping[str, Any], max_messages: int) -> None:
        """Check the fields of the consumers that are created, without a request, so that a pipeline can be checked when
        it is defined.

        config:        the fields, as the server names them.
        max_messages:  the largest batch of their takes.

        Raises:
            ConsumerUnsuitable: a field breaks a rule for claims.
            InvalidValue: a field is invalid, or selects messages.
        """
        for field in ("filter_subject", "filter_subjects"):
            if config.get(field):
                remedy = "leave it out: each consumer selects the messages of its partition"
                raise InvalidValue(f"consumer_config[{field!r}]", config[field], remedy)
        one = {**config, "filter_subject": self.filter(0)}
        check_config(self.name(0), one, max_messages=max_messages, shortest_ack_wait=timedelta())
        OrderKey.parse(self.ordered_by).check_config(self.name(0), one, max_messages)

    @property
    def transform(self) -> dict[str, str]:
        """The ``subject_transform`` of the stream."""
        key = "".join(f",{each}" for each in self._wildcards())
        return self._transform(f"{{{{partition({self.partitions}{key})}}}}")

    @property
    def between(self) -> dict[str, str]:
        """The ``subject_transform`` of the stream while the number of partitions changes."""
        return self._transform(BETWEEN)

    def _transform(self, first: str) -> dict[str, str]:
        stars = iter(range(1, self.subject.count("*") + 1))
        rest = (f"{{{{wildcard({next(stars)})}}}}" if each == "*" else each for each in self.subject.split("."))
        return {"src": self.subject, "dest": ".".join([first, *rest])}

    def name(self, partition: int | str) -> str:
        """Return the name of a partition's consumer. ``between`` is a partition, too."""
        return f"{self.group}-{partition}"

    def filter(self, partition: int | str) -> str:
        """Return the filter of a partition's consumer. ``between`` is a partition, too."""
        return f"{partition}.{self.subject}"

    def partition_of(self, name: str, config: Mapping[str, Any]) -> int | str | None:
        """Return the partition of which a consumer is this group's: its number, or ``between``; None for a consumer
        that is not one of this group.

        name, config:  the name of the consumer, and its configuration, as the server reports it.
        """
        number = name.removeprefix(f"{self.group}-")
        if number != BETWEEN and not re.fullmatch("0|[1-9][0-9]{0,8}", number):
            return None
        if number == name or selects(config) != [self.filter(number)]:
            return None
        return number if number == BETWEEN else int(number)

    def number_of(self, config: Mapping[str, Any]) -> int | None:
        """Return how many partitions a stream has: 0 while the number changes, and None if it is not divided.

        config:  the stream's configuration, as the server reports it.

        Raises:
            PartitionsUnsuitable: the stream stores its messages under other subjects, or divides them by another key.
        """
        found = config.get("subject_transform")
        if not found:
            return None
        number = _number(found)
        same = replace(self, partitions=number).transform if number else self.between
        if _plain(found) == _plain(same):
            return number
        remedy = (
            f"for subject={self.subject!r} and ordered_by={self.ordered_by!r}, it would have to be {self.transform}. "
            "Give the 'subject', 'ordered_by' and 'partitions' that the stream has; or divide another stream, which "
            "has this one as its source"
        )
        raise PartitionsUnsuitable(self.stream, "subject_transform", found, remedy)

    def undivided(self, subjects: Iterable[str]) -> list[str]:
        """Return those subjects of a stream of which some messages get no partition.

        subjects:  the field ``subjects`` of the stream.
        """

        def covered(each: str) -> bool:
            whole = not each.endswith(">") or self.subject.endswith(">")
            first = each.partition(".")[0]
            replays = (first == "*" or first.isdecimal()) and each == self.filter(first)
            return replays or (whole and subject_matches(self.subject, each))

        return [each for each in subjects if not covered(each)]


def selects(config: Mapping[str, Any]) -> list[str]:
    """Return the filters of a consumer; none if it selects everything.

    config:  the consumer's configuration, as the server reports it.
    """
    one = config.get("filter_subject")
    return [one] if one else list(config.get("filter_subjects") or ())


def by_number(config: Mapping[str, Any]) -> bool:
    """Return whether a consumer selects partitions by their numbers, so that it depends on how many there are.

    config:  the consumer's configuration, as the server reports it.
    """
    return any(each.partition(".")[0].isdecimal() for each in selects(config))


def _number(transform: Mapping[str, Any]) -> int:
    """Return the number of partitions that a ``subject_transform`` makes; 0 if it makes none."""
    found = _PARTITION.match(str(transform.get("dest") or ""))
    number = found[1].split(",")[0].strip() if found else ""
    return int(number) if re.fullmatch("[1-9][0-9]{0,8}", number) else 0


def _plain(transform: Mapping[str, Any]) -> tuple[str, str]:
    """Return a ``subject_transform`` with its functions in one spelling: the server knows several."""
    dest = str(transform.get("dest") or "")
    dest = _PARTITION.sub(lambda found: f"{{{{partition({''.join(found[1].split())})}}}}", dest)
    dest = _WILDCARD.sub(lambda found: f"{{{{wildcard({found[1] or found[2]})}}}}", dest)
    return str(transform.get("src") or ">"), dest
