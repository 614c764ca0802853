# SPDX-License-Identifier: Apache-2.0
"""How messages name what a user of Airflow can use."""

from __future__ import annotations

from jetstream_handoff.words import Words

OF_AIRFLOW = Words(
    program="python -m airflow_nats_jetstream",  # Airflow 3.1 does not have `airflow jetstream`
    pipeline="DAG",
    taker=0,
    obstacles="its queue, its pool, and whether the DAG is paused",
    create_stream="JetStreamCreateStreamOperator, or JetStream.create_stream()",
    update_stream="JetStreamCreateStreamOperator, or Stream.update()",
    create_consumer="JetStreamCreateConsumerOperator, or Stream.create_consumer()",
    credential_folders="[nats] credential_folders of Airflow's configuration (AIRFLOW__NATS__CREDENTIAL_FOLDERS)",
    connecting="every machine that connects (for a connection test, the api-server)",
)
