# SPDX-License-Identifier: Apache-2.0
"""What an operator that holds a claim consists of, below :mod:`airflow_nats_jetstream.holding`."""
