"""The departures of `dags/flight_delays.py` in Dagster: the same messages, the same work in Spark, the same result.

The asset `flights` publishes the 336,776 departures of 2013. The sensor looks at the consumer `delays` and requests
a run for each 100,000 messages that wait. In each run the asset `delays` takes one claim, Spark reads exactly its
messages and writes them as Parquet, and the claim is settled when Dagster has stored the materialization. The asset
`by_carrier` reads only the output of settled attempts.

In production, other systems publish the messages, so the asset `flights` does not exist. `OUT` is in an object store,
and Spark runs on a cluster.
"""

import os
from pathlib import Path

import dagster as dg

from dagster_nats_jetstream import HeldClaim, JetStreamResource, claimed_asset, jetstream_sensor

OUT = Path(os.environ.get("FLIGHT_DELAYS_OUT", "out/flight_delays")).absolute()


@dg.asset
def flights(jetstream: JetStreamResource) -> dg.MaterializeResult[None]:
    """The stream of departures."""
    from dags.flight_delays import departures  # this line imports Airflow, so it is in the function

    jetstream.ensure_stream({"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True})
    published = jetstream.publish("FLIGHTS", departures(), scope="departures of 2013")
    return dg.MaterializeResult(metadata={"messages": published.count})


@claimed_asset(
    stream="FLIGHTS",
    consumer="delays",
    max_messages=100_000,
    deps=[flights],
    retry_policy=dg.RetryPolicy(max_retries=2),
)
def delays(claim: HeldClaim) -> None:
    """The departures of one claim as Parquet."""
    from dags.flight_delays import parsed
    from pyspark_jetstream import spark_session

    messages = claim.read(spark_session())  # a DataFrame of exactly the claimed messages
    messages.transform(parsed).write.parquet(str(OUT / f"attempt={claim.attempt_id}"))


@dg.asset(deps=[delays])
def by_carrier(jetstream: JetStreamResource) -> dg.MaterializeResult[None]:
    """The mean delay of each carrier's departures, in minutes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    settled = jetstream.committed("FLIGHTS", "delays")
    folders = [OUT / f"attempt={each.attempt_id}" for each in settled]
    columns = ["sequence", "carrier", "dep_delay"]
    written = pa.concat_tables(pq.read_table(folder, columns=columns) for folder in folders)
    departures = written.group_by(columns).aggregate([])  # each one once, even after a reset
    means = departures.group_by("carrier").aggregate([("dep_delay", "mean")]).sort_by("carrier")
    return dg.MaterializeResult(metadata={row["carrier"]: row["dep_delay_mean"] for row in means.to_pylist()})


defs = dg.Definitions(
    assets=[flights, delays, by_carrier],
    jobs=[dg.define_asset_job("publish", selection=[flights])],
    sensors=[
        jetstream_sensor(
            stream="FLIGHTS",
            consumer="delays",
            target=[delays, by_carrier],
            minimum_interval_seconds=5,
            default_status=dg.DefaultSensorStatus.RUNNING,
        ),
    ],
    resources={
        "jetstream": JetStreamResource(
            servers=dg.EnvVar("NATS_URL"),
            user=dg.EnvVar("NATS_USER"),
            password=dg.EnvVar("NATS_PASSWORD"),
        )
    },
)
