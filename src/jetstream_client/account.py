# SPDX-License-Identifier: Apache-2.0
"""The account's use of JetStream, and its limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import JetStreamNotEnabled, JetStreamNotEnabledForAccount, PermissionDenied, promised

if TYPE_CHECKING:
    from jetstream_client.wire.settings import ConnectionSettings

_USE = ("memory", "storage", "streams", "consumers")
_LIMITS = ("max_memory", "max_storage", "max_streams", "max_consumers")


@dataclass(frozen=True)
class AccountLimits:
    """The limits of the account; -1 means no limit. ``raw`` also contains less common limits (``max_ack_pending``, …).

    max_memory:     largest number of bytes in memory streams.
    max_storage:    largest number of bytes in file streams.
    max_streams:    largest number of streams.
    max_consumers:  largest number of consumers.
    """

    raw: dict[str, Any] = field(repr=False)
    max_memory: int
    max_storage: int
    max_streams: int
    max_consumers: int


@dataclass(frozen=True)
class AccountInfo:
    """The answer to ``INFO`` (nats-server ``JetStreamAccountStats``). The numbers are totals of all tiers; ``raw`` is
    the server's answer.

    limits:     limits of the account.
    memory:     bytes of messages in memory streams.
    storage:    bytes of messages in file streams.
    streams:    number of streams.
    consumers:  number of consumers.
    """

    raw: dict[str, Any] = field(repr=False)
    limits: AccountLimits
    memory: int
    storage: int
    streams: int
    consumers: int

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> AccountInfo:
        """Parse the answer. Raises ProtocolError if a required field is missing."""
        with promised("the answer to INFO"):
            limits = AccountLimits(raw["limits"], *(int(raw["limits"][name]) for name in _LIMITS))
            return cls(raw, limits, *(int(raw[name]) for name in _USE))

    @property
    def domain(self) -> str:
        """The JetStream domain; empty if there is none."""
        return str(self.raw.get("domain") or "")

    @property
    def api(self) -> dict[str, Any]:
        """Number of API requests (``total``) and of refused requests (``errors``) since the server started, and the API
        level (``level``)."""
        api = self.raw.get("api")
        return dict(api) if isinstance(api, dict) else {}

    @property
    def level(self) -> int:
        """API level (ADR-44) of the server that answered: 0 if it is older than nats-server 2.11, otherwise 1 or
        more."""
        level = self.api.get("level")
        return level if type(level) is int else 0

    @property
    def reserved_memory(self) -> int:
        """Bytes that memory streams with ``max_bytes`` have reserved."""
        return int(self.raw.get("reserved_memory") or 0)

    @property
    def reserved_storage(self) -> int:
        """Bytes that file streams with ``max_bytes`` have reserved."""
        return int(self.raw.get("reserved_storage") or 0)

    @property
    def tiers(self) -> dict[str, Any]:
        """Use and limits of each tier (``R1``, ``R3``), if the account has tiers."""
        return dict(self.raw.get("tiers") or {})


def without_jetstream(settings: ConnectionSettings, refusal: JetStreamNotEnabled) -> str:
    """Return the reason why JetStream does not answer on a working connection, with a remedy."""
    if isinstance(refusal, JetStreamNotEnabledForAccount):
        return (
            f"JetStream is not enabled for the account of this user (connected with {settings.kind}); enable it on the "
            "server"
        )
    if settings.domain:
        return (
            f"no server answers for the JetStream domain {settings.domain!r}; correct 'domain', or connect the server "
            "to this domain with a leaf node"
        )
    if settings.api_prefix:
        return (
            f"no server answers for the JetStream API prefix {settings.api_prefix!r}; correct api_prefix, or "
            "import the API with this prefix into the account"
        )
    return (
        "JetStream is not enabled on this server; enable it, name another server in 'servers' or 'host', or set "
        "'domain' if JetStream is behind a leaf node"
    )


def no_inbox(settings: ConnectionSettings, refusal: PermissionDenied) -> str:
    """Return the error text for a user without the permission to subscribe to answers, with a remedy."""
    return f"{refusal}, or set inbox_prefix (now {settings.inbox_prefix!r}) to a prefix with this permission"
