# SPDX-License-Identifier: Apache-2.0
"""The stream's answer to a publish: nats-server's ``JSPubAckResponse`` (server/stream.go)."""

from __future__ import annotations

import re
from typing import NamedTuple

from jetstream_client.errors import NoStreamResponse, ProtocolError, WrongDomain
from jetstream_client.wire.answers import decode_answer
from jetstream_client.wire.protocol import NO_RESPONDERS

RETRY_ATTEMPTS, RETRY_WAIT = 2, 0.25
"""Number of repeated attempts, and seconds before each of them, if no answer arrives because the stream has no
leader."""
NOT_PROPOSED = (503, 0)
"""Codes in the answer of a leader that could not propose a message to its replicas, because it is no longer the leader
(``processClusteredInboundMsg`` in nats-server's ``server/jetstream_cluster.go``). Nothing was stored."""

plain_ack = re.compile(rb'\{"stream":"([\w-]+)", ?"seq":([1-9]\d{0,18})(,"duplicate": ?true)?\}', re.ASCII).fullmatch
"""Matches an answer in the form that servers nearly always use. An answer in any other form is parsed as JSON."""
DIGITS = 20
"""A number with fewer digits than this fits into 64 bits, as every sequence does."""
_integer = re.compile(r"[+-]?\d{1,4000}", re.ASCII).fullmatch  # Python does not convert longer numbers


class PubAck(NamedTuple):
    """The stream's answer to one message, or to a batch.

    stream:     name of the stream that stored the message.
    seq:        sequence of the message; for a duplicate, the sequence of the message that was stored first; for a
                batch, its last sequence.
    duplicate:  whether the stream already had a message with this id and did not store another.
    domain:     JetStream domain of the server that stored the message.
    value:      value of a counter after the increment.
    batch_id, batch_size:  id of the committed batch, and the number of messages that the server counts in it.
    """

    stream: str
    seq: int
    duplicate: bool = False
    domain: str = ""
    value: int | None = None
    batch_id: str = ""
    batch_size: int = 0

    @classmethod
    def parse(cls, data: bytes, *, nothing_new: bool = False) -> PubAck:
        """Parse an answer. Raises ApiError for a refusal, and ProtocolError for anything that is not a PubAck.

        nothing_new:  allow the sequence 0, which a batch has if all its messages were stored before. Default False.
        """
        if plain := plain_ack(data):
            return cls(plain[1].decode(), int(plain[2]), plain[3] is not None)
        answer = decode_answer(data, "the answer to a publish")
        stream, seq = answer.get("stream"), answer.get("seq")
        duplicate, domain = answer.get("duplicate", False), answer.get("domain", "")
        if not (isinstance(stream, str) and stream):
            raise ProtocolError("the answer to a publish is not a PubAck")
        least = 0 if nothing_new and "batch" in answer else 1
        if not (type(seq) is int and least <= seq < 1 << 64):
            raise ProtocolError(f"the answer to a publish has an impossible sequence: {str(seq)[:DIGITS]}")
        batch, size, value = answer.get("batch", ""), answer.get("count", 0), answer.get("val")
        if not (isinstance(duplicate, bool) and isinstance(domain, str) and isinstance(batch, str)):
            raise ProtocolError("the answer to a publish is not a PubAck")
        if not (type(size) is int and size >= 0 and (value is None or (isinstance(value, str) and _integer(value)))):
            raise ProtocolError("the answer to a publish is not a PubAck")
        return cls(stream, seq, duplicate, domain, None if value is None else int(value), batch, size)


def acknowledged(answer: bytes, subject: str, domain: str | None, status: int = 0) -> PubAck:
    """Return the PubAck in the answer to a message that was published on ``subject``.

    domain: if set, only an answer from this domain confirms that the message is stored.

    Raises:
        NoStreamResponse: no stream listens on the subject, or the stream has no leader at this moment.
        WrongDomain: a stream of another domain stored the message.
        ApiError: the stream refused the message (usually a subclass).
        ProtocolError: the answer is not a PubAck.
    """
    if status == NO_RESPONDERS:
        raise NoStreamResponse(subject)
    ack = PubAck.parse(answer)
    if domain and ack.domain != domain:
        raise WrongDomain(subject, ack.domain, domain)
    return ack
