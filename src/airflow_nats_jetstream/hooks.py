"""The hook: an Airflow connection as a JetStream context, and as what holds a claim for a synchronous task."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import airflow_nats_jetstream.airflow_version  # noqa: F401

# isort: split

from airflow.sdk import BaseHook
from airflow.sdk.log import amask_secret, mask_secret

from airflow_nats_jetstream import instruments
from airflow_nats_jetstream.airflow_connection import check_connection, check_console, masks, settings_of, shared_lookup
from airflow_nats_jetstream.held import HeldClaim
from airflow_nats_jetstream.tracebacks import Brief
from jetstream_client.errors import InvalidValue
from jetstream_client.wire.settings import ConnectionSettings, environment_name
from jetstream_handoff import portal
from jetstream_handoff.durations import LONGEST_HOLD

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from jetstream_client.context import JetStream
    from jetstream_client.read.message import StoredMessage
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.record import Receipt

Result = TypeVar("Result")


class JetStreamHook(BaseHook):
    """JetStream through an Airflow connection of type ``nats``.

    nats_conn_id:        the connection; its fields are those of the form, see docs/reference/connection.md.
    domain, api_prefix:  instead of the connection's.
    """

    conn_name_attr = "nats_conn_id"
    default_conn_name = "nats_default"
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
        """The connection's settings. Raises InvalidValue for fields that contradict each other."""
        connection = self.get_connection(self.nats_conn_id)
        mask_secret(masks(connection))
        return self._settings(connection)

    def get_conn(self) -> ConnectionSettings:
        """The settings: a connection belongs to an event loop, see :meth:`context` and :meth:`run`."""
        return self.settings

    @property
    def console(self) -> str:
        """The address of the page about a stream, with ``{stream}``, ``{consumer}`` and ``{claim}`` to fill in; empty
        without one. Raises InvalidValue."""
        return check_console(self.get_connection(self.nats_conn_id).extra_dejson.get("console") or None)

    @asynccontextmanager
    async def context(self) -> AsyncIterator[JetStream]:
        """A JetStream context, for asynchronous tasks and triggers. Raises ConnectionFailed."""
        from jetstream_client import connect

        async with connect(self._settings(await self._lookup(self.nats_conn_id))) as js:
            yield js

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[JetStream]:
        """:meth:`context` on one connection for all triggers of a process that have the same settings. It is closed
        with its last user. Raises ConnectionFailed."""
        settings = self._settings(await shared_lookup(self.nats_conn_id, self._lookup))
        from jetstream_client.shared import share

        async with share(settings) as js:
            yield js

    def run(self, function: Callable[[JetStream], Awaitable[Result]]) -> Result:
        """Return ``await function(js)`` to a synchronous task, on a separate connection: ``hook.run(lambda js: …)``."""
        with Brief():
            return portal.run(self.settings, function)

    def committed(self, stream: str, consumer: str) -> list[Receipt]:
        """The attempts that were settled as done, in the order of their sequences: the output that counts.

        Each has its ``processed`` sequences, and those that it ``rejected``: they are dead letters, not output.
        """
        from jetstream_handoff.ledger import Ledger

        return self.run(lambda js: Ledger(js, stream, consumer).committed())

    def messages(self, claim: Claim | Mapping[str, Any]) -> Iterator[StoredMessage]:
        """Exactly the claimed messages, for work without Spark. Reading neither holds nor settles the claim.

        Raises:
            ClaimInvalid: at once.
            StreamRecreated, DirectGetDisabled, ConnectionLost: while reading.
            MessagesMissing: after everything else was given.
        """
        from jetstream_handoff.claim import Claim
        from jetstream_handoff.messages import messages

        return messages(self.settings, claim if isinstance(claim, Claim) else Claim.from_json(claim))

    @contextmanager
    def processing(
        self, claim: Claim | Mapping[str, Any], *, try_number: int = 1, dead_letters: str | None = None
    ) -> Iterator[HeldClaim]:
        """Hold a claim while the block works on it; settle it when the block ends, with ``held.value`` as its value.

        ``dead_letters`` names the stream for what the block rejects, by default ``DEAD_<stream>``.

        Any exception releases it without delay. In a plain ``@task`` a killed worker is only noticed by the missing
        heartbeats: prefer ``@task.jetstream``, which Airflow can kill, skip and resume.

        Raises:
            ClaimInvalid, AlreadyDone, Superseded, LedgerUnavailable: before the block begins.
            HoldLost, HeldByAnother, Superseded: after it, when the claim could not be settled.
        """
        with self.holding(claim, try_number=try_number, dead_letters=dead_letters) as held:
            yield held
            held.settle(held.value)

    @contextmanager
    def holding(
        self,
        claim: Claim | Mapping[str, Any],
        *,
        try_number: int,
        longest_hold: timedelta = LONGEST_HOLD,
        dead_letters: str | None = None,
        reprocess: bool = False,
    ) -> Iterator[HeldClaim]:
        """As :meth:`processing`, but the block itself ends the claim: settles, fails or releases it.

        longest_hold:  a hold that lasts longer is lost.
        reprocess:     a claim that is settled is processed again instead of raising AlreadyDone; raises MessagesMissing
                       when its stream does not hold all of its messages any more.
        """
        from jetstream_handoff.claim import Claim

        with Brief():
            settings = self.settings
            claim = claim if isinstance(claim, Claim) else Claim.from_json(claim)
        # Spark's JVM and its local Python workers inherit it; the name makes Spark redact it.
        os.environ[environment_name(self.nats_conn_id)] = settings.to_json()
        with (
            Brief(),
            instruments.processing(claim) as carried,
            HeldClaim.begin(
                settings,
                claim,
                try_number=try_number,
                longest_hold=longest_hold,
                dead_letters=dead_letters,
                reprocess=reprocess,
            ) as held,
        ):
            held.connection, held.trace_context = self.nats_conn_id, carried
            yield held

    def test_connection(self) -> tuple[bool, str]:
        """What the Test button shows, see :func:`airflow_nats_jetstream.airflow_connection.check_connection`."""
        try:
            return check_connection(self.settings)
        except InvalidValue as wrong:
            return False, str(wrong)

    @classmethod
    async def _lookup(cls, conn_id: str) -> Connection:
        """Look a connection up, and tell Airflow what to hide of it in logs."""
        connection = await cls.aget_connection(conn_id)
        await amask_secret(masks(connection))
        return connection

    def _settings(self, connection: Connection) -> ConnectionSettings:
        return settings_of(connection, domain=self._domain, api_prefix=self._api_prefix)
