"""PySpark is imported once, by the processes of Airflow whose children run the tasks, and not by each task."""

import sys

__all__: list[str] = []

if {"scheduler", "celery"}.intersection(sys.argv):
    import pyspark.sql.connect.session  # noqa: F401
