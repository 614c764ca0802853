"""The story of a claim: five lines of the tasks' logs, found by the claim's id."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql import SparkSession

from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from jetstream_client import ConnectionSettings
from jetstream_client.publish.bulk import publish_all
from jetstream_client.stream import Stream
from pyspark_jetstream.held_claim import HeldClaim
from tests.airflow_nats_jetstream.steps import execute, sensor

PAGE = Path(__file__).parents[2] / "docs" / "at-3-am.md"


def told(line: str) -> str:
    """A line without its names and numbers. These contain a digit, except the names of stream and consumer."""
    return re.sub(r"\S*\d[^\s,:]*|\bFLIGHTS\b|(?<=consumer )\w+", "…", line)


def story(text: str, claim_id: str) -> list[str]:
    """Return the lines of a claim's story, without their prefixes."""
    return re.findall(rf"\b(claim {claim_id} is [^\n\"]*)", text)


def traceparents(batches: Any) -> Any:
    """Yield the trace context of a task of a Spark job for each row."""
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context
    for batch in batches:
        yield pa.record_batch({"parent": [context.getLocalProperty("traceparent")] * batch.num_rows})


async def test_five_lines_tell_the_story_of_a_claim(  # noqa: PLR0917
    spark: SparkSession,
    settings: ConnectionSettings,
    stream: Stream,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spans: InMemorySpanExporter,
) -> None:
    connection = {"conn_type": "nats", "extra": {"servers": settings.servers[0]}}
    monkeypatch.setenv("AIRFLOW_CONN_NATS_TESTS", json.dumps(connection))
    publish_all(settings, ((f"{stream.name}.a", b"{}") for _ in range(10)))
    caplog.set_level(logging.INFO)

    seen: list[set[str]] = []

    def body(claim: HeldClaim) -> int:
        rows = claim.read(spark).select("sequence").mapInArrow(traceparents, "parent STRING").collect()
        seen.append({claim.trace_context["traceparent"]})
        seen.append({row.parent for row in rows})
        return len(rows)

    (claim,) = execute(
        sensor(stream.name, max_messages=10, timeout=20, nats_conn_id="nats_tests", consumer_config=None)
    )
    work = JetStreamProcessOperator(
        task_id="work", python_callable=body, op_kwargs={"claim": claim}, nats_conn_id="nats_tests"
    )
    assert execute(work) == 10

    lines = story(caplog.text, claim["id"])
    told_on_the_page = story(PAGE.read_text().replace("\n    ", " "), "5f0c9a7be21d")  # a long line is wrapped there
    assert [re.sub(r"claim \w+ is (\w+).*", r"\1", line) for line in lines] == [
        "taken",
        "held",
        "read",
        "done",
        "acknowledged",
    ]
    assert [told(line) for line in lines] == [told(line) for line in told_on_the_page]
    assert spark.sparkContext.applicationId in lines[2]
    assert (await stream.consumer("work").info()).floor == 10  # as the last line says

    # In Spark's tasks the trace of the hold goes on.
    (hold,) = [span.get_span_context() for span in spans.get_finished_spans() if span.name.startswith("hold ")]
    assert hold
    assert seen[0] == seen[1] == {f"00-{hold.trace_id:032x}-{hold.span_id:016x}-{hold.trace_flags:02x}"}
