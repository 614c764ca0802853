# SPDX-License-Identifier: Apache-2.0
"""The hand-off: take, hold and settle claims, with a ledger that decides. It knows neither Airflow nor Spark."""
