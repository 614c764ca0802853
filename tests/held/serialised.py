"""Operators of providers that are only created and serialised in their locked versions: `make held`."""

from typing import Any

import pytest
from airflow.providers.amazon.aws.operators.athena import AthenaOperator
from airflow.providers.amazon.aws.operators.batch import BatchOperator
from airflow.providers.amazon.aws.operators.ecs import EcsRunTaskOperator
from airflow.providers.amazon.aws.operators.emr import (
    EmrAddStepsOperator,
    EmrContainerOperator,
    EmrCreateJobFlowOperator,
    EmrServerlessStartJobOperator,
)
from airflow.providers.amazon.aws.operators.lambda_function import LambdaInvokeFunctionOperator
from airflow.providers.amazon.aws.operators.step_function import StepFunctionStartExecutionOperator
from airflow.providers.apache.livy.operators.livy import LivyOperator
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.cncf.kubernetes.operators.job import KubernetesJobOperator
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from airflow.providers.cncf.kubernetes.operators.spark_kubernetes import SparkKubernetesOperator
from airflow.providers.databricks.operators.databricks import DatabricksSubmitRunOperator
from airflow.providers.dbt.cloud.operators.dbt import DbtCloudRunJobOperator
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_nats_jetstream.holding import holding
from jetstream_client.errors import InvalidValue

ATTEMPT = "{{ claim.attempt_id }}"
OPERATORS: list[tuple[Any, dict[str, Any]]] = [
    (SparkKubernetesOperator, {"namespace": "spark", "template_spec": {"spark": {"spec": {"arguments": [ATTEMPT]}}}}),
    (KubernetesPodOperator, {"name": "delays", "image": "delays:1", "arguments": [ATTEMPT]}),
    (EmrServerlessStartJobOperator, {"application_id": "a", "execution_role_arn": "r", "job_driver": {"out": ATTEMPT}}),
    (
        EmrContainerOperator,
        {"name": "n", "virtual_cluster_id": "v", "execution_role_arn": "r", "release_label": "l", "job_driver": {}},
    ),
    (BatchOperator, {"job_name": ATTEMPT, "job_definition": "d", "job_queue": "q"}),
    (EcsRunTaskOperator, {"task_definition": "t", "cluster": "c", "overrides": {"out": ATTEMPT}}),
    (AthenaOperator, {"query": ATTEMPT, "database": "d", "output_location": "s3://out"}),
    (DbtCloudRunJobOperator, {"job_id": 1, "additional_run_config": {"out": ATTEMPT}}),
    (DatabricksSubmitRunOperator, {"json": {"out": ATTEMPT}}),
    (SparkSubmitOperator, {"application": "job.py", "application_args": [ATTEMPT]}),
]
IDS = [operator.__name__ for operator, _ in OPERATORS]


@pytest.mark.parametrize(("operator", "parameters"), OPERATORS, ids=IDS)
@pytest.mark.filterwarnings("default")
def test_it_is_created_mapped_and_serialised(operator: Any, parameters: dict[str, Any]) -> None:
    with DAG("dag", schedule=None) as dag:
        one = holding(operator)(task_id="one", claim={}, **parameters)
        holding(operator).partial(task_id="many", **parameters).expand(claim=[{}])
    for name in ("durable", "reattach_on_restart", "reattach"):
        assert not getattr(one, name, False), name
    read = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    for task_id in ("one", "many"):
        task: Any = read.get_task(task_id)
        assert task.task_type == operator.__name__
        assert task.template_fields[0] == "claim"
        links = {each.name for each in operator.operator_extra_links} | {"JetStream"}
        assert {each.name for each in task.operator_extra_links} == links


@pytest.mark.parametrize(
    ("operator", "parameters", "says"),
    [
        (EmrAddStepsOperator, {"job_flow_id": "j", "steps": []}, "set wait_for_completion=True"),
        (LivyOperator, {"file": "job.py"}, "set polling_interval"),
        (DatabricksSubmitRunOperator, {"json": {}, "wait_for_termination": False}, "set wait_for_termination=True"),
        (DatabricksSubmitRunOperator, {"json": {}, "durable": True}, "leave durable out"),
        (SparkKubernetesOperator, {"reattach_on_restart": True}, "leave reattach_on_restart out"),
        (EcsRunTaskOperator, {"task_definition": "t", "cluster": "c", "overrides": {}, "reattach": True}, "reattach"),
        (DbtCloudRunJobOperator, {"job_id": 1, "reuse_existing_run": True}, "reuse_existing_run"),
        (DbtCloudRunJobOperator, {"job_id": 1, "retry_from_failure": True}, "retry_from_failure"),
        (KubernetesJobOperator, {"name": "delays", "image": "delays:1"}, "set wait_until_job_complete=True"),
        (EmrCreateJobFlowOperator, {}, "set wait_for_completion=True"),
        (
            EmrServerlessStartJobOperator,
            {
                "application_id": "a",
                "execution_role_arn": "r",
                "job_driver": {},
                "wait_for_completion": False,
                "deferrable": True,
            },
            "set wait_for_completion=True",
        ),
        (StepFunctionStartExecutionOperator, {"state_machine_arn": "s"}, "set deferrable=True"),
        (LambdaInvokeFunctionOperator, {"function_name": "f", "invocation_type": "Event"}, "RequestResponse"),
    ],
)
@pytest.mark.filterwarnings("default")
def test_what_cannot_be_held_is_refused(operator: Any, parameters: dict[str, Any], says: str) -> None:
    with DAG("dag", schedule=None):
        with pytest.raises(InvalidValue, match=says):
            holding(operator)(task_id="one", claim={}, **parameters)
        with pytest.raises(InvalidValue, match=says):
            holding(operator).partial(task_id="many", **parameters)


def test_what_waits_for_a_person_is_refused() -> None:
    with pytest.raises(InvalidValue, match="waits for a person"):
        holding(ApprovalOperator)
