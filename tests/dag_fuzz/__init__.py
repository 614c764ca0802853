"""Random small DAGs on the real Airflow, and random things that people and machines do to them. A judge compares the
messages that are acknowledged with the work that was completed."""
