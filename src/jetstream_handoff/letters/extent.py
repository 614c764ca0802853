# SPDX-License-Identifier: Apache-2.0
"""What an action on dead letters would include, in numbers: the preview of a replay and of a discard. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jetstream_client.quantities import number


@dataclass(frozen=True)
class Extent:
    """The dead letters that an action would include.

    count, size:  their number, and the bytes of their payloads.
    doubtful:     number of selected dead letters that the ledger does not confirm.
    unconfirmed:  whether the action includes those, too.
    """

    count: int = 0
    size: int = 0
    doubtful: int = 0
    unconfirmed: bool = False

    def plus(self, size: int, *, confirmed: bool) -> Extent:
        """Return the extent with one more selected dead letter.

        size:       bytes of its payload.
        confirmed:  whether the ledger confirms it.
        """
        if not (confirmed or self.unconfirmed):
            return replace(self, doubtful=self.doubtful + 1)
        return replace(self, count=self.count + 1, size=self.size + size, doubtful=self.doubtful + (not confirmed))

    def __str__(self) -> str:
        return f"{number(self.count, 'dead letter')} ({number(self.size, 'byte')})"

    @property
    def doubt(self) -> str:
        """Say how many the ledger does not confirm, as a sentence after a space; empty if it confirms all of them."""
        if not self.doubtful:
            return ""
        does = "includes" if self.unconfirmed else "leaves out"
        return (
            f" This {does} {self.doubtful:,} that the ledger does not confirm: usually what an attempt left that died."
        )
