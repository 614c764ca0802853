# SPDX-License-Identifier: Apache-2.0
"""A stream and claims in a test, and questions to the server about them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from jetstream_handoff import portal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from jetstream_client import ConnectionSettings
    from jetstream_client.context import JetStream
    from jetstream_client.read.message import StoredMessage
    from jetstream_handoff.ledger.record import Receipt
    from jetstream_handoff.watch.seen import Seen

OWNER = "test"
"""The name in the ledger of who takes a claim in a test."""


class ClaimUnderTest(dict[str, Any]):
    """A claim, as the JSON value that a sensor hands on, which can be asked how it ended.

    Every question is answered by the ledger and the server at that moment.

    value:     the JSON value of the claim.
    settings:  how to connect to the server.
    """

    def __init__(self, value: Mapping[str, Any], settings: ConnectionSettings) -> None:
        super().__init__(value)
        self._settings = settings

    @property
    def seen(self) -> Seen:
        """Everything that the ledger and the server know of the claim. Raises LookupError for a claim that the ledger
        does not know."""
        from jetstream_handoff.watch.inspection import find

        seen = portal.run(self._settings, lambda js: find(js, self["id"]))
        if seen is None:
            raise LookupError(
                f"the ledger does not know claim {self['id']}; ask about a claim that this test has taken"
            )
        return seen

    @property
    def state(self) -> str:
        """``open``, ``done``, ``failed`` or ``superseded``. Only a claim that is ``done`` is settled."""
        return self.seen.state

    @property
    def settled(self) -> bool:
        """Whether the claim is settled: its work has succeeded, and its messages are acknowledged."""
        return self.state == "done"

    @property
    def receipt(self) -> Receipt | None:
        """The receipt, with the value that the task returned (``value``); None as long as the claim is open."""
        return self.seen.receipt

    @property
    def unacknowledged(self) -> int:
        """How many messages the claim's consumer has delivered that are not acknowledged, of this claim and of others.
        Without an acknowledgement the server redelivers them."""
        return portal.run(self._settings, _unacknowledged(self["stream"], self["consumer"]))


class StreamUnderTest:
    """A stream of the test's server.

    name:      the name of the stream.
    settings:  how to connect to the server.
    """

    def __init__(self, name: str, settings: ConnectionSettings) -> None:
        self.name = name
        self._settings = settings

    def publish(self, messages: Iterable[tuple[Any, ...]]) -> None:
        """Publish messages to the stream, and wait until it has stored each of them.

        messages:  tuples ``(subject, data)`` or ``(subject, data, headers)``, with ``data`` as bytes.

        Raises:
            PublishFailed: a message was not stored.
        """
        from jetstream_client.publish.bulk import publish_all

        publish_all(self._settings, messages, stream=self.name)

    @property
    def messages(self) -> list[StoredMessage]:
        """All messages that the stream stores, in order."""

        async def stored(js: JetStream) -> list[StoredMessage]:
            info = await js.stream(self.name).info()
            return [each async for each in js.stream(self.name).get_messages()] if info.state["messages"] else []

        return portal.run(self._settings, stored)

    def take(self, consumer: str, *, wait: timedelta = timedelta(seconds=10), **taking: Any) -> list[ClaimUnderTest]:
        """Take the messages that wait at a consumer, as a sensor does, and return their claims. Nobody holds them yet.

        consumer:  the name of the consumer, which is created if it does not exist.
        wait:      how long to wait for messages. Default 10 s.
        taking:    other fields of :class:`jetstream_handoff.take.taking.Taking`, such as ``messages_per_claim`` and
                   ``consumer_config``. Default: one claim of everything that has been published.

        Raises:
            AssertionError: no message arrived in this time.
            JetStreamError: as :meth:`jetstream_handoff.take.take.Take.take`.
        """
        from jetstream_handoff.take.take import Take
        from jetstream_handoff.take.taking import Taking

        defaults = {"owner": (OWNER,), "max_messages": 10_000, "gather": timedelta(seconds=0.1)}
        wanted = Taking(stream=self.name, consumer=consumer, **{**defaults, **taking})

        async def taken(js: JetStream) -> list[dict[str, Any]]:
            take = Take(js, wanted)
            await take.prepare()
            return [claim.to_json() for claim in await take.take(wait.total_seconds())]

        if claims := portal.run(self._settings, taken):
            return [ClaimUnderTest(claim, self._settings) for claim in claims]
        raise AssertionError(
            f"no message of stream {self.name} arrived at consumer {consumer} within {wait.total_seconds():g} s; "
            "publish messages before you take them, with a subject that the consumer's filter selects"
        )

    def unacknowledged(self, consumer: str) -> int:
        """Return how many messages ``consumer`` has delivered that are not acknowledged. Raises ConsumerNotFound."""
        return portal.run(self._settings, _unacknowledged(self.name, consumer))

    def committed(self, consumer: str) -> Sequence[Receipt]:
        """Return the receipts of the settled claims of ``consumer``, ordered by sequence.

        Raises:
            LedgerUnavailable: the ledger does not exist, because no claim was taken.
        """
        from jetstream_handoff.ledger.ledger import Ledger

        return portal.run(self._settings, lambda js: Ledger(js, self.name, consumer).committed())


def _unacknowledged(stream: str, consumer: str) -> Callable[[JetStream], Awaitable[int]]:
    async def count(js: JetStream) -> int:
        return int((await js.stream(stream).consumer(consumer).info()).ack_pending)

    return count
