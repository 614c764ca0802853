"""Messages that the server publishes later, once or again and again (ADR-51, nats-server 2.12 and 2.14)."""

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
    """When the server publishes the message's data on ``target``, a subject of the same stream.

    target:    a literal subject, not the message's own.
    when:      a ``datetime`` with a zone: once, then (a past one: at once); the scheduling message goes away. A
               ``timedelta`` of whole seconds: again and again. A text is the server's own: ``"@hourly"`` (``@daily``,
               ``@weekly``, ``@monthly``, ``@yearly``), or cron with six fields, seconds first: ``"0 30 5 * * mon"``.
               Once needs nats-server 2.12, everything else 2.14.
    ttl:       of what is published on ``target``, see :func:`ttl_text`; the stream needs ``allow_msg_ttl``.
    source:    take data and headers from the last message on this subject instead (2.14).
    time_zone: of a cron schedule, an IANA name; default UTC (2.14).
    rollup:    ``"sub"``: what is published replaces what is there on ``target`` (2.14).

    One schedule a subject: a newer message on the subject takes its place, purging the subject ends it. The stream
    needs ``allow_msg_schedules``.

    Raises:
        InvalidValue: a time without a zone, an interval that is not of whole seconds, cron without six fields, a time
            zone without cron, a subject with wildcards.
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
            raise InvalidValue("schedule.rollup", self.rollup, 'only "sub"')
        if self.time_zone is not None and (not self.time_zone or self._pattern().startswith(("@at ", "@every "))):
            raise InvalidValue("schedule.time_zone", self.time_zone, "only a cron schedule has a time zone")
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
                raise InvalidValue("schedule.when", when, "a time needs a zone")
            return f"@at {when.astimezone(UTC).isoformat().replace('+00:00', 'Z')}"
        if isinstance(when, timedelta):
            seconds, rest = divmod(nanoseconds(when), 10**9)
            if seconds < 1 or rest:
                raise InvalidValue("schedule.when", when, "an interval is of whole seconds, at least one")
            return f"@every {seconds}s"
        if not isinstance(when, str) or not (when.startswith("@") or len(when.split()) == 6):
            remedy = "give a datetime, a timedelta, @hourly or another name, or cron with six fields, seconds first"
            raise InvalidValue("schedule.when", when, remedy)
        return when


def ttl_text(ttl: Ttl, field: str = "ttl") -> str:
    """A ``Nats-TTL`` as the server reads it: whole seconds, at least one, or ``never`` (ADR-43).

    The server cuts fractions off (``parseMessageTTL`` in server/stream.go); they are rounded up here, so that no
    message goes away early. Raises InvalidValue.
    """
    if ttl == "never":
        return "never"
    if not isinstance(ttl, timedelta):
        raise InvalidValue(field, ttl, 'give a timedelta of at least one second, or "never"')
    check_duration(field, ttl, timedelta(seconds=1))
    return f"{-(-nanoseconds(ttl) // 10**9)}s"
