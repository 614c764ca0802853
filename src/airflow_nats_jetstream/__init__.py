"""JetStream for Apache Airflow: streams, claims and Spark."""

__version__ = "0.1.0"
