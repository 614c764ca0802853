# SPDX-License-Identifier: Apache-2.0
"""What all kinds of tables have in common: a description that costs nothing to make, and that can be printed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from jetstream_tables.secrets import forget_hidden

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetstream_handoff.hold.table import Appended, Origin, Rejected
    from jetstream_tables.append import Target


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
