"""The hand-off contract: take, hold, settle, with a ledger that decides. Knows neither Airflow nor Spark."""
