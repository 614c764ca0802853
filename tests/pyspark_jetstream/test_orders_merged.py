"""dags/orders_merged.py, run by Airflow's task runner: only what was settled reaches the table, and once.

And what docs/how-to/read-results.md says of it.
"""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_nats_jetstream.compat import AirflowFailException
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.consumer import JetStreamResetConsumerOperator
from airflow_nats_jetstream.operators.process import JetStreamProcessOperator
from jetstream_client import ConnectionSettings
from jetstream_client.publish.bulk import publish_all
from jetstream_handoff.repair import reset
from pyspark_jetstream.held_claim import HeldClaim
from tests.airflow_nats_jetstream.steps import execute
from tests.dag_file import dag_of
from tests.snippets import sections

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-results.md"
CONNECTION = "nats_tests"  # the one that the session of these tests knows
MALFORMED = b"{"


class Pipeline:
    """The DAG's tasks on the stream ORDERS, and its table."""

    def __init__(self, settings: ConnectionSettings, folder: Path, dag: Any) -> None:
        self.settings, self.folder, self.dag = settings, folder, dag
        self.hook = JetStreamHook(CONNECTION)
        self.body: Callable[[HeldClaim], int] = dag.get_task("write").python_callable

    def create_stream(self) -> None:
        self.hook.run(lambda js: js.create_stream({"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True}))

    def delete_stream(self) -> None:
        self.hook.run(lambda js: js.stream("ORDERS").delete())

    def publish(self, payloads: Sequence[bytes]) -> None:
        publish_all(self.settings, (("orders.north", payload) for payload in payloads))

    def claims(self, run: str, per_claim: int = 10) -> list[dict[str, Any]]:
        """What the sensor of a run hands on."""
        sensor = self.dag.get_task("claims")
        sensor.deferrable, sensor.timeout, sensor.messages_per_claim = False, 60, per_claim
        sensor.max_messages, sensor.gather = 1_000, timedelta(seconds=0.1)
        claims: list[dict[str, Any]] = execute(sensor, run_id=run)
        return claims

    def write(self, claim: dict[str, Any], body: Callable[[HeldClaim], object] | None = None, **instance: Any) -> Any:
        """The mapped task of one claim, in its last try."""
        task = JetStreamProcessOperator(
            task_id="write",
            python_callable=body or self.body,
            op_kwargs={"claim": claim},
            nats_conn_id=CONNECTION,
            on_settled=instance.pop("on_settled", "return"),
        )
        return execute(task, **instance)

    def half_written(self, claim: HeldClaim) -> None:
        """The output of an attempt that nobody may read."""
        self.body(claim)
        for part in (self.folder / f"attempt={claim.attempt_id}").glob("*.parquet"):
            part.write_bytes(part.read_bytes()[:-1])

    def settled(self, claim: dict[str, Any]) -> str:
        """The attempt of this claim whose output counts."""
        (attempt,) = (each for each in self.hook.committed("ORDERS", "merged") if each.claim_id == claim["id"])
        return attempt.attempt_id

    def merge(self) -> int:
        """The DAG's last task: how many attempts it merged."""
        merged: int = execute(self.dag.get_task("merge"))
        return merged

    def table(self, columns: str = "sequence, amount") -> list[Any]:
        return self.ask(f"select {columns} from orders order by settled_at, sequence")

    def ask(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "warehouse.sqlite", isolation_level=None)) as database:
            return database.execute(statement).fetchall()

    @property
    def folders(self) -> int:
        """How many attempts left output, whatever became of them."""
        return len(list(self.folder.glob("attempt=*")))


@pytest.fixture
def pipeline(
    spark: SparkSession, settings: ConnectionSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pipeline]:
    connection = json.dumps({"conn_type": "nats", "extra": {"servers": settings.servers[0]}})
    for name in (CONNECTION, "nats_default"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", connection)
    monkeypatch.setenv("ORDERS_MERGED_OUT", str(tmp_path))
    monkeypatch.setattr(reset, "QUIET", 0.5)
    pipeline = Pipeline(settings, tmp_path, dag_of("orders_merged"))
    pipeline.create_stream()
    yield pipeline
    pipeline.delete_stream()
    # The session's connection has one ledger for all tests.
    pipeline.hook.run(lambda js: js.stream("KV_airflow_claims").purge())
    pipeline.hook.run(lambda js: js.stream("KV_airflow_receipts").purge())


def of_page(title: str, names: dict[str, Any]) -> None:
    """Run what the page has under one heading."""
    (section,) = (each for each in sections(PAGE) if each.title == title)
    exec(compile(section.source, str(PAGE), "exec"), names)


def orders(first: int, last: int) -> list[bytes]:
    return [json.dumps({"shop": "north", "amount": number}).encode() for number in range(first, last + 1)]


def test_only_what_was_settled_reaches_the_table(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline.publish([*orders(1, 4), MALFORMED, *orders(6, 10)])
    contested, failing = pipeline.claims("first", per_claim=5)

    def thought_dead(claim: HeldClaim) -> int:
        pipeline.half_written(claim)
        assert pipeline.write(contested, try_number=2) == 4  # another worker takes the claim over, writes and settles
        return -1

    with pytest.raises(AirflowFailException, match=r"no longer held(: attempt 2-| by attempt 1-)"):
        pipeline.write(contested, thought_dead)

    def fails_at_its_end(claim: HeldClaim) -> None:
        pipeline.half_written(claim)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        pipeline.write(failing, fails_at_its_end)
    assert pipeline.folders == 3
    assert pipeline.merge() == 1
    assert pipeline.table() == [(n, n) for n in (1, 2, 3, 4)]

    (again,) = pipeline.claims("second")  # the messages of the attempt that failed
    assert pipeline.write(again) == 5
    part = min((pipeline.folder / f"attempt={pipeline.settled(again)}").glob("*.parquet"))
    hidden = part.rename(pipeline.folder / "hidden")
    with pytest.raises(ValueError, match=f"attempt {pipeline.settled(again)} lacks the sequences 6"):
        pipeline.merge()
    hidden.rename(part)
    assert pipeline.merge() == 1  # the retry of the merge
    capsys.readouterr()
    of_page("Ask which attempts are settled", {})
    printed = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    attempts = [pipeline.settled(contested), pipeline.settled(again)]
    assert printed[:2] == [[attempts[0], "1-4"], [attempts[1], "6-10"]]
    assert [attempt for attempt, _ in printed[2:]] == attempts  # since yesterday

    everything = [(n, n) for n in (1, 2, 3, 4, 6, 7, 8, 9, 10)]
    assert pipeline.table() == everything
    assert pipeline.merge() == 0  # the merge is cleared
    pipeline.ask("delete from merged")  # and does not know what it has done
    assert pipeline.merge() == 2
    assert pipeline.table() == everything


@pytest.mark.slow
def test_of_what_is_processed_again_the_newest_output_wins(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.publish(orders(1, 6))
    first, second = pipeline.claims("first", per_claim=3)
    for claim in (first, second):
        pipeline.write(claim)
    assert pipeline.merge() == 2
    old = pipeline.settled(second)

    execute(
        JetStreamResetConsumerOperator(
            task_id="reset", stream="ORDERS", consumer="merged", sequence=3, nats_conn_id=CONNECTION
        )
    )
    (again,) = pipeline.claims("second")
    assert again["ranges"] == [[3, 6]]
    pipeline.write(again)
    pipeline.write(first, on_settled="reprocess")
    assert pipeline.merge() == 2
    newest = [(n, pipeline.settled(again)) for n in (4, 5, 6)] + [(n, pipeline.settled(first)) for n in (1, 2, 3)]
    assert pipeline.table("sequence, attempt") == newest
    names: dict[str, Any] = {"spark": spark, "OUT": pipeline.folder}
    of_page("Without a table", names)
    read = names["orders"].orderBy("settled_at", "sequence").select("sequence", "attempt").collect()
    assert [tuple(row) for row in read] == newest

    pipeline.ask("delete from merged")
    assert pipeline.merge() == 3  # an older attempt among them, which changes nothing
    assert old in {name for (name,) in pipeline.ask("select attempt from merged")}
    assert pipeline.table("sequence, attempt") == newest


@pytest.mark.slow
def test_a_stream_that_was_created_again_replaces_no_order(pipeline: Pipeline) -> None:
    for first in (1, 101):
        pipeline.publish(orders(first, first + 2))
        (claim,) = pipeline.claims(f"from {first}")
        pipeline.write(claim)
        pipeline.delete_stream()
        pipeline.create_stream()
    assert pipeline.merge() == 2
    assert pipeline.table() == [(n, n) for n in (1, 2, 3)] + [(n, 100 + n) for n in (1, 2, 3)]


def test_spark_understands_the_merge_of_the_page(spark: SparkSession) -> None:
    (merge,) = re.findall(r"```sql\n(MERGE .*?)```", PAGE.read_text(), re.DOTALL)
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(merge).toString()
    assert plan.startswith("'MergeIntoTable")
