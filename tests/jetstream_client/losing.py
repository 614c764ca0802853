"""A delivery that gets lost on its way to a blocking connection."""

import pytest

from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.run import Run


def lose_a_delivery(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lose one delivery from now on. The list then has its index among those that arrive together."""
    receive_runs = Wire.receive_runs
    lost: list[int] = []

    def losing(wire: Wire, timeout: float) -> list[Run]:
        runs = receive_runs(wire, timeout)
        if not lost and len(runs[0]) > 10:
            lost.append(5)
            runs[0].pop(5)
        return runs

    monkeypatch.setattr(Wire, "receive_runs", losing)
    return lost
