# SPDX-License-Identifier: Apache-2.0
"""Several pipelines that take from one consumer: each message goes to only one of them. No I/O.

A copy of a pipeline that keeps the name of the consumer halves the messages of both, and nothing fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_client.errors import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetstream_handoff.ledger.history import Owner
    from jetstream_handoff.words import Words

_NAMED = 3
"""How many of them are named, at most."""


def shared(stream: str, consumer: str, owners: Iterable[Owner], words: Words) -> str:
    """Return the sentences that say that several pipelines share a consumer, and what to do; empty if only one takes,
    or if the words do not say what of an owner is the pipeline.

    stream, consumer:  the names.
    owners:            the owners of claims of this consumer.
    words:             the words of the connection.
    """
    place = words.taker
    found = set() if place is None else {each for owner in owners for each in owner[place : place + 1]}
    takers = sorted(each for each in found if isinstance(each, str))  # others, such as a reader's, have no name there
    if len(takers) < 2:
        return ""
    named = [shown(each) for each in takers[:_NAMED]]
    if len(takers) > _NAMED:
        named.append(f"{len(takers) - _NAMED} more")
    return (
        f"consumer {consumer} of stream {stream} is shared by {', '.join(named[:-1])} and {named[-1]}: each message is "
        "taken for only one of them. If each has to process all messages, each needs a consumer with another name"
    )
