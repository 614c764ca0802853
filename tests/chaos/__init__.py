"""Chaos tests of the whole: real pipelines on a real Airflow while everything is killed, frozen and cut off.

`python -m tests.chaos --seed 1` strikes, lets everything recover, and then checks what was lost or done twice.
"""
