"""An EMR step and a Glue job."""

from airflow.providers.amazon.aws.operators.emr import EmrAddStepsOperator
from airflow.providers.amazon.aws.operators.glue import GlueJobOperator

from tests.held.around import ARGUMENTS, ATTEMPT, held

step = {
    "Name": "delays",
    "ActionOnFailure": "CONTINUE",
    "HadoopJarStep": {"Jar": "command-runner.jar", "Args": ["spark-submit", "job.py", *ARGUMENTS]},
}
held("emr", EmrAddStepsOperator, job_flow_id="j-1", steps=[step], wait_for_completion=True, waiter_delay=1)
held(
    "glue",
    GlueJobOperator,
    job_name="delays",
    script_args={"--out": ATTEMPT},
    iam_role_arn="arn:aws:iam::1:role/r",
    job_poll_interval=1,
)
