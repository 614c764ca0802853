"""The departures of `dags/flight_delays.py` in Dagster: the same messages, the same work in Spark, the same result.

The asset `flights` publishes the 336,776 departures of 2013. The sensor looks at the consumer `delays` and requests
a run for each 100,000 messages that wait. In each run the asset `delays` takes one claim, Spark reads exactly its
messages, and their rows are appended to a table of Delta Lake. The claim is settled when Dagster has stored the
materialization. The table contains each departure once, so the asset `by_carrier` is a plain select.

In production, other systems publish the messages, so the asset `flights` does not exist. The table is in an object
store, and Spark runs on a cluster.
"""

import dagster as dg

from dagster_nats_jetstream import HeldClaim, JetStreamResource, claimed_asset, jetstream_sensor


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
def delays(claim: HeldClaim) -> dg.MaterializeResult[None]:
    """The table of departures, with those of one more claim."""
    from dags.flight_delays import TABLE, parsed
    from jetstream_tables import DeltaTable
    from pyspark_jetstream import spark_session

    messages = claim.read(spark_session())  # a DataFrame of exactly the claimed messages
    appended = claim.append_to(DeltaTable(TABLE), messages.transform(parsed))
    return dg.MaterializeResult(metadata={"new": appended.new.count, "version": appended.version})


@dg.asset(deps=[delays])
def by_carrier() -> dg.MaterializeResult[None]:
    """The mean delay of each carrier's departures, in minutes."""
    from dags.flight_delays import mean_delays

    return dg.MaterializeResult(metadata={row["carrier"]: row["mean"] for row in mean_delays()})


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
