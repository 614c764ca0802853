# SPDX-License-Identifier: Apache-2.0
"""The errors of tables: a branch of the tree in :mod:`jetstream_client.errors`.

TableError            root of the errors of tables
├── RowsInvalid       rows that cannot be appended for this claim, or do not fit the table
├── TooManyMalformed  more malformed messages in a claim than allowed
├── OtherMessage      a sequence that is in the table with a later time: a message of another stream
├── TableUnsuitable   a table whose properties do not allow that each message is in it once
└── TableFailed       the table could not be read or written; a retry may help
    └── TableBusy     other writers were faster, time and again
"""

from __future__ import annotations

from jetstream_client.errors import JetStreamError


class TableError(JetStreamError):
    """Root of the errors of tables."""


class RowsInvalid(TableError, ValueError):
    """The rows cannot be appended for this claim, or they do not fit the table. Nothing was written."""


class TooManyMalformed(TableError):
    """A claim has more malformed messages than allowed. None of them was rejected, and nothing was written."""


class OtherMessage(TableError):
    """The table contains a sequence of the claim with a later time: it is written from two streams of one name, or the
    server's clock was set back. Nothing was written."""


class TableUnsuitable(TableError):
    """The table, its catalog or its properties do not allow that each message is in it once."""


def elsewhere(name: str) -> TableUnsuitable:
    """The error for files of a table in a local folder that are not on this machine."""
    return TableUnsuitable(
        f"table {name} is in a local folder, and another machine has written its rows into its own folder of this "
        "name; keep the table in an object store or in a file system that all machines share"
    )


class TableFailed(TableError):
    """The table could not be read or written, or the outcome of a commit is unknown. A retry looks again."""


class TableBusy(TableFailed):
    """Other writers have committed first in every try."""


class Conflict(Exception):
    """Somebody else has committed since the look, or nobody knows whether this commit took place: look again.
    It reaches no caller."""
