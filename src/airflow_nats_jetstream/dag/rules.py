# SPDX-License-Identifier: Apache-2.0
"""The rules for a whole DAG, which are checked when it is parsed: what a task alone cannot see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.definitions.xcom_arg import XComArg

from airflow_nats_jetstream.dag import sensor_rules
from airflow_nats_jetstream.dag.between import passes_on, settles, takes
from airflow_nats_jetstream.dag.claim_use import ClaimUse, class_of
from airflow_nats_jetstream.holding import JetStreamHeld
from airflow_nats_jetstream.operators.configuration import ConfigurationOperator
from airflow_nats_jetstream.operators.stream import StreamOperator
from airflow_nats_jetstream.sensors import JetStreamPullSensor
from airflow_nats_jetstream.sensors.waiting import JetStreamSensor
from airflow_nats_jetstream.template import OfClaim

Rule = Callable[[Any], Iterator[str]]

_ALTERNATIVES = (
    "do both in one task, let several tasks work on the claim between the sensor and a JetStreamSettleOperator, or "
    "give the second task a sensor with a separate consumer"
)
_CHOICE = "if only one of them runs for a claim, choose it with a branch upstream"
_OURS = (OfClaim, JetStreamSensor, StreamOperator, ConfigurationOperator)
_UNKNOWN = "{{ mapped }}"
"""Stands for a value that is known only when the task runs: a parameter with a template is checked then. A pull sensor
checks its parameters together, so a mapped one checks most of them when it runs, before it takes anything."""


def broken(dag: Any) -> Iterator[str]:
    """Yield what is wrong with a DAG, in the order of :data:`RULES`: what happens, and what to do instead.

    dag:  the DAG as its file has made it.
    """
    for rule in RULES:
        for problem in rule(dag):
            yield f"DAG {dag.dag_id!r}: {problem}"


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


def mapped_parameters_are_valid(dag: Any) -> Iterator[str]:
    """A parameter with which no instance of a mapped task can be made. Airflow makes them only when they run, after a
    sensor has taken the claims."""
    for task in dag.tasks:
        if isinstance(task, MappedOperator) and (values := _unknown(task)):
            try:
                task.unmap(values)  # as Airflow does in the worker; the instance does not become a part of the DAG
            except Exception as error:  # noqa: BLE001 - the constructor would raise the same in the worker
                yield f"no instance of the mapped task {task.task_id!r} can be made: {error}"


RULES: tuple[Rule, ...] = (
    mapped_parameters_are_valid,
    one_task_for_a_claim,
    one_instance_for_a_claim,
    a_list_is_mapped,
    mapped_sensors_are_flattened,
    settling_waits_for_the_work,
    *sensor_rules.RULES,
)
"""All rules. Each is called with a DAG, and yields what is wrong."""


def _unknown(task: MappedOperator) -> dict[str, Any]:
    """Return values for the arguments over which a task is mapped; empty if an instance may need the real ones."""
    kind: Any = class_of(task)
    names = ClaimUse(task).mapped.keys()
    if issubclass(kind, OfClaim) and hasattr(task, "op_kwargs_expand_input"):  # @task.jetstream
        return {"op_kwargs": dict.fromkeys(names, _UNKNOWN)} if names else {}
    known = issubclass(kind, _OURS) and names <= {*kind.template_fields}
    return dict.fromkeys(names, _UNKNOWN) if known or (issubclass(kind, JetStreamHeld) and names == {"claim"}) else {}


def _gets(task: Any, maker: Any) -> bool:
    """Whether a task gets an XCom of another one as an argument."""
    given, found = task, []
    if isinstance(task, MappedOperator):
        given, found = dict(task.partial_kwargs), list(task.iter_mapped_dependencies())
    found += [each for each, _ in XComArg.iter_xcom_references(given)]
    return any(each.task_id == maker.task_id for each in found)


def _several(value: Any) -> bool:
    """Whether an argument may have more than one value."""
    return not hasattr(value, "__len__") or len(value) > 1
