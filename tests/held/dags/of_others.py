"""A sync of Airbyte and a job of Jenkins."""

from airflow.providers.airbyte.operators.airbyte import AirbyteTriggerSyncOperator
from airflow.providers.jenkins.operators.jenkins_job_trigger import JenkinsJobTriggerOperator

from tests.held.around import ATTEMPT, held

held("airbyte", AirbyteTriggerSyncOperator, connection_id="00000000-0000-0000-0000-000000000000", wait_seconds=1)
held(
    "jenkins",
    JenkinsJobTriggerOperator,
    jenkins_connection_id="jenkins_default",
    job_name="delays",
    parameters={"out": ATTEMPT},
    sleep_time=1,
)
