# SPDX-License-Identifier: Apache-2.0
"""Priority groups: how a pull consumer chooses the clients to serve (ADR-42; nats-server 2.11, prioritized 2.12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jetstream_client.errors import InvalidValue
from jetstream_client.quantities import check_count


@dataclass(frozen=True, slots=True)
class Priority:
    """The priority of a pull from a consumer with ``priority_groups``.

    group:           name of one of the consumer's groups.
    min_pending:     with ``overflow``, the pull is served while at least this many messages wait to be delivered.
                     Default 0: not set.
    min_ack_pending: with ``overflow``, the pull is served while at least this many messages are delivered but
                     unacknowledged. If ``min_pending`` is set too, meeting one of the two is enough. Default 0: not
                     set.
    level:           with ``prioritized``, from 0 (served first) to 9. Default 0.

    A ``pinned_client`` consumer serves one client of the group. The messages contain the id of the pin, and the
    receiving :class:`~jetstream_client.consume.consumer.Consumer` sends this id with its pulls.

    Raises:
        InvalidValue: the group is empty, a number is negative, or the level is above 9.
    """

    group: str
    min_pending: int = 0
    min_ack_pending: int = 0
    level: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.group, str) or not self.group:
            raise InvalidValue("group", self.group, "must be one of the consumer's priority_groups")
        for name in ("min_pending", "min_ack_pending"):
            check_count(name, getattr(self, name), 0)
        if check_count("level", self.level, 0) > 9:
            raise InvalidValue("level", self.level, "must be from 0 (served first) to 9")

    def request(self, pin: str) -> dict[str, Any]:
        """The fields of a pull request. ``pin``: the id of this client's pin, or an empty string."""
        fields = {
            "group": self.group,
            "min_pending": self.min_pending,
            "min_ack_pending": self.min_ack_pending,
            "priority": self.level,
            "id": pin,
        }
        return {name: value for name, value in fields.items() if value}


def pin_of(headers: Mapping[str, Sequence[str]]) -> str:
    """The id of this client's pin, which messages of a ``pinned_client`` group contain; empty in other messages."""
    return "".join(headers.get("Nats-Pin-Id", ())[-1:])
