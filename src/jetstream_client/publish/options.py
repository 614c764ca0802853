"""What a publisher may ask of the stream for one message, and the headers that say so.

Headers: ``JSMsgId`` and those after it in nats-server's server/stream.go; ADR-43 (TTL), ADR-49 (counters), ADR-51
(schedules).
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_filter, check_stream_name
from jetstream_client.publish.schedule import Schedule, Ttl, ttl_text


class PublishOptions(TypedDict, total=False):
    """Keywords of every way to publish. None is the same as not given.

    msg_id:                 the stream stores it once within its ``duplicate_window``; the repeat is answered with
                            ``PubAck.duplicate``.
    expected_stream:        the stream that must get it. Else WrongStream.
    expected_last_sequence: of the stream, 0 for an empty one that never had a message. Else WrongLastSequence.
    expected_last_subject_sequence: of the message's subject, 0: the subject has no message. Else WrongLastSequence.
    expected_last_subject:  the previous one is asked of this subject instead, ``*`` and ``>`` allowed (2.11).
    expected_last_msg_id:   the id of the stream's last message. Else WrongLastMessageId.
    rollup:                 "sub": the message replaces all before it on its subject, "all": in the stream. The stream
                            needs ``allow_rollup_hdrs``.
    ttl:                    how long the stream keeps it, or "never" to outlive ``max_age``. At least a second,
                            fractions are rounded up. The stream needs ``allow_msg_ttl`` (2.11).
    schedule:               the server publishes it later; the stream needs ``allow_msg_schedules`` (2.12, 2.14).
    increment:              add so much to the subject's counter, any integer; the message has no data,
                            ``PubAck.value`` is the sum. The stream needs ``allow_msg_counter`` (2.12).
    """

    msg_id: str | None
    expected_stream: str | None
    expected_last_sequence: int | None
    expected_last_subject_sequence: int | None
    expected_last_subject: str | None
    expected_last_msg_id: str | None
    rollup: Literal["sub", "all"] | None
    ttl: Ttl | None
    schedule: Schedule | None
    increment: int | None


def option_headers(options: PublishOptions) -> list[tuple[str, str, str]]:
    """Option, header and value of each option that was given."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if unknown := given.keys() - PublishOptions.__annotations__.keys():
        name = min(unknown)
        remedy = "the stream's answer goes there" if name == "reply" else "publishing has no such option"
        raise InvalidValue(name, given[name], remedy)
    if "expected_last_subject" in given and "expected_last_subject_sequence" not in given:
        remedy = "say which sequence: expected_last_subject_sequence"
        raise InvalidValue("expected_last_subject", given["expected_last_subject"], remedy)
    found: list[tuple[str, str, str]] = []
    for option, value in given.items():
        if option == "schedule":
            if not isinstance(value, Schedule):
                raise InvalidValue("schedule", value, "give a Schedule")
            found += [(f"schedule ({value.when})", name, text) for name, text in value.headers().items()]
        else:
            name, text = _HEADERS[option]
            found.append((f"{option}={value!r}", name, text(option, value)))
    return found


def _text(option: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(option, value, "give a text that is not empty")
    return value


def _sequence(option: str, value: Any) -> str:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise InvalidValue(option, value, "a sequence is an integer from 0")
    return str(value)


def _rollup(option: str, value: Any) -> str:
    if value not in ("sub", "all"):
        raise InvalidValue(option, value, '"sub" replaces what is on the subject, "all" what is in the stream')
    return str(value)


def _increment(option: str, value: Any) -> str:
    if type(value) is not int:
        raise InvalidValue(option, value, "a counter counts integers")
    return f"{value:+d}"


_HEADERS = {
    "msg_id": ("Nats-Msg-Id", _text),
    "expected_stream": ("Nats-Expected-Stream", lambda _, value: check_stream_name(value)),
    "expected_last_sequence": ("Nats-Expected-Last-Sequence", _sequence),
    "expected_last_subject_sequence": ("Nats-Expected-Last-Subject-Sequence", _sequence),
    "expected_last_subject": ("Nats-Expected-Last-Subject-Sequence-Subject", lambda name, it: check_filter(it, name)),
    "expected_last_msg_id": ("Nats-Expected-Last-Msg-Id", _text),
    "rollup": ("Nats-Rollup", _rollup),
    "ttl": ("Nats-TTL", lambda name, value: ttl_text(value, name)),
    "increment": ("Nats-Incr", _increment),
}
