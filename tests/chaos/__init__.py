"""Chaos on the whole: real pipelines on the real Airflow while everything is killed, frozen and cut off.

`python -m tests.chaos --seed 1` strikes, lets everything recover, and judges what was lost or done twice.
"""
