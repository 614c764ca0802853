# SPDX-License-Identifier: Apache-2.0
"""Examine a connection, its permissions, the ledger, and the streams and consumers that claims are taken from.

Nothing is changed on the server, except that a part of the ledger's reserve is written again. The rules are those that
taking, holding and settling check. Each section ends in bounded time. A finding stops the later sections only if it
shows that none of them can succeed.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from jetstream_client import connect, requirements
from jetstream_client.account import no_inbox, without_jetstream
from jetstream_client.errors import (
    ApiError,
    ConnectionFailed,
    ConsumerNotFound,
    InvalidValue,
    JetStreamError,
    JetStreamNotEnabled,
    PermissionDenied,
    ServerTooOld,
    StreamNotFound,
)
from jetstream_client.names import check_consumer_name, check_stream_name, check_subject
from jetstream_client.quantities import number
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.errors import (
    DeadLettersUnsuitable,
    DeliveriesGivenUp,
    LedgerInvalid,
    LedgerUnavailable,
    StorageFull,
    WrongLedger,
)
from jetstream_handoff.ledger.buckets import Buckets, never_used
from jetstream_handoff.ledger.ledger import Ledger, ledgers
from jetstream_handoff.ledger.reserve import PARTS, Reserve
from jetstream_handoff.ledger.sharing import shared
from jetstream_handoff.letters.dead_letters import DeadLetters
from jetstream_handoff.rules import consumer as consumers
from jetstream_handoff.rules import ledger_mark, missing, replicas, roles
from jetstream_handoff.rules.storage import WAY_OUT, nearly_full, storage_full, unbounded
from jetstream_handoff.take import conservation
from jetstream_handoff.watch.backlog import AT_WORK, AWAITING_TASK
from jetstream_handoff.watch.findings import Finding, advice, fine, not_checked, to_do
from jetstream_handoff.watch.inspection import look
from jetstream_handoff.watch.remains import remains
from jetstream_handoff.watch.seen import IF_UNSETTLED, PASSED, after_passed
from jetstream_handoff.watch.stopped import StoppedKeys
from jetstream_handoff.watch.stuck import LOOK_AFTER, lasts, uncounted
from jetstream_handoff.words import Words, words_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from jetstream_client.context import JetStream
    from jetstream_client.info import ConsumerInfo, StreamInfo
    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.watch.seen import Seen

SECTION = 20.0
"""Seconds for one section, at most."""
CONNECT, ANSWER = 10.0, 5.0
"""Seconds for connecting and for one answer, at most. The settings of a connection may allow hours."""
CLOCKS = 2.0
"""Seconds by which two clocks may differ. Synchronised clocks differ by less than a tenth of a second."""

_READING = ("publisher", "reader")  # roles that need a stream but no consumer
_NO_ROLE = "no claim is taken or settled with this connection"


@dataclass(frozen=True)
class Scope:
    """The scope of an examination.

    stream, consumer:  the stream and consumer to examine. Default: every consumer that the ledger knows.
    roles:             the roles that the user of this connection should have (``roles.ROLES``). Default: sensor and
                       processor, or reader for a connection with an API prefix, through which no claim can be taken.
    subject:           a subject on which a publisher publishes.
    """

    stream: str | None = None
    consumer: str | None = None
    roles: tuple[str, ...] = ()
    subject: str | None = None

    def __post_init__(self) -> None:
        """Raises InvalidValue."""
        if self.stream is not None:
            check_stream_name(self.stream)
        if self.consumer is not None:
            check_consumer_name(self.consumer)
        if self.subject is not None:
            check_subject(self.subject, "subject")
        for role in self.roles:
            if role not in roles.ROLES:
                raise InvalidValue("role", role, f"give one of {', '.join(map(repr, roles.ROLES))}")


async def examine(settings: ConnectionSettings | JetStreamError, scope: Scope) -> dict[str, list[Finding]]:
    """Examine everything in ``scope``. Returns the findings of each section by the title of the section.

    settings:  the settings of the connection, or the error that makes them unusable, which is reported as a finding.
    """
    if isinstance(settings, JetStreamError):
        return {"Connection": [to_do("settings", str(settings))], **_unreachable()}
    limited = replace(
        settings,
        connect_timeout=min(settings.connect_timeout, CONNECT),
        request_timeout=min(settings.request_timeout, ANSWER),
    )
    try:
        async with connect(limited) as js:
            return await Examination(js, scope).run()
    except JetStreamError as error:
        return {"Connection": [to_do(", ".join(settings.servers), str(error))], **_unreachable()}


def _unreachable() -> dict[str, list[Finding]]:
    return {title: [not_checked("everything", "there is no connection")] for title in TITLES if title != "Connection"}


class Examination:
    """One examination on an open connection."""

    def __init__(self, js: JetStream, scope: Scope) -> None:
        self._js = js
        self._scope = scope
        self._roles = scope.roles or (("reader",) if js.settings.api_prefix else roles.OF_CLAIMS)
        self._claims = not js.settings.api_prefix and bool({*self._roles} - {*_READING})
        self._stopped = ""
        """The reason why no other section can succeed; empty if there is none."""
        self._level = requirements.level_of(js.connection.server_version)
        self._known = False
        """Whether the server has stated its API level. Otherwise only the lowest level that its version can have is
        known."""
        self._pairs = [(scope.stream, scope.consumer)] if scope.stream and scope.consumer else []
        """The consumers in scope, each with its stream."""
        self._streams = {scope.stream} if scope.stream else set()
        self._buckets: dict[str, StreamInfo] = {}
        """The ledger's buckets, by their names."""
        self._infos: dict[str, StreamInfo] = {}
        """INFO of the streams, by their names."""
        self._timed = ""
        """The name of a stream that exists. Its INFO contains the server's time."""
        self._permitted: dict[str, bool] = {}
        """Maps a subject to whether this user is permitted to publish on it. Each subject is looked up once, because
        several sections need it."""
        self._places: list[roles.Place] | None = None
        """The places that the roles of the hand-off work on; None before they are looked up."""
        self._advanced = 0.0
        """When the last check or look-up was complete, on the loop's clock."""

    async def run(self) -> dict[str, list[Finding]]:
        sections = {}
        for title, check in _SECTIONS.items():
            if self._stopped:
                sections[title] = [not_checked("everything", self._stopped)]
            else:
                sections[title] = await self._section(title.lower(), partial(check, self))
        return sections

    async def _section(self, title: str, check: Callable[[], AsyncIterator[Finding]]) -> list[Finding]:
        found: list[Finding] = []
        self._advance()
        try:
            async with self._js.connection.timeout(SECTION):
                async for finding in check():
                    found.append(finding)  # findings before an error are kept
                    self._advance()
        except PermissionDenied as denied:
            found.append(not_checked(title, str(denied)))
        except (ConnectionFailed, TimeoutError) as silence:
            found.append(await self._unfinished(title, str(silence), "the rest" if found else "everything"))
        except JetStreamError as error:
            found.append(to_do(title, str(error)))
        return found

    def _advance(self) -> None:
        self._advanced = asyncio.get_running_loop().time()

    async def _unfinished(self, title: str, error: str, rest: str) -> Finding:
        """Return the reason why a section ended early: the server is silent, one look-up had no answer, or the section
        took too long.

        error:  empty if the section's time ran out.
        rest:   the part that was not checked.
        """
        clock = asyncio.get_running_loop().time
        stalled = bool(error) or clock() - self._advanced > ANSWER
        try:
            async with self._js.connection.timeout(ANSWER):
                round_trip = await self._js.connection.round_trip()
        except (JetStreamError, TimeoutError):
            self._stopped = "the server no longer answers"
            reason = "the server may be frozen or overloaded"
        else:
            if not stalled:
                remedy = "name one stream with --stream and one consumer with --consumer"
                if self._scope.stream and self._scope.consumer:
                    remedy = f"run this closer to the server, because a round trip takes {round_trip * 1000:.0f} ms"
                return not_checked(rest, f"the time ran out after {SECTION:g} s, although the server answers; {remedy}")
            report = "`nats server report jetstream`"
            reason = f"the server itself answers; run {report} to find a stream without a leader, or too much load"
        return to_do(title, f"{error or f'no answer for {clock() - self._advanced:.0f} s'}; {reason}")

    async def connection(self) -> AsyncIterator[Finding]:
        settings, connection = self._js.settings, self._js.connection
        milliseconds = await connection.round_trip() * 1000
        how = f"{settings.kind}, {'with' if settings.tls else 'without'} TLS, round trip {milliseconds:.1f} ms"
        yield fine(", ".join(settings.servers), how)
        try:
            await roles.check_inbox(connection)
        except PermissionDenied as denied:
            self._stopped = "no answer can arrive"
            yield to_do("inbox", no_inbox(settings, denied))

    async def jetstream(self) -> AsyncIterator[Finding]:
        try:
            await self._permit("INFO")
            account = await self._js.account_info()
        except PermissionDenied as denied:
            yield fine("account", f"this user has no permission for {denied.subject}, but no task needs it")
        except JetStreamNotEnabled as refusal:
            self._stopped = "JetStream does not answer"
            yield to_do("JetStream", without_jetstream(self._js.settings, refusal))
        else:
            self._level, self._known = account.level, True
            domain = f", domain {account.domain!r}" if account.domain else ""
            yield fine("JetStream", f"streams: {account.streams}, consumers: {account.consumers}{domain}")
            yield _room("storage of the account", account.storage, account.limits.max_storage, "max_file")
        version = self._js.connection.server_version
        beyond = requirements.beyond(self._level)
        if requirements.BATCHED_DIRECT_GET in beyond:
            yield to_do(
                f"nats-server {version}",
                f"{requirements.BATCHED_DIRECT_GET.error(version)}. Claims are read by batched direct get",
            )
        else:
            features = ", ".join(f"{each.what} ({'.'.join(map(str, each.version))})" for each in beyond)
            yield fine(f"nats-server {version}", features and f"upgrade it if you need {features}")

    async def ledger(self) -> AsyncIterator[Finding]:
        if not self._claims:
            yield not_checked("ledger", _NO_ROLE)
            return
        both = Buckets(self._js)
        claims, receipts = both.names
        try:
            await self._permit(f"STREAM.INFO.KV_{claims}", f"STREAM.INFO.KV_{receipts}")
            buckets = await both.look()
            wrong = {name: each for name, each in buckets.items() if isinstance(each, LedgerUnavailable)}
            gone = claims in wrong and never_used(wrong[claims])
            lost = (await remains(self._js, None)).lost(claims) if gone else None
            if not lost and len(wrong) == len(buckets) and all(map(never_used, wrong.values())):
                yield fine(f"buckets {claims} and {receipts}", "they do not exist yet; the first take creates them")
                return
            self._buckets = {name: each for name, each in buckets.items() if not isinstance(each, Exception)}
            for name, each in buckets.items():
                if isinstance(each, Exception):
                    yield to_do(f"bucket {name}", " ".join(lost) if lost and name == claims else str(each))
                else:
                    yield self._bucket(name, each)
            yield await self._reserve(both.reserve)
            if not gone:
                self._timed = f"KV_{claims}"
                await self._permit(f"STREAM.MSG.GET.KV_{claims}")
                known = await ledgers(self._js, self._scope.stream, self._scope.consumer)
                self._pairs = [*dict.fromkeys([*self._pairs, *(each.names for each in known)])]
                self._streams.update(each.stream.name for each in known)
                for consumer in known:
                    yield await self._record(consumer)
        except PermissionDenied as denied:
            needed = {*self._roles} & {*roles.OF_CLAIMS}
            yield to_do("ledger", str(denied)) if needed else not_checked("ledger", str(denied))

    def _bucket(self, name: str, info: StreamInfo) -> Finding:
        most = int(info.config.get("max_bytes", -1))
        return _room(f"bucket {name}", int(info.state["bytes"]), most, f"max_bytes of its stream KV_{name}")

    async def _reserve(self, reserve: Reserve) -> Finding:
        """Write a part of the ledger's reserve again, which shows whether there is room for a record."""
        name, subject = reserve.names
        what = f"reserve {name}"
        try:
            await self._permit(f"STREAM.INFO.{name}")
            if lacking := await self._lacking([roles.write(subject)]):
                return not_checked(what, f"no permission to publish on {lacking[0]!r}")
            stored = int((await reserve.stream.info()).state["messages"])
            await reserve.write()
        except PermissionDenied as denied:
            return not_checked(what, str(denied))
        except StreamNotFound:
            text = "it does not exist, so nothing can be settled while storage is full; the next take creates it, if"
            return advice(what, f"{text} its user has the permissions of setup (docs/reference/permissions.md)")
        except ApiError as refusal:
            full = StorageFull(subject, str(refusal), WAY_OUT) if storage_full(refusal) else refusal
            return to_do(what, str(full))
        if stored < PARTS:
            return advice(what, f"{stored} of {PARTS} parts, because storage was full; the next take fills it")
        return fine(what, "a write was stored")

    async def _record(self, ledger: Ledger) -> Finding:
        what = f"record of {_named(*ledger.names)}"
        try:
            record, _ = await ledger.read()
        except LedgerInvalid as invalid:
            return to_do(what, str(invalid))
        if record is not None and not ledger.fits(record):
            remedy = f"settle or release the open claims that {words_of(self._js.settings).command('claims')} lists"
            return to_do(what, f"it is so large that no claim can be entered; {remedy}")
        return fine(what)

    async def configurations(self) -> AsyncIterator[Finding]:
        if self._scope.consumer and not self._pairs:
            remedy = (
                "no consumer of this name was found in the ledger; correct the name, or also name its stream with "
                "--stream"
            )
            yield to_do(f"consumer {self._scope.consumer}", remedy)
        elif not self._streams:
            yield not_checked("consumers", "no consumer was found in the ledger; name one with --stream and --consumer")
        for stream in sorted(self._streams):
            async for finding in self._of_stream(stream):
                yield finding
            for consumer in [consumer for of, consumer in self._pairs if of == stream]:
                async for finding in self._of_consumer(stream, consumer):
                    yield finding

    async def _of_stream(self, name: str) -> AsyncIterator[Finding]:
        stream = self._js.stream(name)
        try:
            await self._permit(f"STREAM.INFO.{name}")
            info = await stream.info()
        except PermissionDenied as denied:
            yield not_checked(f"stream {name}", str(denied))
            return
        except StreamNotFound as not_found:
            if name == self._scope.stream:
                yield to_do(f"stream {name}", str(not_found))
            return
        except ApiError as refusal:
            yield to_do(f"stream {name}", f"{refusal}; run `nats stream info {name}`, and read the server's log")
            return
        self._timed = self._timed or name
        problems = list(self._too_new(info.config))
        if self._roles != ("publisher",):
            problems += _unreadable(name, info.config, words_of(self._js.settings))
        self._infos[name] = info
        for finding in _verdict(f"stream {name}", problems, self._concerns(info.config)):
            yield finding
        if self._claims:
            for finding in self._of_ledger(name):
                yield finding
            async for finding in self._of_claimed(name, info.config):
                yield finding

    def _of_ledger(self, stream: str) -> Iterator[Finding]:
        for bucket, info in self._buckets.items():
            for concern in _said(replicas.fewer(info.config, self._infos[stream].config)):
                yield advice(f"bucket {bucket}, used for stream {stream}", concern)

    def _concerns(self, stream: dict[str, Any]) -> list[str]:
        """What a stream's configuration risks, each with the remedy."""
        return [*_said(replicas.few(stream)), *(_said(unbounded(stream)) if self._claims else ())]

    async def _of_claimed(self, stream: str, config: dict[str, Any]) -> AsyncIterator[Finding]:
        """Messages that vanish by design, and the dead-letter stream."""
        if vanish := missing.warning(config):
            yield fine(f"messages of stream {stream}", vanish)
        letters = DeadLetters(self._js, stream)
        what = f"dead-letter stream {letters.name}"
        try:
            await self._permit(f"STREAM.INFO.{letters.name}")
            config = (await letters.stream.info()).config
            letters.check(config)
        except (PermissionDenied, StreamNotFound):
            return
        except DeadLettersUnsuitable as unsuitable:
            yield to_do(what, str(unsuitable))
        else:
            for finding in _verdict(what, (), _said(replicas.fewer(config, self._infos[stream].config))):
                yield finding

    async def _of_consumer(self, stream: str, name: str) -> AsyncIterator[Finding]:
        what = _named(stream, name)
        try:
            await self._permit(f"CONSUMER.INFO.{stream}.{name}")
            info = await self._js.stream(stream).consumer(name).info()
            config = info.config
        except PermissionDenied as denied:
            yield not_checked(what, str(denied))
            return
        except ConsumerNotFound as not_found:
            if name == self._scope.consumer:
                yield to_do(what, f"{not_found}. The first take from this consumer creates it")
            return
        except StreamNotFound:
            return
        except ApiError as refusal:
            yield to_do(what, f"{refusal}; run `nats consumer info {stream} {name}`, and read the server's log")
            return
        shortest = timedelta(seconds=self._js.settings.shortest_ack_wait)
        broken = consumers.broken_rules(name, config, max_messages=1, shortest_ack_wait=shortest)
        existing = [consumers.of_existing(each, stream) for each in broken]
        problems = [f"{each.rule}={each.value!r}: {each.remedy}" for each in existing]
        try:
            ledger_mark.check(stream, name, config, self._js.settings.ledger, words_of(self._js.settings))
        except WrongLedger as wrong:
            problems.append(str(wrong))
        if info.paused:
            resume = f"`nats consumer resume {stream} {name}` resumes it"
            problems.append(
                f"it is paused until {config.get('pause_until')}, and delivers nothing until then; {resume}"
            )
        problems += await self._unconserved(stream, name, info)
        before = self._infos.get(stream)
        concerns = _said(replicas.fewer(config, before.config if before else {}))
        if before and uncounted(stream, name, info, before, before):
            with suppress(JetStreamError):  # another finding says why the stream cannot be read
                found = uncounted(stream, name, info, before, await self._js.stream(stream).info())
                concerns += [f"{found.text} {found.remedy}"] if found else []
        for finding in _verdict(what, [*self._too_new(config), *problems], concerns):
            yield finding

    async def _unconserved(self, stream: str, name: str, info: ConsumerInfo) -> list[str]:
        """The deliveries that the server has given up, or messages that were acknowledged without the ledger, as a
        problem with its remedy."""
        ledger = Ledger(self._js, stream, name)
        try:
            record = await ledger.known()
            now = await ledger.stream.info()
            conservation.check(stream, name, record, info, now.state["last_seq"])
            vanishing = bool(missing.vanishing(now.config))
            noted = conservation.without_receipt(record, info, ledger.name, vanishing=vanishing)
        except DeliveriesGivenUp as given_up:
            return [str(given_up)]
        except JetStreamError:  # the finding about the ledger says why its record cannot be read
            return []
        if not noted:
            return []
        return [conservation.UNRECEIPTED % (name, stream, noted, conservation.again(info, noted.first))]

    def _too_new(self, config: dict[str, Any]) -> Iterator[str]:
        """The features that a configuration asks for and this server does not have, each with the remedy."""
        version = self._js.connection.server_version
        needed, recorded = requirements.of_config(config), requirements.recorded(config)
        if needed is not None and needed.level > self._level:
            yield f"{needed.error(version)}, or remove the field"
        elif recorded > self._level and self._known:
            yield (
                f"it was configured on a newer nats-server (API level {recorded}), and this one ({version}, API level "
                f"{self._level}) ignores the fields that it does not know; upgrade the server"
            )

    async def permissions(self) -> AsyncIterator[Finding]:
        for role in self._roles:
            yield await self._role(role)

    async def _role(self, role: str) -> Finding:
        if role not in _READING and self._js.settings.api_prefix:
            remedy = "connect with the account that has the stream"
            return to_do(role, f"claims cannot be taken or settled through an API prefix; {remedy}")
        if role == "publisher" and (reason := self._publishing_unknown()):
            return not_checked(role, reason)
        places = await self._places_of(role)
        if not places:
            consumer = "" if role in _READING else " and a consumer with --consumer"
            return not_checked(role, f"name a stream with --stream{consumer}")
        if lacking := await self._lacking(need for place in places for need in roles.needs(role, place)):
            remedy = (
                "grant this permission (docs/reference/permissions.md), or use --role to name the role that this "
                "user has"
            )
            return to_do(role, f"no permission to publish on {', '.join(map(repr, lacking))}; {remedy}")
        return fine(role, f"{'streams' if role in _READING else 'consumers'}: {len(places)}")

    def _publishing_unknown(self) -> str:
        """The reason why the permission to publish cannot be checked; empty if it can be checked."""
        if not self._scope.subject:
            return "no subject was named; use --subject to name one on which the publisher publishes"
        try:
            requirements.MESSAGE_TRACING.check(self._js.connection.server_version)
        except ServerTooOld as old:
            return str(old)
        return ""

    async def _places_of(self, role: str) -> list[roles.Place]:
        if role in _READING:
            prefix, subject = self._js.settings.prefix, self._scope.subject or ""
            return [roles.Place(prefix, stream, subject=subject) for stream in sorted(self._streams)]
        if self._places is None:
            self._places = [await self._place(*pair) for pair in await self._own()]
        return self._places

    async def _place(self, stream: str, consumer: str) -> roles.Place:
        ledger = Ledger(self._js, stream, consumer)
        try:
            await self._permit(f"STREAM.INFO.{stream}")
            ack_prefix = (await ledger.locate()).prefix
        except (StreamNotFound, PermissionDenied):
            ack_prefix = f"$JS.ACK.{stream}.{consumer}"
        self._advance()
        names = (stream, consumer, *ledger.buckets.names, DeadLetters(self._js, stream).name)
        return roles.Place(
            self._js.settings.prefix, *names, ack_prefix, *ledger.subjects, *ledger.buckets.reserve.names
        )

    async def _own(self) -> list[tuple[str, str]]:
        """The consumers whose INFO this user may request. The ledger may also know consumers of other users."""
        if (self._scope.stream, self._scope.consumer) in self._pairs:
            return self._pairs
        prefix = self._js.settings.prefix
        asked = {(of, name): roles.request(prefix, f"CONSUMER.INFO.{of}.{name}") for of, name in self._pairs}
        lacking = await self._lacking(asked.values())
        return [pair for pair, each in asked.items() if each.allow not in lacking] or self._pairs

    async def clock(self) -> AsyncIterator[Finding]:
        if not self._timed:
            yield not_checked("clock", "no stream was found, and only the INFO of a stream shows the server's time")
            return
        before = time.time()
        info = await self._js.stream(self._timed).info()
        after = time.time()
        ahead = (before + after) / 2 - time_nanoseconds(info.now) / 1e9
        if abs(ahead) <= CLOCKS + (after - before) / 2:
            yield fine("clock", f"it differs from the server's clock by {abs(ahead):.1f} s")
            return
        yield to_do(
            "clock",
            f"it is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's clock; synchronise both "
            "(NTP). Claims use the server's clock, so no message is lost, but schedules, logs and the expiry of "
            "credentials and certificates depend on each machine's clock",
        )

    async def open_claims(self) -> AsyncIterator[Finding]:
        if not self._claims:
            yield not_checked("claims", _NO_ROLE)
            return
        if not self._pairs:
            yield fine("claims", "no consumer was found in the ledger")
            return
        claims, _ = Buckets(self._js).names
        await self._permit(f"STREAM.INFO.KV_{claims}", f"STREAM.MSG.GET.KV_{claims}")
        for stream, consumer in self._pairs:
            what = _named(stream, consumer)
            try:
                await self._permit(f"CONSUMER.INFO.{stream}.{consumer}")
                ledger = Ledger(self._js, stream, consumer)
                _, record, seen = await look(ledger, whatever_can_be_read=True)
                stopped = StoppedKeys.seen(stream, consumer, record)
            except PermissionDenied as denied:
                yield not_checked(what, str(denied))
                continue
            except LedgerUnavailable as unavailable:
                if not never_used(unavailable):
                    raise
                seen, stopped = [], None
            if stopped:
                yield to_do(what, stopped.text(words_of(self._js.settings)))
            for finding in _of_claims(what, seen, words_of(self._js.settings)):
                yield finding

    async def _permit(self, *requests: str) -> None:
        """Raise PermissionDenied at once if one of these requests of the JetStream API is not allowed. Without
        this check, a refusal would be noticed only after the wait for an answer."""
        prefix = self._js.settings.prefix
        for subject in await self._lacking(roles.request(prefix, each) for each in requests):
            raise PermissionDenied(subject)

    async def _lacking(self, needs: Iterable[roles.Need]) -> list[str]:
        """The subjects on which this user must be permitted to publish for these needs, and is not. Without
        duplicates."""
        needs = list(needs)
        new = {need.subject: need for need in needs if need.subject not in self._permitted}
        if new:
            denied = await roles.denied(self._js.connection, new.values())
            self._permitted |= {subject: subject not in denied for subject in new}
            self._advance()
        return list(dict.fromkeys(need.allow for need in needs if not self._permitted[need.subject]))


_SECTIONS: dict[str, Callable[[Examination], AsyncIterator[Finding]]] = {
    "Connection": Examination.connection,
    "JetStream": Examination.jetstream,
    "Ledger": Examination.ledger,
    "Streams and consumers": Examination.configurations,
    "Permissions": Examination.permissions,
    "Clock": Examination.clock,
    "Open claims": Examination.open_claims,
}
TITLES = tuple(_SECTIONS)


def _verdict(what: str, problems: Iterable[str], concerns: Iterable[str] = ()) -> list[Finding]:
    found = [*(to_do(what, each) for each in problems), *(advice(what, each) for each in concerns)]
    return found or [fine(what)]


def _unreadable(stream: str, config: dict[str, Any], words: Words) -> list[str]:
    """Why the messages of claims could not be read from a stream."""
    try:
        consumers.check_stream(stream, config, words)
    except JetStreamError as error:
        return [str(error)]
    return []


def _said(concern: str) -> list[str]:
    return [concern] if concern else []


def _named(stream: str, consumer: str) -> str:
    return f"consumer {consumer} of stream {stream}"


def _room(what: str, used: int, most: int, limit: str) -> Finding:
    """Report whether there is still room below a limit.

    most:   the limit in bytes; 0 or less if there is none.
    limit:  the name of the setting that raises it.
    """
    if nearly_full(used, most):
        return to_do(
            what, f"{used:,} of {most:,} bytes are used, and writes beyond this limit are refused; raise {limit}"
        )
    return fine(what, f"{used:,} bytes" + (f" of {most:,}" if most > 0 else ", no limit"))


def _of_claims(what: str, seen: list[Seen], words: Words) -> Iterator[Finding]:
    """The findings about the open claims of a consumer."""
    owners = {each.entry.owner for each in seen if each.entry}
    if owners and (text := shared(seen[0].stream, seen[0].consumer, owners, words)):
        yield advice(what, text)
    overdue = [finding for each in seen if (finding := _overdue(each, words))]
    yield from overdue
    barrier = next((each.barrier for each in seen if each.barrier), None)
    waits = f"; with ordered_by, the next batch {barrier.text}" if barrier else ""
    if barrier and lasts(barrier):
        yield advice(what, f"open claims: {len(seen)}{waits}. {LOOK_AFTER}")
    elif not overdue:
        yield fine(what, f"open claims: {len(seen)}{waits}")


def _overdue(seen: Seen, words: Words) -> Finding | None:
    """Return a finding for an open claim that nobody seems to be working on; None for any other claim."""
    age = timedelta(seconds=round(seen.age or 0))
    what = f"claim {seen.id} of {_named(seen.stream, seen.consumer)}, {number(seen.sequences.count, 'message')}"
    if seen.why_unsettled:
        return to_do(what, f"{seen.why_unsettled}. {IF_UNSETTLED}")
    if seen.info is None or not seen.current or _nobody_takes(seen, age):
        return to_do(what, f"{seen.next} Start a run that takes from this consumer")
    if age < (AT_WORK if seen.holder else AWAITING_TASK):
        return None
    if seen.holder:
        how = f"{words.command(f'claim {seen.id} --listen {math.ceil(seen.silence)}')} shows whether it is alive"
        return to_do(what, f"attempt {seen.holder} holds it, and it was taken at {seen.since} ({age} ago); {how}")
    if seen.passed:
        return to_do(what, f"it is not settled, but {PASSED}. {after_passed(seen.info, seen.sequences.first)}")
    taken_by = seen.entry.taken_by if seen.entry else ""
    remedy = (
        f"find out why its task does not run (check {words.obstacles}), or run {words.command(f'release {seen.id}')} "
        "to have its messages redelivered now"
    )
    return to_do(what, f"no attempt holds it. It was taken by {taken_by} at {seen.since} ({age} ago); {remedy}")


def _nobody_takes(seen: Seen, age: timedelta) -> bool:
    """Whether the messages of a claim were released, and no take receives them. A pull that waits receives them soon,
    and the messages of skipped work wait for the next run."""
    if seen.entry is None or not seen.entry.is_released:
        return False
    awaited = seen.entry.history.skipped or (seen.info and seen.info.raw.get("num_waiting"))
    return not awaited or age >= AWAITING_TASK
