# SPDX-License-Identifier: Apache-2.0
"""Partitions by a token of the subject: each partition has a consumer, which receives the subjects of the partition.

A partition's key is the token, so that people recognise it. A token can contain characters that the name of a consumer
cannot, such as ``/``. In a key, these characters and ``%`` are written as ``.2F``: a dot and two hexadecimal digits. No
token contains a dot, so a key with a dot is always such an encoded token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import dagster as dg

from jetstream_client.errors import InvalidValue, shown
from jetstream_client.names import check_consumer_name, check_filter
from jetstream_handoff.take.taking import Taking

TOKEN = "{partition}"  # noqa: S105 - a token of a subject
_UNNAMEABLE = re.compile(r"[*>/\\\x01-\x1f\x7f]")
_ENCODED = re.compile(r"[*>/\\%\x01-\x1f\x7f]")


def of_partition(taking: Taking, subject: str | None, key: str) -> Taking:
    """Return the taking of one partition.

    subject:  the subjects of a partition, with the token ``{partition}``, which :func:`check_partitions` has checked.
    key:      the partition's key (:func:`key_of`).

    Raises:
        InvalidValue: the key cannot be part of a subject or of the consumer's name.
    """
    only = check_filter(filter_of(subject, token_of(key)), "subject")
    config = {**(taking.consumer_config or {}), "filter_subject": only}
    return replace(taking, consumer=consumer_of(taking.consumer, key), consumer_config=config)


def check_partitions(consumer: str, subject: str | None, partitions_def: dg.PartitionsDefinition[str] | None) -> None:
    """Check that the subject and the partitions fit together. Raises InvalidValue."""
    if partitions_def is None:
        if subject is not None:
            raise InvalidValue("subject", subject, "give partitions_def too, or filter_subject in consumer_config")
        return
    if isinstance(partitions_def, dg.MultiPartitionsDefinition):
        remedy = "a partition is one token of the subject; give partitions of one dimension"
        raise InvalidValue("partitions_def", type(partitions_def), remedy)
    check_subject(subject)
    if isinstance(partitions_def, dg.StaticPartitionsDefinition):
        for key in partitions_def.get_partition_keys():
            consumer_of(consumer, key)


def check_subject(subject: str | None) -> None:
    """Check the subjects of a partition. Raises InvalidValue."""
    index_of(subject)
    check_filter(filter_of(subject, "a"), "subject")


def key_of(token: str) -> str:
    """Return the key of the partition of a token."""
    return _ENCODED.sub(lambda found: f".{ord(found[0]):02X}", token) if _UNNAMEABLE.search(token) else token


def token_of(key: str) -> str:
    """Return the token that a partition's key means. Raises InvalidValue if there is no such token."""
    token = re.sub(r"\.([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), key)
    if "." in token or token in ("*", ">"):
        raise InvalidValue("partition", key, "a partition is one token of a subject, without a dot, and not * or >")
    if "\ufffd" in token:
        raise InvalidValue("partition", key, "the token is not UTF-8, so no filter can select its messages")
    check_filter(token, "partition")
    if key_of(token) != key:
        remedy = f"write the key of this partition as {key_of(token)!r}; a consumer's name cannot contain / \\ * >"
        raise InvalidValue("partition", key, remedy)
    return token


def consumer_of(consumer: str, key: str) -> str:
    """Return the name of a partition's consumer. Raises InvalidValue.

    The name of a consumer cannot contain a dot. The ``=`` keeps the consumer of an encoded token apart from that of a
    token which contains, for example, ``%2F`` itself.
    """
    token_of(key)
    return check_consumer_name(f"{consumer}={key.replace('.', '%')}" if "." in key else f"{consumer}-{key}")


def filter_of(subject: str | None, token: str) -> str:
    """Return the filter of a partition's consumer. Instead of a token, ``*`` selects the subjects of all partitions."""
    return (subject or "").replace(TOKEN, token)


def index_of(subject: str | None) -> int:
    """Return the position of the token ``{partition}`` in a subject. Raises InvalidValue."""
    tokens = (subject or "").split(".")
    if tokens.count(TOKEN) != 1:
        remedy = f"a partitioned asset needs a subject with one token {TOKEN}, for example orders.{TOKEN}.>"
        raise InvalidValue("subject", subject, remedy)
    return tokens.index(TOKEN)


def keys_of(subjects: Mapping[str, int], subject: str, consumer: str) -> tuple[list[str], list[str]]:
    """Return the keys of the partitions that a stream's subjects have, in order, and descriptions of the tokens that
    cannot be partitions: with the number of their messages, and the reason.

    subjects:  the subjects of the stream's messages, with the number of messages of each.
    subject:   the subjects of a partition, with the token ``{partition}``.
    consumer:  the name of the consumer, to which each partition's key is added.
    """
    index = index_of(subject)
    counts: dict[str, int] = {}
    for each, count in subjects.items():
        tokens = each.split(".")
        if len(tokens) > index:
            counts[tokens[index]] = counts.get(tokens[index], 0) + count
    keys, refused = [], []
    for token, count in sorted(counts.items()):
        try:
            consumer_of(consumer, key_of(token))
        except InvalidValue as wrong:
            messages = "1 message" if count == 1 else f"{count} messages"
            refused.append(f"token {shown(token)} with {messages}: {wrong.remedy}")
        else:
            keys.append(key_of(token))
    return keys, refused
