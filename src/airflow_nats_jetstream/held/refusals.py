# SPDX-License-Identifier: Apache-2.0
"""The operators, and the ways to use an operator, around which a claim cannot be held. They are refused when the DAG is
parsed, because the claim would be settled before its work is done, or for work that another attempt has done.

Operators are known by their names, because their providers need not be installed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator

from airflow_nats_jetstream.template import templated
from jetstream_client.errors import InvalidValue

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

_OURS = frozenset({"claim", "on_settled", "on_skip", "waits", "longest_hold", "export_connection"})
_WITHOUT = ("it works with claims already", "use it without holding()")

_CREATES = (
    "it only creates an object in Kubernetes and returns",
    "wait for its job with a sensor, and settle the claim with JetStreamSettleOperator",
)

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
    "FlinkKubernetesOperator": _CREATES,
    "KubernetesCreateResourceOperator": _CREATES,
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
    "sync",
    "synchronous",
    "wait",
    "wait_for_completion",
    "wait_for_job_done",
    "wait_for_termination",
    "wait_until_complete",
    "wait_until_finished",
    "wait_until_job_complete",
)
_LEAVING = ("asynchronous", "async_mode", "detach", "fire_and_forget", "no_wait", "run_async", "submit_only")
_TOKENS = ("client_request_token", "idempotency_token")
_STARTS = frozenset({"StepFunctionStartExecutionOperator"})
"""Operators that wait for their job only in a trigger, and have no other parameter for it."""
_OFF = frozenset({"0", "0.0", "f", "false", "n", "no", "off", ""})


def _off(given: object) -> bool:
    """Whether a value switches something off. None leaves it to the operator."""
    return given is not None and (str(given).strip().lower() in _OFF if isinstance(given, str | float) else not given)


def _on(given: object) -> bool:
    return given is not None and not _off(given)


def _waits_in_a_trigger(parameters: Mapping[str, Any]) -> bool:
    deferrable = parameters.get("deferrable")
    return not templated(deferrable) and _on(deferrable)


_PARAMETERS: Mapping[str, tuple[Callable[[Any, Mapping[str, Any]], bool], str, str]] = {
    "start_from_trigger": (lambda given, _: _on(given), _NO_WORKER, "leave start_from_trigger out"),
    "end_from_trigger": (lambda given, _: _on(given), _NO_WORKER, "set end_from_trigger=False"),
    **{
        name: (
            lambda given, _: _on(given),
            _ONLY_STARTS,
            f"set {name}=False, or deferrable=True if the operator has it",
        )
        for name in _LEAVING
    },
    # Also for a deferrable operator, because many defer only if they are to wait.
    **{name: (lambda given, _: _off(given), _ONLY_STARTS, f"set {name}=True") for name in _WAITING},
    "wait_policy": (
        lambda given, parameters: given is None and parameters.get("wait_for_completion") is None,
        _ONLY_STARTS,
        "set wait_for_completion=True",
    ),
    "invocation_type": (
        lambda given, _: str(given).strip().lower() in {"event", "dryrun"},
        _ONLY_STARTS,
        "set invocation_type='RequestResponse'",
    ),
    "polling_interval": (
        lambda given, parameters: _off(given) and not _waits_in_a_trigger(parameters),
        _ONLY_STARTS,
        "set polling_interval to the seconds between two requests for the job's state",
    ),
    "reattach_states": (lambda given, _: bool(given), _REATTACHES, "leave reattach_states out"),
    **{
        name: (lambda given, _: _on(given), _REATTACHES, f"leave {name} out, or set it to False")
        for name in _REATTACHING
    },
}

_SPARK_WAITS = {
    "spark.kubernetes.submission.waitAppCompletion": "",
    "spark.yarn.submit.waitAppCompletion": "yarn_track_via_rm_api",
}
"""Spark's properties that decide whether spark-submit waits for the application in cluster mode; and the parameter with
which SparkSubmitOperator waits itself."""
_OF_THE_PROGRAM = frozenset({"application_args"})
"""Parameters that Spark passes to the program, where these names have no meaning."""

_IN_THE_WORKER = re.compile(r"^airflow\.providers\.(standard|common\.sql|common\.io|papermill)\.|^airflow\.sdk\.")
"""Modules whose operators do their work in the worker, so that ``execute`` returns when it is done."""
_WAIT = frozenset(
    {
        # Held on the real Airflow or created by `make held`, in versions whose source was read.
        "airflow.providers.amazon.aws.operators.athena.AthenaOperator",
        "airflow.providers.amazon.aws.operators.lambda_function.LambdaInvokeFunctionOperator",
        "airflow.providers.apache.livy.operators.livy.LivyOperator",
        "airflow.providers.apache.spark.operators.spark_submit.SparkSubmitOperator",
        "airflow.providers.cncf.kubernetes.operators.pod.KubernetesPodOperator",
        "airflow.providers.cncf.kubernetes.operators.spark_kubernetes.SparkKubernetesOperator",
        "airflow.providers.http.operators.http.HttpOperator",
        "airflow.providers.jenkins.operators.jenkins_job_trigger.JenkinsJobTriggerOperator",
        # Only their source was read: it polls the job, or runs the program, until the end.
        "airflow.providers.amazon.aws.operators.eks.EksPodOperator",
        "airflow.providers.apache.spark.operators.spark_jdbc.SparkJDBCOperator",
        "airflow.providers.apache.spark.operators.spark_sql.SparkSqlOperator",
        "airflow.providers.databricks.operators.databricks_sql.DatabricksSqlOperator",
        "airflow.providers.docker.operators.docker.DockerOperator",
        "airflow.providers.google.cloud.operators.bigquery.BigQueryInsertJobOperator",
        "airflow.providers.google.cloud.operators.cloud_run.CloudRunExecuteJobOperator",
        "airflow.providers.snowflake.operators.snowflake.SnowflakeSqlApiOperator",
        "airflow.providers.ssh.operators.ssh.SSHOperator",
    }
)
"""Operators whose ``execute`` returns when the work is done, although no parameter says so."""
_UNKNOWN = (
    "the claim is settled when the operator returns, and this operator is not known to return only after its work is "
    "done"
)
_ASSURE = (
    "read the source of its execute(): if it waits for the work, add waits=True; if it only starts a job or creates an "
    "object, let it wait with its own parameter, or wait for the job in a separate task and settle the claim with "
    "JetStreamSettleOperator"
)


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


def check_parameters(operator: type, given: Mapping[str, Any], *, waits: bool = False) -> None:
    """Check that a claim can be held around an operator with these parameters.

    operator:  the operator's class.
    given:     the parameters that are given; others have their defaults. Values that are templated are not checked.
    waits:     whether the author of the DAG says that the operator waits for its work. Default False.

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
    _check_spark(operator, parameters, given)
    if not (waits or _known_to_wait(classes, parameters)):
        raise _refusal(operator, "waits", waits, _UNKNOWN, _ASSURE)


def _known_to_wait(classes: tuple[type, ...], parameters: Mapping[str, Any]) -> bool:
    """Whether an operator is known to return only after its work is done: it waits in a trigger; it has a parameter for
    that, which was checked before; it is a sensor; or the class that defines ``execute`` is known."""
    if _waits_in_a_trigger(parameters) or not parameters.keys().isdisjoint((*_WAITING, *_LEAVING)):
        return True
    ours = {each for each in classes if each.__module__.startswith("airflow_nats_jetstream.")}
    works = next((each for each in classes if each not in ours and "execute" in each.__dict__), object)
    name = f"{works.__module__}.{works.__qualname__}"
    return issubclass(works, BaseSensorOperator) or name in _WAIT or _IN_THE_WORKER.search(f"{name}.") is not None


def _check_spark(operator: type, parameters: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Check that no parameter tells spark-submit not to wait for its application, however deep inside. Raises
    InvalidValue."""
    for parameter, value in given.items():
        for name, tracked in _SPARK_WAITS.items():
            if parameter not in _OF_THE_PROGRAM and _switched_off(value, name) and not _on(parameters.get(tracked)):
                raise _refusal(operator, parameter, type(value), _ONLY_STARTS, f"leave {name} out")


def _switched_off(value: object, name: str) -> bool:
    """Whether a value contains a property that is switched off: in a mapping, or in a string as ``name=false``."""
    if isinstance(value, Mapping):
        if any(str(key) == name and not templated(each) and _off(each) for key, each in value.items()):
            return True
        value = tuple(value.values())
    if isinstance(value, list | tuple | set):
        return any(_switched_off(each, name) for each in value)
    found = re.search(rf"{re.escape(name)}[\"']?\s*[=:\s]\s*[\"']?(\w+)", value) if isinstance(value, str) else None
    return found is not None and _off(found[1])


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
    rendered = {name: getattr(task, name, None) for name in task.template_fields if templated(given.get(name))}
    _check_spark(type(task), {**given, **parameters}, rendered)


def _check(operator: type, parameters: Mapping[str, Any], names: Collection[str]) -> None:
    """Check those of an operator's parameters that have one of these names. Raises InvalidValue."""
    for name, (refused, why, instead) in _PARAMETERS.items():
        if name in names and not templated(parameters[name]) and refused(parameters[name], parameters):
            raise _refusal(operator, name, parameters[name], why, instead)


def _refusal(operator: type, name: str, value: object, why: str, instead: str) -> InvalidValue:
    return InvalidValue(name, value, f"while a claim is held around {operator.__name__}, {why}; {instead}")


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
