"""A job of somebody who has pyspark, pyarrow and the wheel in `--py-files`; `make cluster` runs it."""

import os
import subprocess
from pathlib import Path

from demo.java import QUICK
from tests.cluster.conftest import STREAM, TOTALS, Secured
from tests.cluster.environment import PROJECT, environment, spark_home, zipped
from tests.cluster.standalone import Standalone

SCRIPT = f"""
import importlib.util
import os
import sys
from pyspark.sql import SparkSession

for name in ("airflow", "anyio", "cryptography", "nats"):
    assert importlib.util.find_spec(name) is None, name
from pyspark_jetstream import DefaultSource

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(DefaultSource)
options = {{"connection": "by_files", "stream": "{STREAM}", "minPartitions": "2"}}
totals = {TOTALS}
messages = spark.read.format("jetstream").options(**options, endingOffsets="50000").load()
print("batch", *messages.selectExpr(*totals).collect()[0])
messages = spark.readStream.format("jetstream").options(**options, startingOffsets="100001").load()
query = messages.writeStream.format("memory").queryName("streamed").trigger(availableNow=True).start()
query.awaitTermination()
print("stream", *spark.table("streamed").selectExpr(*totals).collect()[0])

path = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark_jetstream").__file__)
print("path", *path.collect())
spark.stop()
"""


def test_a_stranger_reads_with_the_package_in_py_files(cluster: Standalone, secured: Secured, tmp_path: Path) -> None:
    """Neither the driver nor the executors have the package installed; the credentials are in a file."""
    python = environment(PROJECT / "build" / "tests" / "strangers", installed=False)
    file, script = tmp_path / "by_files.json", tmp_path / "script.py"
    file.write_text(secured.settings.to_json())
    script.write_text(SCRIPT)
    options = {
        "spark.cores.max": "1",
        "spark.executor.cores": "1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.extraJavaOptions": QUICK,
        "spark.executor.memory": "512m",
        "spark.executorEnv.JETSTREAM_SECRET_BY_FILES": str(file),
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
    }
    submit = [str(spark_home(python) / "bin" / "spark-submit"), "--master", cluster.url]
    package = str(zipped(tmp_path))
    submit += ["--py-files", package]
    submit += [word for name, value in options.items() for word in ("--conf", f"{name}={value}")]
    variables = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    variables |= {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1", "JETSTREAM_SECRET_BY_FILES": str(file)}
    variables |= {"PYTHONPATH": package}  # of the driver: where Spark plans a stream it forgets the files of the job
    run = subprocess.run(
        [*submit, str(script)], env=variables, capture_output=True, text=True, timeout=280, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    said = dict(line.split(" ", 1) for line in run.stdout.splitlines())
    assert said["batch"] == "50000 50000 1 50000 0"
    assert said["stream"] == "50000 50000 100001 150000 0"
    assert "jetstream.zip" in said["path"]
