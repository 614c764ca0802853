# SPDX-License-Identifier: Apache-2.0
"""The rules for a whole DAG, which are checked when it is parsed: what a task alone cannot see."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.definitions.xcom_arg import XComArg

from airflow_nats_jetstream import sensor_rules
from airflow_nats_jetstream.holding import JetStreamHeld
from airflow_nats_jetstream.operators.claim_task import ClaimTask
from airflow_nats_jetstream.sensors import JetStreamPullSensor

Rule = Callable[[Any], Iterator[str]]

_ALTERNATIVES = (
    "do both in one task, let several tasks work on the claim between the sensor and a JetStreamSettleOperator, or "
    "give the second task a sensor with a separate consumer"
)


def broken(dag: Any) -> Iterator[str]:
    """Yield what is wrong with a DAG, in the order of :data:`RULES`: what happens, and what to do instead.

    dag:  the DAG as its file has made it.
    """
    for rule in RULES:
        for problem in rule(dag):
            yield f"DAG {dag.dag_id!r}: {problem}"


@dataclass(frozen=True)
class ClaimUse:
    """A task that processes or settles a claim, and where it gets the claim from."""

    task: Any

    @classmethod
    def all_of(cls, dag: Any) -> list[ClaimUse]:
        """Return those of a DAG."""
        return [cls(task) for task in dag.tasks if issubclass(class_of(task), ClaimTask | JetStreamHeld)]

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

    def mapped_outside(self) -> Iterator[tuple[str, Any]]:
        """Yield the arguments, other than the claim, over which the task groups around the task are mapped. A group in
        which the claim is made has a claim for each of its instances."""
        for group in self.task.iter_mapped_task_groups():
            if self.source is None or not group.has_task(self.source[0]):
                # Airflow has no public names for what a group is mapped over, and for the key of such an argument.
                arguments = group._expand_input.value
                key = getattr(self.claim, "_key", None)
                if isinstance(arguments, Mapping):
                    yield from ((name, value) for name, value in arguments.items() if name != key)

    @property
    def may_be_skipped(self) -> bool:
        """Whether a task upstream, such as a branch, may decide at run time that this one is skipped."""
        return any(
            each.inherits_from_skipmixin and not issubclass(class_of(each), BaseSensorOperator)
            for each in self.task.get_flat_relatives(upstream=True)
        )


def class_of(task: Any) -> type:
    """Return the class of a task, which may be mapped."""
    return task.operator_class if isinstance(task, MappedOperator) else type(task)


def one_task_for_a_claim(dag: Any) -> Iterator[str]:
    """Two tasks over the same claims: the first settles each claim, and the second never works."""
    for first, second in combinations(ClaimUse.all_of(dag), 2):
        if first.source is None or second.source is None or first.may_be_skipped or second.may_be_skipped:
            continue
        (taker, key), (other, other_key) = first.source, second.source
        if (taker.task_id, key) == (other.task_id, other_key):
            yield (
                f"the tasks {first.name} and {second.name} would both process the claims of task {taker.task_id!r}, "
                f"but the first one settles each claim, so the second one fails; {_ALTERNATIVES}"
            )


def one_instance_for_a_claim(dag: Any) -> Iterator[str]:
    """A cross product: several instances of a task over the same claim, of which only the first one works."""
    for use in ClaimUse.all_of(dag):
        if use.claim is None:
            continue
        for name, value in (*use.mapped.items(), *use.mapped_outside()):
            if name != "claim" and _several(value):
                yield (
                    f"task {use.name} is mapped over {name!r}, so each claim would be processed once for every value "
                    "of it, but the first instance settles the claim, and the others fail; go through the values of "
                    f"{name!r} inside the function, or {_ALTERNATIVES}"
                )


def a_list_is_mapped(dag: Any) -> Iterator[str]:
    """A list of claims in the place of one claim."""
    for use in ClaimUse.all_of(dag):
        if "claim" in use.mapped or use.source is None or not isinstance(use.claim, XComArg):
            continue
        taker, key = use.source
        if key == "return_value" and issubclass(class_of(taker), JetStreamPullSensor):
            yield (
                f"task {use.name} gets the list of claims of sensor {taker.task_id!r} in the place of one claim; map "
                "the task over it with .expand(claim=….output), or let a task upstream pick one claim of the list"
            )


RULES: tuple[Rule, ...] = (
    one_task_for_a_claim,
    one_instance_for_a_claim,
    a_list_is_mapped,
    *sensor_rules.RULES,
)
"""All rules. Each is called with a DAG, and yields what is wrong."""


def _several(value: Any) -> bool:
    """Whether an argument may have more than one value."""
    return not hasattr(value, "__len__") or len(value) > 1
