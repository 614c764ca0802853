"""A session of its own process: where Spark runs is Spark's to say, and a task's connection reaches its workers."""

import os
import subprocess
import sys

SCRIPT = """
import os
import psutil
from pyspark_jetstream import spark_session

name = "JETSTREAM_SECRET_NATS_TESTS"
spark = spark_session(config={"spark.ui.enabled": "false", "spark.log.level": "FATAL"})
print("master", spark.sparkContext.master)
print("worker", spark.sparkContext.parallelize([0], 1).map(lambda _: os.environ.get(name) == "hidden").collect())
print("shown", [tuple(row) for row in spark.sql("SET").collect() if name in row.key])
command = " ".join(psutil.Process(spark.sparkContext._gateway.proc.pid).cmdline())
print("jvm", "pyspark-shell" in command)
print("argument", os.environ[name] in command)
spark.stop()
"""


def test_where_spark_runs_is_not_overridden_and_the_connection_is_carried_unseen() -> None:
    environment = os.environ | {
        "PYSPARK_SUBMIT_ARGS": "--master local[3] pyspark-shell",
        "JETSTREAM_SECRET_NATS_TESTS": "hidden",
    }
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    said = dict(line.split(" ", 1) for line in run.stdout.splitlines())
    assert said["master"] == "local[3]"
    assert said["worker"] == "[True]"
    assert "redacted" in said["shown"]
    # Everybody on the machine can read a command line.
    assert (said["jvm"], said["argument"]) == ("True", "False")
    assert "hidden" not in run.stdout + run.stderr
