"""How long what waits, leases and holds lasts, unless told otherwise. Imports nothing: signatures name these."""

from datetime import timedelta

HAND_OFF_TIMEOUT = timedelta(minutes=15)
"""How long a claim may wait for its task before its messages are delivered again."""
GATHER = timedelta(seconds=5)
"""How long a batch waits for more after its first message."""
LOOK_EVERY = timedelta(minutes=1)
"""How often a backlog function is called while it does not ask for a pull."""
LONGEST_HOLD = timedelta(hours=24)
"""A heartbeat that outlives its work would hold for ever."""
HEARTBEATS = 5
"""How often in one ``ack_wait`` leases are renewed, by whoever gathers a batch or holds a claim."""
