# SPDX-License-Identifier: Apache-2.0
"""The steps between the take of a claim and the op that settles it: they must have worked on this claim."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import dagster as dg

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
    if context.run.step_keys_to_execute is None:
        return  # this run has executed every step
    step = context.get_step_execution_context()
    depends = {_unmapped(key): set(map(_unmapped, of)) for key, of in step.execution_plan.get_all_step_deps().items()}
    inputs = {each.name: set(map(_unmapped, each.dependency_keys)) for each in step.step.step_inputs}
    takes = _upstream(depends, inputs.pop("claim", set()))
    made = _upstream(depends, set().union(*inputs.values())) - takes
    worked = list(_worked(context.instance, context.run))
    for each in sorted(made):
        for take in sorted(takes & _upstream(depends, depends.get(each, ()))):
            if _position(worked, take) < _position(worked, each):
                raise dg.Failure(
                    f"claim {claim.id} is not settled, because step {each} has not worked since step {take} ran again: "
                    f"its output is that of an earlier run, which had other messages. Re-execute {each} as well",
                    allow_retries=False,
                )


def _worked(instance: dg.DagsterInstance, run: dg.DagsterRun | None) -> Iterator[set[str]]:
    """Yield the steps that have succeeded in this run, in the run of which it is a re-execution, and so on."""
    while run is not None:
        events = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_SUCCESS)
        yield {_unmapped(each.step_key) for each in events if each.step_key}
        run = instance.get_run_by_id(run.parent_run_id) if run.parent_run_id else None


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
