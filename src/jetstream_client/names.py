# SPDX-License-Identifier: Apache-2.0
"""Naming rules: subjects of NATS (docs.nats.io, "Subject-Based Messaging") and names in JetStream (ADR-6)."""

from __future__ import annotations

import re

from jetstream_client.errors import InvalidValue

# Surrogates, which JSON can contain, cannot be sent because they have no UTF-8 encoding.
_NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f\ud800-\udfff]+")
_TOKEN = re.compile(r"[^\s\x00\ud800-\udfff]+")
_plain_subject = re.compile(
    r"[^\s\x00.*>\ud800-\udfff]+(?:\.[^\s\x00.*>\ud800-\udfff]+)*"
).fullmatch  # recognises most literal subjects with one check
LONGEST_NAME = 255
"""The largest number of bytes in the name of a stream or consumer (``JSMaxNameLen`` in nats-server's
``server/jetstream_api.go``)."""
LONGEST_SUBJECT = 3_840
"""The largest number of bytes in a subject. The line of a command may have 4,096 bytes after its verb
(``max_control_line``, which a server does not announce), and the server ends the connection if the line is longer. The
remaining bytes are for the reply subject and the sizes."""
_SHORT = LONGEST_SUBJECT // 4  # characters; a subject of at most this many never has more than LONGEST_SUBJECT bytes


def check_stream_name(name: object, field: str = "stream") -> str:
    """Check and return the name of a stream. Raises InvalidValue if JetStream forbids it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        remedy = r"a name must be a non-empty string without . * > / \ and without white space or control characters"
        raise InvalidValue(field, name, remedy)
    if len(name.encode()) > LONGEST_NAME:
        raise InvalidValue(field, f"{name[:40]}…", f"a name must have at most {LONGEST_NAME} bytes")
    return name


def check_consumer_name(name: object, field: str = "consumer") -> str:
    """Check and return the name of a consumer, with the rules of :func:`check_stream_name`. Raises InvalidValue."""
    return check_stream_name(name, field)


def _check_tokens(field: str, subject: object) -> list[str]:
    if not isinstance(subject, str) or not subject:
        raise InvalidValue(field, subject, "a subject must be a string of tokens joined by dots, such as orders.new")
    tokens = subject.split(".")
    if not all(_TOKEN.fullmatch(token) for token in tokens):
        raise InvalidValue(field, subject, "must not contain an empty token, white space or NUL")
    if len(subject) > _SHORT and (size := len(subject.encode())) > LONGEST_SUBJECT:
        raise InvalidValue(
            field, subject, f"a subject must have at most {LONGEST_SUBJECT} bytes, but this one has {size}"
        )
    return tokens


def check_subject(subject: str, field: str = "subject") -> str:
    """Check and return a subject to publish on, which must not have wildcards. Raises InvalidValue."""
    if isinstance(subject, str) and len(subject) <= _SHORT and _plain_subject(subject):
        return subject
    if {"*", ">"}.intersection(_check_tokens(field, subject)):
        raise InvalidValue(field, subject, "must not contain the wildcards * and >")
    return subject


def check_filter(subject: str, field: str = "filter_subject") -> str:
    """Check and return a subject that may have wildcards: ``*`` for one token, ``>`` at the end for one or more. Raises
    InvalidValue."""
    if ">" in _check_tokens(field, subject)[:-1]:
        raise InvalidValue(field, subject, "the wildcard > must be the last token of a subject")
    return subject


def subject_matches(pattern: str, subject: str) -> bool:
    """Whether a literal subject matches a filter."""
    wanted, given = pattern.split("."), subject.split(".")
    for index, part in enumerate(wanted):
        if part == ">":
            return len(given) > index
        if index >= len(given) or part not in ("*", given[index]):
            return False
    return len(wanted) == len(given)
