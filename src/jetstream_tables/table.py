# SPDX-License-Identifier: Apache-2.0
"""What all kinds of tables have in common: a description that costs nothing to make, and that can be printed."""

from __future__ import annotations

import logging
import random
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from jetstream_client.quantities import check_duration
from jetstream_tables.errors import Conflict, TableBusy
from jetstream_tables.secrets import forget_hidden

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from jetstream_handoff.hold.table import Appended, Origin, Rejected
    from jetstream_tables.append import Target

log = logging.getLogger(__name__)

_TRIES = 20
"""Each one that fails is a commit of somebody else in the meantime."""


class ExactTable(ABC):
    """A table that contains each message once. ``name`` names it in messages and logs, without a secret.

    extra:      the extra of this distribution that installs what it needs.
    libraries:  the modules of this extra.
    """

    name: str
    extra: ClassVar[str] = ""
    libraries: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @abstractmethod
    def target(self) -> Target:
        """The table as :func:`jetstream_tables.append.append` uses it."""

    @contextmanager
    def needed(self) -> Iterator[None]:
        """Let an error for a missing library say what to install."""
        try:
            yield
        except ModuleNotFoundError as missing:
            library = (missing.name or "").partition(".")[0]
            if library not in self.libraries:
                raise
            remedy = f"install airflow-provider-nats-jetstream[{self.extra}]"
            text = f"table {self.name} needs the package {library}, which is not installed; {remedy}"
            raise ModuleNotFoundError(text, name=library) from None

    def append(
        self, claim: Origin, rows: object, *, rejected: Rejected, every_message: bool, replace: bool = False
    ) -> Appended:
        """Append or replace rows. ``claim.append_to`` and ``claim.replace_in`` call this with the ``claim`` and their
        parameters ``rows``, ``rejected`` and ``every_message``; ``replace`` says which of the two it is."""
        try:
            with self.needed():
                from jetstream_tables.append import append

                target = self.target()
                return append(target, claim, rows, rejected=rejected, every_message=every_message, replace=replace)
        except Exception as error:
            forget_hidden(error)
            raise


@dataclass(frozen=True)
class Maintained:
    """What :meth:`FileTable.maintain` has done.

    merged:   small files whose rows are in larger ones now.
    removed:  snapshots of an Iceberg table, or files of a Delta table.
    """

    merged: int
    removed: int


class Maintainable(Protocol):
    """A table of one kind that consists of files."""

    def maintain(self, keep: timedelta) -> Maintained:
        """See :meth:`FileTable.maintain`. Raises Conflict if somebody else has committed."""


class FileTable(ExactTable):
    """A table of files, which become more with each claim, and each of them makes the next claim take longer."""

    @abstractmethod
    def maintainable(self) -> Maintainable:
        """The table as :meth:`maintain` uses it."""

    def maintain(self, keep: timedelta) -> Maintained:
        """Remove what only old versions of the table need, and merge small files. Claims can be appended at the same
        time. The rows stay the same, and so does what is known of their messages.

        keep:  how old versions are that readers can still see. A Delta table keeps files for 7 days at least, unless
               its property ``delta.deletedFileRetentionDuration`` says otherwise.

        Raises:
            InvalidValue: ``keep`` is no duration, or negative.
            TableBusy: other writers have committed first in every try.
            TableFailed: the table cannot be read or written.
        """
        check_duration("keep", keep)
        try:
            with self.needed():
                done = self._maintained(keep)
        except Exception as error:
            forget_hidden(error)
            raise
        log.info("table %s: %d small files were merged, %d old ones removed", self.name, done.merged, done.removed)
        return done

    def _maintained(self, keep: timedelta) -> Maintained:
        target = self.maintainable()
        for _ in range(_TRIES):
            try:
                return target.maintain(keep)
            except Conflict as conflict:
                log.info("table %s: %s; trying maintenance again", self.name, conflict)
                time.sleep(random.random())  # noqa: S311
        raise TableBusy(f"table {self.name}: other writers have committed first {_TRIES} times; maintain it later")
