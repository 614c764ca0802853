# SPDX-License-Identifier: Apache-2.0
"""Which permissions the user of a connection lacks for work that it seems to be meant for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_client.errors import JetStreamError
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.rules import roles

if TYPE_CHECKING:
    from collections.abc import Collection

    from jetstream_client.context import JetStream
    from jetstream_handoff.ledger.ledger import Ledger

MOST = 50
"""For how many consumers the permissions are checked, at most: this takes about twenty small messages for each."""
SELDOM = 30
"""Every how many checks the refused subjects that the user does not need are tried again."""

Names = tuple[str, str]
"""The names of a stream and a consumer."""


class Rights:
    """The permissions of a connection's user. The messages that show whether they are granted change nothing."""

    def __init__(self, js: JetStream) -> None:
        self._js = js
        self._lacking: dict[Names, tuple[str, ...]] = {}
        self._checks = 0
        self._idle: set[str] = set()
        """Refused subjects that the user does not need. They are seldom tried, because refusals are logged."""

    async def check(self, ledgers: list[Ledger]) -> None:
        """Find out which permissions are missing for these consumers, at most ``MOST`` of them.

        Raises:
            JetStreamError: the server does not answer.
        """
        places = {ledger.names: await self._place(ledger) for ledger in ledgers[:MOST]}
        needs = [need for place in places.values() for role in roles.OF_CLAIMS for need in roles.needs(role, place)]
        if not self._checks % SELDOM:
            self._idle = set()
        self._checks += 1
        tried = {need.subject: need for need in needs if need.subject not in self._idle}
        denied = await roles.denied(self._js.connection, tried.values()) | self._idle
        self._lacking = {names: lacking(place, denied) for names, place in places.items()}
        missed = {each for some in self._lacking.values() for each in some}
        self._idle = {need.subject for need in needs if need.subject in denied and need.allow not in missed}

    def lacking(self, names: Names) -> tuple[str, ...]:
        """The missing permissions at the last check."""
        return self._lacking.get(names, ())

    async def _place(self, ledger: Ledger) -> roles.Place:
        stream, consumer = ledger.names
        try:
            ack_prefix = (await ledger.locate()).prefix
        except JetStreamError:
            ack_prefix = f"$JS.ACK.{stream}.{consumer}"
        names = (stream, consumer, *ledger.buckets.names, DeadLetters(self._js, stream).name)
        return roles.Place(
            self._js.settings.prefix, *names, ack_prefix, *ledger.subjects, *ledger.buckets.reserve.names
        )


def lacking(place: roles.Place, denied: Collection[str]) -> tuple[str, ...]:
    """Return the subjects that should be permitted to a user and are not.

    A connection can belong to a sensor, to tasks, to both, or to people who only look. So only what the user can do
    shows what it is meant for: a sensor pulls, a task reads by direct get, and both acknowledge and write the ledger. A
    user who can do none of the last two only looks.

    place:   the consumer.
    denied:  the subjects of the messages of :func:`~jetstream_handoff.rules.roles.needs` that were refused.
    """
    sensor, processor = ({need.subject: need.allow for need in roles.needs(role, place)} for role in roles.OF_CLAIMS)
    both = sensor.keys() & processor.keys()
    writes = {subject for subject in both if not subject.startswith(f"{place.prefix}.")}
    if writes <= set(denied):
        return ()
    pulls = bool({*sensor} - both - set(denied))
    reads = any(".DIRECT.GET." in subject and subject not in denied for subject in processor)
    wanted = {subject: sensor[subject] for subject in sensor if subject in both}
    if reads or not pulls:
        wanted |= processor
    if not (reads or pulls):
        wanted |= sensor
    return tuple(dict.fromkeys(allow for subject, allow in wanted.items() if subject in denied))
