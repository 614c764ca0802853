"""The DAG `operating`: streams from files beside it, mapped, and a consumer of each, mapped over what made them."""

from airflow.sdk import dag

from airflow_nats_jetstream.operators.consumer import JetStreamCreateConsumerOperator
from airflow_nats_jetstream.operators.stream import JetStreamCreateStreamOperator


def named(made: dict[str, str]) -> str:
    """The stream's name, out of what the task that made it handed on."""
    return made["stream"]


@dag(schedule=None, params={"hours": 1})
def operating() -> None:
    files = ["streams/orders.yaml", "streams/returns.json"]
    streams = JetStreamCreateStreamOperator.partial(task_id="streams").expand(config=files)
    consumers = JetStreamCreateConsumerOperator.partial(task_id="consumers", config="streams/consumer.yml")
    consumers.expand(stream=streams.output.map(named))


operating()
