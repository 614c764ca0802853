# SPDX-License-Identifier: Apache-2.0
"""Runs as the ledger knows them: the owner for which a step takes claims, and whether the runs of an owner have ended.

A run and its re-executions are a run group, named by its first run. A retried step and a re-executed run have the same
owner, so a run gets the claims of its group back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg

from jetstream_client.errors import InvalidValue
from jetstream_handoff.history import owner_of

if TYPE_CHECKING:
    from jetstream_handoff.history import Owner

TAKE_OVER = "jetstream/take_over"
"""The tag of a run that takes over the claims of runs that have ended: the owners of these claims, as JSON."""
MOST_OWNERS = 20
"""The largest number of owners in the tag. The next run takes over the claims of the others."""
_DAGSTER = "dagster"
_ROOT = "dagster/root_run_id"
_WILL_RETRY, _RETRIED_BY = "dagster/will_retry", "dagster/auto_retry_run_id"


def owner(context: dg.OpExecutionContext) -> Owner:
    """Return the owner of the claims that a step takes: the job, the first run of the run group, and the step.

    Raises:
        InvalidValue: the asset or op was called directly.
    """
    return (_job(context), group(context.run), step(context), -1, _DAGSTER)


def holder(context: dg.OpExecutionContext) -> Owner:
    """Return the step that holds a claim, for the claim's history. The last number is the number of its try.

    Raises:
        InvalidValue: the asset or op was called directly.
    """
    return (_job(context), context.run_id, step(context), -1, context.retry_number + 1)


def place(context: dg.OpExecutionContext) -> str:
    """Return the try of a step in words, for the reason why a claim failed."""
    return f"{context.describe_op()}, run {context.run_id}, try {context.retry_number + 1}"


def retry_delay(context: dg.OpExecutionContext, error: BaseException) -> timedelta | None:
    """Return the longest time until Dagster retries the step after an error; None if this was its last try.

    The policy that ``with_retry_policy`` has set for a node of a graph is not known here, nor whether the executor's
    retries are disabled.
    """
    policy = context.op_def.retry_policy or context.job_def.op_retry_policy
    unretried = isinstance(error, dg.Failure) and not error.allow_retries
    final = unretried or isinstance(error, dg.DagsterError) or not isinstance(error, Exception)
    if isinstance(error, dg.RetryRequested):
        most, seconds = error.max_retries, error.seconds_to_wait or 0
    elif policy is None or final:
        return None
    else:
        most, seconds = policy.max_retries, _longest_delay(policy, context.retry_number + 1)
    return timedelta(seconds=seconds) if context.retry_number < most else None


def has_failed(context: dg.OpExecutionContext) -> bool:
    """Whether Dagster has recorded that the step has failed and will not be retried."""
    key = f"{context.op_handle}[{mapped}]" if (mapped := context.get_mapping_key()) else str(context.op_handle)
    failures = context.instance.all_logs(context.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    return any(each.step_key == key for each in failures)


def group(run: dg.DagsterRun) -> str:
    """Return the id of the first run of a run's group."""
    return run.root_run_id or run.run_id


def predecessors(context: dg.OpExecutionContext) -> tuple[Owner, ...]:
    """Return the owners whose claims this run takes over, from its tag :data:`TAKE_OVER`.

    An owner is left out if one of its runs works again since the sensor looked.

    Raises:
        InvalidValue: the tag is not a list of owners.
    """
    text = context.run.tags.get(TAKE_OVER)
    try:
        owners = tuple(map(owner_of, json.loads(text))) if text else ()
    except (ValueError, TypeError, RecursionError):
        remedy = "this is not a JSON list of owners; start the run without this tag, which only a sensor sets"
        raise InvalidValue(f"tag {TAKE_OVER}", "…", remedy) from None
    return tuple(filter(has_ended(context.instance), owners))


def take_over(owners: Iterable[Owner]) -> dict[str, str]:
    """Return the tag of a run that takes over the claims of these owners; empty if there are none."""
    some = [list(each) for each in owners][:MOST_OWNERS]
    return {TAKE_OVER: json.dumps(some)} if some else {}


def has_ended(instance: dg.DagsterInstance) -> Callable[[Owner], bool]:
    """Return a function that says whether all runs of an owner's run group have ended, and Dagster will not retry them.

    An owner that this instance does not know has not ended: it may belong to another deployment.
    """

    def ended(of: Owner) -> bool:
        if len(of) < 2 or of[-1] != _DAGSTER:
            return False
        first = instance.get_run_by_id(str(of[1]))
        later = [record.dagster_run for record in instance.get_run_records(dg.RunsFilter(tags={_ROOT: str(of[1])}))]
        return first is not None and all(each.is_finished and not _will_be_retried(each) for each in (first, *later))

    return ended


def _longest_delay(policy: dg.RetryPolicy, number: int) -> float:
    """Return the longest time in seconds that a policy with jitter may choose."""
    without = dg.RetryPolicy(max_retries=policy.max_retries, delay=policy.delay, backoff=policy.backoff)
    return without.calculate_delay(number) * (2 if policy.jitter == dg.Jitter.PLUS_MINUS else 1)


def _job(context: dg.OpExecutionContext) -> str:
    try:
        return context.job_name
    except dg.DagsterError as error:  # a context that was built for a direct call has no job
        remedy = "a claim belongs to a run; execute this in one, in a test with dg.materialize or execute_in_process"
        raise InvalidValue("context", "that of a direct call", remedy) from error


def step(context: dg.OpExecutionContext) -> str:
    """Return the op in its graph and the mapping key, which name a step in its job."""
    return f"{context.describe_op()}{context.get_mapping_key() or ''}"


def _will_be_retried(run: dg.DagsterRun) -> bool:
    """Whether Dagster's daemon has yet to start the retry of a run that failed."""
    return run.tags.get(_WILL_RETRY) == "true" and _RETRIED_BY not in run.tags
