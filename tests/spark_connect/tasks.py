"""Two tasks at once that use a Spark Connect server: ``python -m tests.spark_connect.tasks FOLDER``.

Each runs in a separate process, which is forked as by Airflow's LocalExecutor.
"""

import json
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from demo.service import until
from pyspark_jetstream import decoded, spark_session
from pyspark_jetstream.held_claim import HeldClaim
from tests.airflow_nats_jetstream.steps import execute
from tests.pyspark_jetstream.streaming import run_to_the_end

NAMES = ("by_connection", "by_environment")


def numbers(claim: HeldClaim, name: str, folder: Path) -> DataFrame:
    """Write the claim's numbers as Parquet, after both tasks have begun to read."""
    messages = claim.read(spark_session())
    (folder / f"{name}.reads").touch()
    until("the other task", lambda: all((folder / f"{each}.reads").exists() for each in NAMES), seconds=120)
    good, malformed = decoded(messages, "number INT")
    claim.reject(malformed)
    good.select("sequence", "number").write.parquet(str(folder / "out" / claim.attempt_id))
    return good


def by_environment(claim: HeldClaim, folder: Path) -> None:
    numbers(claim, "by_environment", folder)


def by_connection(claim: HeldClaim, folder: Path) -> dict[str, Any]:
    """Also write to a stream, and read one as a stream."""
    rows = numbers(claim, "by_connection", folder).selectExpr("'COPIES' as subject", "string(number) as data")
    place = {"connection": claim.connection, "stream": "COPIES"}
    rows.write.format("jetstream").options(**place).mode("append").save()
    spark = spark_session()
    copied = spark.read.format("jetstream").options(**place).load().count()
    place["stream"] = claim.stream
    streamed = spark.readStream.format("jetstream").options(**place, startingOffsets="earliest").load()
    query = streamed.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    run_to_the_end(query, str(folder / "streamed"))
    return {"copied": copied, "streamed": spark.read.parquet(str(folder / "streamed")).count()}


def main(folder: Path) -> int:
    def task(body: Callable[..., Any], spark_conn_id: str | None) -> JetStreamProcessOperator:
        claim = json.loads((folder / f"{body.__name__}.json").read_text())
        given = {"claim": claim, "folder": folder}
        return JetStreamProcessOperator(
            task_id="work", python_callable=body, op_kwargs=given, spark_conn_id=spark_conn_id
        )

    tasks = (task(by_connection, "warm"), task(by_environment, None))
    processes = [get_context("fork").Process(target=execute, args=(task,)) for task in tasks]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return sum(process.exitcode != 0 for process in processes)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
