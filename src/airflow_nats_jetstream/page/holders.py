# SPDX-License-Identifier: Apache-2.0
"""Listening for the holder of a claim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_handoff.watch import inspection

if TYPE_CHECKING:
    from airflow_nats_jetstream.page.pool import Line
    from jetstream_client.context import JetStream
    from jetstream_handoff.watch.seen import Seen

LONGEST = 25.0
"""Seconds for which the page listens, at most."""


def can_tell(seen: Seen) -> bool:
    """Whether the page listens long enough to find out that the holder of a claim is dead."""
    return seen.silence <= LONGEST


async def heard(line: Line, seen: Seen, seconds: float) -> Seen:
    """Return the claim with ``alive`` set, as :func:`heard_all`."""
    (found,) = await heard_all(line, [seen], seconds)
    return found


async def heard_all(line: Line, claims: list[Seen], seconds: float) -> list[Seen]:
    """Return the claims, with ``alive`` as :func:`inspection.listen` sets it. Everybody who asks for the same attempts
    within two seconds shares one subscription.

    Raises:
        Busy: the page already listens for too many holders of this connection.
        PermissionDenied: the connection's user may not subscribe to acknowledgements.
    """
    held = [seen for seen in claims if seen.entry is not None and seen.holder is not None]
    if not held:
        return claims

    async def listen(js: JetStream) -> dict[str, Seen]:
        found = await inspection.listen(js, held, min(seconds, LONGEST))
        return {each.id: each for each in found}

    key = (tuple((seen.id, seen.holder) for seen in held), seconds)
    heard = await line.listen(key, listen, within=seconds + 4)
    return [heard.get(seen.id, seen) for seen in claims]
