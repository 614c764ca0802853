# SPDX-License-Identifier: Apache-2.0
"""The state of streams and consumers: answers to STREAM.INFO, CONSUMER.INFO and CONSUMER.PAUSE."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from jetstream_client.errors import promised
from jetstream_client.times import seconds_between, time_nanoseconds


@dataclass(frozen=True)
class Info:
    """``raw`` is the server's answer, in which durations are integer nanoseconds. Raises ProtocolError if a required
    field is missing or invalid."""

    raw: dict[str, Any] = field(repr=False)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, with the server's field names; durations are integer nanoseconds."""
        return dict(self.raw["config"])

    @property
    def created(self) -> str:
        """Creation time as RFC 3339, with the server's nanoseconds. It distinguishes successive streams or consumers
        with the same name. The reset of a consumer does not change it."""
        return str(self.raw["created"])

    @property
    def now(self) -> str:
        """The server's time when it answered, as RFC 3339."""
        return str(self.raw["ts"])


@dataclass(frozen=True)
class StreamInfo(Info):
    """The answer to ``STREAM.INFO``, or the same fields in the answer to another request for a stream."""

    def __post_init__(self) -> None:
        with promised("the server's information about a stream"):
            state = self.raw["state"]
            numbers = [state[name] for name in ("messages", "bytes", "first_seq", "last_seq")]
            if not (isinstance(self.raw["config"], dict) and isinstance(state["last_ts"], str)):
                raise TypeError
            if not all(type(number) is int and number >= 0 for number in numbers):
                raise ValueError
            time_nanoseconds(self.created)

    @property
    def state(self) -> dict[str, Any]:
        """The state of the stream: ``messages``, ``bytes``, ``first_seq``, ``first_ts``, ``last_seq``, ``last_ts``,
        ``num_subjects``, ``num_deleted`` and ``consumer_count``. In an empty stream, ``first_seq`` is ``last_seq`` plus
        one."""
        return dict(self.raw["state"])

    @property
    def domain(self) -> str:
        """JetStream domain of the stream; empty if it has none."""
        return str(self.raw.get("domain") or "")

    @property
    def cluster(self) -> dict[str, Any]:
        """The stream's cluster: ``name``, ``leader`` and ``replicas`` (each with ``name``, ``current``, ``offline``,
        ``active`` and ``lag``); empty without a cluster."""
        return dict(self.raw.get("cluster") or {})

    @property
    def mirror(self) -> dict[str, Any] | None:
        """``name``, ``lag`` and ``active`` (nanoseconds since the last contact) of the mirrored stream; None if this
        stream is not a mirror."""
        mirror = self.raw.get("mirror")
        return None if mirror is None else dict(mirror)

    @property
    def sources(self) -> list[dict[str, Any]]:
        """``name``, ``lag`` and ``active`` (as for :attr:`mirror`) of each source of this stream."""
        return list(self.raw.get("sources") or ())


@dataclass(frozen=True)
class ConsumerInfo(Info):
    """The answer to ``CONSUMER.INFO``, or the same fields in the answer to another request for a consumer."""

    def __post_init__(self) -> None:
        with promised("the server's information about a consumer"):
            counts = (self.counter, self.delivered, self.floor, self.pending, self.ack_pending)
            if not isinstance(self.raw["config"], dict) or min(counts) < 0:
                raise ValueError
            time_nanoseconds(self.now)
            time_nanoseconds(self.created)

    @property
    def counter(self) -> int:
        """``delivered.consumer_seq``: how many deliveries this consumer has made."""
        return int(self.raw["delivered"]["consumer_seq"])

    @property
    def delivered(self) -> int:
        """``delivered.stream_seq``: the highest stream sequence delivered."""
        return int(self.raw["delivered"]["stream_seq"])

    @property
    def floor(self) -> int:
        """``ack_floor.stream_seq``: the acknowledgement floor. Everything up to this sequence is acknowledged."""
        return int(self.raw["ack_floor"]["stream_seq"])

    @property
    def acknowledged(self) -> int:
        """``ack_floor.consumer_seq``: every delivery up to this one is acknowledged."""
        return int(self.raw["ack_floor"].get("consumer_seq", 0))

    @property
    def pending(self) -> int:
        """Number of messages not delivered yet."""
        return int(self.raw["num_pending"])

    @property
    def ack_pending(self) -> int:
        """Number of messages delivered and not acknowledged."""
        return int(self.raw["num_ack_pending"])

    @property
    def deliverable(self) -> int:
        """Number of messages not delivered yet that ``max_ack_pending`` leaves room for, whether or not the consumer is
        paused."""
        limit = self.config.get("max_ack_pending", 0)
        return max(0, min(self.pending, limit - self.ack_pending)) if limit > 0 else self.pending

    @property
    def gave_up(self) -> bool:
        """Whether the server has given up deliveries: nothing is unacknowledged, although the acknowledgement floor is
        below the last delivery. This happens when ``max_deliver`` is lowered below the number of deliveries of a
        message; raising it again does not bring the message back (measured on nats-server 2.15.1).

        Before the first delivery, ``delivered`` is the sequence before that with which the consumer begins; nats-server
        2.15 shows the same floor, but 2.11 and 2.12 show 0 (measured)."""
        return self.counter > 0 and self.ack_pending == 0 and self.floor < self.delivered

    @property
    def quiet(self) -> float | None:
        """Seconds since the consumer last delivered a message, or a client last sent ``+WPI`` for one; None if unknown,
        for example after its leader has changed."""
        last = (self.raw.get("delivered") or {}).get("last_active")
        try:
            return seconds_between(last, self.now) if isinstance(last, str) else None
        except ValueError:
            return None

    @property
    def paused(self) -> bool:
        """Whether the consumer is paused (:meth:`Consumer.pause`)."""
        return bool(self.raw.get("paused"))


@dataclass(frozen=True)
class PauseState:
    """The answer to a pause or resume. ``raw`` is the server's whole answer. Raises ProtocolError if a required field
    is missing."""

    raw: dict[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        with promised("the answer to CONSUMER.PAUSE"):
            if not (isinstance(self.raw.get("paused", False), bool) and self.remaining >= timedelta()):
                raise ValueError
            time_nanoseconds(self.raw["pause_until"])

    @property
    def paused(self) -> bool:
        """Whether the consumer is paused."""
        return bool(self.raw.get("paused"))

    @property
    def until(self) -> str:
        """When the pause ends, as RFC 3339; empty if the consumer is not paused."""
        return str(self.raw["pause_until"]) if self.paused else ""

    @property
    def remaining(self) -> timedelta:
        """Remaining time of the pause, by the server's clock; zero if the consumer is not paused."""
        return timedelta(microseconds=self.raw.get("pause_remaining", 0) / 1_000)
