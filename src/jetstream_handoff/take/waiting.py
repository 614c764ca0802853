# SPDX-License-Identifier: Apache-2.0
"""The reason why a take waits, in one sentence that a sensor logs every few minutes."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import JetStreamError
from jetstream_client.filters import filters_of, is_filtered
from jetstream_client.quantities import number
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.events import tell
from jetstream_handoff.take.conservation import again
from jetstream_handoff.words import Words, words_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from jetstream_client.consume.priority import Priority
    from jetstream_client.info import ConsumerInfo, StreamInfo
    from jetstream_handoff.ledger.ledger import Ledger
    from jetstream_handoff.ledger.record import OpenEntry, Record
    from jetstream_handoff.take.barrier import Barrier
    from jetstream_handoff.take.taking import Taking

log = logging.getLogger(__name__)

EVERY = 300.0
"""Seconds between two sentences. With 300 waiting sensors this is three requests per second."""
_NAMED = 3
"""How many claims a sentence names."""


class Waiting:
    """Logs the reason why a take waits. It sends requests to the server only before it logs, and an error of these
    requests does not affect the take."""

    def __init__(self, ledger: Ledger, taking: Taking) -> None:
        self._ledger = ledger
        self._taking = taking
        self._clock = asyncio.get_running_loop().time
        self._next = 0.0

    async def tell(self, pulled: int, within: float) -> None:
        """Log the reason why the take waits, unless it was logged recently.

        pulled:  number of messages that have arrived, fewer than are needed.
        within:  the longest time for finding the reason, in seconds.
        """
        if not self._due():
            return
        if pulled:
            longest = self._taking.max_wait
            limit = "" if longest is None else f" until max_wait ({longest.total_seconds():g} s) is over for the oldest"
            self._say(f"{number(pulled, 'message')} have arrived, but {self._taking.threshold.least} are needed{limit}")
            return
        try:
            async with asyncio.timeout(within):  # the take must notice a lost pull in time
                reason = await self._reason()
        except TimeoutError:
            self._next = 0.0  # the server is busy or does not answer: try again soon
        except (JetStreamError, TypeError, ValueError, KeyError, AttributeError) as error:
            self._say(f"nothing has arrived, and the reason could not be found out ({error})")
        else:
            self._say(reason)

    def tell_backlog(self, info: ConsumerInfo) -> None:
        """Log that the backlog function has just returned False for this INFO, unless something was logged recently."""
        if self._due():
            waiting = f"{info.pending} messages are pending and {info.ack_pending} are unacknowledged"
            self._say(f"the backlog function does not ask for a pull yet; {waiting}")

    def tell_order(self, barrier: Barrier | None) -> None:
        """Log what a take with ``ordered_by`` waits for, unless something was logged recently.

        barrier:  the open claims that block a new batch; None if another take gathers.
        """
        if self._due():
            other = "with ordered_by, one sensor at a time gathers, and another one does"
            self._say(f"it {barrier.text}" if barrier else other)

    def tell_missing(self, count: int, gathered: int) -> None:
        """Log that delivered messages are missing in a gathered batch, unless something was logged recently."""
        if self._due():
            been = "was" if count == 1 else "were"
            self._say(
                f"{number(count, 'message')} {been} delivered to another client and must be in the same batch as the "
                f"{gathered} gathered ones, to keep the order; the server redelivers them when their leases end"
            )

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
        held_up = self.held_up(record, info)
        return held_up or nothing_published(info, await self._ledger.stream.info())

    def held_up(self, record: Record | None, info: ConsumerInfo) -> str:
        """Return the reason why existing messages do not arrive; empty if no messages wait."""
        taking = self._taking
        names = f"{taking.stream} {taking.consumer}"
        unacknowledged = "; ".join(_unacknowledged(record, info, taking, words_of(self._ledger.js.settings)))
        if info.paused:
            until = str(info.config.get("pause_until", ""))
            return f"the consumer is paused until {_clock_time(until)}; `nats consumer resume {names}` resumes it"
        if not info.pending:
            return f"no new messages have been published, and {unacknowledged}" if unacknowledged else ""
        there = f"{info.pending} messages are pending, but"
        if not info.deliverable:
            return (
                f"{there} max_ack_pending={info.config['max_ack_pending']} is reached, because {unacknowledged}. More "
                "messages are delivered when claims are settled or released, or when max_ack_pending is raised"
            )
        if taking.priority is not None and (grouped := _grouped(taking.priority, info, names)):
            return f"{there} {grouped}"
        return (
            f"{there} the server has sent none of them yet; {info.raw.get('num_waiting', 0)} pull requests are waiting"
        )


def tell_superseded(taking: Taking, entries: Mapping[str, OpenEntry]) -> None:
    """Log and report claims that are no longer open."""
    for claim_id, entry in entries.items():
        text = "claim %s is superseded: its messages were redelivered to this take, or the consumer was reset"
        log.warning(text, claim_id)
        tell("superseded", taking, entry.sequences.count, claim=claim_id)


def nothing_published(info: ConsumerInfo, stream: StreamInfo) -> str:
    """The reason why a consumer has no pending and no unacknowledged messages."""
    config, name = info.config, stream.config.get("name")
    subjects = stream.config.get("subjects")
    listens = f"; the stream listens on {_listed(subjects)}" if subjects else ""
    stored = int(stream.state.get("messages", 0))
    policy = config.get("deliver_policy", "all")
    if not stored:
        return f"stream {name} contains no messages{listens}"
    if reason := unmatched(info, stream):
        return f"{reason}{listens}"
    if info.counter == 0:
        return f"no message has been published that the consumer's deliver_policy {policy!r} selects"
    last = stream.state.get("last_seq", 0)
    if info.gave_up:
        return (
            f"the server has given up deliveries between the acknowledgement floor {info.floor} and the last delivery "
            f"{info.delivered}, as after max_deliver was lowered; {again(info, info.floor + 1)}"
        )
    return (
        f"all delivered messages are acknowledged; the last message of stream {name} is sequence {last}, published at "
        f"{_clock_time(str(stream.state.get('last_ts', '')))}"
    )


def unmatched(info: ConsumerInfo, stream: StreamInfo) -> str:
    """The clause that a consumer's filter has matched no message so far, although the stream contains messages; empty
    if it has matched one, if there is no filter, or if another setting can be the reason."""
    config, stored = info.config, int(stream.state.get("messages", 0))
    filters = filters_of(config) if is_filtered(config) else []
    if not (stored and filters) or info.counter or info.pending or config.get("deliver_policy", "all") != "all":
        return ""
    name = stream.config.get("name")
    return f"none of the {stored:,} messages of stream {name} matches the consumer's filter {_listed(filters)}"


def _unacknowledged(record: Record | None, info: ConsumerInfo, taking: Taking, words: Words) -> Iterator[str]:
    """Yield sentences that name the claims with the delivered, unacknowledged messages, the ends of their leases, and
    the remedy."""
    left = info.ack_pending
    if not left:
        return
    claims = sorted(record.open.items(), key=lambda item: item[1].at) if record else []
    for claim_id, entry in claims[:_NAMED]:
        yield _claimed(claim_id, entry, info, taking, words)
    if more := claims[_NAMED:]:
        count = sum(entry.sequences.count for _, entry in more)
        command = words.command(f"claims --stream {taking.stream}")
        yield f"{count} messages belong to {len(more)} more claims ({command})"
    left -= sum(entry.sequences.count for _, entry in claims)
    if left > 0:
        ack_wait = info.config.get("ack_wait", 0) / 1e9
        yield f"{left} messages belong to no claim and are redelivered within ack_wait ({ack_wait:g} s)"


def _claimed(claim_id: str, entry: OpenEntry, info: ConsumerInfo, taking: Taking, words: Words) -> str:
    count = f"{entry.sequences.count} messages"
    if entry.token is not None:
        return f"{count} are held by attempt {claim_id}-{entry.token} of claim {claim_id}, taken by {entry.taken_by}"
    belong = f"{count} belong to claim {claim_id}, taken by {entry.taken_by}, and are leased"
    end = time_nanoseconds(entry.at) / 1e9 + taking.hand_off_timeout.total_seconds()
    # The end of a lease is not stored. A lease that is longer has another sensor's hand_off_timeout, or awaits a retry.
    until = f"until {_of_seconds(end)}" if end > time_nanoseconds(info.now) / 1e9 else "for its task's next try"
    return f"{belong} {until} (run {words.command(f'release {claim_id}')} to have them redelivered now)"


def _grouped(priority: Priority, info: ConsumerInfo, names: str) -> str:
    """The reason why the priority group does not serve this pull; empty if the priority group is not the reason."""
    for group in info.raw.get("priority_groups") or ():
        if group.get("group") == priority.group and (pinned := group.get("pinned_client_id")):
            since = _clock_time(str(group.get("pinned_ts", "")))
            return (
                f"priority group {priority.group!r} has been pinned to client {pinned} since {since}; `nats consumer "
                f"unpin {names} {priority.group}` lets the server pin another client"
            )
    limits = (
        ("min_pending", priority.min_pending, info.pending, "pending"),
        ("min_ack_pending", priority.min_ack_pending, info.ack_pending, "unacknowledged"),
    )
    asked = [limit for limit in limits if limit[1]]
    if asked and all(found < least for _, least, found, _ in asked):
        either = " or ".join(f"{name}={least} messages are {what}" for name, least, _, what in asked)
        return (
            f"priority group {priority.group!r} serves this sensor only if {either}; {info.ack_pending} are "
            "unacknowledged"
        )
    if priority.level:
        return f"priority group {priority.group!r} first serves pull requests with a level below {priority.level}"
    return ""


def _listed(names: list[Any]) -> str:
    """The first few subjects, and the number of the others."""
    shown = ", ".join(repr(str(name)) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _clock_time(text: str) -> str:
    """The server's time in a readable form; unchanged if it is not a valid time."""
    try:
        return _of_seconds(time_nanoseconds(text) / 1e9)
    except (ValueError, OverflowError):
        return text or "an unknown time"


def _of_seconds(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
