"""What the record knows of the order: which take gathers, and which open claims a new batch waits for."""

from typing import Any

from jetstream_client.info import ConsumerInfo
from jetstream_client.sequences import Sequences
from jetstream_handoff.ledger.order import Order
from jetstream_handoff.ledger.record import OpenEntry

AT, NOW = "2026-11-21T03:00:05Z", "2026-11-21T03:01:05Z"


def info(floor: int = 0, unacknowledged: int = 0, **changes: Any) -> ConsumerInfo:
    delivered, acknowledged = {"consumer_seq": 20, "stream_seq": 20}, {"consumer_seq": 0, "stream_seq": floor}
    raw = {"created": AT, "ts": NOW, "delivered": delivered, "ack_floor": acknowledged, "config": {}}
    return ConsumerInfo({**raw, "num_pending": 0, "num_ack_pending": unacknowledged, **changes})


def entry(*sequences: int, counter: int = 20, at: str = AT) -> OpenEntry:
    return OpenEntry(Sequences.of(sequences), counter, 10, at, ("dag",))


def test_an_open_claim_blocks_unless_the_floor_has_passed_it_or_it_is_gone() -> None:
    entries = {"below": entry(4, 5), "across": entry(5, 6), "gone": entry(7), "open": entry(8)}
    assert Order("subject", gone=("gone",)).blocking(entries, info(floor=5)).keys() == {"across", "open"}


def test_claims_are_gone_when_nothing_is_unacknowledged() -> None:
    """Not those that the server may have forgotten, or that were entered just now; and only as long as they are
    open."""
    entries = {
        "gone": entry(7),
        "new": entry(8, at="2026-11-21T03:01:04.5Z"),
        "beyond": entry(8, 21),
        "rolled back": entry(9, counter=21),
    }
    order = Order("subject", gone=("ended", "earlier"))
    assert order.without_gone(entries, info(unacknowledged=1)).gone == ()
    assert order.without_gone({**entries, "earlier": entry(3)}, info(unacknowledged=1)).gone == ("earlier",)
    assert order.without_gone(entries, info()).gone == ("gone",)


def test_one_take_gathers_until_it_has_been_silent_for_too_long() -> None:
    order = Order("subject", ("mine", AT))
    assert (order.gathers("mine"), order.gathers("other")) == (True, False)
    assert not order.taken("mine", NOW, 72e9)
    assert order.taken("other", NOW, 72e9)
    assert not order.taken("other", NOW, 60e9)
    assert not order.taken("other", "2026-11-21T03:00:04Z", 72e9)  # the server's clock was set back
    assert order.left_by("other") == order
    assert order.left_by("mine") == Order("subject")
