"""Chaos tests of the whole: pipelines on a real Airflow and Dagster while everything is killed, frozen and cut off.

`python -m tests.chaos --seed 1` strikes, lets everything recover, and then checks what was lost or done twice.
"""
