"""The DAG `lag`, which never runs: its watcher reports the lag of all consumers (docs/monitoring.md)."""

from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_nats_jetstream.lag import JetStreamLagTrigger

lag = Asset("lag", watchers=[AssetWatcher(name="lag", trigger=JetStreamLagTrigger(every=2))])

with DAG("lag", schedule=[lag]):
    pass
