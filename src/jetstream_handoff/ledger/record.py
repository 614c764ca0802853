# SPDX-License-Identifier: Apache-2.0
"""The values that the ledger stores: a record for each consumer, and a receipt for each claim. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from jetstream_client.errors import InvalidValue
from jetstream_client.sequences import Sequences
from jetstream_client.times import time_nanoseconds
from jetstream_handoff.errors import LedgerInvalid
from jetstream_handoff.ledger.failures import Failure, without
from jetstream_handoff.ledger.history import Attempt, History, Owner, owner_of, readable
from jetstream_handoff.ledger.order import Order
from jetstream_handoff.ledger.reservation import Reservation
from jetstream_handoff.ledger.settled import Settled
from jetstream_handoff.rules import edited

if TYPE_CHECKING:
    from jetstream_client.info import ConsumerInfo

VERSION = 1
ORDERED = 2
"""The version of a record with an order: a release that does not know the order must not change it."""
RESERVED = 3
"""The version of a record with a reader: a release that does not know the reservation must not take."""
_VERSIONS = (VERSION, ORDERED, RESERVED)
LARGEST_VALUE = 8 << 10
_NONE = Sequences()
_WRITES = 16  # whose ids the record contains
_MOST_UNCLAIMED = 1_000  # ranges of deliveries that are in no claim; others are not remembered
_MOST_NOTED = 100  # ranges of messages that were acknowledged without the ledger; more become one range
BELIEVED = 10**9
"""Nanoseconds after which a counter or an entry is believed, that is, decisions are based on it. A server that is
killed can forget its last changes."""

SECOND_READ = 2.0
"""Seconds to wait before a second read confirms a result that ends an attempt. If a frozen leader was replaced and then
continues, it answers with old data for half a second."""

ABANDONED = 7 * 24 * 3600 * 10**9
"""Nanoseconds after which a claim is forgotten if no attempt holds it and its messages are never redelivered."""


@dataclass(frozen=True, slots=True)
class OpenEntry:
    """An open claim.

    counter:  the highest consumer sequence of its deliveries.
    bytes:    the sum of the messages' sizes.
    at:       the server's time when the claim was entered, or last handed on to a later try of its owner.
    owner:    the owner for which it was taken.
    token:    the attempt that holds it; None if no attempt holds it.
    history:  the attempts that held it, when it was entered if ``at`` no longer says so, and when it was released for
              others. Its owner is empty.
    work:     the name of the piece of work whose attempts may hold it (:mod:`.work`); empty until an attempt with a
              name has held it.
    unsettled:  how many claims with its messages came before it and ended neither settled nor failed.
    config:   what is kept of the consumer's configuration when it was taken (:func:`~.rules.edited.kept`); empty if
              unknown.
    """

    sequences: Sequences
    counter: int
    bytes: int
    at: str
    owner: Owner
    token: str | None = None
    history: History = field(default_factory=History)
    work: str = ""
    unsettled: int = 0
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def taken_by(self) -> str:
        """The owner in a readable form: ``dag / run / task[3]``."""
        return readable(self.owner)

    @property
    def by(self) -> Owner:
        """The task of the last attempt; if that is unknown, the owner."""
        return (self.history.attempts[-1].by if self.history.attempts else ()) or self.owner

    @property
    def whole_history(self) -> History:
        """The history with the owner and the time at which the claim was entered."""
        return replace(self.history, owner=self.owner, taken=self.history.taken or self.at)

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts that held it since it was entered or last handed on."""
        since = time_nanoseconds(self.at)
        return [each for each in self.history.attempts if time_nanoseconds(each.at) >= since]

    def handed_on(self, owner: Owner, now: str) -> OpenEntry:
        """Return the entry with a new time, no token and no work, as a take of ``owner`` writes it to hand the claim
        on."""
        history = replace(self.history, taken=self.history.taken or self.at)
        return replace(self, at=now, owner=owner, token=None, history=history, work="")

    def released(self, now: str, skipped: str = "") -> OpenEntry:
        """Return the entry after a person, or the attempt ``skipped`` that skipped its work, has released the claim."""
        return replace(self, token=None, history=replace(self.history, released=now, skipped=skipped))

    @property
    def is_released(self) -> bool:
        """Whether the claim was released so that its messages are redelivered, and neither held nor handed on since."""
        since = [self.at, *(each.at for each in self.history.attempts[-1:])]
        released = self.history.released
        unheld = self.token is None and released != ""
        return unheld and time_nanoseconds(released) >= max(map(time_nanoseconds, since))


@dataclass(frozen=True, slots=True)
class DoneEntry:
    """A settled claim. It stays in the record at least until its receipt is written.

    counter:   the highest consumer sequence of its deliveries.
    token:     the attempt that settled it.
    value:     the value that this attempt recorded.
    rejected:  the sequences that were dead-lettered instead of processed.
    at:        the server's time when it was settled.
    history:   the owner for which it was taken, and the attempts that held it.
    work:      the name of the piece of work that settled it; empty if it had none.
    skipped:   the sequences that this attempt could not read and has skipped (:mod:`.skipped`).
    """

    sequences: Sequences
    counter: int
    token: str
    value: Any
    rejected: Sequences = field(default_factory=Sequences)
    at: str = ""
    history: History = field(default_factory=History)
    work: str = ""
    skipped: Sequences = field(default_factory=Sequences)


@dataclass(frozen=True, slots=True)
class Heir:
    """The take that hands on open claims instead of pulling: which claims are its.

    owner:         the take's owner.
    predecessors:  other owners, whose runs have ended.
    even_if_held:  whether it also inherits its owner's claims that an attempt still holds.
    """

    owner: Owner
    predecessors: tuple[Owner, ...] = ()
    even_if_held: bool = False

    def inherits(self, owner: Owner, token: str | None) -> bool:
        """Whether an open claim that was taken for ``owner`` and is held by ``token`` is handed on."""
        if token is not None:
            return self.even_if_held and owner == self.owner
        return owner in (self.owner, *self.predecessors)


@dataclass(frozen=True, slots=True)
class Record:
    """The ledger's knowledge about one life of one consumer (docs/handoff.md).

    done:       settled claims whose receipts may not have been written yet.
    settled:    messages of other settled claims above the floor; their acknowledgements may still be in transit.
    resetting:  the token of the reset in progress, and when it began; None if there is none.
    acknowledged:  the consumer sequence up to which all deliveries were acknowledged when this life began. A reset
                writes the new life before it resets the consumer, and may be refused after that.
    unreceipted:  the sequences among which are messages that were acknowledged without the ledger
                (:func:`~.take.conservation.unreceipted`), and when a take last noticed such messages; None if there
                are none.
    unclaimed:  the sequences among which are deliveries that are in no open claim and are not done: those that were on
                their way when this life began, and those of claims that ended without being settled. They are
                redelivered, or the server has given them up.
    writes:     the ids of the last writes of this record, the newest last. A client whose write was not answered finds
                out here whether it was stored.
    order:      the order per key; None for a consumer whose messages are taken without one.
    reader:     the reader that the consumer is reserved for; None for a consumer that everybody may take from. It
                stays when a new life begins.
    """

    created: str
    n: int = 0
    floor: int = 0
    counter: int = 0
    candidate: tuple[int, int, str] | None = None
    last_counter: int = 0
    open: Mapping[str, OpenEntry] = field(default_factory=dict)
    done: Mapping[str, DoneEntry] = field(default_factory=dict)
    settled: Settled = field(default_factory=Settled)
    failures: Mapping[str, Failure] = field(default_factory=dict)
    resetting: tuple[str, str] | None = None
    acknowledged: int = 0
    unreceipted: tuple[Sequences, str] | None = None
    unclaimed: Sequences = field(default_factory=Sequences)
    writes: tuple[str, ...] = ()
    order: Order | None = None
    reader: Reservation | None = None

    @classmethod
    def begun(cls, info: ConsumerInfo, unclaimed: Sequences) -> Record:
        """The record of a consumer of which nothing is known, except which deliveries are on their way."""
        return cls(info.created, unclaimed=unclaimed)

    @property
    def seen(self) -> int:
        """The highest consumer sequence that the ledger knows."""
        opened, done = (each.counter for each in self.open.values()), (each.counter for each in self.done.values())
        candidate = self.candidate[1] if self.candidate else 0
        return max(self.counter, self.last_counter, candidate, self.acknowledged, self.settled.counter, *opened, *done)

    @property
    def owners(self) -> set[Owner]:
        """The owners of the claims that are open, or were settled lately."""
        return {*(each.owner for each in self.open.values()), *(each.history.owner for each in self.done.values())}

    def new_life(self, info: ConsumerInfo) -> bool:
        """Whether the consumer was recreated, reset or rolled back since this record was written."""
        return (
            info.created != self.created
            or info.counter < self.counter
            or info.floor < self.floor
            or (info.counter == 0 and self.last_counter > 0)
        )

    def reborn(self, info: ConsumerInfo, unclaimed: Sequences = _NONE) -> Record:
        """Return the new record of the next life, in which all open claims are superseded.

        unclaimed:  deliveries that are on their way.
        """
        return replace(
            Record(info.created, self.n + 1, resetting=self.resetting, acknowledged=info.acknowledged),
            unreceipted=self.unreceipted,
            unclaimed=(self.unclaimed if info.created == self.created else _NONE) | unclaimed,
            order=self.order and Order(self.order.by, stopped=self.order.stopped),
            reader=self.reader,
        )

    @property
    def life(self) -> tuple[str, int]:
        return self.created, self.n

    def inherited(self, heir: Heir) -> dict[str, OpenEntry]:
        """The open claims that a take hands on instead of pulling."""
        return {each: entry for each, entry in self.open.items() if heir.inherits(entry.owner, entry.token)}

    def handed_on_again(self, heir: Heir, info: ConsumerInfo) -> Record:
        """Return the record in which the claims that a take hands on belong to its owner, with a new time, so that no
        earlier try can withdraw them."""
        if self.new_life(info):
            return self
        again = {each: entry.handed_on(heir.owner, info.now) for each, entry in self.inherited(heir).items()}
        return replace(self, open={**self.open, **again})

    def held(self, claim_id: str, attempt: Attempt, work: str = "") -> Record:
        """Return the record in which an attempt holds an open claim, for the piece of work with this name."""
        entry = self.open[claim_id]
        history = entry.history.held(attempt)
        held = replace(entry, token=attempt.token, history=history, work=work or entry.work)
        return replace(self, open={**self.open, claim_id: held})

    def without_attempts(self) -> Record:
        """Return the record without the attempts in the histories of its claims, because it would be too large."""
        return replace(self, open=_without_attempts(self.open), done=_without_attempts(self.done))

    def withdrawn(self, entered: Mapping[str, str]) -> Record:
        """Return the record without these claims, except those that are held or were handed on again.

        entered:  for the id of each claim, the time at which it was entered.
        """
        return self.without(
            each for each, entry in self.open.items() if entry.token is None and entered.get(each) == entry.at
        )

    def without(self, claims: Iterable[str]) -> Record:
        """Return the record without these open claims, whose messages are to be delivered again."""
        if not (ended := {*claims}):
            return self
        left = {each: entry for each, entry in self.open.items() if each not in ended}
        again = Sequences.from_ranges(each for claim in ended for each in self.open[claim].sequences.ranges)
        for entry in left.values():
            again -= entry.sequences
        return replace(self, open=left).remembering(again - self.all_settled.sequences)

    def remembering(self, messages: Sequences) -> Record:
        """Return the record that knows that these messages were delivered, and are in no open claim."""
        if not messages:
            return self
        return replace(self, unclaimed=_remembered(self.unclaimed | messages))

    def written_as(self, write: str, before: Record | None) -> Record:
        """Return the record with the id of the write that stores it instead of ``before``."""
        earlier = before.writes if before else ()
        return replace(self, writes=(*earlier, write)[-_WRITES:])

    def note(self, info: ConsumerInfo) -> Record:
        """Return the record with the counters of this INFO noted. Counters are believed when, a second later, the
        server still reports them or higher ones. Until then they are the candidate.

        A candidate with a time in the future is replaced. Its time shows that the server's clock was set back, or that
        another server has become the leader.
        """
        floor, counter, candidate = self.floor, self.counter, self.candidate
        fresh = (info.floor, info.counter, info.now)
        stood = time_nanoseconds(info.now) - time_nanoseconds(candidate[2]) if candidate else 0
        if candidate is None or info.floor < candidate[0] or info.counter < candidate[1] or stood < 0:
            candidate = fresh
        elif stood >= BELIEVED:
            floor, counter = max(floor, candidate[0]), max(counter, candidate[1])
            candidate = fresh
        noted = replace(self, floor=floor, counter=counter, candidate=candidate, last_counter=info.counter)
        return noted.remembering(self._not_ours(info))

    def _not_ours(self, info: ConsumerInfo) -> Sequences:
        """The sequences among which are deliveries behind all that the record knows: to another client, or to a take
        that has not entered them yet. A consumer that begins with the last message of each subject skips messages."""
        if info.config.get("deliver_policy") == "last_per_subject":
            return Sequences()
        claims = (entry.sequences.last for entries in (self.open, self.done) for entry in entries.values())
        settled = (last for _, last, _ in self.settled.spans[-1:])
        floor = self.candidate[0] if self.candidate else info.floor
        behind = max(self.floor, floor, *claims, *settled, *(last for _, last in self.unclaimed.ranges[-1:]))
        return Sequences.from_ranges([(behind + 1, info.delivered)] if behind < info.delivered else [])

    def with_unreceipted(self, messages: Sequences, info: ConsumerInfo) -> Record:
        """Return the record in which these messages are noted as acknowledged without the ledger, and in which it is
        decided what became of all messages up to the floor."""
        found = _noted((self.unreceipted[0] if self.unreceipted else Sequences()) | messages)
        passed = Sequences.from_ranges([(1, info.floor)] if info.floor else [])
        noted = (found, info.now) if messages else self.unreceipted
        new = self.note(info)
        return replace(new, unreceipted=noted, unclaimed=new.unclaimed - (self.unclaimed & passed) - messages)

    def claimed(self, messages: Sequences) -> Record:
        """Return the record in which these messages, which were delivered again, are in a claim or done."""
        noted, at = self.unreceipted or (Sequences(), "")
        left = _noted(noted - messages)
        return replace(self, unclaimed=_remembered(self.unclaimed - messages), unreceipted=(left, at) if left else None)

    @property
    def undone(self) -> Sequences:
        """The sequences among which are the deliveries that are known not to be done."""
        opened = (each for entry in self.open.values() for each in entry.sequences.ranges)
        return Sequences.from_ranges([*opened, *self.unclaimed.ranges])

    @property
    def all_settled(self) -> Settled:
        """All messages that are known to be settled in this life."""
        found = self.settled
        for entry in self.done.values():
            found = found.add(entry.sequences, entry.counter)
        return found

    def tidied(self, info: ConsumerInfo) -> Record:
        """Return the record without settled messages at or below the floor, which the server counts as acknowledged.

        After that, only the receipts say how claims above the floor were settled. An open entry at or below the floor
        stays. Its messages were acknowledged by another client, or deleted, and are never redelivered, so only this
        entry names them. The entry is forgotten only if no attempt holds it and it is older than ``ABANDONED``.
        """
        oldest = time_nanoseconds(info.now) - ABANDONED
        return replace(
            self,
            open={
                claim_id: entry
                for claim_id, entry in self.open.items()
                if entry.sequences.last > self.floor or entry.token is not None or time_nanoseconds(entry.at) > oldest
            },
            done={},
            settled=self.all_settled.above(self.floor),
            failures=without(self.failures, Sequences.from_ranges([(1, self.floor)] if self.floor else [])),
            unreceipted=self.unreceipted
            if self.unreceipted and time_nanoseconds(self.unreceipted[1]) > oldest
            else None,
        )

    def to_json(self) -> dict[str, Any]:
        kept: list[Mapping[str, Any]] = []
        """The configurations of the entries, each only once."""
        for entry in self.open.values():
            if entry.config and entry.config not in kept:
                kept.append(entry.config)
        return {
            "v": RESERVED if self.reader else ORDERED if self.order else VERSION,
            "life": [self.created, self.n],
            "floor": self.floor,
            "counter": self.counter,
            "candidate": list(self.candidate) if self.candidate else None,
            "last_counter": self.last_counter,
            "open": {
                claim_id: {
                    "ranges": entry.sequences.to_json(),
                    "counter": entry.counter,
                    "bytes": entry.bytes,
                    "at": entry.at,
                    "token": entry.token,
                    "owner": list(entry.owner),
                    **_told_with(entry),
                    **({"unsettled": entry.unsettled} if entry.unsettled else {}),
                    **({"config": kept.index(entry.config)} if entry.config else {}),
                }
                for claim_id, entry in self.open.items()
            },
            "done": {
                claim_id: {
                    "ranges": entry.sequences.to_json(),
                    "counter": entry.counter,
                    "token": entry.token,
                    "value": entry.value,
                    "rejected": entry.rejected.to_json(),
                    "at": entry.at,
                    **_told_with(entry),
                    **_skipped_with(entry),
                }
                for claim_id, entry in self.done.items()
            },
            "settled": self.settled.to_json(),
            "failed": {claim_id: failure.to_json() for claim_id, failure in self.failures.items()},
            "resetting": list(self.resetting) if self.resetting else None,
            **({"configs": [dict(each) for each in kept]} if kept else {}),
            **({"acknowledged": self.acknowledged} if self.acknowledged else {}),
            **({"unreceipted": [self.unreceipted[0].to_json(), self.unreceipted[1]]} if self.unreceipted else {}),
            **({"unclaimed": self.unclaimed.to_json()} if self.unclaimed else {}),
            **({"writes": list(self.writes)} if self.writes else {}),
            **({"order": self.order.to_json()} if self.order else {}),
            **({"reader": self.reader.to_json()} if self.reader else {}),
        }

    @classmethod
    def from_json(cls, value: Any, what: str = "record") -> Record:
        """Read a record.

        what: the name of the record in errors.

        Raises:
            LedgerInvalid: this release cannot read the record, and guessing could lose messages.
        """
        try:
            if value["v"] not in _VERSIONS:
                version = str(value["v"])[:20]
                wrong = f"it has version {version}, but this release reads the versions {VERSION} to {RESERVED}"
                raise LedgerInvalid(what, wrong, "Use the release that wrote it; see docs/upgrading.md")
            _check_record(value)
            ordered = value["v"] == ORDERED or (value["v"] == RESERVED and "order" in value)
            candidate, resetting = value["candidate"], value["resetting"]
            configs = value.get("configs")
            configs = [edited.read(each) for each in configs] if isinstance(configs, list) else []
            return cls(
                created=value["life"][0],
                n=value["life"][1],
                floor=value["floor"],
                counter=value["counter"],
                candidate=(candidate[0], candidate[1], candidate[2]) if candidate else None,
                last_counter=value["last_counter"],
                open={claim_id: _open_entry(entry, configs) for claim_id, entry in value["open"].items()},
                done={claim_id: _done_entry(entry) for claim_id, entry in value["done"].items()},
                settled=Settled.from_json(value["settled"]),
                failures={claim_id: Failure.from_json(failure) for claim_id, failure in value["failed"].items()},
                resetting=(resetting[0], resetting[1]) if resetting else None,
                acknowledged=value.get("acknowledged", 0),
                unreceipted=_unreceipted(value.get("unreceipted")),
                unclaimed=Sequences.from_json(value.get("unclaimed", [])),
                writes=_writes(value.get("writes")),
                order=Order.from_json(value["order"]) if ordered else None,
                reader=Reservation.from_json(value["reader"]) if value["v"] == RESERVED else None,
            )
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise LedgerInvalid(what, _odd(error)) from None


@dataclass(frozen=True, slots=True)
class Receipt:
    """The receipt of a claim: how the claim ended, and whose output counts.

    claim_id:          the id of the claim.
    state:             ``done``, ``failed`` or ``superseded``.
    stream, consumer:  the names of the claim's stream and consumer.
    sequences:         the stream sequences of the claim.
    token:             the attempt that settled or failed the claim; None for a superseded claim. Only the output of an
                       attempt that settled the claim counts.
    value:             the value that this attempt recorded; in Airflow, the task's return value.
    rejected:          the dead-lettered sequences, which are not in the attempt's output.
    at:                the server's time when the claim was settled, failed or superseded, RFC 3339.
    again:             the attempt that is reprocessing the settled claim (:mod:`~.hold.reprocess`), if any.
    acknowledged:      for a done claim, the seconds from its settlement until all its acknowledgements were confirmed;
                       None if that is unknown.
    reason:            for a failed or superseded claim, why it ended; empty if that is unknown.
    superseded_by:     for a superseded claim, the ids of the claims that contain its messages now.
    history:           the owner for which it was taken, and the attempts that held it.
    work:              the name of the piece of work that settled it (:mod:`.work`); empty if it had none.
    skipped:           the sequences that the attempt could not read, because the stream no longer contained them, and
                       has skipped (``missing="skip"``). They are not in its output, and were acknowledged with the
                       claim.
    changed:           for a superseded claim, what was changed in its consumer since it was taken
                       (:func:`~.rules.edited.changed`); empty if nothing was, or if that is unknown.
    """

    claim_id: str
    state: str
    stream: str
    consumer: str
    sequences: Sequences
    token: str | None = None
    value: Any = None
    rejected: Sequences = field(default_factory=Sequences)
    at: str = ""
    again: str | None = None
    acknowledged: float | None = None
    reason: str = ""
    superseded_by: tuple[str, ...] = ()
    history: History = field(default_factory=History)
    work: str = ""
    skipped: Sequences = field(default_factory=Sequences)
    changed: str = ""

    @property
    def processed(self) -> Sequences:
        """The sequences that the attempt's output contains: all sequences of the claim except the rejected and the
        skipped ones."""
        return self.sequences - self.rejected - self.skipped

    @property
    def stored(self) -> tuple[str, str] | None:
        """When the server stored the first and the last message of the claim, RFC 3339; None if an older release took
        the claim. A stream that is restored from an older copy uses sequences again for other messages: these times
        tell the receipts apart."""
        return self.history.stored_at

    @property
    def attempt_id(self) -> str:
        """The key of the attempt's output: ``<claim id>-<token>``."""
        return f"{self.claim_id}-{self.token}"

    def to_json(self) -> dict[str, Any]:
        """Return the receipt as a JSON value."""
        return {
            "state": self.state,
            "stream": self.stream,
            "consumer": self.consumer,
            "ranges": self.sequences.to_json(),
            "token": self.token,
            "value": self.value,
            "rejected": self.rejected.to_json(),
            "at": self.at,
            "again": self.again,
            **({} if self.acknowledged is None else {"acknowledged": self.acknowledged}),
            **({"reason": self.reason} if self.reason else {}),
            **({"superseded_by": list(self.superseded_by)} if self.superseded_by else {}),
            **({"changed": self.changed} if self.changed else {}),
            **_told_with(self),
            **_skipped_with(self),
        }

    @classmethod
    def from_json(cls, claim_id: str, value: Mapping[str, Any]) -> Receipt:
        """Read a receipt. Raises LedgerInvalid.

        claim_id:  the id of the claim.
        value:     the return value of :meth:`to_json`.
        """
        try:
            state, stream, consumer, token = (value[name] for name in ("state", "stream", "consumer", "token"))
            sequences, rejected = (Sequences.from_json(value[name]) for name in ("ranges", "rejected"))
            _check(stream, str)
            _check(consumer, str)
            _check(token, str | None)
            _check(value["again"], str | None)
            _check_settled(value["at"])
            if state not in ("done", "failed", "superseded"):
                raise ValueError("unknown state")  # noqa: TRY301 - handled with the errors of the lines above
            settled = (token, value["value"], rejected, value["at"], value["again"])
            changed = value.get("changed")
            told = (*_told(value), _work(value))
            skipped = _skipped(value)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _unreadable(claim_id, _odd(error)) from None
        return cls(
            claim_id,
            state,
            stream,
            consumer,
            sequences,
            *settled,
            *told,
            skipped=skipped,
            changed=changed if isinstance(changed, str) else "",
        )


def stored_record(data: bytes, what: str) -> Record:
    """Read a record from the value of its key. Raises LedgerInvalid."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise LedgerInvalid(what, "it is not JSON") from None
    return Record.from_json(value, what)


def stored_receipt(claim_id: str, data: bytes) -> Receipt:
    """Read a receipt from the value of its key. Raises LedgerInvalid."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise _unreadable(claim_id, "it is not JSON") from None
    return Receipt.from_json(claim_id, value)


def skipped_key(claim_id: str, token: str) -> str:
    """The key, in the bucket of receipts, of the messages that an attempt has skipped: the name of the attempt. No
    receipt has such a key."""
    return f"{claim_id}-{token}"


def skipped_value(sequences: Sequences) -> bytes:
    """The value of the key of skipped messages."""
    return json.dumps({"v": 1, "skipped": sequences.to_json()}).encode()


def stored_skipped(claim_id: str, data: bytes) -> Sequences:
    """The reverse of :func:`skipped_value`. Raises LedgerInvalid."""
    try:
        return Sequences.from_json(json.loads(data)["skipped"])
    except (ValueError, KeyError, TypeError, RecursionError):
        what = f"list of the skipped messages of claim {claim_id}"
        raise LedgerInvalid(what, "it is not what this package writes", "Run the task of the claim again") from None


def _odd(error: Exception) -> str:
    return f"field {error} is missing" if isinstance(error, KeyError) else "a field is missing or invalid"


def _unreadable(claim_id: str, wrong: str) -> LedgerInvalid:
    remedy = (
        "Restore the receipt's previous value. Do not purge the receipt, because the output of its claim would no "
        "longer count"
    )
    return LedgerInvalid(f"receipt of claim {claim_id}", wrong, remedy)


def _check_record(value: Any) -> None:
    """Check the fields of a decoded record, which may have any type.

    Raises KeyError, TypeError, ValueError or AttributeError.
    """
    (created, n), candidate = value["life"], value["candidate"]
    _check(created, str)
    _check_counts(n, value["floor"], value["counter"], value["last_counter"], value.get("acknowledged", 0))
    if candidate is not None:
        floor, counter, at = candidate
        _check_counts(floor, counter)
        time_nanoseconds(at)
    if value["resetting"] is not None:
        token, since = value["resetting"]
        _check(token, str)
        time_nanoseconds(since)
    for _, size, alone, reason in value["failed"].values():
        _check(size, int)
        _check_counts(size - 1, alone)
        _check(reason, str)


def _remembered(messages: Sequences) -> Sequences:
    return Sequences.from_ranges(messages.ranges[:_MOST_UNCLAIMED])


def _noted(messages: Sequences) -> Sequences:
    """Sequences as the record notes them: more than 100 ranges become one, so that they take little room."""
    return Sequences.from_ranges([(messages.first, messages.last)]) if len(messages.ranges) > _MOST_NOTED else messages


def _unreceipted(value: Any) -> tuple[Sequences, str] | None:
    """Messages that were acknowledged without the ledger. Older releases do not write them."""
    if value is None:
        return None
    ranges, at = value
    time_nanoseconds(at)
    return _ranges(ranges), at


def _writes(value: Any) -> tuple[str, ...]:
    """The ids of the last writes. Older releases do not write them. Others only look for their own ids in it."""
    return tuple(each for each in value if isinstance(each, str))[-_WRITES:] if isinstance(value, list) else ()


def _open_entry(value: Any, configs: list[dict[str, Any]]) -> OpenEntry:
    owner, token, at = value["owner"], value["token"], value["at"]
    _check_counts(value["counter"], value["bytes"])
    time_nanoseconds(at)
    _check(token, str | None)
    history = History.from_json(value.get("history"))
    history = replace(history, owner=()) if history.owner else history
    unsettled = value.get("unsettled", 0)
    if not isinstance(unsettled, int) or unsettled < 0:
        unsettled = 0  # no decision depends on it
    of = (_ranges(value["ranges"]), value["counter"], value["bytes"], at, owner_of(owner), token, history)
    index = value.get("config")
    known = type(index) is int and 0 <= index < len(configs)
    return OpenEntry(*of, _work(value), unsettled, configs[index] if known else {})


def _done_entry(value: Any) -> DoneEntry:
    counter, token, at = value["counter"], value["token"], value["at"]
    _check_counts(counter)
    _check(token, str)
    _check_settled(at)
    rejected = Sequences.from_json(value["rejected"])
    history = History.from_json(value.get("history"))
    of = (_ranges(value["ranges"]), counter, token, value["value"], rejected, at, history)
    return DoneEntry(*of, _work(value), _skipped(value))


_Entry = TypeVar("_Entry", OpenEntry, DoneEntry)


def _without_attempts(entries: Mapping[str, _Entry]) -> dict[str, _Entry]:
    return {
        claim_id: replace(entry, history=replace(entry.history, attempts=())) if entry.history.attempts else entry
        for claim_id, entry in entries.items()
    }


def _told_with(entry: OpenEntry | DoneEntry | Receipt) -> dict[str, Any]:
    """The fields that an entry has only if they are not empty: its piece of work, and its history."""
    history = entry.history.to_json()
    return {**({"work": entry.work} if entry.work else {}), **({"history": history} if history else {})}


def _skipped_with(entry: DoneEntry | Receipt) -> dict[str, Any]:
    """The skipped messages, if there are any."""
    return {"skipped": entry.skipped.to_json()} if entry.skipped else {}


def _skipped(value: Mapping[str, Any]) -> Sequences:
    """The skipped messages. Older releases do not write them. Raises ValueError."""
    return Sequences.from_json(value.get("skipped", []))


def _work(value: Mapping[str, Any]) -> str:
    """The name of a piece of work. Older releases do not write it. Raises TypeError."""
    work = value.get("work", "")
    _check(work, str)
    return str(work)


def _told(value: Mapping[str, Any]) -> tuple[float | None, str, tuple[str, ...], History]:
    """The fields of a receipt that only explain how its claim ended. Older releases do not write them. A value that is
    not valid counts as missing, because no decision depends on it."""
    seconds, reason, by = value.get("acknowledged"), value.get("reason"), value.get("superseded_by")
    known = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < 1e9
    ids = tuple(each for each in by if isinstance(each, str)) if isinstance(by, list) else ()
    history = History.from_json(value.get("history"))
    return seconds if known else None, reason if isinstance(reason, str) else "", ids, history


def _ranges(value: Any) -> Sequences:
    if not value:
        raise ValueError("no ranges")
    return Sequences.from_json(value)


def _check_settled(at: str) -> None:
    if at != "":  # empty if the time is not known
        time_nanoseconds(at)


def _check(value: object, kind: Any) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(type(value).__name__)


def _check_counts(*values: object) -> None:
    for value in values:
        _check(value, int)
        if not 0 <= value < 2**64:  # type: ignore[operator] # an int, checked
            raise ValueError("invalid number")


def check_value(value: object) -> Any:
    """Return a value as it is read from the ledger. Raise InvalidValue if the ledger cannot record it."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidValue(
            "value",
            type(value),
            f"this value cannot be recorded ({error}); the work must return a JSON value",
        ) from None
    if len(text) > LARGEST_VALUE:
        remedy = f"the ledger records at most {LARGEST_VALUE} bytes; return a count or a path instead"
        raise InvalidValue("value", f"{len(text)} bytes", remedy)
    return json.loads(text)
