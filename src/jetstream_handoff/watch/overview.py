# SPDX-License-Identifier: Apache-2.0
"""An overview of all streams and consumers that a ledger knows, with what is stuck. Nothing is changed.

A survey looks again and again on one connection. It remembers what is expensive to find out, and the numbers of the
last minutes. A part that cannot be read becomes a finding.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from jetstream_client.errors import (
    ConsumerNotFound,
    JetStreamError,
    PermissionDenied,
    RequestTimeout,
    StreamNotFound,
)
from jetstream_client.info import Info, StreamInfo
from jetstream_client.times import time_text
from jetstream_handoff.errors import LedgerInvalid, LedgerUnavailable, LedgerUnsuitable
from jetstream_handoff.ledger.bucket import check_bucket, records_bucket
from jetstream_handoff.ledger.buckets import Buckets
from jetstream_handoff.ledger.ledger import Ledger
from jetstream_handoff.ledger.record import Receipt
from jetstream_handoff.ledger.reserve import PARTS
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.letters.tally import Count, Tally
from jetstream_handoff.rules.missing import vanishing
from jetstream_handoff.rules.storage import WAY_OUT, nearly_full
from jetstream_handoff.take.waiting import unmatched
from jetstream_handoff.watch import oldest
from jetstream_handoff.watch.backlog import Look, unknown
from jetstream_handoff.watch.ended import Ended
from jetstream_handoff.watch.remains import Remains, remains
from jetstream_handoff.watch.rights import Rights
from jetstream_handoff.watch.stuck import DEFAULT, Known, Limits, failing_claim, stuck
from jetstream_handoff.watch.view import ConsumerView, DeadLettersView, Overview, Sample, StreamView, Symptom
from jetstream_handoff.words import Words, words_of

if TYPE_CHECKING:
    from jetstream_client.account import AccountInfo
    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo
    from jetstream_handoff.ledger.history import Owner
    from jetstream_handoff.ledger.record import Record

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Names = tuple[str, str]

WITHIN = 6.0
"""Seconds for one look, at most. What is not answered by then becomes a finding."""
FIRST = 4.0
"""Seconds for finding the consumers that the ledger knows, at most. Without them there is no overview."""
ANSWER = 2.0
"""Seconds for one answer, at most."""
AT_ONCE = 16
"""How many consumers and streams are looked at at the same time, at most."""
RARELY = 60.0
"""Seconds after which permissions and receipts are looked at again."""
SAMPLED = 600.0
"""Seconds for which the numbers of a consumer are kept."""


async def overview(js: JetStream, limits: Limits = DEFAULT, *, ages: bool = False) -> Overview:
    """Look once. As :meth:`Survey.look`."""
    return await Survey(js, limits, ages=ages).look()


@dataclass(frozen=True)
class _Consumer:
    """What one look found out about a consumer. An error takes the place of what could not be read."""

    ledger: Ledger
    record: Record | JetStreamError | None
    info: ConsumerInfo | JetStreamError
    waited: float | None = None
    failed: tuple[Owner, str] | None = None

    @property
    def shown(self) -> bool:
        """Whether it has a record, or exists: receipts also name consumers that were deleted long ago."""
        return self.record is not None or not isinstance(self.info, (ConsumerNotFound, StreamNotFound))


@dataclass(frozen=True)
class _Stream:
    """What one look found out about a stream and its dead-letter stream."""

    info: StreamInfo | JetStreamError
    dead_letters: DeadLetters
    dead: StreamInfo | JetStreamError
    count: Count | JetStreamError


class Survey:
    """Looks at everything that the ledger of a connection knows.

    js:      the context.
    limits:  after how long something counts as stuck.
    ages:    whether to find out for how long the oldest message of each consumer has waited, which takes a request for
             this message. Default False.
    """

    def __init__(self, js: JetStream, limits: Limits = DEFAULT, *, ages: bool = False) -> None:
        self._ages, self._oldest = ages, dict[Names, oldest.Oldest | None]()
        self._js = js.with_options(request_timeout=min(ANSWER, js.settings.request_timeout))
        self._limits = limits
        self._clock = asyncio.get_running_loop().time
        self._ended, self._rights = Ended(self._js), Rights(self._js)
        self._room: tuple[Symptom, ...] = ()
        """What is to be said of the storage of the account."""
        self._since = ""
        """The server's time at the first look."""
        self._looked = -RARELY  # at receipts and permissions, on the loop's clock
        self._written = ("", 0)
        """When the bucket of records was created, and its last sequence, when all records were read."""
        self._ledgers: list[Ledger] = []
        self._of_bucket: str | None = None
        """When the bucket of records was created for which ``_remains`` was found; empty if it did not exist."""
        self._remains = Remains()
        self._records: dict[Names, Record | None] = {}
        self._samples: dict[Names, deque[Sample]] = {}
        self._streams: dict[str, StreamInfo] = {}
        """INFO of each stream at the look before."""
        self._failures: dict[Names, tuple[str, tuple[Owner, str]]] = {}
        """The claim of each consumer whose failure was reported last, the task that failed, and its error."""
        self._tallies: dict[str, Tally] = {}
        self._refused: dict[str, tuple[float, PermissionDenied]] = {}
        """The requests that were refused, and when, on the loop's clock. A refusal shows only by a missing answer, so
        repeating such a request at every look would make each look slow."""

    async def look(self) -> Overview:
        """Look at everything once, within ``WITHIN`` seconds.

        Records are read only if the ledger has changed since the last look. CONSUMER.INFO is requested once for each
        consumer, and STREAM.INFO once for each stream and dead-letter stream.

        Raises:
            RequestTimeout, ConnectionLost: nothing answers.
            JetStreamNotEnabled: the account has no JetStream.
        """
        ask = _Asked(self._clock() + WITHIN, self._refused)
        settings = self._js.settings
        server = (", ".join(settings.servers), self._js.connection.server_version, settings.domain or "")
        empty = Overview("", *server, settings.ledger)
        bucket = Buckets(self._js).records
        info: StreamInfo | None = None
        try:
            async with asyncio.timeout(FIRST):
                with suppress(StreamNotFound):
                    info = await bucket.info()
                await self._find_ledgers(info)
        except TimeoutError:
            raise RequestTimeout(
                f"stream {bucket.name!r} of the ledger gave no answer for {FIRST:g} s: the server is overloaded or "
                "frozen, or the stream has no leader; look at the server, and try again when it answers"
            ) from None
        except (PermissionDenied, LedgerUnavailable) as error:
            return replace(empty, findings=(_of_ledger(settings.ledger, error, words_of(settings)),))
        names = sorted({ledger.stream.name for ledger in self._ledgers})
        consumers, streams, _ = await asyncio.gather(
            asyncio.gather(*(self._consumer(ask, ledger) for ledger in self._ledgers)),
            asyncio.gather(*(self._stream(ask, name) for name in names)),
            self._rare(ask),
        )
        if info is not None and not any(isinstance(each.record, JetStreamError) for each in consumers):
            self._written = (info.created, int(info.state["last_seq"]))
        seen = [info, *(each.info for each in streams), *(each.info for each in consumers)]
        now = next((each.now for each in seen if isinstance(each, Info)), time_text(time.time_ns()))
        views = tuple(
            self._view_of_stream(name, stream, of_stream, now)
            for name, stream in zip(names, streams, strict=True)
            if (of_stream := [each for each in consumers if each.ledger.stream.name == name and each.shown])
        )
        self._streams = {
            name: each.info for name, each in zip(names, streams, strict=True) if isinstance(each.info, StreamInfo)
        }
        self._since = self._since or now
        domain = empty.domain if info is None else info.domain
        whole = replace(empty, now=now, domain=domain, streams=views, since=self._since)
        of_bucket = _unsuitable(info) if info else (_missing(settings.ledger, self._remains),)
        return replace(whole, findings=(*of_bucket, *self._room))

    async def _find_ledgers(self, info: StreamInfo | None) -> None:
        """Find the consumers that belong to the ledger.

        info:  the bucket of records; None if it does not exist.
        """
        bucket = (info.created, int(info.state["last_seq"])) if info else ("", 0)
        if bucket[0] != self._of_bucket:
            ask = _Asked(self._clock() + ANSWER, self._refused)
            found = await ask("remains", lambda: remains(self._js, info))
            if isinstance(found, JetStreamError):
                if info is None:
                    raise found  # whether there was a ledger is unknown
                log.warning(
                    "consumers without a record in the bucket %s are not shown: %s", Buckets(self._js).claims, found
                )
                found = Remains()
            self._of_bucket, self._remains = bucket[0], found
        if bucket != self._written or info is None:
            self._records = {}
            known = {ledger.names: ledger for ledger in self._ledgers}  # they know the addresses of acknowledgements
            recorded = await Buckets(self._js).consumers() if info else ()
            names = sorted({*recorded, *self._remains.consumers})
            self._ledgers = [known.get(each) or Ledger(self._js, *each) for each in names]

    async def _consumer(self, ask: _Asked, ledger: Ledger) -> _Consumer:
        """Read the record, and then INFO: counters must not be older than the record that they are compared with."""
        record: Record | JetStreamError | None
        if ledger.names in self._records:
            record = self._records[ledger.names]
        else:
            record = await ask(f"record {ledger.names}", ledger.known)
            if not isinstance(record, JetStreamError):
                self._records[ledger.names] = record
        info = await ask(f"consumer {ledger.names}", ledger.consumer.info)
        waited = await self._waited(ask, ledger.names, info, record) if self._ages else None
        return _Consumer(ledger, record, info, waited, await self._failure(ask, ledger, record))

    async def _waited(
        self,
        ask: _Asked,
        names: Names,
        info: ConsumerInfo | JetStreamError,
        record: Record | JetStreamError | None,
    ) -> float | None:
        """Return for how many seconds the oldest message has waited; None if that cannot be found out."""
        if isinstance(info, JetStreamError) or isinstance(record, JetStreamError):
            return None
        look = Look.of(info, record)
        found = await ask(
            f"oldest {names}",
            lambda: oldest.find(
                self._js,
                names[0],
                look=look,
                ready=look.waiting(unknown),
                ended=unknown,
                before=self._oldest.get(names),
                strict=True,
            ),
        )
        if isinstance(found, JetStreamError):
            return None
        self._oldest[names] = found
        return found.waited(look.now) if found else 0.0

    async def _failure(
        self, ask: _Asked, ledger: Ledger, record: Record | JetStreamError | None
    ) -> tuple[Owner, str] | None:
        """The task that failed with the messages that fail, and its error, from the receipt of their last claim."""
        if isinstance(record, JetStreamError) or not (claim := failing_claim(record)):
            return None
        known, failed = self._failures.get(ledger.names, ("", None))
        if known != claim:
            receipt = await ask(f"receipt {claim}", lambda: ledger.receipts.read(claim))
            if not isinstance(receipt, Receipt):
                return None  # the attempt is about to write it
            attempts = receipt.history.attempts
            failed = attempts[-1].by if attempts else (), receipt.reason
            self._failures[ledger.names] = claim, failed
        return failed

    async def _stream(self, ask: _Asked, name: str) -> _Stream:
        letters = DeadLetters(self._js, name)
        info, dead = await asyncio.gather(
            ask(f"stream {name}", self._js.stream(name).info), ask(f"dead letters {name}", letters.stream.info)
        )
        count: Count | JetStreamError = Count(complete=isinstance(dead, StreamNotFound))
        if not isinstance(dead, JetStreamError):
            tally = self._tallies.setdefault(name, Tally(letters))
            there = dead
            count = await ask(f"count {name}", lambda: tally.count(there))
        return _Stream(info, letters, dead, count)

    async def _rare(self, ask: _Asked) -> None:
        """Look at receipts, permissions and storage. An error is no finding: what they would tell remains unknown."""
        if self._clock() - self._looked >= RARELY:
            self._looked = self._clock()
            rights, reserve = self._rights.check, Buckets(self._js).reserve
            _, _, account, left = await asyncio.gather(
                ask("receipts", self._ended.read),
                ask("rights", lambda: rights(self._ledgers)),
                ask("account", self._js.account_info),
                ask("reserve", reserve.stream.info),
            )
            self._room = (*_of_account(account), *_of_reserve(left))

    def _view_of_stream(self, name: str, stream: _Stream, consumers: list[_Consumer], now: str) -> StreamView:
        count = stream.count if isinstance(stream.count, Count) else Count(complete=False)
        letters = DeadLettersView(
            stream.dead_letters.name, not isinstance(stream.dead, JetStreamError), count.count, count.complete
        )
        info = None if isinstance(stream.info, JetStreamError) else stream.info
        views = tuple(self._view(each, stream, count, now) for each in consumers)
        return StreamView(name, info, letters, views)

    def _view(self, consumer: _Consumer, stream: _Stream, count: Count, now: str) -> ConsumerView:
        names = consumer.ledger.names
        record = None if isinstance(consumer.record, JetStreamError) else consumer.record
        info = None if isinstance(consumer.info, JetStreamError) else consumer.info
        view = ConsumerView(
            *names,
            now if info is None else info.now,
            info,
            record,
            self._ended.usual(names),
            count.waiting.get(names[1], 0),
            waited=consumer.waited,
            readable=not any(_unread(consumer.info)),
            unmatched="" if info is None or isinstance(stream.info, JetStreamError) else unmatched(info, stream.info),
            streams=tuple(each for each in (self._streams.get(names[0]), stream.info) if isinstance(each, StreamInfo)),
        )
        view = replace(view, samples=self._sampled(view))
        words = words_of(self._js.settings)
        if unread := [*_unread(consumer.record), *_unread(consumer.info)]:
            return replace(view, findings=tuple(_unreadable(view, error, words) for error in unread))
        known = Known(
            stream_exists=not isinstance(stream.info, StreamNotFound),
            taken=self._ended.taken(names),
            failed=consumer.failed,
            newest=count.newest.get(names[1]),
            counted=count.complete,
            ledger=self._js.settings.ledger if self._of_bucket else "",
            ledger_exists=bool(self._of_bucket),
            lacking=self._rights.lacking(names),
            words=words,
            vanishing=isinstance(stream.info, JetStreamError) or bool(vanishing(stream.info.config)),
        )
        return replace(view, findings=stuck(view, known, self._limits))

    def _sampled(self, view: ConsumerView) -> tuple[Sample, ...]:
        """Add the present numbers of a consumer to those of the last minutes, and return all of them."""
        samples = self._samples.setdefault((view.stream, view.consumer), deque())
        if view.info is not None:
            samples.append(Sample.of(view.info, view.claimed_messages, view.held_messages))
        while samples and samples[-1].at - samples[0].at > SAMPLED:
            samples.popleft()
        return tuple(samples)


class _Asked:
    """Makes requests, not too many at a time, until a deadline. An error is returned, not raised.

    deadline:  when nothing more is asked, on the loop's clock.
    refused:   the requests that were refused lately.
    """

    def __init__(self, deadline: float, refused: dict[str, tuple[float, PermissionDenied]]) -> None:
        self._deadline = deadline
        self._refused = refused
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, what: str, request: Callable[[], Awaitable[Result]]) -> Result | JetStreamError:
        clock = asyncio.get_running_loop().time
        when, refusal = self._refused.get(what, (0.0, None))
        if refusal is not None and clock() - when < RARELY:
            return refusal
        try:
            async with asyncio.timeout_at(self._deadline), self._slots:
                return await request()
        except TimeoutError:
            return RequestTimeout(f"no answer arrived within {WITHIN:g} s; the server may be overloaded or frozen")
        except JetStreamError as error:
            denied = error.__cause__ if isinstance(error.__cause__, PermissionDenied) else error
            if isinstance(denied, PermissionDenied):
                self._refused[what] = clock(), denied
            return denied if isinstance(denied, PermissionDenied) else error


def _unread(read: object) -> Iterator[JetStreamError]:
    """The error because of which something could not be read."""
    if isinstance(read, JetStreamError) and not isinstance(read, (ConsumerNotFound, StreamNotFound)):
        yield read


def _unreadable(view: ConsumerView, error: JetStreamError, words: Words) -> Symptom:
    of = f"consumer {view.consumer} of stream {view.stream}"
    if isinstance(error, LedgerInvalid):
        return Symptom(
            "unreadable_record",
            "error",
            f"The record of {of} in the ledger cannot be read ({error.wrong}).",
            "Until it can, nothing of this consumer is acknowledged.",
            f"{error.remedy}.",
        )
    if isinstance(error, PermissionDenied):
        return _denied(f"{of} cannot be shown", error)
    remedy = f"Run {words.command('doctor')}, and read the server's log."
    return Symptom("unreachable", "error", f"The state of {of} cannot be read.", _sentence(error), remedy)


def _of_ledger(ledger: str, error: JetStreamError, words: Words) -> Symptom:
    denied = error.__cause__ if isinstance(error.__cause__, PermissionDenied) else error
    if isinstance(denied, PermissionDenied):
        return _denied("the ledger cannot be read", denied)
    remedy = f"Run {words.command('doctor')}."
    return Symptom("ledger", "error", f"The ledger {ledger!r} cannot be read.", _sentence(error), remedy)


def _missing(ledger: str, remains: Remains) -> Symptom:
    if lost := remains.lost(records_bucket(ledger)):
        return Symptom("ledger", "error", *lost)
    return Symptom(
        "ledger",
        "warning",
        f"The ledger {ledger!r} does not exist.",
        "No sensor has taken a claim with this connection's settings.",
        "Run a sensor, which creates the ledger; if one has run, compare the account, the domain and the ledger of "
        "the two connections.",
    )


def _sentence(error: JetStreamError) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _of_account(account: AccountInfo | JetStreamError) -> Iterator[Symptom]:
    if isinstance(account, JetStreamError) or not nearly_full(account.storage, account.limits.max_storage):
        return
    yield Symptom(
        "storage",
        "warning",
        f"{account.storage:,} of {account.limits.max_storage:,} bytes of the account's storage are used.",
        "When it is full, the ledger cannot be written, so nothing is acknowledged.",
        f"Make room: {WAY_OUT}.",
    )


def _of_reserve(reserve: StreamInfo | JetStreamError) -> Iterator[Symptom]:
    if isinstance(reserve, JetStreamError) or (left := int(reserve.state["messages"])) >= PARTS:
        return
    yield Symptom(
        "storage",
        "warning" if left else "error",
        "The storage of the account or of the server was full.",
        f"{left} of {PARTS} parts of the ledger's reserve are left, without which nothing can be settled, and so "
        "nothing acknowledged, while it is full.",
        f"Make room: {WAY_OUT}. The next sensor fills the reserve.",
    )


def _denied(what: str, denied: PermissionDenied) -> Symptom:
    return Symptom(
        "permission",
        "error",
        f"The user of this connection is not permitted to {denied.act} {denied.subject!r}.",
        f"So {what}.",
        "Grant the permissions that docs/reference/permissions.md lists for the command line.",
    )


def _unsuitable(info: StreamInfo) -> tuple[Symptom, ...]:
    """A finding if the bucket of records could lose its entries."""
    name = str(info.config.get("name", "")).removeprefix("KV_")
    try:
        check_bucket(name, info.config, expires=False)
    except LedgerUnsuitable as wrong:
        cause = f"The field {wrong.field} of the ledger's bucket {wrong.bucket!r} is unsuitable."
        remedy = f"Change this field of stream KV_{wrong.bucket}: {wrong.remedy}."
        return (Symptom("ledger", "error", cause, "No claim can be taken, held or settled.", remedy),)
    return ()
