"""What a take waits for, in one sentence: the log of a sensor says it every few minutes."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import JetStreamError
from jetstream_client.times import time_nanoseconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from jetstream_client.consume.priority import Priority
    from jetstream_client.info import ConsumerInfo, StreamInfo
    from jetstream_handoff.ledger import Ledger
    from jetstream_handoff.record import OpenEntry, Record
    from jetstream_handoff.taking import Taking

log = logging.getLogger(__name__)

EVERY = 300.0
"""Seconds between two sentences. 300 waiting sensors then ask for three answers a second."""
_NAMED = 3
"""How many claims a sentence names."""


class Waiting:
    """The waiting of one take. It asks the server only for what it is about to say, and never disturbs the wait."""

    def __init__(self, ledger: Ledger, taking: Taking) -> None:
        self._ledger = ledger
        self._taking = taking
        self._clock = asyncio.get_running_loop().time
        self._next = 0.0

    async def tell(self, pulled: int, within: float) -> None:
        """Log what is waited for, unless that was done a moment ago. Takes at most ``within`` seconds.

        ``pulled`` messages have arrived, fewer than ``min_messages``.
        """
        if not self._due():
            return
        if pulled:
            self._say(f"{pulled} messages have arrived, of at least {self._taking.min_messages} (min_messages)")
            return
        try:
            async with asyncio.timeout(within):  # a pull that is lost must be noticed in time
                reason = await self._reason()
        except TimeoutError:
            self._next = 0.0  # the server is away, or busy: the next time
        except (JetStreamError, TypeError, ValueError, KeyError, AttributeError) as error:
            self._say(f"nothing has arrived, and what it waits for cannot be told: {error}")
        else:
            self._say(reason)

    def tell_backlog(self, info: ConsumerInfo) -> None:
        """The same for a take whose own function has just said that this INFO is not enough."""
        if self._due():
            waiting = f"{info.pending} messages are pending, {info.ack_pending} are unacknowledged"
            self._say(f"its backlog function does not ask for a pull yet; {waiting}")

    def _due(self) -> bool:
        if self._clock() < self._next:
            return False
        self._next = self._clock() + EVERY
        return True

    def _say(self, reason: str) -> None:
        taking = self._taking
        log.info("still waiting for messages of stream %s, consumer %s: %s", taking.stream, taking.consumer, reason)

    async def _reason(self) -> str:
        record, _ = await self._ledger.read()
        info = await self._ledger.consumer.info()
        if record is not None and record.new_life(info):
            record = None
        held_up = self._held_up(record, info)
        return held_up or nothing_published(info, await self._ledger.stream.info())

    def _held_up(self, record: Record | None, info: ConsumerInfo) -> str:
        """Why what there is does not arrive. Empty: there is nothing."""
        taking = self._taking
        names = f"{taking.stream} {taking.consumer}"
        unacknowledged = "; ".join(_unacknowledged(record, info, taking.hand_off_timeout, taking.stream))
        if info.paused:
            until = str(info.config.get("pause_until", ""))
            return f"the consumer is paused until {_clock_time(until)}; `nats consumer resume {names}` resumes it"
        if not info.pending:
            return f"nothing else is published, and {unacknowledged}" if unacknowledged else ""
        there = f"{info.pending} messages are pending, but"
        allowed = info.config.get("max_ack_pending", 0)
        if 0 < allowed <= info.ack_pending:
            return (
                f"{there} max_ack_pending={allowed} is reached: {unacknowledged}; they are delivered when claims are "
                "settled or released, or max_ack_pending is raised"
            )
        if taking.priority is not None and (grouped := _grouped(taking.priority, info, names)):
            return f"{there} {grouped}"
        return f"{there} the server has sent none of them yet; {info.raw.get('num_waiting', 0)} pulls wait"


def nothing_published(info: ConsumerInfo, stream: StreamInfo) -> str:
    """Why a consumer has nothing pending and nothing unacknowledged."""
    config, name = info.config, stream.config.get("name")
    subjects = stream.config.get("subjects")
    listens = f"; it listens on {_listed(subjects)}" if subjects else ""
    stored = int(stream.state.get("messages", 0))
    filters = config.get("filter_subjects") or [each for each in (config.get("filter_subject"),) if each]
    policy = config.get("deliver_policy", "all")
    if not stored:
        return f"stream {name} holds no messages{listens}"
    if info.counter == 0 and policy == "all" and filters:
        return (
            f"none of the {stored} messages of stream {name} has a subject that the consumer's filter "
            f"{_listed(filters)} matches{listens}"
        )
    if info.counter == 0:
        return f"nothing has been published that the consumer's deliver_policy {policy!r} selects"
    last = stream.state.get("last_seq", 0)
    return (
        f"every message that was delivered is acknowledged; the last one of stream {name} is sequence {last}, "
        f"of {_clock_time(str(stream.state.get('last_ts', '')))}"
    )


def _unacknowledged(
    record: Record | None, info: ConsumerInfo, hand_off_timeout: timedelta, stream: str
) -> Iterator[str]:
    """What became of the messages that are delivered and not acknowledged: whose they are, until when, what to do."""
    left = info.ack_pending
    if not left:
        return
    claims = sorted(record.open.items(), key=lambda item: item[1].at) if record else []
    for claim_id, entry in claims[:_NAMED]:
        yield _claimed(claim_id, entry, info, hand_off_timeout)
    if more := claims[_NAMED:]:
        count = sum(entry.sequences.count for _, entry in more)
        yield f"{count} messages belong to {len(more)} more claims: `airflow jetstream claims --stream {stream}`"
    left -= sum(entry.sequences.count for _, entry in claims)
    if left > 0:
        ack_wait = info.config.get("ack_wait", 0) / 1e9
        yield f"{left} messages belong to no claim and are redelivered within ack_wait ({ack_wait:g} s)"


def _claimed(claim_id: str, entry: OpenEntry, info: ConsumerInfo, hand_off_timeout: timedelta) -> str:
    count = f"{entry.sequences.count} messages"
    if entry.token is not None:
        return f"{count} are held by attempt {claim_id}-{entry.token} of claim {claim_id}, taken by {entry.taken_by}"
    leased = f"{count} are leased to claim {claim_id}, taken by {entry.taken_by}"
    end = time_nanoseconds(entry.at) / 1e9 + hand_off_timeout.total_seconds()
    # A lease is not written down: a longer one is of another sensor's hand_off_timeout, or of a task that was tried.
    until = f"until {_of_seconds(end)}" if end > time_nanoseconds(info.now) / 1e9 else "for its task's next try"
    return f"{leased}, {until}; `airflow jetstream release {claim_id}` delivers them again now"


def _grouped(priority: Priority, info: ConsumerInfo, names: str) -> str:
    """Why a priority group does not serve this pull."""
    for group in info.raw.get("priority_groups") or ():
        if group.get("group") == priority.group and (pinned := group.get("pinned_client_id")):
            since = _clock_time(str(group.get("pinned_ts", "")))
            return (
                f"priority group {priority.group!r} is pinned to client {pinned} since {since}; "
                f"`nats consumer unpin {names} {priority.group}` lets the server pin another one"
            )
    if priority.min_pending > info.pending or priority.min_ack_pending > info.ack_pending:
        return (
            f"priority group {priority.group!r} serves this sensor only from min_pending={priority.min_pending} or "
            f"min_ack_pending={priority.min_ack_pending} on; {info.ack_pending} are unacknowledged"
        )
    if priority.level:
        return f"priority group {priority.group!r} serves pulls of a level below {priority.level} first"
    return ""


def _listed(names: list[Any]) -> str:
    """Subjects as the server has them, a few of many."""
    shown = ", ".join(repr(str(name)) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _clock_time(text: str) -> str:
    """The server's time for people; as it is when it is none."""
    try:
        return _of_seconds(time_nanoseconds(text) / 1e9)
    except (ValueError, OverflowError):
        return text or "a time that the server does not tell"


def _of_seconds(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
