"""nats-server, a Spark Connect server, and Dagster's code server and daemon with the definitions of dagster_flights."""

import os
import secrets
import sys
from pathlib import Path
from typing import Self

import dagster as dg

from demo.dagster import DagsterStack
from demo.java import QUICK
from demo.nats_server import NatsServer
from demo.service import ServiceFailed
from demo.spark_connect import SparkConnect
from demo.spark_home import spark_home
from jetstream_client import ConnectionSettings

ROOT = Path(__file__).parents[1]
USER = "dagster"
RESOURCE = "jetstream"
"""The key of the resource in the definitions, by which Spark finds its settings."""
ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)


class Flights:
    """The services of one folder, and the run that publishes the departures. `stop` ends all of their processes."""

    definitions = ROOT / "demo" / "dagster_flights.py"

    def __init__(self, folder: Path) -> None:
        self._password = secrets.token_hex(16)
        authorization = f'authorization {{ user: {USER}, password: "{self._password}" }}'
        self.nats = NatsServer(folder / "nats", authorization)
        python = {"PYSPARK_PYTHON": sys.executable, "SPARK_SUBMIT_OPTS": QUICK}
        self.spark = SparkConnect(folder / "spark", spark_home(), environment={**os.environ, **python})
        environment = {
            **self.spark.clients,
            "AIRFLOW_HOME": str(folder / "airflow"),  # the departures are in a file that imports Airflow
            "FLIGHT_DELAYS_OUT": str(folder / "out"),
            "NATS_URL": self.nats.url,
            "NATS_USER": USER,
            "NATS_PASSWORD": self._password,
            "PYTHONPATH": str(ROOT),
        }
        self.dagster = DagsterStack(folder / "dagster", self.definitions, environment)

    @property
    def nats_url(self) -> str:
        """The nats-server's address, with user and password for clients other than this project's."""
        return self.nats.url.replace("://", f"://{USER}:{self._password}@")

    def start(self) -> None:
        """Start the services, and the run that publishes the departures. Raises ServiceFailed."""
        try:
            self.nats.start()
            self.spark.launch()
            settings = ConnectionSettings(servers=self.nats.url, user=USER, password=self._password)
            self.spark.connection(RESOURCE, settings)
            self.dagster.start()
            self.spark.wait_ready(240)
            self.dagster.launch("publish")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes. The folder is kept."""
        self.dagster.stop()
        self.spark.stop()
        self.nats.stop()

    def states(self) -> dict[str, str]:
        """Return the status of each run, by the sensor or job that it belongs to and the first part of its id."""
        return {
            f"{each.tags.get('dagster/sensor_name', each.job_name)} {each.run_id.partition('-')[0]}": each.status.value
            for each in self.dagster.runs()
        }

    @property
    def unfinished(self) -> bool:
        """Whether a run is queued or runs."""
        return any(each.status not in ENDED for each in self.dagster.runs())

    def failure(self) -> str:
        """Return the reason why a run has failed; empty if none has.

        Raises:
            ServiceFailed: a service has ended.
        """
        for service in (self.nats, self.spark, self.dagster.code_server, self.dagster.daemon):
            if not service.running:
                raise ServiceFailed(f"{service.name} ended:\n{service.tail()}")
        for run in self.dagster.runs():
            if run.status == dg.DagsterRunStatus.FAILURE:
                entries = self.dagster.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
                return "\n".join([f"run {run.run_id} has failed", *(each.user_message for each in entries)])
        return ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
