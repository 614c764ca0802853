# SPDX-License-Identifier: Apache-2.0
"""The hook: access to JetStream through an Airflow connection, for tasks and triggers, and holding a claim in a
task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import airflow_nats_jetstream.airflow_version  # noqa: F401 - an older Airflow lacks what is imported next

# isort: split

from airflow.sdk import BaseHook

from airflow_nats_jetstream.airflow_connection import DEFAULT_CONN_ID, check_connection, settings_of, shared_lookup
from airflow_nats_jetstream.compat import amask_secret, connection_form, mask_secret
from airflow_nats_jetstream.get_provider_info import CONNECTION_FIELDS, FIELD_BEHAVIOUR
from airflow_nats_jetstream.held.one_claim import one_claim
from airflow_nats_jetstream.masks import masks
from airflow_nats_jetstream.owner import current_task
from airflow_nats_jetstream.signals import instruments
from airflow_nats_jetstream.spark.application import report
from airflow_nats_jetstream.tracebacks import Brief
from jetstream_client.errors import InvalidValue
from jetstream_client.stores.reference import MAX_SIZE, Objects
from jetstream_client.wire.settings import ConnectionSettings
from jetstream_handoff import portal
from jetstream_handoff.console import check_console
from jetstream_handoff.durations import LONGEST_HOLD
from pyspark_jetstream.held_claim import HeldClaim

if TYPE_CHECKING:
    from airflow.sdk import Connection
    from nats.js import JetStreamContext

    from jetstream_client.context import JetStream
    from jetstream_client.read.message import StoredMessage
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.ledger.record import Receipt
    from jetstream_handoff.rules.missing import Missing

Result = TypeVar("Result")

_LOOK_UP_WITHIN = 30.0  # seconds


class JetStreamHook(BaseHook):
    """Access to JetStream through an Airflow connection of type ``nats``.

    nats_conn_id:  the id of the Airflow connection, whose fields docs/reference/connection.md describes. Default
                   ``nats_default``.
    domain:        the JetStream domain to use instead of the connection's. Default None.
    api_prefix:    the prefix of the JetStream API to use instead of the connection's. Default None.
    """

    conn_name_attr = "nats_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "nats"
    hook_name = "NATS JetStream"

    def __init__(
        self, nats_conn_id: str = default_conn_name, *, domain: str | None = None, api_prefix: str | None = None
    ) -> None:
        super().__init__()
        instruments.listen()
        self.nats_conn_id = nats_conn_id
        self._domain = domain
        self._api_prefix = api_prefix

    @property
    def settings(self) -> ConnectionSettings:
        """The settings of the connection. Their credentials are looked up again when a server refuses them. Raises
        InvalidValue for a field that is invalid or contradicts another field."""
        connection = self.get_connection(self.nats_conn_id)
        mask_secret(masks(connection))
        return replace(self._settings(connection), source=lambda: self.settings)

    def get_conn(self) -> ConnectionSettings:
        """Return the settings. To connect, use :meth:`context` or :meth:`run`, because a connection belongs to one
        event loop."""
        return self.settings

    def export_settings(self) -> str:
        """Let Spark find the settings of the connection: programs that this process starts get them, with their
        secrets, in their environment. A held claim does this, too. Call it before the session starts.

        Returns: the name of the connection, for the option ``connection`` of Spark.
        """
        return self.settings.to_environment(self.nats_conn_id)

    @property
    def console(self) -> str:
        """The connection's field ``console``: the address of a page, with the placeholders ``{stream}``, ``{consumer}``
        and ``{claim}``; empty if the field is empty. Raises InvalidValue if the field is invalid."""
        return check_console(self.get_connection(self.nats_conn_id).extra_dejson.get("console") or None)

    @asynccontextmanager
    async def context(self) -> AsyncIterator[JetStream]:
        """Connect, and yield a JetStream context, for asynchronous code. Raises ConnectionFailed."""
        from jetstream_client import connect

        async with connect(await self._looked_up()) as js:
            yield js

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[JetStream]:
        """Yield a JetStream context on a shared connection: all users of one event loop with the same settings use the
        same connection.

        The connection is closed when its last user has finished. Raises ConnectionFailed.
        """
        settings = await self._looked_up()
        from jetstream_client.shared import share

        async with share(settings) as js:
            yield js

    @asynccontextmanager
    async def nats_py(self) -> AsyncIterator[JetStreamContext]:
        """Connect with nats-py, and yield its JetStream context, for its key-value and object stores:
        ``await js.key_value("settings")``. Install nats-py, because this package does not install it.

        The connection is nats-py's own. It does not look up credentials again, and a connection to NATS with TLS needs
        ``tls_handshake_first``: otherwise nats-py sends the credentials without TLS to a server that offers none.

        Raises:
            ModuleNotFoundError: nats-py is not installed.
            InvalidValue: the connection has a domain or an API prefix, which nats-py's stores ignore when they write;
                or TLS without ``tls_handshake_first``.
            ConnectionFailed: no server accepted the connection in time.
        """
        settings = await self._looked_up()
        from airflow_nats_jetstream.nats_py import connected

        async with connected(settings) as js:
            yield js

    def run(self, function: Callable[[JetStream], Awaitable[Result]]) -> Result:
        """Connect, await ``function(js)`` and return its result, for synchronous code: ``hook.run(lambda js: …)``.

        function:  called with a JetStream context; returns an awaitable.

        Raises:
            ConnectionFailed: no connection could be made.
            JetStreamError: an error that the function raised.
        """
        with Brief():
            return portal.run(self.settings, function)

    def committed(self, stream: str, consumer: str, since: datetime | None = None) -> list[Receipt]:
        """Return the receipts of claims that were settled as done, ordered by sequence. Only the output of the attempts
        that these receipts name counts.

        In each receipt, ``processed`` contains the sequences that the attempt processed, ``rejected`` contains the
        sequences that it rejected, which became dead letters, and ``skipped`` contains the sequences that it skipped,
        because their messages no longer existed.

        stream:    the name of the stream.
        consumer:  the name of the consumer.
        since:     only the claims that were settled at this time or later, by the server's clock; the time needs a time
                   zone. Default: all whose receipts are kept, for 90 days.

        Raises:
            InvalidValue: ``since`` has no time zone.
            LedgerUnavailable: the ledger does not exist or cannot be read.
            ServerTooOld: ``since`` is set, and the server is older than nats-server 2.11.
            StreamNotFound, ConsumerNotFound: no claim was settled, and the stream or the consumer does not exist.
        """
        from jetstream_handoff.ledger.ledger import Ledger

        return self.run(lambda js: Ledger(js, stream, consumer).committed(since))

    def messages(
        self, claim: Claim | Mapping[str, Any], *, objects: str | None = None, max_object_size: int = MAX_SIZE
    ) -> Iterator[StoredMessage]:
        """Return an iterator over exactly the claimed messages, without Spark. It neither holds nor settles the claim.

        claim:    the claim, or its JSON value as the pull sensor returned it.
        objects:  the name of the object store with the payloads of messages that refer to an object. Default None:
                  these messages are read as they are.
        max_object_size: the largest object that is read, in bytes. Default 64 MiB.

        Raises:
            ClaimInvalid: the claim is invalid. Raised at once.
            ReferencesUnresolved: the objects of some messages cannot be read. Raised by the iterator after all other
                messages.
            StreamRecreated, DirectGetDisabled, ConnectionLost: the messages cannot be read. Raised by the iterator.
            MessagesMissing: some messages no longer exist. Raised by the iterator after all other messages.
        """
        from jetstream_handoff.claim import Claim
        from jetstream_handoff.hold.messages import messages

        wanted = None if objects is None else Objects(objects, max_object_size)
        found = claim if isinstance(claim, Claim) else Claim.from_json(claim)
        return messages(self.settings, found, objects=wanted)

    @contextmanager
    def processing(
        self,
        claim: Claim | Mapping[str, Any],
        *,
        try_number: int = 1,
        dead_letters: str | None = None,
        missing: Missing = "error",
    ) -> Iterator[HeldClaim]:
        """Hold a claim while the block works on it, and settle it with ``held.value`` when the block ends.

        claim:         the claim, or its JSON value as the pull sensor returned it.
        try_number:    the number of the try, which becomes part of the attempt's token. Default 1.
        dead_letters:  the name of the stream for messages that the block rejects. Default None: ``DEAD_<stream>``.
        missing:       what reading the claim does with messages that no longer exist: ``"error"`` (default) fails;
                       ``"skip"`` reads the others, and the claim's receipt names the missing ones.

        Any exception releases the claim without delay. Prefer ``@task.jetstream``, which also handles a kill, a skip
        and a retry of the task, and settles only after everything of the task that can still fail. In a plain
        ``@task``, only missing heartbeats show that the worker was killed. And the pull sensor does not notice that it
        was cleared without the tasks that prepare the work of a plain ``@task``.

        Raises:
            ClaimInvalid, AlreadyDone, OtherWork, Superseded, LedgerUnavailable: the claim cannot be held. Raised before
                the block.
            HoldLost, HeldByAnother, Superseded: the claim cannot be settled. Raised after the block.
        """
        with self.holding(claim, try_number=try_number, dead_letters=dead_letters, missing=missing) as held:
            yield held
            held.settle(held.value)

    @contextmanager
    def holding(
        self,
        claim: Claim | Mapping[str, Any],
        *,
        try_number: int,
        token: str | None = None,
        resume: bool = False,
        longest_hold: timedelta = LONGEST_HOLD,
        dead_letters: str | None = None,
        reprocess: bool = False,
        missing: Missing = "error",
        export: bool = True,
    ) -> Iterator[HeldClaim]:
        """Hold a claim, as :meth:`processing` does, for a block that itself settles, fails or releases the claim.

        claim:         the claim, or its JSON value as the pull sensor returned it.
        try_number:    the number of the try, which becomes part of the attempt's token.
        token:         the attempt's token, if it has to be known before the claim is held
                       (:func:`jetstream_handoff.claim.token_of`). Default None: a random one.
        resume:        whether to continue the hold of the attempt ``token``, which was handed over. Default False.
        longest_hold:  the longest time for which the claim is held. After that, the hold is lost. Default 24 hours.
        dead_letters:  the name of the stream for messages that the block rejects. Default None: ``DEAD_<stream>``.
        reprocess:     whether to process a settled claim again, instead of raising AlreadyDone. Default False.
        missing:       as for :meth:`processing`.
        export:        whether programs that the block starts find the connection's settings, with its secrets, in their
                       environment, as Spark's workers need them. Default True.

        Raises:
            ClaimInvalid, AlreadyDone, OtherWork, Superseded, LedgerUnavailable: the claim cannot be held. Raised before
                the block.
            MessagesMissing: with ``reprocess``, the stream no longer contains all of the messages, and ``missing`` is
                ``"error"``.
        """
        with Brief():
            settings = self.settings
            claim = one_claim(claim, self.run)
        if export:
            settings.to_environment(self.nats_conn_id)
        with (
            Brief(),
            instruments.processing(claim) as carried,
            HeldClaim.begin(
                settings,
                claim,
                try_number=try_number,
                token=token,
                resume=resume,
                longest_hold=longest_hold,
                dead_letters=dead_letters,
                reprocess=reprocess,
                missing=missing,
                holder=current_task(),
            ) as held,
        ):
            held.connection, held.trace_context = self.nats_conn_id, carried
            held.on_read(report)
            yield held

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Return the fields of the connection form, for Airflow 3.1, which does not find them in the provider info."""
        return connection_form(CONNECTION_FIELDS)

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return what the form does with Airflow's own fields, for Airflow 3.1."""
        return {name.replace("-", "_"): value for name, value in FIELD_BEHAVIOUR.items()}

    def test_connection(self) -> tuple[bool, str]:
        """Return the result that the Test button shows: see
        :func:`airflow_nats_jetstream.airflow_connection.check_connection`."""
        try:
            return check_connection(self.settings)
        except InvalidValue as wrong:
            return False, str(wrong)

    async def _looked_up(self) -> ConnectionSettings:
        """The settings, whose credentials are looked up again on this event loop."""
        loop = asyncio.get_running_loop()

        def again() -> ConnectionSettings:  # called in another thread
            return asyncio.run_coroutine_threadsafe(self._looked_up(), loop).result(_LOOK_UP_WITHIN)

        return replace(self._settings(await shared_lookup(self.nats_conn_id, self._lookup)), source=again)

    @classmethod
    async def _lookup(cls, conn_id: str) -> Connection:
        """Look up an Airflow connection, and register its secrets so that Airflow masks them in logs."""
        connection = await cls.aget_connection(conn_id)
        await amask_secret(masks(connection))
        return connection

    def _settings(self, connection: Connection) -> ConnectionSettings:
        return settings_of(connection, domain=self._domain, api_prefix=self._api_prefix)
