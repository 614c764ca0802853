# SPDX-License-Identifier: Apache-2.0
"""What a held claim asks of a table, so that the claim knows no kind of table. :mod:`jetstream_tables` has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from jetstream_client.sequences import Sequences


@dataclass(frozen=True)
class Appended:
    """What :meth:`~jetstream_handoff.hold.blocking.BlockingHold.append_to` or
    :meth:`~jetstream_handoff.hold.blocking.BlockingHold.replace_in` did.

    new:      the sequences of the messages whose rows this call has written.
    already:  the sequences of the messages whose rows this call has left out, because they were in the table. When the
              answer to a commit was lost, messages that this call itself has written are among them. For
              ``replace_in``: the sequences of the messages whose earlier rows were removed.
    version:  the version of the table that contains all of them: Delta's version, Iceberg's snapshot id, None for a
              database.
    """

    new: Sequences
    already: Sequences
    version: int | None = None


Rejected = Callable[[], Mapping[str, Sequences]]
"""Returns the sequences to reject, by reason. Called once, after the rows were read: one stream of messages may be the
source of both."""


class Stored(Protocol):
    """Messages with the times at which the server stored them, RFC 3339, as columns of equal length."""

    @property
    def sequences(self) -> Sequence[int]: ...
    @property
    def times(self) -> Sequence[bytes]: ...


class Origin(Protocol):
    """Where rows come from: a held claim (:class:`~jetstream_handoff.hold.blocking.BlockingHold`), or a micro-batch of
    a streaming query."""

    id: str
    stream: str
    sequences: Sequences
    appended: dict[str, Sequences]
    stored: dict[str, Sequences]

    @property
    def rejected(self) -> Sequences: ...
    def stored_messages(self, sequences: Sequences, /) -> Iterable[Stored]: ...
    def skipped(self) -> Sequences: ...
    def reject(self, sequences: Sequences, reason: str, /) -> None: ...
    def fence(self) -> None: ...
    def check_held(self) -> None: ...


class Table(Protocol):
    """A table that contains each message once."""

    @property
    def name(self) -> str:
        """The table in messages and logs, without a secret."""

    def append(
        self, claim: Origin, rows: object, *, rejected: Rejected, every_message: bool, replace: bool = False
    ) -> Appended:
        """Append the rows of those messages of a claim that are not in the table, in one commit. Keep
        ``claim.appended`` and ``claim.stored``.

        rejected:  returns the messages to reject. The table calls ``claim.reject`` with them, after it has found that
                   they are not in the table and before it commits.
        replace:   whether to remove the rows of the claim's messages that are in the table, in the same commit. The
                   table calls ``claim.fence`` between its look and the commit.
        """
