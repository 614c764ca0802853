# SPDX-License-Identifier: Apache-2.0
"""The options of a published message, and their headers.

Headers: ``JSMsgId`` and those after it in nats-server's server/stream.go; ADR-43 (TTL), ADR-49 (counters), ADR-51
(schedules).
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_filter, check_stream_name
from jetstream_client.publish.schedule import Schedule, Ttl, ttl_text


class PublishOptions(TypedDict, total=False):
    """Keyword arguments of all publishing methods. None means that an option is not set. Numbers in parentheses are the
    versions of nats-server that an option needs.

    msg_id:                 id of the message. Within its ``duplicate_window``, the stream stores only one message with
                            this id. It answers any other message with the same id with ``PubAck.duplicate``.
    expected_stream:        name of the stream that must store the message. Otherwise WrongStream is raised.
    expected_last_sequence: sequence that must be the stream's last one; 0 if the stream never had a message. Otherwise
                            WrongLastSequence is raised.
    expected_last_subject_sequence: sequence that must be the last one on the message's subject; 0 if there is none.
                            Otherwise WrongLastSequence is raised.
    expected_last_subject:  apply ``expected_last_subject_sequence`` to this subject instead, which may have the
                            wildcards ``*`` and ``>`` (2.11).
    expected_last_msg_id:   id that the stream's last message must have. Otherwise WrongLastMessageId is raised.
    rollup:                 ``"sub"`` replaces all earlier messages on the message's subject; ``"all"`` replaces all
                            earlier messages of the stream. The stream needs ``allow_rollup_hdrs``.
    ttl:                    how long the stream keeps the message, or ``"never"`` to keep it beyond ``max_age``. It must
                            be at least one second; fractions are rounded up. The stream needs ``allow_msg_ttl`` (2.11).
    schedule:               publish the message later. The stream needs ``allow_msg_schedules`` (2.12, 2.14).
    increment:              integer to add to the counter on the subject. The message has no data, and ``PubAck.value``
                            is the sum. The stream needs ``allow_msg_counter`` (2.12).
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
    """Option, header and value for each option that is set."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if unknown := given.keys() - PublishOptions.__annotations__.keys():
        name = min(unknown)
        reply = "leave it out, because the reply subject is needed for the stream's answer"
        remedy = reply if name == "reply" else "publishing has no such option; leave it out"
        raise InvalidValue(name, given[name], remedy)
    if "expected_last_subject" in given and "expected_last_subject_sequence" not in given:
        remedy = "also set expected_last_subject_sequence"
        raise InvalidValue("expected_last_subject", given["expected_last_subject"], remedy)
    found: list[tuple[str, str, str]] = []
    for option, value in given.items():
        if option == "schedule":
            if not isinstance(value, Schedule):
                raise InvalidValue("schedule", value, "must be a Schedule")
            found += [(f"schedule ({value.when})", name, text) for name, text in value.headers().items()]
        else:
            name, text = _HEADERS[option]
            found.append((f"{option}={value!r}", name, text(option, value)))
    return found


def _text(option: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidValue(option, value, "must be a string that is not empty")
    return value


def _sequence(option: str, value: Any) -> str:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise InvalidValue(option, value, "must be a sequence: a whole number, 0 or more")
    return str(value)


def _rollup(option: str, value: Any) -> str:
    if value not in ("sub", "all"):
        raise InvalidValue(
            option, value, 'must be "sub" (replace the messages of the subject) or "all" (replace the whole stream)'
        )
    return str(value)


def _increment(option: str, value: Any) -> str:
    if type(value) is not int:
        raise InvalidValue(option, value, "must be an integer")
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
