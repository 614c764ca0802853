# SPDX-License-Identifier: Apache-2.0
"""Whether a stream may get a dead letter again: it must take the message, keep it, and lose no other message for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import StreamNotFound, promised
from jetstream_client.filters import filters_of
from jetstream_client.names import subject_matches
from jetstream_client.wire.protocol import decode_headers
from jetstream_handoff.errors import ReplayRefused
from jetstream_handoff.ledger.buckets import PATIENCE
from jetstream_handoff.letters.letter import content, own_lines
from jetstream_handoff.letters.parts import LARGEST_HEADER
from jetstream_handoff.letters.stored import stored_message

if TYPE_CHECKING:
    from jetstream_client.info import StreamInfo
    from jetstream_client.publish.message import OutgoingMessage
    from jetstream_client.stream import Stream
    from jetstream_handoff.letters.dead_letters import DeadLetters
    from jetstream_handoff.letters.letter import Letter

_UNREADABLE = "\ufffd"  # written by the server for a byte that is not UTF-8


async def objection(letters: DeadLetters, letter: Letter, target: Stream) -> str:
    """The reason why a dead letter must not be published into this stream; empty if there is none.

    Raises:
        ReplayRefused: no dead letter may be published into this stream.
    """
    config = (await target.info(patience=PATIENCE)).config
    check_target(target.name, config)
    if _UNREADABLE in letter.subject:
        return f"its original subject is not valid UTF-8, and is known only as {letter.subject!r}"
    if not any(subject_matches(pattern, letter.subject) for pattern in config["subjects"]):
        subjects = ", ".join(map(repr, config["subjects"]))
        return (
            f"stream {target.name!r} does not listen on {letter.subject!r}, only on {subjects}{_sources(config)}. If "
            "the dead letter is genuine, use 'into' to name a stream that listens on its original subject"
        )
    transform = config.get("subject_transform")
    if transform and subject_matches(transform.get("src") or ">", letter.subject):
        return (
            f"stream {target.name!r} would store it under another subject (subject_transform "
            f"{transform.get('src') or '>'!r} to {transform.get('dest')!r}); remove that transform, or use 'into' to "
            "name another stream that listens on the original subject"
        )
    return await _difference(letters, letter)


async def would_lose(target: Stream, info: StreamInfo, letter: Letter) -> str:
    """Return the reason why a message would be lost if the stream got the dead letter now, either this one or another;
    empty if none would be."""
    return await _without_interest(target, info.config, letter) or await _evicts(target, info, letter)


async def _without_interest(target: Stream, config: Mapping[str, Any], letter: Letter) -> str:
    """The reason why the target would confirm the message and store nothing; empty if it would store it."""
    if config.get("retention") != "interest":
        return ""
    async for each in target.list_consumers():
        filters = filters_of(each.config)
        if any(subject_matches(pattern, letter.subject) for pattern in filters):
            return ""
    return (
        f"stream {target.name!r} has interest retention, and no consumer is interested in {letter.subject!r}: the "
        "stream would confirm the message and store nothing; first create the consumer that has to process it"
    )


async def _evicts(target: Stream, info: StreamInfo, letter: Letter) -> str:
    """The reason why the message would remove another one, which may not be processed yet; empty if it would not, or
    would remove only the original message of the dead letter."""
    most = info.config.get("max_msgs_per_subject") or -1
    if most < 0 or info.config.get("discard_new_per_subject"):
        return ""
    answer = await target.js.api(f"STREAM.INFO.{target.name}", {"subjects_filter": letter.subject}, patience=PATIENCE)
    with promised("the answer to STREAM.INFO"):
        stored_there = int((answer["state"].get("subjects") or {}).get(letter.subject, 0))
    oldest = await stored_message(target, {"seq": 1, "next_by_subj": letter.subject})
    if stored_there < most or oldest is None:
        return ""
    if (info.created, oldest["seq"]) == (letter.stream_created, letter.sequence):
        return ""
    return (
        f"stream {target.name!r} keeps max_msgs_per_subject={most}, so the message would remove message "
        f"{oldest['seq']} on {letter.subject!r}, which may not be processed yet; discard the dead letter if a newer "
        "message replaces it, or use 'into' to name another stream"
    )


async def only_if_room(target: Stream, config: Mapping[str, Any], letter: Letter) -> list[bytes]:
    """The condition under which the message removes no newer one on its subject."""
    if (config.get("max_msgs_per_subject") or -1) < 0:
        return []
    last = await stored_message(target, {"last_by_subj": letter.subject})
    return [f"Nats-Expected-Last-Subject-Sequence: {last['seq'] if last else 0}".encode()]


def too_large(message: OutgoingMessage, max_payload: int, name: str, config: Mapping[str, Any]) -> str:
    """The reason why the message is too large to be published again, with the id of the replay; empty if it is not."""
    limit = config.get("max_msg_size", -1)
    limits = [("the server's max_payload", max_payload), (f"max_msg_size of stream {name!r}", limit)]
    for what, most in limits:
        if 0 < most < message.size:
            return (
                f"with the headers of a replay, the message has {message.size} bytes, and {what} is {most}. Raise that "
                "limit, at least until the dead letter is replayed"
            )
    if len(message.header) > LARGEST_HEADER:
        return (
            f"with those of a replay, its headers have {len(message.header)} bytes, and JetStream stores at most "
            f"{LARGEST_HEADER}. Publish it with fewer headers yourself, and discard the dead letter"
        )
    return ""


async def not_stored(target: Stream, config: Mapping[str, Any], sequence: int, message_id: str) -> str:
    """The reason why a message that the stream has confirmed counts as not published; empty if the stream has it, or
    may have removed it because it was processed."""
    message = await stored_message(target, {"seq": sequence})
    if message is not None and decode_headers(content(message)[0]).get("Nats-Msg-Id") == [message_id]:
        return ""
    if config.get("retention", "limits") != "limits":
        return ""
    return (
        f"stream {target.name!r} has confirmed the message as sequence {sequence}, but does not have it; compare the "
        "stream's limits with the message's size, and replay the dead letter again after the stream's duplicate_window"
    )


async def _difference(letters: DeadLetters, letter: Letter) -> str:
    """The reason why the dead letter is not a copy of its original message; empty if it is a copy, or if the source
    stream no longer contains the original."""
    try:
        created = (await letters.source.info(patience=PATIENCE)).created
    except StreamNotFound:
        return ""
    if created != letter.stream_created:
        return ""
    original = await stored_message(letters.source, {"seq": letter.sequence})
    if original is None:
        return ""
    header, data = content(original)
    if (original["subject"], own_lines(header), data) == (letter.subject, own_lines(letter.header), letter.data):
        return ""
    return (
        f"it is not a copy of message {letter.sequence} of stream {letters.source.name!r}, because its subject, "
        "headers or data differ. Find out which client published it to the dead-letter stream"
    )


def check_target(name: str, config: Mapping[str, Any]) -> None:
    """Raise ReplayRefused if no dead letter may be published into the stream with this name and configuration."""

    def refuse(
        problem: str, remedy: str = "use 'into' to name another stream that listens on the original subjects"
    ) -> None:
        raise ReplayRefused(name, problem, remedy)

    if config.get("mirror"):
        refuse(f"it is a mirror of stream {config['mirror'].get('name')!r}", "use 'into' to name that stream instead")
    if config.get("sealed"):
        refuse("it is sealed")
    if config.get("no_ack"):
        refuse("it does not confirm stored messages (no_ack)")
    if not config.get("subjects"):
        refuse(f"it listens on no subjects{_sources(config)}")


def _sources(config: Mapping[str, Any]) -> str:
    """The streams that this stream copies messages from, as the end of a sentence."""
    names = ", ".join(repr(each.get("name")) for each in config.get("sources") or ())
    return f", and it copies messages of other streams ({names})" if names else ""
