# SPDX-License-Identifier: Apache-2.0
"""Which messages of a claim get their rows written, and whether each message is accounted for. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jetstream_client.sequences import Sequences
from jetstream_tables.errors import OtherMessage, RowsInvalid
from jetstream_tables.messages import Messages

if TYPE_CHECKING:
    from jetstream_tables.messages import Compared


@dataclass(frozen=True)
class Old:
    """Rows that are removed: all rows of messages.

    messages:  the messages, among them all that get new rows.
    reused:    those of their sequences that the table contains with earlier times, too, whose rows stay.
    since:     of a sequence that was reused, rows with this time or a later one are removed: microseconds since 1970.
    """

    messages: Messages
    reused: Sequences
    since: int


@dataclass(frozen=True)
class Decision:
    """What becomes of the messages of a claim.

    new:      those whose rows are written.
    already:  those whose rows are left out, or removed.
    found:    all whose rows are in the table and stay there.
    lost:     those that nobody accounts for.
    again:    those whose sequences are in the table with an earlier time, too: the stream has used them again.
    old:      the rows that are removed; None if none are.
    """

    new: Sequences
    already: Sequences
    found: Sequences
    lost: Sequences
    again: Sequences
    old: Old | None = None


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """What a claim asks of a table.

    claim:      the claim's id.
    sequences:  its messages.
    table:      the name of the table.
    rejected:   those that the work rejects, in this call or before.
    earlier:    those whose rows this attempt has given in earlier calls.
    replaces:   whether rows that are in the table are replaced.
    """

    claim: str
    sequences: Sequences
    table: str
    rejected: Sequences = field(default_factory=Sequences)
    earlier: Sequences = field(default_factory=Sequences)
    replaces: bool = False

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

    @staticmethod
    def samples(rows: Messages) -> Sequences:
        """The messages whose times have to be those of the server in any case: those of the first and the last row."""
        given = rows.sequences
        return Sequences.of([given.first, given.last]) if given else given

    def to_ask(self, rows: Messages, present: Messages) -> Sequences:
        """The messages whose times have to be those of the server, before anything is decided: those whose sequences
        are in the table, and :meth:`samples` of the rows.

        present:  as for :meth:`decide`.
        """
        return (self.sequences & present.sequences) | self.samples(rows)

    def decide(self, rows: Messages, present: Messages, stored: Messages) -> Decision:
        """Compare the rows with a look at the table.

        present:  the messages in the table that have the claim's stream and sequences in its range.
        stored:   those of :meth:`to_ask` that the server has, with its times.

        Raises:
            OtherMessage: a sequence is in the table with a later time.
            RowsInvalid: the rows have other times than the server, or a rejected message is in the table.
        """
        asked = stored.sequences
        if odd := Messages.of([rows.within(asked).table, stored.table]).twice():
            raise RowsInvalid(
                f"rows of message {odd.sequence} of claim {self.claim} have another timestamp than the server, which "
                f"stored it: {odd.first} and {odd.second}; keep the column timestamp of the claim's messages "
                "unchanged, because it identifies them, and give other times another name. If it is unchanged, the "
                "stream was restored from an older copy since the claim was read, and this message no longer exists"
            )
        without_row = asked - rows.sequences
        claimed = Messages.of([rows.table, stored.within(without_row).table]) if without_row else rows
        seen = present.compared(claimed)
        check_later(seen, self.claim, self.table)
        given, found = rows.sequences, seen.same & self.sequences
        again = (seen.earlier & self.sequences) - found
        if self.replaces:
            removed = found - self.earlier
            lost = self.sequences - self.rejected - given - self.earlier
            old = self._old(seen, claimed.within(given | removed)) if removed else None
            return Decision(given, removed, found - removed, lost, again, old)
        if late := self.rejected & found:
            raise RowsInvalid(
                f"messages {late} of claim {self.claim} are already in table {self.table} and cannot be rejected; "
                "delete their rows first"
            )
        lost = self.sequences - self.rejected - given - found - self.earlier
        return Decision(given - found, given & found, found, lost, again)

    def _old(self, seen: Compared, messages: Messages) -> Old:
        """What identifies the rows to remove. A table cannot look for a hundred thousand pairs of a sequence and a
        time, but for sequences, and for one time."""
        if not (reused := messages.sequences & seen.earlier):
            return Old(messages, reused, 0)
        (since, _), (_, before) = messages.span(reused), seen.before.span(reused)
        if before >= since:
            raise OtherMessage(
                f"messages {reused} of claim {self.claim} cannot be replaced in table {self.table}: it contains the "
                "same sequences of an earlier life of their stream, which had not ended when these were stored, "
                "because the server's clock was set back; delete the rows of one of them"
            )
        return Old(messages, reused, since)

    def unaccounted(self, lost: Sequences) -> RowsInvalid:
        """The error for messages that nobody accounts for."""
        return RowsInvalid(
            f"messages {lost} of claim {self.claim} have no row; reject them, or give every_message=False if they need "
            "none"
        )


def check_later(seen: Compared, claim: str, table: str) -> None:
    """Check that a table contains no message that was stored after one with the same sequence in the claim: nothing
    then tells the claim's other messages from those of another stream.

    Raises:
        OtherMessage: it contains one.
    """
    if odd := seen.later:
        raise OtherMessage(
            f"message {odd.sequence} of claim {claim} was stored at {odd.second}, but table {table} contains message "
            f"{odd.sequence} of a stream of this name that was stored later, at {odd.first}: two streams of one name, "
            "for example in two accounts, are written to this table, or the server's clock was set back; write each "
            "stream to a separate table, or delete the rows that do not count"
        )
