# SPDX-License-Identifier: Apache-2.0
"""A task that processes or settles a claim, and where it gets the claim from, as far as the DAG shows it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator

from airflow_nats_jetstream.holding import JetStreamHeld
from airflow_nats_jetstream.operators.claim_task import ClaimTask


@dataclass(frozen=True)
class ClaimUse:
    """A task that processes or settles a claim, and where it gets the claim from."""

    task: Any

    @classmethod
    def all_of(cls, dag: Any, kinds: Any = ClaimTask | JetStreamHeld) -> list[ClaimUse]:
        """Return those of a DAG. By default, without tasks that only keep a claim."""
        return [cls(task) for task in dag.tasks if issubclass(class_of(task), kinds)]

    @property
    def name(self) -> str:
        return repr(self.task.task_id)

    @cached_property
    def mapped(self) -> Mapping[str, Any]:
        """The arguments over which the task itself is mapped, as far as they are named; empty if it is not mapped."""
        task = self.task
        inputs = [getattr(task, name, None) for name in ("op_kwargs_expand_input", "expand_input")]
        values = [each.value for each in inputs if each is not None and isinstance(each.value, Mapping)]
        return {name: value for some in values for name, value in some.items()}

    @cached_property
    def claim(self) -> Any:
        """The argument ``claim`` as the DAG gives it; None if it is not visible, as with ``expand_kwargs``."""
        if "claim" in self.mapped:
            return self.mapped["claim"]
        given = self.task.partial_kwargs if isinstance(self.task, MappedOperator) else vars(self.task)
        named: Any = given.get("op_kwargs")
        if isinstance(named, Mapping) and "claim" in named:
            return named["claim"]
        if "python_callable" in given:
            positional = inspect.signature(given["python_callable"]).bind_partial(*given.get("op_args", ()))
            return positional.arguments.get("claim")
        return given.get("claim")

    @cached_property
    def source(self) -> tuple[Any, str] | None:
        """The task and the key of the XCom from which the claims come; None if they come from none, or if a function or
        another XCom decides which ones."""
        claim = self.claim
        if not hasattr(claim, "iter_references") or hasattr(claim, "callables") or hasattr(claim, "args"):
            return None
        found = list(dict.fromkeys((task.task_id, key) for task, key in claim.iter_references()))
        tasks = {task.task_id: task for task, _ in claim.iter_references()}
        return (tasks[found[0][0]], found[0][1]) if len(found) == 1 else None

    def mapped_over(self) -> Iterator[tuple[str, Any]]:
        """Yield the arguments, other than the claim, over which the task and the task groups around it are mapped. A
        group in which the claim is made has a claim for each of its instances, and so may a template have."""
        if self.claim is None or isinstance(self.claim, str):
            return
        yield from ((name, value) for name, value in self.mapped.items() if name != "claim")
        for group in self.task.iter_mapped_task_groups():
            if self.source is None or not group.has_task(self.source[0]):
                # Airflow has no public names for what a group is mapped over, and for the key of such an argument.
                arguments = group._expand_input.value
                key = getattr(self.claim, "_key", None)
                if isinstance(arguments, Mapping):
                    yield from ((name, value) for name, value in arguments.items() if name != key)

    @property
    def may_be_skipped(self) -> bool:
        """Whether it may be decided at run time that this task is skipped: by a task upstream, such as a branch, or by
        a ``pre_execute``, as of ``@task.run_if``."""
        upstream = [*self.task.get_flat_relatives(upstream=True)]
        return any(
            each.inherits_from_skipmixin and not issubclass(class_of(each), BaseSensorOperator) for each in upstream
        ) or any(_pre_execute(each) for each in (self.task, *upstream))

    @property
    def instances(self) -> tuple[bool, str | None]:
        """Whether the task is mapped over its claims, and the id of the closest mapped task group around it. Instances
        with the same map index of two tasks for which this is equal, and which have the same source, get the same
        claim."""
        group = self.task.get_closest_mapped_task_group()
        return "claim" in self.mapped, group and group.group_id

    def others(self) -> list[Any]:
        """Return the other tasks of the DAG whose instance with the same map index processes or settles the same
        claim."""
        if self.source is None:
            return []
        (maker, key), found = self.source, []
        for each in ClaimUse.all_of(self.task.dag):
            if each.task.task_id != self.task.task_id and each.source and each.instances == self.instances:
                found += [each.task] if (each.source[0].task_id, each.source[1]) == (maker.task_id, key) else []
        return found


def class_of(task: Any) -> type:
    """Return the class of a task, which may be mapped."""
    return task.operator_class if isinstance(task, MappedOperator) else type(task)


def _pre_execute(task: Any) -> Any:
    """What a task calls before it executes; None if nothing. Airflow has no public name for it."""
    if isinstance(task, MappedOperator):
        return task.partial_kwargs.get("pre_execute")
    return task._pre_execute_hook
