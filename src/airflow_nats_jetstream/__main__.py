# SPDX-License-Identifier: Apache-2.0
"""The commands of ``airflow jetstream`` without loading Airflow: ``python -m airflow_nats_jetstream``."""

import sys

from airflow_nats_jetstream.command_line import main

if __name__ == "__main__":
    sys.exit(main())
