"""The metrics that a statsd server receives and the spans that an exporter receives, from publish to settlement."""

import asyncio
import os
import re
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from airflow_nats_jetstream.compat import AirflowFailException
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.lag import JetStreamLagTrigger
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from airflow_nats_jetstream.operators.publish import JetStreamPublishOperator
from airflow_nats_jetstream.signals import instruments
from jetstream_client.errors import InvalidValue
from jetstream_handoff import events
from jetstream_handoff.events import Event
from jetstream_handoff.watch.lag import NUMBERS
from jetstream_handoff.watch.view import Overview, Symptom
from pyspark_jetstream.held_claim import HeldClaim
from tests.airflow_nats_jetstream.steps import CONNECTION, CONSUMER, State, execute, sensor
from tests.airflow_versions import TWO_METRICS, Metrics
from tests.snippets import sections

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
PAYLOAD = "of nobody else's business"
LEASE = {"ack_wait": timedelta(seconds=5)}


def publishing(stream: str, **changes: Any) -> JetStreamPublishOperator:
    messages = [(f"{stream}.{number}", PAYLOAD) for number in range(10)]
    values = {"task_id": "publish", "stream": stream, "messages": messages, "nats_conn_id": CONNECTION}
    return JetStreamPublishOperator(**{**values, **changes})


def work(body: Callable[[HeldClaim], Any], claim: Any) -> JetStreamProcessOperator:
    return JetStreamProcessOperator(
        task_id="work", python_callable=body, op_kwargs={"claim": claim}, nats_conn_id=CONNECTION
    )


class Statsd:
    """The metrics that a statsd server has received, in InfluxDB's form, which shows the tags."""

    def __init__(self, socket_: socket.socket) -> None:
        self._socket = socket_
        self.counters: Counter[tuple[str, str]] = Counter()
        self.milliseconds: dict[str, list[float]] = {}
        self.gauges: dict[tuple[str, str], float] = {}
        self.text = ""

    def read(self) -> None:
        """Read what has arrived: on one machine a datagram arrives when it is sent."""
        while True:
            try:
                datagram = self._socket.recv(65_536).decode()
            except BlockingIOError:
                return
            self.text += datagram
            match = re.fullmatch(r"airflow\.([\w.]+)((?:,[\w-]+=[^,:]+)*):([\d.]+)\|(c|ms|g)", datagram)
            assert match, datagram
            name, tags, number, kind = match.groups()
            if kind == "c":
                self.counters[name, tags] += int(number)
            elif kind == "g":
                self.gauges[name, tags] = float(number)
            else:
                self.milliseconds.setdefault(name, []).append(float(number))


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Statsd]:
    """Airflow's metrics, set up as its task runner does."""
    monkeypatch.delitem(sys.modules, "airflow.jobs.triggerer_job_runner", raising=False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)
        settings = {"ON": "True", "HOST": "127.0.0.1", "PORT": str(server.getsockname()[1]), "INFLUXDB_ENABLED": "True"}
        for name, value in settings.items():
            monkeypatch.setenv(f"AIRFLOW__METRICS__STATSD_{name}", value)
        metrics = Metrics(core=False)
        metrics.begin()
        yield Statsd(server)
        metrics.end()


def test_the_metrics_of_some_messages(hook: JetStreamHook, stream: str, statsd: Statsd) -> None:
    kept = State()
    for _ in range(2):
        execute(publishing(stream), state=kept)
    first, second = execute(sensor(stream, messages_per_claim=5, consumer_config=LEASE))

    def rejects(claim: HeldClaim) -> None:
        claim.reject(claim.sequences.first, "no date")

    def raises(claim: HeldClaim) -> None:
        raise AirflowFailException("no")

    def overtaken(claim: HeldClaim) -> None:
        with hook.holding(third, try_number=2) as newer:
            newer.settle()

    execute(work(rejects, first))
    with pytest.raises(AirflowFailException):
        execute(work(raises, second))
    lease = {"hand_off_timeout": timedelta(seconds=1), "consumer_config": LEASE, "timeout": 60}
    execute(sensor(stream, **lease), run_id="dies before its work")
    (third,) = execute(sensor(stream, **lease), run_id="third")
    execute(work(overtaken, third))

    statsd.read()
    tags = f",stream={stream},consumer={CONSUMER}"
    counted = {name: count for (name, with_), count in statsd.counters.items() if with_ == tags}
    assert counted == {
        "jetstream.claims.taken": 4,
        "jetstream.messages.taken": 20,
        "jetstream.claims.held": 4,
        "jetstream.messages.held": 20,
        "jetstream.claims.done": 2,
        "jetstream.messages.done": 9,
        "jetstream.claims.dead_lettered": 1,
        "jetstream.messages.dead_lettered": 1,
        "jetstream.claims.failed": 1,
        "jetstream.messages.failed": 5,
        "jetstream.claims.superseded": 1,
        "jetstream.messages.superseded": 5,
        "jetstream.claims.lost": 1,
        "jetstream.messages.lost": 5,
    }
    published = {name: count for (name, with_), count in statsd.counters.items() if with_ == f",stream={stream}"}
    assert published == {"jetstream.messages.published": 10, "jetstream.messages.published_before": 10}
    durations = {name: len(times) for name, times in statsd.milliseconds.items()}
    assert durations == {
        "jetstream.publish.duration": 2,
        "jetstream.claims.taken.duration": 4,
        "jetstream.claims.held.duration": 4,
        "jetstream.claims.done.duration": 2,
    }
    assert min(statsd.milliseconds["jetstream.claims.held.duration"]) > 0
    assert PAYLOAD not in statsd.text


def test_whoever_makes_hooks_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    listeners: list[Any] = []
    monkeypatch.setattr(events, "_listeners", listeners)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(JetStreamHook, [CONNECTION] * 100))
    assert listeners == [instruments.heard]


def test_a_triggerer_counts_where_airflow_counts_there(statsd: Statsd, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics of Airflow's core, not of tasks; tests/airflow_system/test_handoff.py has a real triggerer."""
    monkeypatch.setitem(sys.modules, "airflow.jobs.triggerer_job_runner", ModuleType("triggerer_job_runner"))
    instruments.heard(Event("taken", "S", "c", 10, claim="5f0c9a7be21d", seconds=1.5))
    statsd.read()
    assert (statsd.text == "") is TWO_METRICS
    statsd.counters.clear()
    statsd.milliseconds.clear()
    metrics = Metrics(core=True)
    metrics.begin()
    instruments.heard(Event("taken", "S", "c", 10, claim="5f0c9a7be21d", seconds=1.5))
    statsd.read()
    tags = ",stream=S,consumer=c"
    assert statsd.counters == {("jetstream.claims.taken", tags): 1, ("jetstream.messages.taken", tags): 10}
    assert statsd.milliseconds == {"jetstream.claims.taken.duration": [1_500]}
    metrics.end()


async def looked(trigger: JetStreamLagTrigger, statsd: Statsd, name: str, tags: str) -> None:
    """Run the trigger as the triggerer does until this counter rises. It yields no event."""
    running = asyncio.ensure_future(anext(aiter(trigger.run())))
    before = statsd.counters[name, tags]
    async with asyncio.timeout(60):
        while statsd.counters[name, tags] == before:
            assert not running.done()
            await asyncio.sleep(0.02)
            statsd.read()
    running.cancel()
    await asyncio.wait([running])


async def test_the_lag_of_every_consumer_in_every_look(
    hook: JetStreamHook, stream: str, statsd: Statsd, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(execute, publishing(stream))
    await asyncio.to_thread(execute, sensor(stream, max_messages=4, consumer_config=LEASE))
    path, values = JetStreamLagTrigger(CONNECTION, every=0.1).serialize()
    assert path == f"{JetStreamLagTrigger.__module__}.{JetStreamLagTrigger.__qualname__}"
    trigger = JetStreamLagTrigger(**values)
    of, looks = f",stream={stream},consumer={CONSUMER}", f",nats_conn_id={CONNECTION}"
    await looked(trigger, statsd, "jetstream.looks", looks)
    waited = statsd.gauges.pop(("jetstream.lag.oldest_seconds", of))
    assert 0 < waited < 600
    assert statsd.gauges == {
        ("jetstream.lag.pending", of): 6,
        ("jetstream.lag.unacknowledged", of): 4,
        ("jetstream.lag.open_claims", of): 1,
        ("jetstream.lag.held_claims", of): 0,
        ("jetstream.lag.dead_letters", of): 0,
        ("jetstream.lag.barrier_claims", of): 0,
        ("jetstream.lag.barrier_seconds", of): 0,
        ("jetstream.lag.stopped_keys", of): 0,
        ("jetstream.lag.errors", of): 0,
        ("jetstream.lag.warnings", of): 0,
        ("jetstream.lag.unknown", of): 0,
        ("jetstream.ledger.errors", looks): 0,
        ("jetstream.ledger.warnings", looks): 0,
    }
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "False")  # the gauges' names replace their tags
    await looked(trigger, statsd, "jetstream.looks", looks)
    assert statsd.gauges[f"jetstream.lag.pending.{stream}.{CONSUMER}", of] == 6
    assert PAYLOAD not in statsd.text


async def test_a_look_that_fails_is_counted_and_another_follows(
    hook: JetStreamHook, statsd: Statsd, caplog: pytest.LogCaptureFixture
) -> None:
    trigger = JetStreamLagTrigger("there_is_none", every=0.1)
    for _ in range(2):
        await looked(trigger, statsd, "jetstream.looks_failed", ",nats_conn_id=there_is_none")
    assert "the lag of the consumers of connection there_is_none is unknown" in caplog.text
    assert not statsd.gauges


def test_a_consumer_that_the_ledger_forgets_lags_no_more(statsd: Statsd) -> None:
    seen = Overview("2026-11-27T00:00:00Z", "", "", "", "jetstream")
    lost = replace(seen, now="", findings=(Symptom("ledger", "error", "", "", ""),))
    before = {("S", "c")}
    assert instruments.lagging(lost, CONNECTION, before) == before
    statsd.read()
    of = ",stream=S,consumer=c"
    assert statsd.gauges["jetstream.ledger.errors", f",nats_conn_id={CONNECTION}"] == 1
    assert ("jetstream.lag.pending", of) not in statsd.gauges
    assert not instruments.lagging(seen, CONNECTION, before)
    statsd.read()
    assert statsd.gauges["jetstream.lag.pending", of] == 0


def test_the_dag_of_the_page() -> None:
    (example,) = [section for section in sections(PAGE) if section.title == "Lag"]
    names: dict[str, Any] = {}
    exec(compile(example.source, PAGE, "exec"), names)
    (watcher,) = names["lag"].watchers
    assert isinstance(watcher.trigger, JetStreamLagTrigger)
    assert watcher.trigger.serialize()[1] == {"nats_conn_id": "nats_default", "every": 30}


def test_an_interval_that_is_none_is_refused_when_the_dag_is_parsed() -> None:
    for none in (0, "soon", timedelta(0), float("nan")):
        with pytest.raises(InvalidValue, match="every"):
            JetStreamLagTrigger(every=none)


def test_the_page_lists_every_metric() -> None:
    listed = re.findall(r"^\| `jetstream\.(?:claims|messages)\.(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(get_args(events.Name))
    assert tuple(re.findall(r"^\| `jetstream\.lag\.(\w+)` \|", PAGE.read_text(), re.MULTILINE)) == NUMBERS


def by_name(exporter: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    found: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name.split()[0], []).append(span)
    return found


def header(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def traceparents(hook: JetStreamHook, stream: str) -> set[str]:
    """The header ``traceparent`` of each stored message."""

    async def ask(js: Any) -> set[str]:
        last = (await js.stream(stream).info()).state["last_seq"]
        messages = [await js.stream(stream).get_message(sequence) for sequence in range(1, last + 1)]
        return {each.headers.get("traceparent", [""])[0] for each in messages}

    return hook.run(ask)


def test_the_trace_of_some_messages(hook: JetStreamHook, stream: str, spans: InMemorySpanExporter) -> None:
    kept = State()
    with trace.get_tracer("test").start_as_current_span("worker.publish"):
        assert execute(publishing(stream), state=kept)["stored"] == 10
    # The next try has another span, and stores nothing twice.
    with trace.get_tracer("test").start_as_current_span("worker.publish"):
        again = execute(publishing(stream), state=kept, try_number=2)
    assert (again["stored"], again["duplicates"]) == (0, 10)
    first, second = by_name(spans)["publish"]
    assert traceparents(hook, stream) == {header(first)}
    assert first.parent
    assert (first.kind, first.status.status_code) == (trace.SpanKind.PRODUCER, trace.StatusCode.UNSET)
    assert dict(first.attributes or {}) == {
        "messaging.system": "nats",
        "messaging.operation.type": "send",
        "messaging.operation.name": "publish",
        "messaging.destination.name": stream,
        "messaging.batch.message_count": 10,
    }
    assert header(second) != header(first)

    one, other = execute(sensor(stream, messages_per_claim=5, consumer_config=LEASE))
    seen: list[str] = []

    def settles(claim: HeldClaim) -> None:
        seen.extend([os.environ["TRACEPARENT"], claim.trace_context["traceparent"]])

    def fails(claim: HeldClaim) -> None:
        raise AirflowFailException(PAYLOAD)

    execute(work(settles, one))
    with pytest.raises(AirflowFailException):
        execute(work(fails, other))
    assert "TRACEPARENT" not in os.environ
    found = by_name(spans)
    assert sorted(found) == ["fail", "hold", "publish", "settle", "take", "worker.publish"]
    of_the_claim = {
        "messaging.system": "nats",
        "messaging.destination.name": stream,
        "messaging.consumer.group.name": CONSUMER,
        "messaging.batch.message_count": 5,
        "jetstream.claim.id": one["id"],
    }
    take, hold, settle = found["take"][0], found["hold"][0], found["settle"][0]
    operations = {"take": ("receive", take), "hold": ("process", hold), "settle": ("settle", settle)}
    for name, (kind, span) in operations.items():
        expected = {**of_the_claim, "messaging.operation.type": kind, "messaging.operation.name": name}
        assert dict(span.attributes or {}) == expected
    publisher = first.get_span_context()
    assert publisher
    (link,) = take.links
    assert (link.context.trace_id, link.context.span_id) == (publisher.trace_id, publisher.span_id)
    assert seen == [header(hold)] * 2
    assert settle.parent == hold.get_span_context()
    failed = found["hold"][1]
    assert (failed.attributes or {})["error.type"] == "AirflowFailException"
    assert found["fail"][0].parent == failed.get_span_context()
    assert all(PAYLOAD not in span.to_json() for each in found.values() for span in each)


def test_no_header_where_nobody_records(hook: JetStreamHook, stream: str) -> None:
    execute(publishing(stream))
    assert traceparents(hook, stream) == {""}


def test_no_header_where_it_is_not_wanted(hook: JetStreamHook, stream: str, spans: InMemorySpanExporter) -> None:
    execute(publishing(stream, trace_context=False))
    assert traceparents(hook, stream) == {""}
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    execute(publishing(stream, messages=[(f"{stream}.a", "", {"traceparent": own})]), run_id="other")
    assert traceparents(hook, stream) == {"", own}


def test_a_batch_has_the_header_too(hook: JetStreamHook, stream: str, spans: InMemorySpanExporter) -> None:
    hook.run(lambda js: js.update_stream({"name": stream, "subjects": [f"{stream}.>"], "allow_atomic": True}))
    kept = State()
    execute(publishing(stream, atomic=True), state=kept)
    assert execute(publishing(stream, atomic=True), state=kept, try_number=2)["duplicates"] == 10
    assert traceparents(hook, stream) == {header(by_name(spans)["publish"][0])}


def test_a_header_that_is_none_leads_nowhere(hook: JetStreamHook, stream: str, spans: InMemorySpanExporter) -> None:
    execute(publishing(stream, messages=[(f"{stream}.a", "", {"traceparent": "00-nonsense\x7f"})]))
    execute(sensor(stream, consumer_config=LEASE))
    assert not by_name(spans)["take"][0].links
