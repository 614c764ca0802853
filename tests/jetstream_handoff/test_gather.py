"""Gathering a batch in a simulated world: no lease has ended, whatever its clocks and network do."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jetstream_handoff.durations import HEARTBEATS
from jetstream_handoff.moment import Moment
from jetstream_handoff.take.deliveries import Delivery
from jetstream_handoff.take.gather import LOOK, QUIET, Batch, GatherWindow, LeaseOver
from jetstream_handoff.take.taking import Taking
from tests.jetstream_handoff.steps import arrived

Span = tuple[float, float]
"""When it begins, and how long it lasts."""


_EPOCH = 1_000.0
"""The server's time at the beginning, in seconds since 1970."""


class Interrupted(Exception):
    """An interruption such as ``HeartbeatMissed``: the driver forgets its messages and begins again."""


@dataclass
class World:
    """Our clock, the server's clock, and messages in transit. ``now`` is our clock; both begin at 0.

    published: when, on the server's clock. lives: when the consumer begins a new one, and delivers all of them again.
    pauses:    of our machine, on our clock, which stands still meanwhile.
    stalls:    of the network, on the server's clock: nothing that the server sends arrives before their end.
    renewing:  seconds that each message adds to a renewal.
    skew:      how far the clock of the server that stored the messages was ahead of the present server's.
    """

    ack_wait: float
    published: list[float]
    lives: list[float] = field(default_factory=list)
    pauses: list[Span] = field(default_factory=list)
    stalls: list[Span] = field(default_factory=list)
    entered_elsewhere: float = float("inf")
    renewing: float = 0.0
    skew: float = 0.0

    def __post_init__(self) -> None:
        self.now = 0.0
        self.leases: dict[int, float] = {}
        self.delivered_in: dict[int, int] = {}
        self.lapsed: set[int] = set()
        self._delivered = 0
        self._life = 0

    @property
    def server(self) -> float:
        return self._server(self.now)

    def _server(self, ours: float) -> float:
        return ours + sum(length for began, length in self.pauses if began <= ours)

    def arrives(self, sent: float) -> float:
        """On our clock."""
        for began, length in sorted(self.stalls):
            if began <= sent < began + length:
                sent = began + length
        ours, paused = sent, 0.0
        for began, length in sorted(self.pauses):
            if began + paused <= sent:
                ours = max(began, sent - paused - length)
            paused += length
        return ours

    def info(self) -> Moment:
        answered = self.server
        self.now = max(self.now, self.arrives(answered))
        return Moment(self.now, round((_EPOCH + answered) * 1e9))

    def life(self) -> int:
        life = sum(at <= self.server for at in self.lives)
        if life != self._life:
            self._life, self._delivered = life, 0
            self.leases.clear()
            self.lapsed.clear()
        return life

    def renew(self, batch: Batch) -> None:
        self.expire()
        self.leases |= dict.fromkeys(batch.deliveries.sequences, self.server)
        self.now += self.renewing * len(batch.deliveries)

    def expire(self, at: float | None = None) -> None:
        """Messages not renewed in time belong to another client. ``at``: on the server's clock, by default now."""
        now = self.server if at is None else at
        self.lapsed |= {message for message, since in self.leases.items() if now > since + self.ack_wait}


class Pull:
    def __init__(self, world: World, request: dict[str, Any]) -> None:
        self._world = world
        self._left = request["batch"]
        self._began = world.now
        self._opened = world.server
        self._life = world.life()
        self._expires = world.server + request["expires"]
        self._heartbeat = request["heartbeat"]
        self._next_beat = self._opened + request["heartbeat"]
        self._on_their_way: list[tuple[float, Delivery]] = []
        self._heard = [world.now]

    @property
    def ended(self) -> bool:
        self._deliver(self._world.server)
        return not self._on_their_way and (not self._left or self._world.server > self._expires)

    @property
    def silence(self) -> float:
        while (arrived := self._world.arrives(self._next_beat)) <= self._world.now:
            self._heard.append(arrived)
            self._next_beat += self._heartbeat
        self._heard.sort()
        if self._world.now - self._heard[-1] > 2 * self._heartbeat:
            raise Interrupted
        return max((after - before for before, after in pairwise(self._heard)), default=0.0)

    def _deliver(self, until: float) -> None:
        world = self._world
        if world.life() != self._life:
            return
        while self._left and world._delivered < len(world.published):
            at = max(self._opened, world.published[world._delivered])
            if at > min(until, self._expires):
                return
            world._delivered += 1
            self._left -= 1
            sequence = world._delivered
            world.leases[sequence], world.delivered_in[sequence] = at, self._life
            stored = round((_EPOCH + world.published[sequence - 1] + world.skew) * 1e9)
            delivery = Delivery(sequence, sequence, 1, first=True, stored=stored)
            self._on_their_way.append((world.arrives(at), delivery))

    def receive(self, wait: float) -> list[Delivery]:
        world = self._world
        end = min(world.now + wait, world.arrives(self._expires) + 2e-3)  # the server says that the pull has ended
        self._deliver(world.server)
        while not (arrived := self._arrived()) and world.now < end:
            later = [at for at, _ in self._on_their_way]
            later += [world.arrives(at) for at in world.published[world._delivered :][:1]]
            world.now = max(world.now + 1e-3, min([end, *later]))
            self._deliver(world.server)
        return arrived

    def _arrived(self) -> list[Delivery]:
        found = [each for at, each in self._on_their_way if at <= self._world.now]
        self._heard += [at for at, _ in self._on_their_way if at <= self._world.now]
        self._on_their_way = self._on_their_way[len(found) :]
        return found

    def stop(self) -> list[Delivery]:
        self._deliver(self._world.server)
        self._left = 0
        self._world.now = max([self._world.now, *(at for at, _ in self._on_their_way)])
        return self._arrived()

    def pending(self) -> int:
        world = self._world
        return sum(at <= world.server for at in world.published[world._delivered :])


def gather(world: World, window: GatherWindow) -> Iterator[str]:
    """Does with a window what :mod:`jetstream_handoff.take.take` does, with one method for each step."""
    while window.wait(world.now):
        yield "look"
        at, life = world.info(), world.life()
        window.on_look(("created", life), at, elsewhere=world.entered_elsewhere <= world.server)
        if (request := window.next_pull(world.now)) is None:
            return
        yield f"pull {request['batch']}"
        pull = Pull(world, request)
        while not pull.ended and (wait := window.wait(world.now)):
            yield "receive"
            messages = pull.receive(wait)
            pending = pull.pending() if messages else None
            window.on_messages(arrived(*messages), world.now, silence=pull.silence, pending=pending)
            if window.renewal_due(world.now):
                yield "renew"
                asked = world.now
                began = world.info().at(asked)
                messages = pull.receive(0)
                window.on_messages(arrived(*messages), world.now, silence=pull.silence, pending=None)
                world.renew(window.batch)
                window.on_renewed(began, world.info())
        window.on_messages(arrived(*pull.stop()), world.now, silence=pull.silence, pending=None)


def taking(max_messages: int, min_messages: int = 1, seconds: float = 5.0) -> Taking:
    return Taking(
        stream="S",
        consumer="c",
        owner=("dag",),
        max_messages=max_messages,
        min_messages=min(min_messages, max_messages),
        gather=timedelta(seconds=seconds),
    )


def ascending(longest: float, most: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(0, longest), max_size=most).map(sorted)


spans = st.lists(st.tuples(st.floats(0, 15), st.floats(1, 25)), max_size=2)
worlds = st.builds(
    World,
    ack_wait=st.just(10.0),
    published=ascending(15, 40),
    lives=ascending(15, 1),
    pauses=spans,
    stalls=spans,
    entered_elsewhere=st.sampled_from([float("inf"), float("inf"), 5.0]),
    renewing=st.sampled_from([0.0, 0.0, 0.05, 0.5]),
)
takings = st.builds(taking, st.integers(5, 40), st.integers(1, 3), st.floats(0, 20))


@settings(max_examples=200, derandomize=True)
@given(worlds, takings, st.floats(5, 60), st.booleans(), st.floats(0, 12))
def test_no_lease_of_what_is_handed_over_has_run_out(
    world: World, of: Taking, deadline: float, look: bool, entering: float
) -> None:
    window = GatherWindow(of, deadline=deadline, ack_wait=world.ack_wait, longest_pull=100.0, look=look)
    most = of.max_messages
    steps = 0
    try:
        for step in gather(world, window):
            steps += 1
            assert window.count <= most
            assert step == f"pull {most - window.count}" or not step.startswith("pull")
            assert steps < 20_000
    except (LeaseOver, Interrupted) as over:
        event(type(over).__name__)
        return
    assert window.count <= most
    assert window.wait(world.now) == 0
    if window.count == 0:
        return
    world.now += entering
    batch = window.batch
    answered = world.server
    at = world.info()
    world.expire(answered)  # a machine that stands still later loses the compare-and-set to the client that took them
    try:
        batch.check(at)
    except LeaseOver:
        event("dropped before it is entered")
        return
    event("handed over")
    if world.life() == window._life[1]:  # type: ignore[index] # otherwise it is noticed when the batch is entered
        assert world.lapsed.isdisjoint(batch.sequences)
        assert all(world.delivered_in[message] >= world.life() for message in batch.sequences)


@settings(derandomize=True)
@given(ascending(60, 40), st.integers(1, 40), st.integers(0, 20), st.sampled_from([1.0, 30.0]))
def test_a_batch_is_what_came_within_gather_without_a_pause(
    published: list[float], most: int, seconds: int, ack_wait: float
) -> None:
    assume(published)
    world = World(ack_wait, published)
    window = GatherWindow(taking(most, seconds=seconds), deadline=500, ack_wait=ack_wait, longest_pull=100.0)
    for _ in gather(world, window):
        pass
    certain, possible = (ends(published, seconds, late) for late in (-0.1, 0.1))
    count = window.count
    assert min(most, sum(at <= certain for at in published)) <= count <= sum(at <= possible for at in published)
    assert count <= most
    assert world.now <= possible + 0.1


def ends(published: list[float], seconds: float, late: float, fewest: int = 1) -> float:
    """When a batch ends: ``seconds`` after its first message, or, if there are enough, after a pause that is longer
    than half a second and than twice any before it. late: how much later a message arrives, in seconds."""
    latest, apart = published[0] + seconds + max(0.0, late), 0.0
    for count, (before, after) in enumerate(pairwise([*published, float("inf")]), 1):
        pause = max(QUIET, 2 * apart) + late
        if count >= fewest and after > before + pause:
            return min(before + pause, latest)
        apart = max(apart, after - before)
    return latest


@settings(derandomize=True)
@given(ascending(100, 40), st.integers(2, 40), st.floats(1, 100))
def test_fewer_than_min_messages_wait_for_the_deadline(published: list[float], fewest: int, deadline: float) -> None:
    world = World(5.0, published)
    window = GatherWindow(taking(100, fewest, 0), deadline=deadline, ack_wait=5.0, longest_pull=30.0)
    for _ in gather(world, window):
        pass
    if len(published) >= fewest and published[fewest - 1] < deadline:
        assert window.enough(world.now)
        assert published[fewest - 1] <= world.now < published[fewest - 1] + 0.1
    else:
        assert deadline <= world.now < deadline + 0.1


@settings(derandomize=True)
@given(
    st.builds(World, st.just(20.0), published=ascending(100, 40), skew=st.floats(-200, 200), pauses=spans),
    st.integers(2, 40),
    st.floats(1, 100),
    st.floats(1, 100),
)
def test_the_oldest_message_waits_for_max_wait_and_no_longer(
    world: World, fewest: int, deadline: float, longest: float
) -> None:
    """Whatever the clocks of the servers show: a clock that was set back does not prolong the wait."""
    published, skew = world.published, world.skew
    of = replace(taking(100, fewest, 0), max_wait=timedelta(seconds=longest))
    window = GatherWindow(of, deadline=deadline, ack_wait=20.0, longest_pull=100.0)
    try:
        for _ in gather(world, window):
            pass
    except (LeaseOver, Interrupted) as over:
        event(type(over).__name__)
        return
    paused = sum(length for _, length in world.pauses)
    latest = deadline
    if published:
        arrived_at = world.arrives(published[0])
        renewed = min(paused, 20.0 / HEARTBEATS + 1)  # a pause of our machine is noticed when the leases are renewed
        latest = min(deadline, arrived_at + max(0.0, longest + min(0.0, skew + renewed)))
    assert world.now <= latest + 1.1
    if window.enough(world.now) and not window.filled:
        event("max_wait")
        by_the_server = world.server - published[0] - skew
        assert max(by_the_server, world.now - arrived_at) >= longest - 0.01
    elif not window.filled:
        assert world.now >= deadline


@settings(derandomize=True)
@given(ascending(30, 40), st.integers(1, 40))
def test_a_look_ends_soon(published: list[float], fewest: int) -> None:
    world = World(30.0, published)
    window = GatherWindow(taking(100, fewest, 5.0), deadline=float("inf"), ack_wait=30.0, longest_pull=100.0, look=True)
    for _ in gather(world, window):
        pass
    first = min([*published, float("inf")])
    if first > LOOK:
        assert window.count == 0
        assert world.now < LOOK + 0.1
    else:
        earliest, latest = (ends(published, 5.0, late, fewest) for late in (-0.1, 0.1))
        assert earliest <= world.now < latest + 0.1


def test_a_renewal_that_takes_too_long_ends_the_batch() -> None:
    """Otherwise a backlog with a short ``ack_wait`` would be pulled and dropped again and again."""
    world = World(2.0, [0.0] * 10, renewing=0.05)
    window = GatherWindow(taking(100), deadline=100.0, ack_wait=2.0, longest_pull=100.0)
    assert list(gather(world, window)).count("renew") == 1
    assert window.count == 10
    assert world.now < 2


def test_a_look_whose_renewals_take_too_long_goes_on_until_it_has_min_messages() -> None:
    """Otherwise a rescheduled sensor would pull the same messages and release them again at every look."""
    world = World(2.0, [0.0] * 10 + [1.2] * 10, renewing=0.045)
    window = GatherWindow(taking(100, 20), deadline=float("inf"), ack_wait=2.0, longest_pull=100.0, look=True)
    assert "renew" in list(gather(world, window))
    assert window.count == 20
    world = World(2.0, [number / 10 for number in range(40)], renewing=0.05)
    window = GatherWindow(taking(100, 41), deadline=float("inf"), ack_wait=2.0, longest_pull=100.0, look=True)
    with pytest.raises(LeaseOver):
        list(gather(world, window))


def test_what_the_server_has_is_waited_for_and_not_for_ever() -> None:
    window = GatherWindow(taking(100, seconds=0), deadline=100.0, ack_wait=30.0, longest_pull=100.0)
    window.on_look(("created", 0), Moment(10.0, 0), elsewhere=False)
    assert window.next_pull(10.0) == {"batch": 100, "expires": 90.0, "heartbeat": 7.5, "priority": None}
    window.on_messages(arrived(Delivery(1, 1, 1, first=True, stored=0)), 11.0, silence=1.0, pending=5)
    assert window.wait(11.0)
    assert window.wait(13.9)
    assert not window.wait(14.0)
    window.on_messages(arrived(Delivery(2, 2, 1, first=True, stored=0)), 13.0, silence=1.0, pending=0)
    assert not window.wait(13.0)


def test_what_is_of_an_earlier_life_is_not_handed_over() -> None:
    window = GatherWindow(taking(100), deadline=100.0, ack_wait=30.0, longest_pull=100.0)
    window.on_look(("created", 0), Moment(0.0, 0), elsewhere=False)
    window.on_messages(arrived(Delivery(1, 7, 1, first=True, stored=0)), 1.0, silence=0.5, pending=0)
    assert window.batch.since.ours == pytest.approx(0.5)
    window.on_look(("created", 1), Moment(2.0, 0), elsewhere=False)
    assert window.count == 0


def test_a_message_stays_a_first_delivery_when_it_is_delivered_again() -> None:
    window = GatherWindow(taking(100), deadline=100.0, ack_wait=30.0, longest_pull=100.0)
    window.on_look(("created", 0), Moment(0.0, 0), elsewhere=False)
    window.on_messages(arrived(Delivery(1, 1, 1, first=True, stored=0)), 1.0, silence=0.5, pending=0)
    window.on_messages(arrived(Delivery(1, 2, 1, first=False, stored=0)), 2.0, silence=0.5, pending=0)
    assert list(window.batch.deliveries) == [Delivery(1, 2, 1, first=True, stored=0)]


def test_a_pause_of_our_machine_counts_for_max_wait() -> None:
    window = GatherWindow(
        replace(taking(100, 5), max_wait=timedelta(seconds=60)), deadline=500.0, ack_wait=300.0, longest_pull=100.0
    )
    window.on_look(("created", 0), Moment(0.0, 100 * 10**9), elsewhere=False)
    message = Delivery(1, 1, 1, first=True, stored=100 * 10**9)
    window.on_messages(arrived(message), 0.5, silence=0.0, pending=0)
    assert not window.enough(10.0)
    window.on_renewed(Moment(9.0, 159 * 10**9), Moment(10.0, 161 * 10**9))  # our clock stood still for 51 s
    assert window.enough(10.0)


def test_a_lease_counts_from_before_its_renewal() -> None:
    """A message that is delivered while the renewal goes on is not renewed by it."""
    window = GatherWindow(taking(100), deadline=100.0, ack_wait=30.0, longest_pull=100.0)
    window.on_look(("created", 0), Moment(0.0, 0), elsewhere=False)
    window.on_messages(arrived(Delivery(1, 1, 1, first=True, stored=0)), 1.0, silence=0.0, pending=0)
    assert not window.renewal_due(7.0)
    assert window.renewal_due(7.1)
    window.on_renewed(Moment(7.1, 8_000_000_000), Moment(9.0, 9_900_000_000))
    assert window.batch.since == Moment(7.1, 8_000_000_000)
    window.on_look(("created", 0), Moment(29.6, 0), elsewhere=True)
    with pytest.raises(LeaseOver, match=r"75% of ack_wait \(30 s\)"):
        window.on_look(("created", 0), Moment(29.7, 0), elsewhere=False)
    with pytest.raises(LeaseOver):
        window.on_look(("created", 0), Moment(10.0, 30_600_000_000), elsewhere=False)
