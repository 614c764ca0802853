# SPDX-License-Identifier: Apache-2.0
"""The operators, and the ways to use an operator, around which a claim cannot be held. They are refused when the DAG is
parsed, because the claim would be settled before its work is done, or for work that another attempt has done.

Operators are known by their names, because their providers need not be installed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow_nats_jetstream.template import templated
from jetstream_client.errors import InvalidValue

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

_OURS = frozenset({"claim", "on_settled", "on_skip", "longest_hold", "export_connection"})
_WITHOUT = ("it works with claims already", "use it without holding()")

_CLASSES = {
    "EmptyOperator": (
        "Airflow never runs it",
        "hold the claim around an operator that works, or settle it with JetStreamSettleOperator",
    ),
    "TriggerDagRunOperator": (
        "Airflow starts the other run after the task has ended, so nothing runs while the claim is held",
        "pass the claim to the other DAG in its conf, and hold it there",
    ),
    "HITLOperator": (
        "no process of Airflow runs while it waits for a person, so nothing holds the claim",
        "use JetStreamHoldSensor and JetStreamSettleOperator around it",
    ),
    "JetStreamPullSensor": _WITHOUT,
    "JetStreamHoldSensor": _WITHOUT,
    "ClaimTask": _WITHOUT,
}

_ONLY_STARTS = (
    "the operator would only start its job and return, so the claim would be settled before the job has ended"
)
_REATTACHES = (
    "a retry would continue the job of an earlier try, which writes its output under the name of another attempt"
)
_REATTACHING = (
    "durable",
    "reattach",
    "reattach_on_restart",
    "reconnect_on_retry",
    "resume_glue_job_on_retry",
    "retry_from_failure",
    "reuse_existing_run",
)
_NO_WORKER = "no worker runs before or after the trigger, so nothing could hold or settle the claim"
_WAITING = (
    "blocking_refresh",
    "is_track_job",
    "wait",
    "wait_for_completion",
    "wait_for_termination",
    "wait_until_finished",
    "wait_until_job_complete",
)
_TOKENS = ("client_request_token", "idempotency_token")
_STARTS = frozenset({"StepFunctionStartExecutionOperator"})
"""Operators that wait for their job only in a trigger, and have no other parameter for it."""
_YARN_WAITS = "spark.yarn.submit.waitAppCompletion"


def _waits_in_a_trigger(parameters: Mapping[str, Any]) -> bool:
    return parameters.get("deferrable") is True


def _leaves_yarn(given: Any, parameters: Mapping[str, Any]) -> bool:
    waits = given.get(_YARN_WAITS) if isinstance(given, Mapping) else None
    return str(waits).strip().lower() == "false" and parameters.get("yarn_track_via_rm_api") is not True


def _is(value: object) -> Callable[[object, Mapping[str, Any]], bool]:
    return lambda given, _: type(given) is type(value) and given == value


_PARAMETERS: Mapping[str, tuple[Callable[[Any, Mapping[str, Any]], bool], str, str]] = {
    "start_from_trigger": (_is(True), _NO_WORKER, "leave start_from_trigger out"),
    "end_from_trigger": (_is(True), _NO_WORKER, "set end_from_trigger=False"),
    "asynchronous": (_is(True), _ONLY_STARTS, "set asynchronous=False, or deferrable=True if the operator has it"),
    # Also for a deferrable operator, because many defer only if they are to wait.
    **{name: (_is(False), _ONLY_STARTS, f"set {name}=True") for name in _WAITING},
    "wait_policy": (
        lambda given, parameters: given is None and parameters.get("wait_for_completion") is None,
        _ONLY_STARTS,
        "set wait_for_completion=True",
    ),
    "invocation_type": (_is("Event"), _ONLY_STARTS, "set invocation_type='RequestResponse'"),
    "conf": (_leaves_yarn, _ONLY_STARTS, f"leave {_YARN_WAITS} out"),
    "polling_interval": (
        lambda given, parameters: type(given) is int and given == 0 and not _waits_in_a_trigger(parameters),
        _ONLY_STARTS,
        "set polling_interval to the seconds between two requests for the job's state",
    ),
    "reattach_states": (lambda given, _: bool(given), _REATTACHES, "leave reattach_states out"),
    **{name: (_is(True), _REATTACHES, f"leave {name} out, or set it to False") for name in _REATTACHING},
}


def check_classes(name: str, operators: tuple[type, ...]) -> None:
    """Check that a claim can be held around an operator.

    name:       the name of the operator's class.
    operators:  the class and its bases.

    Raises:
        InvalidValue: it cannot. The message says why, and names the alternative.
    """
    for each in operators:
        if each.__name__ in _CLASSES:
            why, instead = _CLASSES[each.__name__]
            raise InvalidValue("operator", name, f"no claim can be held around it: {why}; {instead}")
    if both := _OURS & parameters_of(operators).keys():
        remedy = f"it has a parameter {min(both)!r}, which holding() uses; rename the parameter in a subclass"
        raise InvalidValue("operator", name, remedy)


def check_parameters(operator: type, given: Mapping[str, Any]) -> None:
    """Check that a claim can be held around an operator with these parameters.

    operator:  the operator's class.
    given:     the parameters that are given; others have their defaults. Values that are templated are not checked.

    Raises:
        InvalidValue: names the parameter, the reason and the value to set.
    """
    classes = tuple(operator.mro())
    parameters = {**parameters_of(classes), **given, **not_reattaching(classes, given)}
    if getattr(operator, "start_from_trigger", False):
        parameters.setdefault("start_from_trigger", True)
    if not _STARTS.isdisjoint(each.__name__ for each in classes) and not _waits_in_a_trigger(parameters):
        raise _refusal(operator, "deferrable", parameters.get("deferrable"), _ONLY_STARTS, "set deferrable=True")
    for name in _TOKENS:
        if isinstance(token := given.get(name), str) and token and "claim.attempt_id" not in token:
            same = "the service would answer another attempt with the job of an earlier one, which has the same token"
            raise _refusal(operator, name, token, same, "let the token contain {{ claim.attempt_id }}")
    _check(operator, parameters, parameters)


def check_rendered(task: BaseOperator, given: Mapping[str, Any]) -> None:
    """Check the parameters of a task that were templated, when they are rendered.

    task:   the task.
    given:  the parameters as they were given in the DAG.

    Raises:
        InvalidValue: names the parameter, the reason and the value to set.
    """
    parameters = {name: getattr(task, name) for name in (*_PARAMETERS, "deferrable") if hasattr(task, name)}
    names = {name for name in task.template_fields if name in parameters and templated(given.get(name))}
    _check(type(task), parameters, names)


def _check(operator: type, parameters: Mapping[str, Any], names: Collection[str]) -> None:
    """Check those of an operator's parameters that have one of these names. Raises InvalidValue."""
    for name, (refused, why, instead) in _PARAMETERS.items():
        if name in names and not templated(parameters[name]) and refused(parameters[name], parameters):
            raise _refusal(operator, name, parameters[name], why, instead)


def _refusal(operator: type, name: str, value: object, why: str, instead: str) -> InvalidValue:
    shown = type(value) if isinstance(value, Mapping) else value  # because Spark's settings may contain secrets
    return InvalidValue(name, shown, f"while a claim is held around {operator.__name__}, {why}; {instead}")


def not_reattaching(classes: tuple[type, ...], given: Mapping[str, Any]) -> Mapping[str, bool]:
    """Return the parameters that keep an operator from continuing the job of an earlier try, as far as they are not
    given. Many operators do so by default.

    classes:  the operator's class and its bases.
    given:    the parameters that are given.
    """
    defaults = parameters_of(classes)
    # Where "durable" is None, it counts as True. Other parameters that are None are deprecated forms of it.
    reattaching = [
        name
        for name in _REATTACHING
        if name in defaults and (defaults[name] is True or (name == "durable" and defaults[name] is None))
    ]
    return {name: False for name in reattaching if given.get(name) is None}


@cache
def parameters_of(classes: tuple[type, ...]) -> Mapping[str, Any]:
    """Return the parameters of an operator's constructors that have defaults, with these defaults.

    classes:  the operator's class and its bases.
    """
    found: dict[str, Any] = {}
    for each in reversed(classes):
        if (init := each.__dict__.get("__init__")) is not None:
            try:
                parameters = inspect.signature(init).parameters.values()
            except (TypeError, ValueError):
                continue
            found |= {one.name: one.default for one in parameters if one.default is not one.empty}
    return found
