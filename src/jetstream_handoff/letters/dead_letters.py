# SPDX-License-Identifier: Apache-2.0
"""Dead letters: copies of messages that no attempt could process. Each is stored before its message is terminated.

A message has at most one dead letter for each consumer. The subject of the dead letter names the message and the
consumer, and the dead letter is written by compare-and-set on that subject. If the copying is repeated after a kill,
however late, it finds the first copy. A message id would not be enough: the server forgets the id after the duplicate
window, and until then it reports a dead letter as stored even if the dead letter was replayed and removed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jetstream_client.errors import (
    ApiError,
    ConnectionLost,
    InvalidValue,
    JetStreamError,
    RequestTimeout,
    StreamNameInUse,
    StreamNotFound,
    TooManyRequests,
    WrongDomain,
    WrongLastSequence,
)
from jetstream_client.names import LONGEST_NAME, check_stream_name, subject_matches
from jetstream_client.publish.ack import PubAck, acknowledged
from jetstream_client.publish.message import OutgoingMessage
from jetstream_client.quantities import number
from jetstream_client.sequences import Sequences
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.protocol import decode_status, encode_publish, inbox_number
from jetstream_handoff.errors import DeadLettersUnsuitable, HoldLost
from jetstream_handoff.ledger.buckets import PATIENCE
from jetstream_handoff.ledger.failures import Failures, times_alone
from jetstream_handoff.ledger.keeping import broken_rules
from jetstream_handoff.ledger.ledger import Ledger, believed
from jetstream_handoff.letters.letter import ORIGINAL, PREFIX, Letter, address_of, content, is_ours
from jetstream_handoff.letters.note import note_lines
from jetstream_handoff.letters.parts import FOR_MARK, Draft, block, emptied, fits, in_parts
from jetstream_handoff.letters.stored import stored_message
from jetstream_handoff.rules.storage import storage_full

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_client.stream import Stream
    from jetstream_client.wire.run import Frame
    from jetstream_client.wire.settings import ConnectionSettings
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.letters.letter import Head
    from jetstream_handoff.letters.note import Outcome

log = logging.getLogger(__name__)

DEFAULT_PREFIX = "DEAD_"
"""How the default name of a dead-letter stream begins."""
_AT_ONCE = 50  # dead letters in flight at the same time, because their payloads are in memory
_BYTES_AT_ONCE = 16 << 20  # the server closes a connection with more than max_pending (64 MiB) of outgoing data
_LONGEST_ADDRESS = 1 << 10  # a line of the protocol has at most 4,096 bytes by default (max_control_line)
_SMALLEST_LIMIT = 8 << 10  # bytes of the headers that a dead letter adds: at most 1 KiB of reason and 4 KiB of subject
_ANSWERED_WITHIN = 10.0
_SUBJECTS_OVERLAP = 10065  # nats-server's JSStreamSubjectOverlapErr

Rejected = Mapping[str, Sequences]
"""The sequences of messages to copy to the dead-letter stream, by reason."""


def dead_letters_of(stream: str, name: str | None = None) -> str:
    """Return the name of a stream's dead-letter stream: the given name, or ``DEAD_<stream>``.

    If that is longer than a name may be, it is ``DEAD_`` and the SHA-256 of the stream's name. So every stream has a
    default, whether dead letters are wanted or not.

    Raises:
        InvalidValue: the name is not a valid stream name, or it is the name of the source stream.
    """
    if name is not None and check_stream_name(name, "dead_letters") == stream:
        raise InvalidValue("dead_letters", name, "this is the stream that is processed; name another stream")
    default = f"{DEFAULT_PREFIX}{stream}"
    if len(default.encode()) > LONGEST_NAME:
        default = f"{DEFAULT_PREFIX}{hashlib.sha256(stream.encode()).hexdigest()}"
    return name or default


class DeadLetters:
    """The dead-letter stream of one source stream."""

    def __init__(self, js: JetStream, source: str, name: str | None = None) -> None:
        self.js = js
        self.source = js.stream(source)
        self.stream = js.stream(dead_letters_of(source, name))
        self.name = self.stream.name
        self.named = name is not None

    @property
    def subjects(self) -> str:
        """The filter for subjects of dead letters, which are
        ``dead.<stream>.<consumer>.<sequence>.<stream created, ns>.<original subject, or its hash>``."""
        return f"dead.{self.source.name}.>"

    async def ensure(self) -> None:
        """Create the dead-letter stream if it does not exist.

        It is stored on file with ``limits`` retention and the source's number of replicas.

        Raises:
            DeadLettersUnsuitable: the dead-letter stream breaks a rule, or its subjects overlap with the subjects of
                another stream.
            StreamNotFound: the source stream does not exist.
        """
        try:
            config = (await self.stream.info(patience=PATIENCE)).config
        except StreamNotFound:
            replicas = (await self.source.info(patience=PATIENCE)).config.get("num_replicas", 1)
            try:
                await self.js.create_stream(self._config(replicas))
                log.info("created dead-letter stream %s", self.name)
            except StreamNameInUse:
                log.info("dead-letter stream %s was created by another client in the meantime", self.name)
            except ApiError as error:
                if error.err_code != _SUBJECTS_OVERLAP:
                    raise
                raise DeadLettersUnsuitable(
                    self.name,
                    "subjects",
                    self.subjects,
                    "another stream, perhaps the source, listens on some of these subjects; narrow the subjects of "
                    "that stream",
                ) from error
            config = (await self.stream.info(patience=PATIENCE)).config
        self.check(config)

    def _config(self, replicas: int) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": f"dead letters of {self.source.name}: airflow-provider-nats-jetstream",
            "subjects": [self.subjects],
            "storage": "file",
            "num_replicas": replicas,
            "retention": "limits",
            "max_msgs_per_subject": 1,  # a new version of a dead letter replaces the old one
            "discard": "new",  # when the stream is full, it refuses a dead letter instead of dropping an old one
            "allow_direct": True,
        }

    def check(self, config: Mapping[str, Any]) -> None:
        """Raise DeadLettersUnsuitable if this configuration breaks a rule."""

        def refuse(rule: str, remedy: str) -> None:
            raise DeadLettersUnsuitable(self.name, rule, config.get(rule), remedy)

        # A filter that does not end in > cannot cover all subjects of a filter that does.
        subjects = [each for each in config.get("subjects") or () if each.split(".")[-1] == ">"]
        if not any(subject_matches(each, self.subjects) for each in subjects):
            refuse("subjects", f"they must cover {self.subjects!r}")
        if 0 < config.get("max_msg_size", -1) < _SMALLEST_LIMIT:
            refuse("max_msg_size", f"it must be -1 or at least {_SMALLEST_LIMIT}, so that a dead letter's headers fit")
        for field, remedy in broken_rules(config, expires=True):
            refuse(field, remedy)

    async def copy(self, holder: Holder, rejected: Rejected) -> None:
        """Write a dead letter for each rejected message of the held claim, and wait until all are confirmed.

        A copy may be repeated. Messages that the source stream no longer contains (purged, expired) cannot be copied.
        A message that is too large for one dead letter is copied in parts.

        Raises:
            HoldLost: the claim is no longer held by this token.
            DeadLettersUnsuitable: the dead-letter stream was changed, and may lose what is written into it.
            InvalidValue: the headers of a dead letter alone are larger than the server's ``max_payload``.
            ApiError: the dead-letter stream refuses a message, for example because it is full.
        """
        claim = holder.claim
        failures = await holder.check()
        config = (await self.stream.info(patience=PATIENCE)).config
        self.check(config)
        largest_letter = self._largest(config)
        # The size of each message is not known yet, so any of them may be as large as the server accepts.
        largest = min(self.js.connection.max_payload, claim.bytes)
        at_once = _AT_ONCE if claim.bytes <= _BYTES_AT_ONCE else max(1, min(_AT_ONCE, _BYTES_AT_ONCE // largest))
        for reason, sequences in rejected.items():
            gone = Sequences()
            for window in sequences.windows(at_once):
                found = await asyncio.gather(*[stored_message(self.source, {"seq": sequence}) for sequence in window])
                originals = {message["seq"]: message for message in found if message is not None}
                gone |= window - Sequences.of(originals)
                await self._write(holder, failures, reason, originals, largest_letter)
            copied = sequences.count - gone.count
            text = "copied %s of claim %s to stream %s (%s)"
            log.info(text, number(copied, "message"), claim.id, self.name, reason)
            if gone:
                log.error(
                    "rejected messages of claim %s have no dead letter, because stream %s no longer contains them: %s",
                    claim.id,
                    claim.stream,
                    gone,
                )

    def _largest(self, config: Mapping[str, Any]) -> int:
        """How many bytes a message in the dead-letter stream may have."""
        limit = config.get("max_msg_size", -1)
        most = self.js.connection.max_payload
        return min(most, limit) if limit > 0 else most

    async def _write(
        self,
        holder: Holder,
        failures: Failures,
        reason: str,
        originals: Mapping[int, Mapping[str, Any]],
        largest: int,
    ) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE
        expected: dict[int, tuple[int, Letter | None]] = dict.fromkeys(originals, (0, None))
        while expected:
            # The parts of each try have another name, because those of a dead letter that was stored by an earlier try
            # may have been emptied since.
            drafts = {
                sequence: self._draft(
                    holder, originals[sequence], revision, reason, times_alone(failures, sequence), largest
                )
                for sequence, (revision, _) in expected.items()
            }
            await self._publish_parts(drafts, deadline)
            outcomes = await publish(self.js.settings, [each.letter for each in drafts.values()], deadline)
            room = any(map(storage_full, outcomes)) and await holder.ledger.buckets.reserve.free()
            again: dict[int, tuple[int, Letter | None]] = {}
            unneeded: list[str] = []
            for (sequence, draft), outcome in zip(drafts.items(), outcomes, strict=True):
                replaced = expected[sequence][1]
                if isinstance(outcome, WrongLastSequence):
                    number, there = await self.last(draft.letter.subject)
                    if there is None or (there.claim_id, there.token) != (holder.claim.id, holder.token):
                        again[sequence] = number, there
                    ours = [each.subject for each in draft.parts]
                    if there is None or ours != part_subjects(there):
                        unneeded += ours
                elif room and storage_full(outcome):
                    again[sequence] = expected[sequence]
                    unneeded += [each.subject for each in draft.parts]
                elif isinstance(outcome, JetStreamError):
                    raise outcome.about(self._not_copied(sequence))
                elif replaced is not None:
                    unneeded += part_subjects(replaced)
            await self._try_to_empty(unneeded)
            if again:
                await self._check_again(holder, deadline)
            expected = again

    async def _check_again(self, holder: Holder, deadline: float) -> None:
        """Raise if no other attempt to write may be made. An attempt may replace an earlier attempt's dead letter only
        if it still holds the claim after it has seen that dead letter."""
        await holder.check()
        if asyncio.get_running_loop().time() > deadline:
            raise RequestTimeout(
                f"the dead letters of claim {holder.claim.id} could not be written to stream {self.name!r} "
                f"within {PATIENCE:g} s, because other clients kept writing the same ones"
            )

    def _not_copied(self, sequence: int) -> str:
        return f"message {sequence} of stream {self.source.name!r} could not be copied to stream {self.name!r}"

    async def _publish_parts(self, drafts: Mapping[int, Draft], deadline: float) -> None:
        of = [(sequence, part) for sequence, draft in drafts.items() for part in draft.parts]
        if not of:
            return
        outcomes = await publish(self.js.settings, [part for _, part in of], deadline)
        for (sequence, _), outcome in zip(of, outcomes, strict=True):
            # Nobody else knows the name, so a message that is there is our own unanswered write.
            if isinstance(outcome, JetStreamError) and not isinstance(outcome, WrongLastSequence):
                raise outcome.about(self._not_copied(sequence))

    def _draft(  # noqa: PLR0917 - the message, and what its dead letter says
        self,
        holder: Holder,
        original: Mapping[str, Any],
        revision: int,
        reason: str,
        alone: int,
        largest: int,
    ) -> Draft:
        """A dead letter that the server stores only if it replaces ``revision``; in parts if it would be too large."""
        claim = holder.claim
        ours = {
            "Stream": claim.stream,
            "Stream-Created": claim.stream_created,
            "Subject": original["subject"],
            "Time-Stamp": original["time"],
            "Consumer": claim.consumer,
            "Reason": reason,
            "Claim": claim.id,
            "Token": holder.token,
            "Failures": alone,
        }
        header, data = content(original)
        own = [ORIGINAL.encode() + line if is_ours(line) else line for line in header.split(b"\r\n")[1:] if line]
        lines = [f"{PREFIX}{name}: {value}".encode() for name, value in ours.items()] + self.conditions(revision)
        identity = (claim.stream, claim.consumer, original["seq"], claim.stream_created, original["subject"])
        address = address_of(*identity, hashed=False)
        if len(address.encode()) > _LONGEST_ADDRESS:
            address = address_of(*identity, hashed=True)
        number = f"{PREFIX}Sequence: {original['seq']}".encode()
        whole = OutgoingMessage(address, data, block([*own, number, *lines]))
        if fits(whole, FOR_MARK, largest):
            return Draft(whole)
        return in_parts(address, original["seq"], own, data, lines, largest, self._only_here)

    @property
    def _only_here(self) -> bytes:
        return f"Nats-Expected-Stream: {self.name}".encode()

    def conditions(self, revision: int) -> list[bytes]:
        """Header lines that make the server store a dead letter only in this stream, and only if it replaces this
        revision. With revision 0, it is stored only if its subject has no dead letter."""
        return [
            self._only_here,
            f"Nats-Expected-Last-Subject-Sequence: {revision}".encode(),
        ]

    async def last(self, address: str) -> tuple[int, Letter | None]:
        """Return the sequence of the last message on this subject (or 0), and the message itself if it is a dead
        letter."""
        message = await stored_message(self.stream, {"last_by_subj": address})
        if message is None:
            return 0, None
        try:
            return message["seq"], Letter.from_stored(message)
        except InvalidValue:
            return message["seq"], None

    async def whole(self, letter: Letter) -> Letter:
        """Return a dead letter with its complete content, which may be in parts.

        Raises:
            InvalidValue: a part is missing.
        """
        if letter.parts is None:
            return letter
        found = bytearray()
        for subject in part_subjects(letter):
            part = await stored_message(self.stream, {"last_by_subj": subject})
            if part is None or len(found) > letter.parts.header + letter.parts.size:
                break
            found += content(part)[1]
        return letter.joined(bytes(found))

    async def empty(self, head: Head) -> None:
        """Remove the content of the parts of a dead letter that was replaced.

        Raises:
            JetStreamError: the dead-letter stream refuses that, or did not answer for ``PATIENCE`` seconds.
        """
        await self._empty(part_subjects(head))

    async def _empty(self, subjects: list[str]) -> None:
        if not subjects:
            return
        try:
            deadline = asyncio.get_running_loop().time() + PATIENCE
            for outcome in await publish(self.js.settings, emptied(subjects, self._only_here), deadline):
                if isinstance(outcome, JetStreamError):
                    raise outcome
        except JetStreamError as error:
            raise error.about(
                f"the payloads of parts of dead letters that were replaced are still stored in stream {self.name!r}. "
                f"To delete them, purge the subjects {' '.join(subjects)}. Emptying them failed"
            ) from None

    async def _try_to_empty(self, subjects: list[str]) -> None:
        try:
            await self._empty(subjects)
        except JetStreamError as error:
            log.warning("%s", error)

    async def put_note(self, head: Head, number: int, outcome: Outcome, value: str) -> None:
        """Replace a dead letter by a note.

        head:            the dead letter.
        number:          its sequence now. It has changed if the dead letter was marked since it was read.
        outcome, value:  as in :func:`~jetstream_handoff.letters.note.note_lines`.

        Raises:
            WrongLastSequence: another message has taken the dead letter's place. It may be this note, if the answer to
                an earlier write was lost.
            JetStreamError: the stream refuses the note, or did not answer for ``PATIENCE`` seconds.
        """
        lines = [*note_lines(outcome, value, head), *self.conditions(number)]
        await self.publish_one(self.stream, OutgoingMessage(head.address, b"", block(lines)), outcome)

    async def publish_one(
        self, stream: Stream, message: OutgoingMessage, outcome: Outcome, within: float = PATIENCE
    ) -> PubAck:
        """Publish one message while dead letters are replayed or discarded, and return its answer.

        stream:   the stream that stores the message, for errors.
        message:  the message, with a condition or an id that keeps the server from storing it twice.
        outcome:  what becomes of the dead letters, for errors.
        within:   seconds during which it is sent again if there is no answer. Default ``PATIENCE``.

        Raises:
            JetStreamError: the stream refuses the message, or did not answer in time.
        """
        (answer,) = await publish(self.js.settings, [message], asyncio.get_running_loop().time() + within)
        if isinstance(answer, JetStreamError):
            raise answer.about(
                f"dead letters of stream {self.name!r} are being {outcome}, but publishing a message to stream "
                f"{stream.name!r} failed"
            )
        return answer


def part_subjects(head: Head) -> list[str]:
    """Return the subjects of the parts of a dead letter; none if it is not in parts."""
    return head.parts.subjects(head.address) if head.parts else []


class Holder(NamedTuple):
    """The attempt that holds the claim and copies its messages."""

    ledger: Ledger
    claim: Claim
    token: str

    async def check(self) -> Failures:
        """Return the failures so far. Raises HoldLost if this token does not hold the claim."""
        return await believed(self._failures)

    async def _failures(self) -> Failures:
        record, _ = await self.ledger.read()
        entry = record.open.get(self.claim.id) if record else None
        if record is None or entry is None or entry.token != self.token:
            raise HoldLost(
                f"claim {self.claim.id} is no longer held by attempt {self.token}, so its messages cannot be "
                "dead-lettered"
            )
        return record.failures


async def publish(
    settings: ConnectionSettings, messages: list[OutgoingMessage], deadline: float
) -> list[PubAck | JetStreamError]:
    """Publish messages, and return their answers in the same order. A refusal counts as an answer.

    Messages without an answer are sent again until the event loop's clock shows ``deadline``. So each message needs a
    condition or an id that keeps the server from storing it twice.

    Raises:
        ConnectionLost, RequestTimeout: not all messages were answered in time.
    """
    answers: dict[int, PubAck | JetStreamError] = {}
    while True:
        try:
            await asyncio.to_thread(_publish, settings, messages, answers)
        except (ConnectionLost, RequestTimeout) as error:
            if asyncio.get_running_loop().time() > deadline:
                raise
            log.warning("publishing dead letters was interrupted and is tried again: %s", error)
            await asyncio.sleep(0.2)
        else:
            return [answers[position] for position in range(len(messages))]


def _publish(
    settings: ConnectionSettings, messages: list[OutgoingMessage], answers: dict[int, PubAck | JetStreamError]
) -> None:
    with Wire.open(settings) as wire:
        inbox = wire.new_inbox()
        wire.subscribe(f"{inbox}.*")
        for position, each in enumerate(messages):
            if position in answers:
                continue
            if each.size > wire.max_payload:
                remedy = (
                    f"with the headers of a dead letter, this exceeds the server's max_payload={wire.max_payload}; "
                    "raise max_payload"
                )
                answers[position] = InvalidValue("data", f"{each.size} bytes", remedy)
            else:
                wire.send(encode_publish(each.subject, f"{inbox}.{position}", each.data, each.header))
        while len(answers) < len(messages):
            for frame in wire.receive(_ANSWERED_WITHIN):
                position = inbox_number(frame.subject)
                if 0 <= position < len(messages) and (
                    answer := _answer(frame, messages[position].subject, settings.domain)
                ):
                    answers[position] = answer


def _answer(frame: Frame, subject: str, domain: str | None) -> PubAck | JetStreamError | None:
    try:
        return acknowledged(frame.data, subject, domain, decode_status(frame.header)[0])
    except WrongDomain:
        return None  # a stream of another domain also listens on this subject; wait for the dead-letter stream's answer
    except TooManyRequests as busy:
        raise RequestTimeout(str(busy)) from busy
    except JetStreamError as refusal:
        return refusal
