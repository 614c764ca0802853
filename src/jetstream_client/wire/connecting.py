# SPDX-License-Identifier: Apache-2.0
"""Which server to connect to next, for how long, and when to give up. No I/O: both connections use it."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from jetstream_client.errors import ConnectionDenied
from jetstream_client.wire.authentication import unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetstream_client.wire.settings import ConnectionSettings

Address = tuple[str, int]
"""Host and port."""
LEAST_PER_SERVER = 2.0
"""Seconds for connecting to one of several servers, at least, as in nats.go."""
_LEAST = 0.1  # seconds for an attempt, at least


class Connecting:
    """Connects within ``settings.connect_timeout`` seconds: rounds over all servers, with a pause between two rounds.

    The configured servers are followed by those that servers have named to other connections with these settings.

    shuffled:  whether the order is random, so that the clients of a cluster spread over its servers. Default False.
    """

    def __init__(self, settings: ConnectionSettings, *, shuffled: bool = False) -> None:
        self._settings = settings
        self._configured = settings.addresses
        self._shuffled = shuffled
        self._deadline = time.monotonic() + settings.connect_timeout
        self._reason = ""

    def round(self) -> Iterator[tuple[Address, float]]:
        """The address of each server, and the seconds for connecting to it: a server that does not answer must leave
        time for the others."""
        addresses = [*self._configured, *self._settings.named_addresses]
        if self._shuffled:
            random.shuffle(addresses)
        for position, address in enumerate(addresses):
            left = max(_LEAST, self._deadline - time.monotonic())
            yield address, min(left, max(LEAST_PER_SERVER, left / (len(addresses) - position)))

    def failed(self, address: Address, error: OSError) -> None:
        """Note why an attempt failed. Raises the error if a configured server denies the connection."""
        if isinstance(error, ConnectionDenied) and address in self._configured:
            raise error
        self._reason = str(error) or type(error).__name__

    def check(self) -> None:
        """Raises ConnectionFailed if there is no time for another round."""
        if time.monotonic() + _LEAST > self._deadline:
            raise unreachable(self._settings, self._reason)
