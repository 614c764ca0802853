# SPDX-License-Identifier: Apache-2.0
"""Reading stored messages into Arrow batches: dividing sequences into parts, and reading each part. Spark's driver and
executors do this, and so does a claim that is read without Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from jetstream_arrow.columns import record_batch, replaced
from jetstream_client.errors import ConsumerRefused, StreamRecreated
from jetstream_client.filters import Filters
from jetstream_client.read import by_consumer, direct
from jetstream_client.read.message import RawMessages
from jetstream_client.sequences import Sequences
from jetstream_client.stores.objects import resolved, unresolved
from jetstream_handoff.ledger.skipped import report
from jetstream_handoff.rules.missing import reading

if TYPE_CHECKING:
    import pyarrow as pa

    from jetstream_client.info import StreamInfo
    from jetstream_client.stores.reference import Objects
    from jetstream_client.wire.blocking import Wire
    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.rules.missing import Missing

log = logging.getLogger(__name__)

AUTO, DIRECT, CONSUMER = "auto", "direct", "consumer"
"""How to read. ``auto`` chooses a consumer where that is faster and can be used, and direct get otherwise."""

ROWS, BYTES = 2_000, 1 << 20
"""An Arrow batch is complete when it has this many rows, or this many bytes of data and headers. With 10,000 rows,
batches of small messages no longer fit into the processor's caches, and reading took a fifth longer. With a quarter of
these bytes, Spark spends so much time on each batch that messages of 64 KiB took a third longer. Messages that arrive
together are not split, so a batch can exceed both limits."""

WORTH_A_CONSUMER = 1_000
"""With ``auto``, a part is read by a consumer only if it has at least this many sequences."""
SPARSEST = 2.5
"""With ``auto``, a part is read by a consumer only if at most so many messages are delivered for each wanted one. For
each delivery, server and reader together need 5 µs, and 13 µs for a direct get of one message (measured)."""
WORTH_HEADERS_ONLY = 1_024
"""If no column needs the data, a consumer leaves it out, provided that the stream's messages have at least this many
bytes on average. For smaller messages, the header that the server then adds costs more than the data."""
FILTERS = 2_000
"""The largest number of filters that a consumer gets: the server compares each with each, for 0.7 s with so many and
for 12 s with 10,000."""
_SUBJECTS = 100_000
"""For so many subjects it is remembered whether they match several filters."""


class What(Protocol):
    """What to read.

    stream:     the name of the stream.
    subjects:   filters, of which a message must match at least one; empty for all messages.
    filter:     the only one of ``subjects``, which direct get applies; None if there are none or several. A consumer
                applies several, unless they overlap or are more than :data:`FILTERS`.
    claim:      the claim to which the messages belong, if any.
    read_mode:  one of :data:`AUTO`, :data:`DIRECT` and :data:`CONSUMER`.
    missing:    what to do with messages that no longer exist.
    token:      the token of the attempt under which skipped messages of the claim are named.
    objects:    the objects that are read in place of the payloads that refer to them; None for none.
    """

    @property
    def stream(self) -> str: ...
    @property
    def subjects(self) -> tuple[str, ...]: ...
    @property
    def filter(self) -> str | None: ...
    @property
    def claim(self) -> Claim | None: ...
    @property
    def read_mode(self) -> str: ...
    @property
    def missing(self) -> Missing: ...
    @property
    def token(self) -> str: ...
    @property
    def objects(self) -> Objects | None: ...
    def settings(self) -> ConnectionSettings:
        """Return the settings of the connection. A process that reads a part may not have planned it."""


@dataclass(frozen=True)
class Part:
    """One part of a read.

    sequences:     the sequences to read; with a filter, the range in which to look for matching messages.
    created:       when the stream was created.
    density:       the expected share of sequences whose messages match the filter.
    by_consumer:   whether to read with a consumer instead of direct get.
    headers_only:  whether the consumer delivers messages without their data.
    servers:       the servers that a server has named when the part was planned. A process that reads the part may
                   have received its settings before.
    """

    sequences: Sequences
    created: str
    density: float = 1.0
    by_consumer: bool = False
    headers_only: bool = False
    servers: tuple[str, ...] = ()


class Reading:
    """Divides sequences into parts, and reads a part.

    what:     what to read.
    columns:  the names of the columns, in order.
    """

    def __init__(self, what: What, columns: Sequence[str]) -> None:
        self._what = what
        self._columns = columns

    def batches(self, part: Part) -> Generator[pa.RecordBatch]:
        """Read a part. Blocking.

        Raises:
            JetStreamError: as :func:`jetstream_client.read.direct.read`.
            HoldLost: messages of a claim were to be skipped, and the attempt does not hold the claim.
        """
        if not part.sequences:
            return
        several = _selects(self._what.subjects) if len(self._what.subjects) > 1 else None
        gathered: list[RawMessages] = []
        errors: list[str | None] = []
        rows = size = 0
        damaged: list[int] = []
        for messages, reasons in self._resolved(_matching(self._messages(part), several)):
            gathered.append(messages)
            errors += reasons
            damaged += replaced(messages, self._columns)
            rows += len(messages)
            size += sum(map(len, messages.data)) + sum(map(len, messages.headers))
            if rows >= ROWS or size >= BYTES:
                yield self._batch(gathered, errors)
                gathered, errors, rows, size = [], [], 0, 0
        if gathered:
            yield self._batch(gathered, errors)
        if damaged:
            text = (
                "%d messages of stream %s have a subject or headers that are not UTF-8, and the columns have U+FFFD "
                "instead of these bytes: sequences %s"
            )
            log.warning(text, len(damaged), self._what.stream, Sequences.of(damaged))

    def _batch(self, gathered: Sequence[RawMessages], errors: Sequence[str | None]) -> pa.RecordBatch:
        return record_batch(RawMessages.joined(gathered), self._what.stream, self._columns, errors)

    def _resolved(self, batches: Iterator[RawMessages]) -> Iterator[tuple[RawMessages, Sequence[str | None]]]:
        """The messages with the objects that they refer to, and why some of these cannot be read."""
        if self._what.objects is None:
            batches = unresolved(batches, self._what.stream) if "data" in self._columns else batches
            return ((batch, ()) for batch in batches)
        return resolved(self._what.settings(), batches, self._what.objects)

    def _messages(self, part: Part) -> Iterator[RawMessages]:
        return reading(self._stored(part), self._what.missing, self.skip)

    def skip(self, missing: Sequences) -> None:
        """Go on without messages that no longer exist. Those of a claim are named in the ledger first."""
        what = self._what
        if what.claim is not None:
            report(what.settings(), what.claim, what.token, missing)
        else:
            text = "%d messages of stream %s no longer exist and are skipped: sequences %s"
            log.warning(text, missing.count, what.stream, missing)

    def _stored(self, part: Part) -> Iterator[RawMessages]:
        what, settings = self._what, self._what.settings()
        settings.learn(part.servers)
        wanted = (settings, what.stream, part.sequences, part.created)
        if part.by_consumer:
            try:
                subjects = () if len(what.subjects) > FILTERS or _overlap(what.subjects) else what.subjects
                yield from by_consumer.read(*wanted, subjects=subjects, headers_only=part.headers_only)
            except ConsumerRefused as refused:  # nothing has been read yet
                if what.read_mode == CONSUMER:
                    raise
                log.info("reading by direct get, because a consumer cannot be used: %s", refused)
            else:
                return
        yield from direct.read(*wanted, subject=what.filter, density=part.density)

    def present(self, wire: Wire, info: StreamInfo, first: int, last: int) -> Sequences:
        """Return the sequences from ``first`` to ``last`` that the stream contains. Without a filter, sequences that
        are already deleted are left out, so only a message that is deleted after this call counts as missing."""
        if self._what.filter is None:
            return direct.existing(wire, info, first, last)
        first, last = max(first, info.state["first_seq"]), min(last, info.state["last_seq"])
        return Sequences.from_ranges([(first, last)] if info.state["messages"] and first <= last else [])

    def claimed(self, wire: Wire, claim: Claim, count: int) -> list[Part]:
        """Divide the messages of a claim into at most ``count`` parts.

        Raises:
            StreamNotFound, StreamRecreated, DirectGetDisabled: the stream cannot be read.
        """
        info = direct.stream_info(wire, claim.stream)
        if claim.stream_created != info.created:
            raise StreamRecreated(
                f"claim {claim.id} cannot be read, because stream {claim.stream!r} was recreated at "
                f"{info.created}, but the claim belongs to the stream created at {claim.stream_created}"
            )
        return self.parts(wire, info, claim.sequences, count)

    def parts(self, wire: Wire, info: StreamInfo, wanted: Sequences, count: int) -> list[Part]:
        """Divide ``wanted`` into at most ``count`` parts whose sizes differ by at most one sequence. If ``wanted`` is
        empty, return one empty part, because without any partition Spark would create one and read it."""
        if not wanted:
            return [Part(wanted, info.created)]
        density = self._density(wire, info)
        parts = list(_split(wanted, min(wanted.count, count)))
        average = info.state["bytes"] / max(1, info.state["messages"])
        headers_only = "data" not in self._columns and average >= WORTH_HEADERS_ONLY
        servers = wire.settings.named
        return [
            Part(part, info.created, density, self._by_consumer(info, part), headers_only, servers) for part in parts
        ]

    def _by_consumer(self, info: StreamInfo, part: Sequences) -> bool:
        """Return whether to read a part with a consumer. With ``auto``, the stream must have ``limits`` retention."""
        if self._what.read_mode != AUTO:
            return self._what.read_mode == CONSUMER
        return info.config.get("retention", "limits") == "limits" and worth_a_consumer(part)

    def _density(self, wire: Wire, info: StreamInfo) -> float:
        """Return the expected share of the stream's sequences whose messages match the filter. Direct get uses it to
        choose how many sequences one request covers."""
        if self._what.filter is None:
            return 1.0
        span = info.state["last_seq"] - info.state["first_seq"] + 1
        answer = wire.api(f"STREAM.INFO.{self._what.stream}", {"subjects_filter": self._what.filter})
        subjects = answer["state"].get("subjects") or {}
        matching = sum(subjects.values())
        if subjects:  # one page of them: the others have as many messages on average
            matching *= max(1.0, answer.get("total", 0) / len(subjects))
        return float(min(1.0, max(1, matching) / span))


def worth_a_consumer(part: Sequences) -> bool:
    """Decide whether a consumer reads these sequences faster than direct get does. A consumer delivers every message
    from the first to the last. No I/O."""
    return part.count >= WORTH_A_CONSUMER and part.last - part.first + 1 <= SPARSEST * part.count


def _matching(batches: Iterator[RawMessages], several: Callable[[bytes], bool] | None) -> Iterator[RawMessages]:
    """The messages whose subjects match; all without a pattern."""
    for batch in batches:
        wanted = batch if several is None else [each for each in batch if several(each.subject)]
        if wanted:
            yield wanted if isinstance(wanted, RawMessages) else RawMessages.of(wanted)


def _split(wanted: Sequences, count: int) -> Iterator[Sequences]:
    """Split the sequences, in ascending order, into ``count`` parts whose lengths differ by at most one."""
    if count == 1:
        yield wanted
        return
    size, longer = divmod(wanted.count, count)
    front = next(wanted.windows(longer * (size + 1))) if longer else Sequences()
    yield from front.windows(size + 1)
    yield from (wanted - front).windows(size)


def _selects(subjects: Sequence[str]) -> Callable[[bytes], bool]:
    """Return whether a subject, as the server sends it, matches at least one of the filters."""
    filters = Filters(subjects)

    @lru_cache(_SUBJECTS)
    def selects(subject: bytes) -> bool:
        return filters.selecting(subject.decode(errors="surrogateescape")) is not None

    return selects


def _overlap(subjects: Iterable[str]) -> bool:
    """Whether a subject can match two of the filters: a consumer cannot have them."""
    filters = Filters()
    for each in subjects:
        if filters.overlapping(each) is not None:
            return True
        filters.add(each)
    return False
