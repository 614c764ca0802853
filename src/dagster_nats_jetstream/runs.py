# SPDX-License-Identifier: Apache-2.0
"""Runs as the ledger knows them: the owner for which a step takes claims, and whether the runs of an owner have ended.

A run and its re-executions are a run group, named by its first run. A retried step and a re-executed run have the same
owner, so a run gets the claims of its group back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg

from jetstream_client.errors import InvalidValue
from jetstream_handoff.ledger.history import owner_of

if TYPE_CHECKING:
    from jetstream_handoff.ledger.history import Owner

TAKE_OVER = "jetstream/take_over"
"""The tag of a run that takes over the claims of runs that have ended: the owners of these claims, as JSON."""
MOST_OWNERS = 20
"""The largest number of owners in the tag. The next run takes over the claims of the others."""
CLAIM, ATTEMPT = "jetstream/claim", "jetstream/attempt"
"""The names of the claim and of the attempt in the metadata of an output."""
REQUEST = "jetstream/request"
"""The tag of a requested run: the sensor, the partition, and the consumer's life and number of deliveries."""
SILENT = timedelta(minutes=15)
"""How long a run may take to pull, unless it is queued. After that it counts as dead, whatever its status says:
with Dagster's default run launcher, only the code server that launched a run notices that its process was killed."""
_DAGSTER = "dagster"
_ROOT, _SENSOR = "dagster/root_run_id", "dagster/sensor_name"
_UNFINISHED = sorted(
    {*dg.DagsterRunStatus} - {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED},
    key=lambda status: status.value,
)
_IN_A_QUERY = 500
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


def selected(context: dg.OpExecutionContext) -> Collection[str] | None:
    """Return the steps that this run executes; None for all of them.

    Raises:
        InvalidValue: the asset or op was called directly.
    """
    _job(context)
    return context.run.step_keys_to_execute


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
    return bool(events(context, context.run, dg.DagsterEventType.STEP_FAILURE))


def events(context: dg.OpExecutionContext, run: dg.DagsterRun, of_type: dg.DagsterEventType) -> list[dg.DagsterEvent]:
    """Return the events of a type that Dagster has recorded of this step in a run."""
    key = f"{context.op_handle}[{mapped}]" if (mapped := context.get_mapping_key()) else str(context.op_handle)
    logged = context.instance.all_logs(run.run_id, of_type=of_type)
    return [each.get_dagster_event() for each in logged if each.step_key == key]


def lineage(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Iterator[dg.DagsterRun]:
    """Yield a run, then the run of which it is a re-execution, and so on."""
    older: dg.DagsterRun | None = run
    while older is not None:
        yield older
        older = instance.get_run_by_id(older.parent_run_id) if older.parent_run_id else None


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
    over = ended(context.instance, owners)
    return tuple(each for each in owners if each in over)


def take_over(owners: Iterable[Owner]) -> dict[str, str]:
    """Return the tag of a run that takes over the claims of these owners; empty if there are none."""
    some = [list(each) for each in owners][:MOST_OWNERS]
    return {TAKE_OVER: json.dumps(some)} if some else {}


def ended(instance: dg.DagsterInstance, owners: Iterable[Owner]) -> set[Owner]:
    """Return those of these owners whose run group has ended: all its runs have, and Dagster will not retry them.

    An owner that this instance does not know has not ended: it may belong to another deployment.
    """
    groups = {of: str(of[1]) for of in owners if len(of) >= 2 and of[-1] == _DAGSTER}
    over: set[str] = set()
    for some in _parts(set(groups.values())):
        first = {run.run_id for run in _runs(instance, dg.RunsFilter(run_ids=some)) if _is_over(run)}
        later = _runs(instance, dg.RunsFilter(tags={_ROOT: sorted(first)})) if first else ()
        over |= first - {run.tags[_ROOT] for run in later if not _is_over(run)}
    return {of for of, name in groups.items() if name in over}


def requested(instance: dg.DagsterInstance, sensor: str) -> set[str]:
    """Return the tags :data:`REQUEST` of the runs of a sensor that may still pull."""
    wanted = dg.RunsFilter(tags={_SENSOR: sensor}, statuses=_UNFINISHED)
    records = instance.get_run_records(wanted)
    return {each.dagster_run.tags.get(REQUEST, "") for each in records if not _is_silent(each)}


def _runs(instance: dg.DagsterInstance, wanted: dg.RunsFilter) -> list[dg.DagsterRun]:
    return [record.dagster_run for record in instance.get_run_records(wanted)]


def _parts(names: Iterable[str]) -> Iterator[list[str]]:
    """Divide names for queries: a database limits the number of values in one."""
    listed = sorted(names)
    return (listed[start : start + _IN_A_QUERY] for start in range(0, len(listed), _IN_A_QUERY))


def _is_over(run: dg.DagsterRun) -> bool:
    """Whether a run has ended, and Dagster's daemon has no retry of it yet to start."""
    will_be_retried = run.tags.get(_WILL_RETRY) == "true" and _RETRIED_BY not in run.tags
    return run.is_finished and not will_be_retried


def _is_silent(record: dg.RunRecord) -> bool:
    since = record.start_time or record.update_timestamp.timestamp()
    return record.dagster_run.status != dg.DagsterRunStatus.QUEUED and time.time() - since > SILENT.total_seconds()


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
