# SPDX-License-Identifier: Apache-2.0
"""How many claims Airflow can map: a sensor whose output is mapped over must not hand on more."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_nats_jetstream.compat import conf
from jetstream_client.errors import InvalidValue, JetStreamError
from jetstream_handoff.ledger.failures import MOST_PARTS

if TYPE_CHECKING:
    from jetstream_handoff.take.taking import Taking


MESSAGES = 10_000
"""The largest number of messages of a take by default."""


def most_claims(task: Any) -> int | None:
    """Return the largest number of claims that a task may hand on; None if no task is mapped over its output.

    Airflow's api-server refuses the XCom of a task that others are mapped over if it is longer than ``[core]
    max_map_length``. It does not look at the XComs of a task that is itself mapped. A worker and the DAG processor read
    the setting from their own configuration, which must be the same.

    task:  the task of a DAG, in the worker or when the DAG is parsed.
    """
    if not task.has_dag() or (known := task.dag.get_task(task.task_id)).get_needs_expansion():
        return None
    if next(iter(known.iter_mapped_dependants()), None) is None:
        return None
    return int(conf.getint("core", "max_map_length", fallback=1024))


def default_messages(messages_per_claim: int | None, limit: int | None) -> int:
    """Return the largest number of messages of a take that names none: 10,000, or as many as make ``limit`` claims."""
    if limit is None or messages_per_claim is None:
        return MESSAGES
    return min(MESSAGES, limit * messages_per_claim)


def check_mappable(claims: Collection[Any], limit: int | None) -> None:
    """Check that Airflow can map tasks over claims that were taken.

    Raises:
        JetStreamError: there are too many. They were taken with other parameters, or by several sensors.
    """
    if limit is not None and len(claims) > limit:
        raise JetStreamError(  # not an AirflowException, from which soft_fail would make a skip
            f"{len(claims)} claims cannot be handed on, because [core] max_map_length={limit} is the largest number of "
            "tasks that Airflow maps; lower max_messages, or raise messages_per_claim or max_map_length"
        )


def check_possible(
    max_messages: int, messages_per_claim: int | None, limit: int | None, by_key: int | None = None
) -> int:
    """Return the largest number of claims of a take in which no message has failed before.

    by_key:  the number of claims of a take with ``ordered_by``; None for another one.

    Raises:
        InvalidValue: Airflow cannot map tasks over so many.
    """
    if limit is not None and by_key is not None and by_key > limit:
        remedy = f"[core] max_map_length={limit} is the largest number of tasks that Airflow maps"
        raise InvalidValue("claims", by_key, f"{remedy}; give {limit} or less, or raise max_map_length")
    size = messages_per_claim or max_messages
    claims = by_key or -(-max_messages // size)
    if limit is not None and claims > limit:
        raise InvalidValue(
            "messages_per_claim",
            messages_per_claim,
            f"with max_messages={max_messages}, a take has up to {claims} claims, but [core] max_map_length={limit} is "
            f"the largest number of tasks that Airflow maps; give max_messages={limit * size} or less, or "
            f"messages_per_claim={-(-max_messages // limit)} or more, or raise max_map_length",
        )
    return claims


def bounded(taking: Taking, limit: int | None) -> Taking:
    """Return a taking that hands on at most ``limit`` claims. Raises InvalidValue as :func:`check_possible`.

    ``max_claims`` is set only if messages that have failed, which are taken in smaller claims, could make more, because
    a triggerer with an older release does not know it.
    """
    claims = check_possible(taking.max_messages, taking.messages_per_claim, limit, taking.claims)
    if limit is None or taking.max_failures is None or claims + MOST_PARTS <= limit:
        return taking
    return replace(taking, max_claims=limit)
