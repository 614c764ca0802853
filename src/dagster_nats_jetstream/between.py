# SPDX-License-Identifier: Apache-2.0
"""The steps of a run around a claim: those between its take and the op that settles it, and those downstream."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import dagster as dg

from dagster_nats_jetstream import runs

if TYPE_CHECKING:
    from jetstream_handoff.claim import Claim

_KEY = re.compile(r"\[[^\]]*\]$")


def check_worked_after(context: dg.OpExecutionContext, claim: Claim) -> None:
    """Check that the inputs of a claimed op which other ops have made from its claim were made from this claim.

    A person can re-execute the op and the take without the ops between them. Then Dagster takes the outputs of these
    ops from an earlier run, in which they have worked on other messages.

    Raises:
        dg.Failure: an op between them has not worked since the claim was taken.
    """
    if runs.selected(context) is None:
        return  # this run has executed every step
    depends = _depends(context)
    step = context.get_step_execution_context().step
    inputs = {each.name: set(map(_unmapped, each.dependency_keys)) for each in step.step_inputs}
    takes = _upstream(depends, inputs.pop("claim", set()))
    made = _upstream(depends, set().union(*inputs.values())) - takes
    worked = [_worked(context.instance, run) for run in runs.lineage(context.instance, context.run)]
    for each in sorted(made):
        for take in sorted(takes & _upstream(depends, depends.get(each, ()))):
            if _position(worked, take) < _position(worked, each):
                raise dg.Failure(
                    f"claim {claim.id} is not settled, because step {each} has not worked since step {take} ran again: "
                    f"its output is that of an earlier run, which had other messages. Re-execute {each} as well",
                    allow_retries=False,
                )


def _worked(instance: dg.DagsterInstance, run: dg.DagsterRun) -> set[str]:
    """Return the steps that have succeeded in a run."""
    events = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_SUCCESS)
    return {_unmapped(each.step_key) for each in events if each.step_key}


def downstream(context: dg.OpExecutionContext) -> set[str]:
    """Return the steps of this run that depend on this one."""
    depends = _depends(context)
    selected = runs.selected(context)
    executed = depends.keys() if selected is None else set(map(_unmapped, selected))
    return {each for each in executed if str(context.op_handle) in _upstream(depends, depends.get(each, ()))}


def _depends(context: dg.OpExecutionContext) -> dict[str, set[str]]:
    """Return for each step of the job the steps that it depends on."""
    plan = context.get_step_execution_context().execution_plan
    return {_unmapped(key): set(map(_unmapped, of)) for key, of in plan.get_all_step_deps().items()}


def _position(worked: list[set[str]], step: str) -> int:
    """Return the position of the first of these runs in which a step has succeeded. The newest run has position 0."""
    return next((number for number, steps in enumerate(worked) if step in steps), len(worked))


def _upstream(depends: Mapping[str, Iterable[str]], steps: Iterable[str]) -> set[str]:
    """Return these steps, and all steps on which they depend."""
    found: set[str] = set()
    left = [*steps]
    while left:
        if (step := left.pop()) not in found:
            found.add(step)
            left += depends.get(step, ())
    return found


def _unmapped(step_key: str) -> str:
    """Return a step's key without its mapping key, which is the id of a claim, so that it is another in each run."""
    return _KEY.sub("", step_key)
