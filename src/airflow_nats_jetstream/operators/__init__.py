# SPDX-License-Identifier: Apache-2.0
"""The operators: one file for each kind of object (stream, consumer, message, …), and helper modules."""

import airflow_nats_jetstream.airflow_version  # noqa: F401 - an older Airflow lacks what the operators import
