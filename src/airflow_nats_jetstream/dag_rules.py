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
from airflow_nats_jetstream.between import passes_on, settles, takes
from airflow_nats_jetstream.holding import JetStreamHeld
from airflow_nats_jetstream.operators.claim_task import ClaimTask
from airflow_nats_jetstream.sensors import JetStreamPullSensor
from airflow_nats_jetstream.template import OfClaim

Rule = Callable[[Any], Iterator[str]]

_ALTERNATIVES = (
    "do both in one task, let several tasks work on the claim between the sensor and a JetStreamSettleOperator, or "
    "give the second task a sensor with a separate consumer"
)
_CHOICE = "if only one of them runs for a claim, choose it with a branch upstream"


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
                f"but the first one settles each claim, so the second one fails; {_ALTERNATIVES}; {_CHOICE}"
            )


def one_instance_for_a_claim(dag: Any) -> Iterator[str]:
    """A cross product: several instances of a task over the same claim, of which only the first one works."""
    for use in ClaimUse.all_of(dag):
        for name, value in use.mapped_over():
            if _several(value):
                yield (
                    f"task {use.name} is mapped over {name!r}, so each claim would be processed once for every value "
                    "of it, but the first instance settles the claim, and the others fail; go through the values of "
                    f"{name!r} inside the function, or {_ALTERNATIVES}"
                )


def a_list_is_mapped(dag: Any) -> Iterator[str]:
    """A list of claims in the place of one claim."""
    for use in ClaimUse.all_of(dag, OfClaim | JetStreamHeld):
        if "claim" in use.mapped or use.source is None or not isinstance(use.claim, XComArg):
            continue
        taker, key = use.source
        if key == "return_value" and issubclass(class_of(taker), JetStreamPullSensor):
            yield (
                f"task {use.name} gets the list of claims of sensor {taker.task_id!r} in the place of one claim; map "
                "the task over it with .expand(claim=….output), or let a task upstream pick one claim of the list"
            )


def mapped_sensors_are_flattened(dag: Any) -> Iterator[str]:
    """The list of claims of one instance of a mapped sensor in the place of one claim."""
    for use in ClaimUse.all_of(dag, OfClaim | JetStreamHeld):
        if use.source is None:
            continue
        taker, key = use.source
        if key == "return_value" and takes(taker) and isinstance(taker, MappedOperator):
            yield (
                f"task {use.name} gets a list of claims in the place of one claim, because the pull sensor "
                f"{taker.task_id!r} is itself mapped; map the task, or its task group, over "
                f"airflow_nats_jetstream.all_claims.all_claims({taker.task_id}.output)"
            )


def settling_waits_for_the_work(dag: Any) -> Iterator[str]:
    """A settling task that no task of the work is upstream of, although other tasks get its claim."""
    for use in ClaimUse.all_of(dag):
        if not settles(use.task) or use.source is None:
            continue
        maker, _ = use.source
        if not any(map(passes_on, (maker, *maker.upstream_list))):
            continue  # it gets one claim itself, and may work on it
        if use.task.get_flat_relative_ids(upstream=True) & maker.get_flat_relative_ids(upstream=False):
            continue
        after = use.task.get_flat_relative_ids(upstream=False)
        others = [dag.get_task(each) for each in sorted(maker.downstream_task_ids - after - {use.task.task_id})]
        names = [each.task_id for each in others if not issubclass(class_of(each), OfClaim) and _gets(each, maker)]
        if names:
            yield (
                f"the settling task {use.name} waits for no task that works on its claim, but {', '.join(names)} also "
                f"gets the claims of task {maker.task_id!r}, and the messages would be acknowledged before its work is "
                f"done; put the tasks of the work upstream of the settling task ({names[0]} >> {use.task.task_id})"
            )


RULES: tuple[Rule, ...] = (
    one_task_for_a_claim,
    one_instance_for_a_claim,
    a_list_is_mapped,
    mapped_sensors_are_flattened,
    settling_waits_for_the_work,
    *sensor_rules.RULES,
)
"""All rules. Each is called with a DAG, and yields what is wrong."""


def _gets(task: Any, maker: Any) -> bool:
    """Whether a task gets an XCom of another one as an argument."""
    given, found = task, []
    if isinstance(task, MappedOperator):
        given, found = dict(task.partial_kwargs), list(task.iter_mapped_dependencies())
    found += [each for each, _ in XComArg.iter_xcom_references(given)]
    return any(each.task_id == maker.task_id for each in found)


def _pre_execute(task: Any) -> Any:
    """What a task calls before it executes; None if nothing. Airflow has no public name for it."""
    if isinstance(task, MappedOperator):
        return task.partial_kwargs.get("pre_execute")
    return task._pre_execute_hook


def _several(value: Any) -> bool:
    """Whether an argument may have more than one value."""
    return not hasattr(value, "__len__") or len(value) > 1
