# SPDX-License-Identifier: Apache-2.0
"""``python -m airflow_nats_jetstream``: the commands of ``airflow jetstream``, which need no Airflow this way."""

import sys

from airflow_nats_jetstream.command_line import main

if __name__ == "__main__":
    sys.exit(main())
