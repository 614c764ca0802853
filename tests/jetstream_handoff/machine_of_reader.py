"""A state machine of a reader with its own checkpoint, against a real server: it takes, commits, is killed at each
point and comes back; meanwhile others reset and edit the consumer, purge the stream, delete the ledger and kill the
server.

* **nothing is acknowledged before its commit**: the server owes each message that is not in a committed batch;
* **a repeated batch has the same messages** (:class:`~tests.jetstream_handoff.test_reader.Query` asserts it);
* **each message once** in the committed output, until a stranger resets the consumer or deletes the ledger; then at
  least once;
* **nothing is stuck**: a run that is not killed processes and acknowledges everything.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, TypeVar

from anyio.from_thread import start_blocking_portal
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from demo.nats_server import NatsServer
from jetstream_client import ConnectionSettings, connect
from jetstream_client.errors import StreamNotFound
from jetstream_client.stream import Stream
from jetstream_handoff.errors import CheckpointRefused, ConsumerReserved, ConsumerUnsuitable
from tests.installed_server import has
from tests.jetstream_handoff.steps import CONSUMER, publish, reset_by_a_stranger
from tests.jetstream_handoff.test_reader import KILLED, Query, consumer

Result = TypeVar("Result")

EDITS: tuple[dict[str, Any], ...] = (
    {"max_ack_pending": 3},
    {"inactive_threshold": 600_000_000_000},
    {"sample_freq": "100%"},
    {"headers_only": True},
)
HARMLESS = frozenset({"sample_freq", "headers_only"})


class ReaderMachine(RuleBasedStateMachine):
    """See the module. A subclass names its ``server``, which it must not share, because the machine kills it."""

    server: NatsServer

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal())
        settings = ConnectionSettings(
            servers=self.server.url, shortest_ack_wait=0.5, ledger=f"r_{secrets.token_hex(4)}"
        )
        self._js = self._stack.enter_context(self._portal.wrap_async_context_manager(connect(settings)))
        self.name = f"R{secrets.token_hex(4)}"
        self.stream: Stream = self.call(
            lambda: self._js.create_stream({"name": self.name, "subjects": [f"{self.name}.>"], "allow_direct": True})
        )
        self.call(lambda: consumer(self.stream))
        self.query = Query(self.stream)
        self.published = 0
        self.purged = 0
        """All messages up to this sequence are gone."""
        self.again = False
        """Whether what is committed may be processed again."""

    def call(self, function: Callable[[], Awaitable[Result]]) -> Result:
        async def limited() -> Result:
            return await asyncio.wait_for(function(), 120)  # nothing may hang

        return self._portal.call(limited)

    @initialize(count=st.integers(5, 40))
    def published_before(self, count: int) -> None:
        self.publish(count=count)

    @rule(count=st.integers(1, 40))
    def publish(self, count: int) -> None:
        self.call(lambda: publish(self.stream, count))
        self.published += count

    @property
    def committed(self) -> Counter[int]:
        batches = [self.query.output[each] for each in range(1, self.query.commits + 1) if each in self.query.output]
        return Counter(each for batch in batches for each in batch)

    @rule(kill=st.sampled_from(["", *KILLED]), most=st.sampled_from([3, 10, 100]))
    def run(self, kill: str, most: int) -> None:
        self.call(lambda: self.query.run(most=most, kill=kill))
        if not kill:
            self._everything_is_processed()

    def _everything_is_processed(self) -> None:
        missing = set(range(self.purged + 1, self.published + 1)) - self.committed.keys()
        assert not missing, f"lost or stuck: {sorted(missing)}"
        info = self.call(lambda: self.stream.consumer(CONSUMER).info(patience=30))
        assert (info.pending, info.ack_pending) == (0, 0)

    @rule(most=st.sampled_from([3, 10]))
    def an_older_copy_of_the_checkpoint_is_refused(self, most: int) -> None:
        older, before = self.query.copied(), self.query.commits
        self.publish(count=most)
        self.run(kill="", most=most)
        assert self.query.commits > before
        with_what = (CheckpointRefused,) if before else (CheckpointRefused, ConsumerReserved)
        try:
            self.call(lambda: older.run(most=most))
        except with_what:
            return
        raise AssertionError("an older copy went on")

    @rule(changes=st.sampled_from(EDITS), most=st.sampled_from([5, 100]))
    def a_stranger_edits_the_consumer(self, changes: dict[str, Any], most: int) -> None:
        """Edit it, run, and undo that."""
        self.publish(count=1)
        handle = self.stream.consumer(CONSUMER)
        before = self.call(lambda: handle.info(patience=30)).config
        self.call(lambda: handle.update(changes))
        try:
            self.call(lambda: self.query.run(most=most))
        except ConsumerUnsuitable as unsuitable:
            assert unsuitable.rule in changes.keys() - HARMLESS  # noqa: PT017 - another edit needs no error
        else:
            assert changes.keys() <= HARMLESS
        kept = {name: before[name] for name in changes if name in before}
        self.call(lambda: handle.update(kept, remove=changes.keys() - kept.keys()))

    @precondition(lambda _: has("2.14"))
    @rule()
    def a_stranger_resets_the_consumer(self) -> None:
        self.call(lambda: reset_by_a_stranger(self.stream))
        self.again = True

    @rule(keep=st.integers(0, 20))
    def purge(self, keep: int) -> None:
        self.call(lambda: self.stream.purge(keep=keep) if keep else self.stream.purge())
        self.purged = max(self.purged, self.published - keep)

    @rule()
    def the_ledger_is_deleted(self) -> None:
        """The reader goes on when its own id is given."""
        for kind in ("claims", "receipts"):
            bucket = self.stream.js.stream(f"KV_{self.stream.js.settings.ledger}_{kind}")
            self.call(partial(_delete, bucket))
        self.again = True
        if self.query.offsets:
            self.query.replaces = self.query.reader
            self.run(kill="", most=10)
            self.query.replaces = ""

    @rule()
    def the_server_is_killed(self) -> None:
        self.server.kill()
        self.server.start()
        self.call(lambda: self.stream.info(patience=60))

    @invariant()
    def nothing_is_acknowledged_before_its_commit(self) -> None:
        async def owed() -> int:
            info = await self.stream.consumer(CONSUMER).info(patience=30)
            return info.pending + info.ack_pending

        missing = set(range(self.purged + 1, self.published + 1)) - self.committed.keys()
        for _ in range(100):
            if (left := self.call(owed)) >= len(missing):
                break
            self.call(lambda: asyncio.sleep(0.1))
        assert left >= len(missing), f"the server owes {left}, and {len(missing)} are not committed"
        if not self.again:
            assert not [each for each, times in self.committed.items() if times > 1]

    def teardown(self) -> None:
        try:
            self.run(kill="", most=100)
        finally:
            self._stack.close()


async def _delete(bucket: Stream) -> None:
    with suppress(StreamNotFound):
        await bucket.delete()
