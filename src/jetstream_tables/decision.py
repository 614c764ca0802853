# SPDX-License-Identifier: Apache-2.0
"""Which messages of a claim get their rows written, and whether each message is accounted for. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jetstream_client.sequences import Sequences
from jetstream_tables.errors import OtherMessage, RowsInvalid

if TYPE_CHECKING:
    from jetstream_tables.messages import Messages


@dataclass(frozen=True)
class Decision:
    """What becomes of the messages of a claim.

    new:      those whose rows are written.
    already:  those whose rows are left out.
    found:    all that are in the table.
    lost:     those that nobody accounts for.
    """

    new: Sequences
    already: Sequences
    found: Sequences
    lost: Sequences


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """What a claim asks of a table.

    claim:      the claim's id.
    sequences:  its messages.
    table:      the name of the table.
    rejected:   those that the work rejects, in this call or before.
    earlier:    those whose rows this attempt has given in earlier calls.
    """

    claim: str
    sequences: Sequences
    table: str
    rejected: Sequences = field(default_factory=Sequences)
    earlier: Sequences = field(default_factory=Sequences)

    def check(self, rows: Messages) -> None:
        """Check the rows without a look at the table.

        Raises:
            RowsInvalid: a row belongs to no message that may have one.
        """
        given = rows.sequences
        if foreign := given - (self.sequences - self.rejected):
            raise RowsInvalid(
                f"rows of sequences {foreign} are not in claim {self.claim}, or were rejected; give only rows of "
                "messages of this claim, and reject a message or write its rows, not both"
            )
        if twice := given & self.earlier:
            raise RowsInvalid(
                f"messages {twice} of claim {self.claim} were in an earlier call of append_to for table {self.table}; "
                "give all rows of a message in one call, because they are in the table together or not at all"
            )

    def decide(self, rows: Messages, present: Messages, remembered: Sequences = Sequences()) -> Decision:  # noqa: B008
        """Compare the rows with a look at the table.

        present:     the messages of the claim's stream that have rows in the table.
        remembered:  messages that the table remembers without a row.

        Raises:
            OtherMessage: a sequence is in the table with another time.
            RowsInvalid: a rejected message is in the table.
        """
        found = (present.sequences | remembered) & self.sequences
        if differing := present.differing(rows):
            sequence, there, here = differing
            raise OtherMessage(
                f"message {sequence} of claim {self.claim} was stored at {here}, but table {self.table} contains "
                f"sequence {sequence} stored at {there}: they are two messages, because the stream was restored from "
                "an older copy, or its column timestamp was changed; write to another table, or delete the older rows "
                "if they do not count"
            )
        if late := self.rejected & found:
            raise RowsInvalid(
                f"messages {late} of claim {self.claim} are already in table {self.table} and cannot be rejected; "
                "delete their rows first"
            )
        given = rows.sequences
        lost = self.sequences - self.rejected - given - found - self.earlier
        return Decision(given - found, given & found, found, lost)

    def unaccounted(self, lost: Sequences) -> RowsInvalid:
        """The error for messages that nobody accounts for."""
        return RowsInvalid(
            f"messages {lost} of claim {self.claim} have no row; reject them, or give every_message=False if they need "
            "none"
        )
