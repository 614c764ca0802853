"""The DAG `operating`: streams and a consumer from files beside it, mapped, and their deletion, mapped over XCom."""

from airflow.sdk import dag

from airflow_nats_jetstream.operators.consumer import JetStreamCreateConsumerOperator
from airflow_nats_jetstream.operators.message import JetStreamGetMessageOperator
from airflow_nats_jetstream.operators.publish import JetStreamPublishOperator
from airflow_nats_jetstream.operators.stream import JetStreamCreateStreamOperator, JetStreamDeleteStreamOperator


def named(made: dict[str, str]) -> str:
    """The stream's name, out of what the task that made it handed on."""
    return made["stream"]


@dag(schedule=None, params={"hours": 1, "keep": True})
def operating() -> None:
    files = ["streams/orders.yaml", "streams/returns.json"]
    streams = JetStreamCreateStreamOperator.partial(task_id="streams").expand(config=files)
    consumers = JetStreamCreateConsumerOperator.partial(task_id="consumers", config="streams/consumer.yml").expand(
        stream=streams.output.map(named)
    )
    publish = JetStreamPublishOperator(task_id="publish", stream="OP_ORDERS", messages=[["OP_ORDERS.a", {"id": 7}]])
    got = JetStreamGetMessageOperator(
        task_id="got", stream="OP_ORDERS", sequence="{{ ti.xcom_pull('publish')['last'] }}"
    )
    gone = JetStreamDeleteStreamOperator.partial(task_id="gone").expand(stream=["OP_RETURNS", "OP_NOBODY"])
    consumers >> publish >> got >> gone


operating()
