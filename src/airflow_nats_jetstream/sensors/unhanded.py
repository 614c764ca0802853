# SPDX-License-Identifier: Apache-2.0
"""Claims that were taken and cannot be handed on, because the try that should do it fails: they are released."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators import ending
from jetstream_client.errors import JetStreamError
from jetstream_handoff.hold.completion import LEASE_ENDS

if TYPE_CHECKING:
    from jetstream_client.context import JetStream

_TIMEOUT = 10.0  # seconds; Airflow kills a process 20 s after its task has ended


@contextmanager
def handing_on(task: Any, context: Any, claims: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """Return a context manager for the checks of a task that hands claims on. At its end it does what Airflow does
    after ``execute`` and what can fail, such as ``post_execute`` and the push of the XCom. After any error, it releases
    the claims, so that their messages are redelivered at once.

    task:     the operator, with ``nats_conn_id`` and ``log``.
    context:  Airflow's context.
    claims:   the claims as JSON, which are the task's return value.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    ti = context["ti"]
    try:
        yield
        if isinstance(ti, RuntimeTaskInstance) and ti.task is task:  # otherwise a test or another task executes it
            ending.finish(task, context, claims)
    except BaseException:
        _release(task, claims)
        raise
    ids = ", ".join(each["id"] for each in claims)
    task.log.info("handing on %d messages in %d claims: %s", sum(each["count"] for each in claims), len(claims), ids)


def _release(task: Any, claims: Sequence[Mapping[str, Any]]) -> None:
    from jetstream_handoff.claim import Claim
    from jetstream_handoff.take.withdraw import give_back

    found = sorted(map(Claim.from_json, claims), key=_consumer)

    async def released(js: JetStream) -> int:
        async with asyncio.timeout(_TIMEOUT):
            return sum([await give_back(js, list(some)) for _, some in groupby(found, _consumer)])

    try:
        count = JetStreamHook(task.nats_conn_id).run(released)
    except (JetStreamError, TimeoutError) as error:
        task.log.warning("could not release the claims (%s); %s", error or "it took too long", LEASE_ENDS)
    else:
        task.log.warning("the claims cannot be handed on: released %d messages of %d claims", count, len(claims))


def _consumer(claim: Any) -> tuple[str, str]:
    return claim.stream, claim.consumer
