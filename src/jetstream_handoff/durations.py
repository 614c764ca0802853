# SPDX-License-Identifier: Apache-2.0
"""Defaults of parameters that are durations. Signatures need them, so this module imports only :mod:`datetime`."""

from datetime import timedelta

HAND_OFF_TIMEOUT = timedelta(minutes=15)
"""How long a claim may wait for its task before its messages are redelivered."""
GATHER = timedelta(seconds=5)
"""How long a take waits for more messages after the first one of a batch."""
LOOK_EVERY = timedelta(minutes=1)
"""How often a backlog function is called while it does not ask for a pull."""
LONGEST_HOLD = timedelta(hours=24)
"""How long a hold may last. Without a limit, a heartbeat that outlives its work would hold the claim forever."""
HEARTBEATS = 5
"""How many times per ``ack_wait`` leases are renewed, while a batch is gathered and while a claim is held."""

RETRY_SLACK = timedelta(minutes=5)
"""How long a retry may wait for a worker after its delay. After that, the messages of a released claim are
redelivered."""
