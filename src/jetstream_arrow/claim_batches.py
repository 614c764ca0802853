# SPDX-License-Identifier: Apache-2.0
"""A claim that is read into Arrow batches in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from jetstream_arrow.columns import OBJECT_ERROR, TYPES, schema
from jetstream_arrow.reading import AUTO, Reading
from jetstream_client.errors import InvalidValue
from jetstream_client.wire.blocking import Wire
from jetstream_handoff.errors import HoldLost

if TYPE_CHECKING:
    from jetstream_client.stores.reference import Objects
    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.rules.missing import Missing


@dataclass(frozen=True)
class Claimed:
    """The messages of a claim, as :class:`~jetstream_arrow.reading.Reading` needs them.

    connection:  the settings of the connection.
    missing:     what to do with messages that no longer exist.
    token:       the token of the attempt under which skipped messages are named.
    objects:     the objects that are read in place of the payloads that refer to them.
    """

    claim: Claim
    connection: ConnectionSettings
    missing: Missing
    token: str
    subjects: tuple[str, ...] = ()
    filter: str | None = None
    read_mode: str = AUTO
    objects: Objects | None = None

    @property
    def stream(self) -> str:
        return self.claim.stream

    def settings(self) -> ConnectionSettings:
        return self.connection


class ClaimBatches:
    """An iterator of the batches of a claim. It reads only what the next batch needs; meanwhile, the server sends ahead
    as much as the outstanding requests ask for.

    After an error, each call raises the same error: a library that asks once more must not take it for the end.
    """

    def __init__(self, what: Claimed, columns: Sequence[str] | None, check: Callable[[], object]) -> None:
        """Plan the read. Blocking.

        columns:  the names of the columns, in order; None for all.
        check:    called before each batch and after an error; raises an error if reading has to stop.

        Raises:
            InvalidValue: there is no such column, or objects are read and ``data`` is left out.
            StreamNotFound, StreamRecreated, DirectGetDisabled, ConnectionFailed: the stream cannot be read.
        """
        names = _checked(columns)
        if what.objects is not None:
            if "data" not in names:
                raise InvalidValue("columns", columns, "objects are read into the column 'data'; add it")
            names = [*names, OBJECT_ERROR]
        self._schema = schema(names)
        self._claim, self._check = what.claim, check
        reading = Reading(what, self._schema.names)
        with Wire.open(what.connection) as wire:
            (part,) = reading.claimed(wire, what.claim, 1)
        self._batches = reading.batches(part)
        self._done = False
        self._failed: BaseException | None = None

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schema, self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._failed is not None:
            raise self._failed
        try:
            self._check()
            return next(self._batches)
        except StopIteration:
            self._done = True
            raise
        except BaseException as error:
            self._failed = error
            self._check_after(error)
            raise

    def _check_after(self, error: BaseException) -> None:
        try:
            self._check()
        except HoldLost as lost:
            self._failed = lost
            raise lost from error

    def end(self) -> None:
        """Close the connection. If messages are left, reading fails from now on."""
        if not self._done and self._failed is None:
            self._failed = HoldLost(
                f"claim {self._claim.id} is no longer held, and not all of its batches have been read; read them before"
                " the function that has the claim returns"
            )
        with suppress(ValueError):  # another thread is reading the last batch that it will get
            self._batches.close()


def _checked(columns: Sequence[str] | None) -> Sequence[str]:
    names = list(TYPES) if columns is None else columns
    if isinstance(names, str) or not names or not set(names) <= TYPES.keys() or len(set(names)) < len(names):
        raise InvalidValue("columns", columns, f"give a list of names, each once, of {', '.join(TYPES)}")
    return names
