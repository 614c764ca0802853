"""Priority groups of a pull consumer: who of several clients is served (ADR-42; nats-server 2.11, prioritized 2.12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jetstream_client.errors import InvalidValue
from jetstream_client.quantities import check_count


@dataclass(frozen=True, slots=True)
class Priority:
    """What a pull says to a consumer with ``priority_groups``.

    group:           one of the consumer's groups.
    min_pending:     ``overflow``: be served only while at least so many messages wait to be delivered,
    min_ack_pending: ``overflow``: or at least so many are delivered and unacknowledged. 0: not given.
    level:           ``prioritized``: 0 (served first, the server's default) to 9.

    A ``pinned_client`` consumer serves one client of the group: the pin's id comes with its messages and is sent back
    by the same :class:`~jetstream_client.consume.consumer.Consumer`.

    Raises:
        InvalidValue: no group, a negative number, a level above 9.
    """

    group: str
    min_pending: int = 0
    min_ack_pending: int = 0
    level: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.group, str) or not self.group:
            raise InvalidValue("group", self.group, "name one of the consumer's priority_groups")
        for name in ("min_pending", "min_ack_pending"):
            check_count(name, getattr(self, name), 0)
        if check_count("level", self.level, 0) > 9:
            raise InvalidValue("level", self.level, "give 0 (first) to 9")

    def request(self, pin: str) -> dict[str, Any]:
        """The fields of a pull request. ``pin``: the id that this client was given, if any."""
        fields = {
            "group": self.group,
            "min_pending": self.min_pending,
            "min_ack_pending": self.min_ack_pending,
            "priority": self.level,
            "id": pin,
        }
        return {name: value for name, value in fields.items() if value}
