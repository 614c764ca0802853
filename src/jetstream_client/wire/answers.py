# SPDX-License-Identifier: Apache-2.0
"""Decoding answers of the JetStream API, and answers of streams to published messages. A refusal becomes an error."""

from __future__ import annotations

from typing import Any

from jetstream_client.errors import ApiError, JetStreamNotEnabled, ProtocolError
from jetstream_client.wire.protocol import NO_RESPONDERS, decode_object
from jetstream_client.words import OF_CLIENT, Words


def decode_answer(data: bytes, what: str, request: str = "", words: Words = OF_CLIENT) -> dict[str, Any]:
    """Decode an answer. ``what`` is its name in errors; ``request`` is the API request, e.g. ``STREAM.INFO.ORDERS``;
    ``words`` are those of the connection.

    Raises:
        ApiError: the server refused the request (usually a subclass).
        ProtocolError: the answer is not a JSON object.
    """
    answer = decode_object(data, what)
    if "error" in answer:
        raise ApiError.from_response(answer["error"], request, words)
    return answer


def decode_api_answer(data: bytes, status: int, subject: str, request: str, words: Words) -> dict[str, Any]:
    """Decode the answer to an API request on ``subject``. Raises the errors of :func:`decode_answer`, and
    JetStreamNotEnabled if no server answers."""
    if status == NO_RESPONDERS:
        raise JetStreamNotEnabled(
            NO_RESPONDERS,
            0,
            f"no server answers {subject!r}; enable JetStream, or correct the domain, the API prefix or the "
            "permissions",
        )
    try:
        return decode_answer(data, f"the answer to {subject!r}", request, words)
    except ProtocolError as error:
        raise ProtocolError(
            f"{error}; another client has probably answered first: find the client that subscribes to a wildcard such "
            "as '>' and answers what it gets, and deny it to subscribe to '$JS.>'"
        ) from None
