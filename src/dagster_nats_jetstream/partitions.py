# SPDX-License-Identifier: Apache-2.0
"""Partitions by a token of the subject: each partition has a consumer, which receives the subjects of the partition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import dagster as dg

from jetstream_client.errors import InvalidValue
from jetstream_client.names import check_consumer_name, check_filter
from jetstream_handoff.taking import Taking

TOKEN = "{partition}"  # noqa: S105 - a token of a subject


def of_partition(taking: Taking, subject: str | None, key: str) -> Taking:
    """Return the taking of one partition.

    subject:  the subjects of a partition, with the token ``{partition}``, which :func:`check_partitions` has checked.
    key:      the partition's key, which must be a token of a subject.

    Raises:
        InvalidValue: the key cannot be part of a subject or of the consumer's name.
    """
    config = {**(taking.consumer_config or {}), "filter_subject": check_filter(filter_of(subject, key), "subject")}
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
    index_of(subject)
    check_filter(filter_of(subject, "a"), "subject")
    if isinstance(partitions_def, dg.StaticPartitionsDefinition):
        for key in partitions_def.get_partition_keys():
            consumer_of(consumer, key)


def consumer_of(consumer: str, key: str) -> str:
    """Return the name of a partition's consumer. Raises InvalidValue."""
    return check_consumer_name(f"{consumer}-{key}")


def filter_of(subject: str | None, key: str) -> str:
    """Return the filter of a partition's consumer. Instead of a key, ``*`` selects the subjects of all partitions."""
    return (subject or "").replace(TOKEN, key)


def index_of(subject: str | None) -> int:
    """Return the position of the token ``{partition}`` in a subject. Raises InvalidValue."""
    tokens = (subject or "").split(".")
    if tokens.count(TOKEN) != 1:
        remedy = f"a partitioned asset needs a subject with one token {TOKEN}, for example orders.{TOKEN}.>"
        raise InvalidValue("subject", subject, remedy)
    return tokens.index(TOKEN)


def keys_of(subjects: Iterable[str], subject: str, consumer: str) -> list[str]:
    """Return the partitions that a stream's subjects have, in order. Tokens that cannot be part of the consumer's name
    are left out.

    subjects:  the subjects of the stream's messages.
    subject:   the subjects of a partition, with the token ``{partition}``.
    consumer:  the name of the consumer, to which each partition's key is added.
    """
    index = index_of(subject)
    found = {tokens[index] for tokens in (each.split(".") for each in subjects) if len(tokens) > index}
    return sorted(each for each in found if _names_a_consumer(consumer, each))


def _names_a_consumer(consumer: str, key: str) -> bool:
    try:
        consumer_of(consumer, key)
    except InvalidValue:
        return False
    return True
