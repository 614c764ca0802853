"""What to take, and for whom, as a value: the ``taking`` of a stored trigger."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from jetstream_client.config import normalise
from jetstream_client.consume.priority import Priority
from jetstream_client.errors import InvalidValue
from jetstream_handoff.dead_letters import dead_letters_of
from jetstream_handoff.durations import GATHER, HAND_OFF_TIMEOUT, LOOK_EVERY

if TYPE_CHECKING:
    from jetstream_client.config import Config
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.record import Owner

_DURATIONS = ("gather", "hand_off_timeout", "look_every")


@dataclass(frozen=True, kw_only=True)
class Taking:
    """What to take, and for whom. Times are ``timedelta``.

    Ends with ``max_messages``, or ``gather`` after the first message once there are ``min_messages``.
    One batch is cut into claims of at most ``messages_per_claim`` (default: one claim).

    With ``backlog``, a path ``package.module.function``, nothing is pulled until that function says so of the
    consumer's INFO. It is imported by the process that takes, and asked every ``look_every``, in a thread of its own;
    what is there then is taken, and if it is not enough it is asked again.
    ``priority`` goes with every pull, for a consumer with priority groups.

    With ``max_failures`` what failed before is claimed in smaller claims, and a message that failed so often alone goes
    to the dead letters (``DEAD_<stream>`` by default), see :mod:`jetstream_handoff.failures`.
    """

    stream: str
    consumer: str
    owner: Owner
    max_messages: int
    messages_per_claim: int | None = None
    min_messages: int = 1
    gather: timedelta = GATHER
    hand_off_timeout: timedelta = HAND_OFF_TIMEOUT
    consumer_config: Config | None = None
    max_failures: int | None = None
    dead_letters: str | None = None
    backlog: str | None = None
    look_every: timedelta = LOOK_EVERY
    priority: Priority | None = None

    def __post_init__(self) -> None:
        dead_letters_of(self.stream, self.dead_letters)
        for name in ("max_messages", "messages_per_claim", "min_messages", "max_failures"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise InvalidValue(name, number, "give 1 or more")
        if self.min_messages > self.max_messages:
            raise InvalidValue("min_messages", self.min_messages, f"at most max_messages={self.max_messages}")
        for name in ("gather", "look_every"):
            if getattr(self, name) < timedelta(0):
                raise InvalidValue(name, getattr(self, name), "give a duration of 0 or more")
        if not isinstance(self.consumer_config or {}, Mapping):
            raise InvalidValue("consumer_config", self.consumer_config, "give a mapping of the consumer's fields")
        if self.hand_off_timeout < timedelta(seconds=1):
            raise InvalidValue("hand_off_timeout", self.hand_off_timeout, "give at least a second")

    def to_json(self) -> dict[str, Any]:
        """The JSON value, times in seconds. Triggers are stored as this: what a running release reads must stay."""
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
        return value if self.backlog is None else {**value, "backlog": self.backlog}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Taking:
        """The reverse. Raises InvalidValue."""
        fields = {**value, "owner": tuple(value["owner"])}
        for name in _DURATIONS:
            if name in fields:
                fields[name] = timedelta(seconds=fields[name])
        if fields.get("priority"):
            fields["priority"] = Priority(**fields["priority"])
        return cls(**fields)

    def backlog_function(self) -> Callable[[ConsumerInfo], bool] | None:
        """What ``backlog`` names. Raises InvalidValue when it cannot be imported here."""
        if self.backlog is None:
            return None
        try:
            found = pkgutil.resolve_name(self.backlog)
        except (ImportError, AttributeError, ValueError) as error:
            remedy = f"{error}; it must be importable in workers and triggerers"
            raise InvalidValue("backlog", self.backlog, remedy) from None
        if not callable(found):
            raise InvalidValue("backlog", self.backlog, "name a function")
        return found  # type: ignore[no-any-return]
