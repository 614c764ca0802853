# SPDX-License-Identifier: Apache-2.0
"""The ledger's reserve: messages whose only purpose is to occupy storage, so that room can be made when it is full.

Nothing is acknowledged before the ledger has recorded it. When the storage of the account or the server is full, the
server refuses that record, and without acknowledgements a work-queue or interest stream never makes room. So a refused
write frees one part of the reserve after the other, and the acknowledgements that follow make room for the reserve.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import (
    ApiError,
    JetStreamError,
    NoStreamResponse,
    PermissionDenied,
    StreamNameInUse,
    StreamNotFound,
)
from jetstream_handoff.rules import roles
from jetstream_handoff.rules.storage import WAY_OUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetstream_client.context import JetStream
    from jetstream_client.info import StreamInfo

log = logging.getLogger(__name__)

PARTS = 8
"""How many messages the reserve has. Each frees room for several writes of a usual record."""
_PART = 128 << 10
"""The size of a message, in bytes, or what the server accepts. The server refuses a write that does not fit as a whole,
even if it replaces a larger one, so all parts together exceed the largest record."""
_AROUND = 1 << 10
"""How many bytes of ``max_payload`` a part leaves free for its headers."""


class Reserve:
    """The reserve of one ledger: the stream ``KV_<ledger>_reserve`` with ``PARTS`` messages.

    js:       the context.
    ledger:   the name of the ledger.
    sent_to:  returns where a message to a subject of this ledger is sent, which depends on the domain.
    """

    def __init__(self, js: JetStream, ledger: str, sent_to: Callable[[str], str]) -> None:
        self.stream = js.stream(f"KV_{ledger}_reserve")
        self.used = False
        """Whether a part was freed here and not filled again."""
        self._js = js
        self._subject = f"$KV.{ledger}_reserve."
        self._sent_to = sent_to

    @property
    def names(self) -> tuple[str, str]:
        """The names of the stream, and of the subject to which a part is sent."""
        return self.stream.name, self._sent_to(f"{self._subject}0")

    async def ensure(self, replicas: int) -> None:
        """Create the stream if it does not exist, and fill it. Without a reserve the ledger works, too, until storage
        is full, so an error is only logged."""
        try:
            if await roles.denied(self._js.connection, [self._info_request]):
                raise PermissionDenied(self._info_request.subject)
            info = await self._created(replicas)
            if info.state["messages"] < PARTS:
                await self.fill()
        except JetStreamError as error:
            log.warning(
                "the ledger has no complete reserve, stream %s (%s): if storage becomes full, nothing can be settled "
                "until it has room",
                self.stream.name,
                error,
            )

    async def _created(self, replicas: int) -> StreamInfo:
        try:
            return await self.stream.info()
        except StreamNotFound:
            log.info("creating the ledger's reserve, stream %s", self.stream.name)
        try:
            await self._js.create_stream(self._config(replicas))
        except StreamNameInUse:
            log.info("stream %s was created by another client in the meantime", self.stream.name)
        return await self.stream.info()

    @property
    def _info_request(self) -> roles.Need:
        return roles.request(self._js.settings.prefix, f"STREAM.INFO.{self.stream.name}")

    def _config(self, replicas: int) -> dict[str, Any]:
        return {
            "name": self.stream.name,
            "description": "storage that airflow-provider-nats-jetstream frees to settle claims when it is full",
            "subjects": [f"{self._subject}*"],
            "storage": "file",
            "num_replicas": replicas,
            "max_msgs_per_subject": 1,
            "discard": "new",
        }

    async def fill(self) -> None:
        """Write every part, which replaces those that exist.

        Raises:
            JetStreamError: a part was refused, for example because storage is full.
        """
        for number in range(PARTS):
            await self.write(number)
        self.used = False

    async def write(self, number: int = 0) -> None:
        """Write one part. Raises JetStreamError."""
        size = max(0, min(_PART, self._js.connection.max_payload - _AROUND))
        await self._js.publish(self._sent_to(f"{self._subject}{number}"), bytes(size), retry_attempts=0)

    async def fill_again(self) -> None:
        """Fill the reserve if it was used here, after acknowledgements have made room. An error is only logged, because
        the next take fills the reserve."""
        if not self.used:
            return
        try:
            await self.fill()
        except JetStreamError as error:
            log.warning("the ledger's reserve, stream %s, could not be filled again: %s", self.stream.name, error)

    async def free(self) -> bool:
        """Free one part. Returns False if there is none, or if this user is not permitted to free it."""
        try:
            for keep in (*range(PARTS - 1, 0, -1), None):
                if freed := await self.stream.purge(keep=keep):
                    self.used = True
                    text = "storage is full: freed %d of %d parts of the ledger's reserve, stream %s; %s"
                    log.warning(text, freed, PARTS, self.stream.name, WAY_OUT)
                    return True
        except (PermissionDenied, NoStreamResponse, ApiError) as error:
            log.warning("the ledger's reserve, stream %s, could not be freed: %s", self.stream.name, error)
        return False
