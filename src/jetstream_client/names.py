"""Naming rules of NATS: subjects (docs.nats.io, "Subject-Based Messaging") and JetStream names (ADR-6)."""

from __future__ import annotations

import re

from jetstream_client.errors import InvalidValue

# Surrogates, which JSON can hold, cannot be sent: they have no UTF-8.
_NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f\ud800-\udfff]+")
_TOKEN = re.compile(r"[^\s\x00\ud800-\udfff]+")
_plain_subject = re.compile(
    r"[^\s\x00.*>\ud800-\udfff]+(?:\.[^\s\x00.*>\ud800-\udfff]+)*"
).fullmatch  # most of the literal ones, told at once
_LONGEST_NAME = 255  # server/jetstream_api.go: JSMaxNameLen
LONGEST_SUBJECT = 3_840
"""Bytes. A command's line has at most 4,096 after its verb (``max_control_line``, which a server does not tell), and
ends the connection of everything else on it if it is longer; the rest is for the subject of the answer, and sizes."""
_SHORT = LONGEST_SUBJECT // 4  # characters that never have more bytes


def check_stream_name(name: object, field: str = "stream") -> str:
    """The name itself. Raises InvalidValue."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidValue(field, name, r"a name needs at least one character and none of . * > / \ or white space")
    if len(name.encode()) > _LONGEST_NAME:
        raise InvalidValue(field, f"{name[:40]}…", f"a name has at most {_LONGEST_NAME} bytes")
    return name


def check_consumer_name(name: object, field: str = "consumer") -> str:
    """As :func:`check_stream_name`: the rules are the same."""
    return check_stream_name(name, field)


def _check_tokens(field: str, subject: object) -> list[str]:
    if not isinstance(subject, str) or not subject:
        raise InvalidValue(field, subject, "a subject is a text of tokens joined by dots, for example orders.new")
    tokens = subject.split(".")
    if not all(_TOKEN.fullmatch(token) for token in tokens):
        raise InvalidValue(field, subject, "a subject has no empty token, white space or NUL")
    if len(subject) > _SHORT and (size := len(subject.encode())) > LONGEST_SUBJECT:
        raise InvalidValue(field, subject, f"a subject has at most {LONGEST_SUBJECT} bytes, and this one has {size}")
    return tokens


def check_subject(subject: str, field: str = "subject") -> str:
    """A subject to publish on: no wildcards. Raises InvalidValue."""
    if isinstance(subject, str) and len(subject) <= _SHORT and _plain_subject(subject):
        return subject
    if {"*", ">"}.intersection(_check_tokens(field, subject)):
        raise InvalidValue(field, subject, "a message needs a literal subject; * and > are for filters")
    return subject


def check_filter(subject: str, field: str = "filter_subject") -> str:
    """A subject to listen on: ``*`` is one token, ``>`` the rest and last. Raises InvalidValue."""
    if ">" in _check_tokens(field, subject)[:-1]:
        raise InvalidValue(field, subject, "> stands for the rest of a subject and can only be its last token")
    return subject


def subject_matches(pattern: str, subject: str) -> bool:
    """Whether a literal subject falls under a filter."""
    wanted, given = pattern.split("."), subject.split(".")
    for index, part in enumerate(wanted):
        if part == ">":
            return len(given) > index
        if index >= len(given) or part not in ("*", given[index]):
            return False
    return len(wanted) == len(given)
