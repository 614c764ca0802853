"""SparkSubmitOperator in client mode, whose program reads the claim."""

import os
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from tests.held.around import ARGUMENTS, ATTEMPT, held

held(
    "spark_submit",
    SparkSubmitOperator,
    application=str(Path(__file__).absolute().with_name("spark_job.py")),
    application_args=[*ARGUMENTS[:2], "--out", f"{os.environ.get('HELD_OUT', 'out')}/{ATTEMPT}"],
    conf={"spark.ui.enabled": "false", "spark.driver.memory": "512m"},
    export_connection=True,
)
