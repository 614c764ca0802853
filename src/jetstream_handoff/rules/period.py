# SPDX-License-Identifier: Apache-2.0
"""When a period has ended, so that no other message of it can appear in the stream.

A message belongs to the period in which the server stamped it. A period from one time to another contains the messages
from the first one that was stamped at or after its start, up to the one before the first that was stamped at or after
its end. So each message is in exactly one of several periods that follow each other, also where messages have equal
times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_client.errors import InvalidValue
from jetstream_client.times import time_nanoseconds

if TYPE_CHECKING:
    from jetstream_client.info import StreamInfo

SETTLED = 10 * 10**9
"""Nanoseconds after a time within which messages that were stamped before it may still be stored. The leader of a
replicated stream stamps a message before the others have it (``processClusteredInboundMsg`` in server/stream.go), and
the next leader may store it. A change of the leader took up to 8.1 s."""


def left(end: int, info: StreamInfo) -> float:
    """Return for how many seconds messages of a period may still be stored; 0 if it is complete. To be asked while no
    message is known that was stamped at or after the end: such a message is stored after all messages of the period.

    end:   the exclusive end, in nanoseconds since 1970.
    info:  the present state of the stream.
    """
    seconds = max(0, end + SETTLED - time_nanoseconds(info.now)) / 1e9
    return max(1.0, seconds) if _behind(info) else seconds


def check(name: str, said: str, end: int, info: StreamInfo) -> None:
    """Raise InvalidValue if the end is in the future, by the server's clock, or if the stream is a mirror that lags
    behind.

    name, said:  the parameter that has the end, and its value.
    """
    if time_nanoseconds(info.now) < end:
        remedy = (
            f"the period has not ended: the server's clock shows {info.now}, and messages that are stored from now on "
            "would be missing; give an end that has passed, or leave the end out to read what is stored now"
        )
        raise InvalidValue(name, said, remedy)
    if _behind(info):
        remedy = (
            f"stream {info.config['name']!r} is a mirror, which is {(info.mirror or {}).get('lag', 0)} messages behind "
            "or has lost its origin, so messages of the period may be missing; wait until it has caught up, or read "
            "the origin"
        )
        raise InvalidValue(name, said, remedy)


def _behind(info: StreamInfo) -> bool:
    mirror = info.mirror
    return mirror is not None and bool(mirror.get("lag") or not 0 <= mirror.get("active", -1) <= SETTLED)
