# SPDX-License-Identifier: Apache-2.0
"""Listening for the holder of a claim."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jetstream_handoff import inspection

if TYPE_CHECKING:
    from airflow_nats_jetstream.page.pool import Line
    from jetstream_client.context import JetStream
    from jetstream_handoff.inspection import Seen

LONGEST = 25.0
"""Seconds for which the page listens, at most."""


def can_tell(seen: Seen) -> bool:
    """Whether the page listens long enough to find out that the holder of a claim is dead."""
    return seen.silence <= LONGEST


async def heard(line: Line, seen: Seen, seconds: float) -> Seen:
    """Return the claim with ``alive`` set, if an attempt holds it; it stays None if no heartbeat arrived, but the time
    was too short to be sure. Everybody who asks for the same attempt within two seconds shares one subscription.

    Raises:
        Busy: the page already listens for too many holders of this connection.
        PermissionDenied: the connection's user may not subscribe to acknowledgements.
    """
    if seen.entry is None or seen.holder is None:
        return seen

    async def listen(js: JetStream) -> Seen:
        (found,) = await inspection.listen(js, [seen], min(seconds, LONGEST))
        return found if found.alive or min(seconds, LONGEST) >= seen.silence else replace(found, alive=None)

    return await line.listen((seen.id, seen.holder, seconds), listen, within=seconds + 4)
