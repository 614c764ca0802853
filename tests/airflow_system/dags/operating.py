"""The DAG `operating`: mapped streams from files next to it, and a consumer for each, mapped over their XComs."""

from airflow.sdk import dag

from airflow_nats_jetstream.operators.consumer import JetStreamCreateConsumerOperator
from airflow_nats_jetstream.operators.stream import JetStreamCreateStreamOperator


def named(made: dict[str, str]) -> str:
    """Return the stream's name from the XCom of the task that created it."""
    return made["stream"]


@dag(schedule=None, params={"hours": 1})
def operating() -> None:
    files = ["streams/orders.yaml", "streams/returns.json"]
    streams = JetStreamCreateStreamOperator.partial(task_id="streams").expand(config=files)
    consumers = JetStreamCreateConsumerOperator.partial(task_id="consumers", config="streams/consumer.yml")
    consumers.expand(stream=streams.output.map(named))


operating()
