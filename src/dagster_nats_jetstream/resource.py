# SPDX-License-Identifier: Apache-2.0
"""The resource: how to connect to NATS, and what a step does there apart from claims."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import dagster as dg
from pydantic import ConfigDict, Field, PrivateAttr

from dagster_nats_jetstream import logs, runs
from dagster_nats_jetstream.words import OF_DAGSTER
from jetstream_client.errors import InvalidValue, JetStreamError
from jetstream_client.wire.settings import DEFAULT_SERVER, ConnectionSettings
from jetstream_handoff import portal
from jetstream_handoff.console import check_console
from pyspark_jetstream.held_claim import HeldClaim

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.publish.position import Position
    from jetstream_client.publish.window import Published
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.ledger.record import Receipt
    from jetstream_handoff.repair.partitioning import Partitioned
    from jetstream_handoff.take.taking import Taking

Result = TypeVar("Result")
_TO_PUT_BACK = 10.0  # seconds
_SECRET = Field(default=None, repr=False)


class JetStreamResource(dg.ConfigurableResource["JetStreamResource"]):
    """A connection to NATS JetStream.

    Except ``console``, its fields are those of :class:`~jetstream_client.wire.settings.ConnectionSettings`. Give
    secrets as ``dg.EnvVar``, because Dagster's UI shows the configuration of a resource.

    console:  the address of a web page about a claim, with the placeholders ``{stream}``, ``{consumer}`` and
              ``{claim}``. Materializations link to it. Default: no link.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)  # which may be a secret

    servers: str = DEFAULT_SERVER
    user: str | None = None
    password: str | None = _SECRET
    token: str | None = _SECRET
    nkey_seed: str | None = _SECRET
    credentials: str | None = _SECRET
    credential_folders: str | None = None
    tls: bool = False
    tls_ca: str | None = Field(default=None, repr=False)
    tls_certificate: str | None = Field(default=None, repr=False)
    tls_private_key: str | None = _SECRET
    tls_hostname: str | None = None
    tls_handshake_first: bool = False
    inbox_prefix: str = "_INBOX"
    domain: str | None = None
    api_prefix: str | None = None
    ledger: str = "jetstream"
    connect_timeout: float = 10.0
    max_reconnects: int | None = None
    request_timeout: float = 5.0
    shortest_ack_wait: float = 60.0
    console: str | None = None

    _held: list[ExitStack] = PrivateAttr(default_factory=list)

    @property
    def settings(self) -> ConnectionSettings:
        """The settings of the connection. Raises InvalidValue for a field that is invalid or contradicts another."""
        values = {name: getattr(self, name) for name in type(self).model_fields if name != "console"}
        if unresolved := [name for name in values if isinstance(values[name], dg.EnvVar)]:
            remedy = "only a run reads the variable; elsewhere, use process_config_and_initialize_cm() of the resource"
            raise InvalidValue(unresolved[0], "a dg.EnvVar", remedy)
        return ConnectionSettings(**values, words=OF_DAGSTER)

    def export_settings(self, connection: str = "jetstream") -> str:
        """Let Spark find the settings of the connection: programs that this process starts get them, with their
        secrets, in their environment. A held claim does this, too. Call it before the session starts.

        connection:  the name that Spark's option ``connection`` gets.

        Returns: this name.
        """
        return self.settings.to_environment(connection)

    def run(self, function: Callable[[JetStream], Awaitable[Result]]) -> Result:
        """Connect, await ``function(js)``, and return its result: ``jetstream.run(lambda js: js.stream("S").info())``.

        function:  called with a :class:`~jetstream_client.context.JetStream`; returns an awaitable.

        Raises:
            ConnectionFailed: no connection could be made.
            JetStreamError: an error that the function raised.
        """
        return portal.run(self.settings, function)

    def ensure_stream(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Create a stream, or change those fields of an existing stream that differ from ``config``.

        config:  the configuration with the server's own field names, for example
                 ``{"name": "ORDERS", "subjects": ["orders.>"]}``. Durations are ``timedelta`` values or nanoseconds.

        Returns the names of the fields that were changed; none if the stream was created, or had this configuration.

        Raises:
            InvalidValue: a field or value that JetStream does not have.
            ApiError: the server refuses to create the stream, or to change a field.
        """
        _, difference = self.run(lambda js: js.create_or_update_stream(dict(config)))
        return tuple(difference or ())

    def ensure_consumer(self, stream: str, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Create a consumer of ``stream``, or change those fields that differ. As :meth:`ensure_stream`.

        config:  the configuration with the server's own field names, for example
                 ``{"durable_name": "revenue", "ack_policy": "explicit", "filter_subject": "orders.north"}``. Durations
                 are ``timedelta`` values or nanoseconds.
        """
        _, difference = self.run(lambda js: js.create_or_update_consumer(stream, dict(config)))
        return tuple(difference or ())

    def ensure_partitions(
        self,
        stream: str,
        group: str,
        *,
        subject: str,
        partitions: int,
        ordered_by: str,
        max_messages: int = 1_000_000,
        consumer_config: Mapping[str, Any] | None = None,
        change_number: bool = False,
    ) -> Partitioned:
        """Divide the messages of a stream by a key, with a consumer for each partition. What exists is checked, and not
        changed. The layout is that of the static partitioned consumer groups of orbit.go (``pcgroups``).

        stream:           the name of the stream, which exists.
        group:            the beginning of the consumers' names: ``balances`` for ``balances-0``, ``balances-1``, ….
        subject:          which messages are divided, as they are published: ``orders.*.*``.
        partitions:       the number of partitions.
        ordered_by:       the key, as ``take_claims`` has it: tokens of the stored subject, in which the partition is
                          the first one, such as ``{3}``; or ``subject``.
        max_messages:     the largest ``max_messages`` of the takes. Default 1,000,000.
        consumer_config:  fields of the consumers. Default: as ``take_claims`` creates them.
        change_number:    whether to change the number of partitions if the stream has another one: in several steps,
                          each of which begins when what was stored before it is processed. Call this again until
                          ``waits_for`` is empty. Default False: another number is refused.

        Returns the names of the consumers from which to take now, what was changed, and what has to be processed before
        the next step.

        Raises:
            InvalidValue: a value is invalid, or the server cannot divide messages so.
            PartitionsUnsuitable: the stream is divided in another way or into another number of partitions, or contains
                messages that would be in no partition.
            ConsumerUnsuitable: a consumer breaks a rule for claims, or differs.
            StreamNotFound: the stream does not exist.
        """
        from jetstream_handoff.repair.partitioning import ensure_partitions
        from jetstream_handoff.rules.partitions import Partitions

        layout = Partitions(stream, group, subject, partitions, ordered_by)
        how: dict[str, Any] = {"consumer_config": consumer_config, "change_number": change_number}
        return self.run(lambda js: ensure_partitions(js, layout, max_messages=max_messages, **how))

    def purge(self, stream: str, *, everything: bool = False, **which: Any) -> int:
        """Remove messages from ``stream``, and return how many were removed.

        everything:  must be True to purge the whole stream.
        which:       ``subject``, ``sequence`` and ``keep`` of :meth:`jetstream_client.stream.Stream.purge`.

        Raises:
            InvalidValue: nothing is selected, or ``everything`` and a selection are given.
            StreamNotFound: the stream does not exist.
        """
        if everything == any(value is not None for value in which.values()):
            remedy = "give subject, sequence or keep; or everything=True to purge the whole stream"
            raise InvalidValue("everything", everything, remedy)
        return self.run(lambda js: js.stream(stream).purge(**which))

    def position(self, stream: str) -> Position:
        """Return the end of ``stream``, from which a retry of :meth:`publish` looks for what was stored before."""
        from jetstream_client.publish.position import Position

        return Position.current(self.settings, stream)

    def publish(
        self,
        stream: str,
        messages: Iterable[Any],
        *,
        scope: str,
        since: Position | None = None,
        objects: str | None = None,
    ) -> Published:
        """Publish messages to ``stream``, and wait for its answer to each.

        messages:  tuples ``(subject, data)`` or ``(subject, data, headers)``, with ``data`` as bytes.
        scope:     the name of the work. A retry with the same scope and messages stores nothing twice.
        since:     the result of :meth:`position` before the first try. Default None: a retry recognises only what was
                   stored within the stream's ``duplicate_window``.
        objects:   the name of the object store for payloads that are larger than the server's ``max_payload``. The
                   stream gets messages that refer to them. Default None: such messages are refused.

        Raises:
            BucketNotFound, BucketUnsuitable: the object store does not exist, or could lose an object before its
                message. Nothing was sent.
            PublishFailed: a message was not stored. The error names the first one and the reason.
            DuplicatesPossible: it is unknown which messages an earlier try stored. Nothing was sent.
        """
        from jetstream_client.publish.bulk import publish_all
        from jetstream_client.stores.objects import referring

        if objects is not None:
            messages = referring(self.settings, messages, objects, stream=stream, scope=scope)
        return publish_all(
            self.settings,
            messages,
            stream=stream,
            scope=scope,
            since=since or self.position(stream),
            first=since is None,
        )

    def committed(self, stream: str, consumer: str) -> list[Receipt]:
        """Return the receipts of the settled claims of ``stream`` and ``consumer``, ordered by sequence.

        Only the output of the attempts that they name counts: ``attempt_id`` is its key, and ``processed`` the
        sequences in it.

        Raises:
            LedgerUnavailable: the ledger does not exist or cannot be read.
            StreamNotFound, ConsumerNotFound: no claim was settled, and the stream or the consumer does not exist.
        """
        from jetstream_handoff.ledger.ledger import Ledger

        return self.run(lambda js: Ledger(js, stream, consumer).committed())

    def take(self, context: dg.OpExecutionContext, taking: Taking, wait: timedelta) -> list[Claim]:
        """Take one batch and return its claims; none if nothing arrives within ``wait``.

        If the step fails and Dagster does not retry it, the claims that no attempt holds are withdrawn when the
        resource is torn down, so that their messages are redelivered at once.

        Raises:
            JetStreamError: as :meth:`jetstream_handoff.take.take.Take.take`.
        """

        async def taken(js: JetStream) -> list[Claim]:
            from jetstream_handoff.hold.completion import LEASE_ENDS, complete
            from jetstream_handoff.take.take import Take

            take = Take(js, taking)
            try:
                await take.prepare()
                claims = await take.take(wait.total_seconds())
                take.handed_on()
            finally:
                await complete(take.put_back(), _TO_PUT_BACK, "returning messages that were pulled", LEASE_ENDS)
            return claims

        with logs.forwarded(context.log):
            claims = self.run(taken)
        stack = ExitStack()
        stack.callback(self._give_back, context, claims)
        self._held.append(stack)
        return claims

    def _give_back(self, context: dg.OpExecutionContext, claims: list[Claim]) -> None:
        if not claims or not runs.has_failed(context):
            return

        async def given_back(js: JetStream) -> int:
            from jetstream_handoff.take.withdraw import give_back

            return await give_back(js, claims)

        of = f"the claims that {runs.place(context)}, has taken"
        try:
            if count := self.run(given_back):
                context.log.info("%s cannot be handed on: %d messages are redelivered", of, count)
        except JetStreamError as error:
            context.log.warning("%s were not withdrawn (%s); their messages wait until their leases end", of, error)

    @contextmanager
    def holding(self, context: dg.OpExecutionContext, claim: Claim, **options: Any) -> Iterator[HeldClaim]:
        """Hold a claim until the end of the block, or until the resource is torn down if the block is never resumed.

        Dagster does not resume a step's function if it refuses or cannot store an output, or is interrupted while it
        stores one. The claim then fails if Dagster has failed the step, and otherwise it is released.

        options:  as those of :meth:`jetstream_handoff.hold.blocking.HeldClaim.begin`.
        """
        settings, key = self.settings, options.pop("connection")
        options |= {"holder": runs.holder(context), "piece": runs.owner(context)}
        settings.to_environment(key)
        with ExitStack() as stack:
            self._held.append(stack)
            stack.enter_context(logs.forwarded(context.log))
            held = stack.enter_context(HeldClaim.begin(settings, claim, try_number=context.retry_number + 1, **options))
            held.connection = key

            def unresumed(kind: type[BaseException] | None, *_: object) -> None:
                if kind in (None, GeneratorExit) and not held.ended and runs.has_failed(context):
                    with suppress(JetStreamError):  # it is released next
                        held.fail(f"Dagster refused or could not store an output of {runs.place(context)}")

            stack.push(unresumed)
            yield held

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[JetStreamResource]:  # noqa: ARG002
        """End the claims that are still held when Dagster tears the resource down.

        Raises:
            InvalidValue: ``console`` is invalid.
        """
        if self.console is not None:
            check_console(self.console)
        try:
            yield self
        finally:
            while self._held:
                self._held.pop().close()
