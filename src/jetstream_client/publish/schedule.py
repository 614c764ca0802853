# SPDX-License-Identifier: Apache-2.0
"""Messages that the server publishes later, once or repeatedly (ADR-51, nats-server 2.12 and 2.14)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_subject
from jetstream_client.quantities import check_duration
from jetstream_client.times import nanoseconds

Ttl = timedelta | Literal["never"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule by which the server publishes the message's data on ``target``, a subject of the same stream.

    target:    literal subject that differs from the message's subject.
    when:      a ``datetime`` with a time zone publishes once, at this time or immediately if it has passed, and removes
               the scheduling message (nats-server 2.12). A ``timedelta`` of whole seconds publishes repeatedly. A
               string has the server's format: ``"@hourly"`` (``@daily``, ``@weekly``, ``@monthly``, ``@yearly``), or
               cron with six fields, beginning with seconds: ``"0 30 5 * * mon"`` (nats-server 2.14).
    ttl:       TTL of the messages on ``target``, see :func:`ttl_text`. The stream needs ``allow_msg_ttl``.
    source:    publish data and headers of the last message on this subject instead (nats-server 2.14).
    time_zone: IANA name of a cron schedule's time zone; default UTC (nats-server 2.14).
    rollup:    ``"sub"``: each published message replaces the earlier messages on ``target`` (nats-server 2.14).

    A subject has at most one schedule: a newer message on the subject replaces it, and purging the subject ends it. The
    stream needs ``allow_msg_schedules``.

    Raises:
        InvalidValue: a time has no time zone, an interval is not in whole seconds, cron does not have six fields, a
            time zone is set without cron, or a subject has wildcards.
    """

    target: str
    when: datetime | timedelta | str
    ttl: Ttl | None = None
    source: str | None = None
    time_zone: str | None = None
    rollup: Literal["sub"] | None = None

    def __post_init__(self) -> None:
        check_subject(self.target, "schedule.target")
        if self.source is not None:
            check_subject(self.source, "schedule.source")
        if self.rollup not in (None, "sub"):
            raise InvalidValue("schedule.rollup", self.rollup, 'must be "sub", or left out')
        if self.time_zone is not None and (not self.time_zone or self._pattern().startswith(("@at ", "@every "))):
            remedy = "must be an IANA name such as Europe/Berlin, and needs a cron schedule"
            raise InvalidValue("schedule.time_zone", self.time_zone, remedy)
        self.headers()

    def headers(self) -> dict[str, str]:
        given = {
            "Nats-Schedule": self._pattern(),
            "Nats-Schedule-Target": self.target,
            "Nats-Schedule-TTL": None if self.ttl is None else ttl_text(self.ttl, "schedule.ttl"),
            "Nats-Schedule-Source": self.source,
            "Nats-Schedule-Time-Zone": self.time_zone,
            "Nats-Schedule-Rollup": self.rollup,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _pattern(self) -> str:
        when = self.when
        if isinstance(when, datetime):
            if when.tzinfo is None:
                raise InvalidValue("schedule.when", when, "a time needs a time zone")
            return f"@at {when.astimezone(UTC).isoformat().replace('+00:00', 'Z')}"
        if isinstance(when, timedelta):
            seconds, rest = divmod(nanoseconds(when), 10**9)
            if seconds < 1 or rest:
                raise InvalidValue("schedule.when", when, "an interval must be a whole number of seconds, 1 or more")
            return f"@every {seconds}s"
        if not isinstance(when, str) or not (when.startswith("@") or len(when.split()) == 6):
            remedy = (
                "must be a datetime, a timedelta, a name such as @hourly, or six cron fields, the first for seconds"
            )
            raise InvalidValue("schedule.when", when, remedy)
        return when


def ttl_text(ttl: Ttl, field: str = "ttl") -> str:
    """A ``Nats-TTL`` in the server's format: whole seconds, at least one, or ``never`` (ADR-43).

    The server truncates fractions (``parseMessageTTL`` in server/stream.go). This function rounds them up, so that no
    message expires early. Raises InvalidValue.
    """
    if ttl == "never":
        return "never"
    if not isinstance(ttl, timedelta):
        raise InvalidValue(field, ttl, 'must be a timedelta of at least one second, or "never"')
    check_duration(field, ttl, timedelta(seconds=1))
    return f"{-(-nanoseconds(ttl) // 10**9)}s"
