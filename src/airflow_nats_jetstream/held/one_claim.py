# SPDX-License-Identifier: Apache-2.0
"""The claim that a task was given. A task that was given all claims of a sensor fails, and lets their messages go."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

from jetstream_client.errors import JetStreamError
from jetstream_handoff.errors import ClaimInvalid
from jetstream_handoff.hold.completion import LEASE_ENDS

if TYPE_CHECKING:
    from jetstream_client.context import JetStream
    from jetstream_handoff.claim import Claim

    Run = Callable[[Callable[[JetStream], Awaitable[int]]], int]

log = logging.getLogger(__name__)

_TIMEOUT = 60.0  # seconds for withdrawing claims


def one_claim(value: Any, run: Run) -> Claim:
    """Return the claim that a value contains.

    value:  the claim, or its JSON value as the pull sensor returned it.
    run:    runs a function on the server of the claim: :meth:`JetStreamHook.run`.

    Raises:
        ClaimInvalid: the value is not a claim. If it is a list of claims, those that no attempt holds were withdrawn:
            their messages are redelivered to the next sensor at once, because no retry of the task can process them.
    """
    from jetstream_handoff.claim import Claim

    if isinstance(value, Claim):
        return value
    try:
        return Claim.from_json(value)
    except ClaimInvalid:
        if claims := list(_claims(value)):
            _withdraw(claims, run)
        raise


def _claims(value: Any) -> Iterator[Claim]:
    """The claims in a list, in a list of lists as a mapped sensor returns it, or in what a template made of them."""
    from jetstream_handoff.claim import Claim

    if isinstance(value, str):
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, str):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            value = ast.literal_eval(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for each in value:
            if isinstance(each, Mapping):
                with suppress(ClaimInvalid):
                    yield Claim.from_json(each)
            elif isinstance(each, Sequence) and each is not value and not isinstance(each, str | bytes):
                yield from _claims(each)


def _withdraw(claims: list[Claim], run: Run) -> None:
    """Withdraw claims that no attempt holds. An error is only logged, because the task fails anyway."""
    from jetstream_handoff.take.withdraw import give_back

    def consumer(claim: Claim) -> tuple[str, str]:
        return claim.stream, claim.consumer

    async def withdrawn(js: JetStream) -> int:
        async with asyncio.timeout(_TIMEOUT):
            some = groupby(sorted(claims, key=consumer), consumer)
            return sum([await give_back(js, list(of_one)) for _, of_one in some])

    try:
        count = run(withdrawn)
    except (JetStreamError, TimeoutError) as error:
        log.warning("the claims of the list could not be withdrawn (%s); %s", error or "it took too long", LEASE_ENDS)
    else:
        log.warning("the task was given a list of %d claims: %d messages are redelivered at once", len(claims), count)
