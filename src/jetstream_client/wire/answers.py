"""Answers of the JetStream API and of streams to a publish: a JSON object, or the server's refusal as an error."""

from __future__ import annotations

from typing import Any

from jetstream_client.errors import ApiError, JetStreamNotEnabled
from jetstream_client.wire.protocol import NO_RESPONDERS, decode_object


def decode_answer(data: bytes, what: str, request: str = "") -> dict[str, Any]:
    """``what`` names the answer in errors; ``request`` is that of the API, e.g. ``STREAM.INFO.ORDERS``.

    Raises:
        ApiError: or a subclass, the server's refusal.
        ProtocolError: no JSON object.
    """
    answer = decode_object(data, what)
    if "error" in answer:
        raise ApiError.from_response(answer["error"], request)
    return answer


def decode_api_answer(data: bytes, status: int, subject: str, request: str) -> dict[str, Any]:
    """An answer of the API on ``subject``. Raises as :func:`decode_answer`, and JetStreamNotEnabled: nobody answers."""
    if status == NO_RESPONDERS:
        raise JetStreamNotEnabled(
            NO_RESPONDERS,
            0,
            f"nobody answers {subject!r}: JetStream is off, or domain, API prefix or permissions are wrong",
        )
    return decode_answer(data, f"the answer to {subject!r}", request)
