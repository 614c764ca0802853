"""Reading on a standalone Spark whose executors have pyspark, pyarrow and this project's wheel, and nothing else."""

import importlib.metadata
import importlib.util
import json
import os
import traceback
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession

from demo.service import until
from jetstream_client import connect
from jetstream_client.sequences import Sequences
from jetstream_handoff.claim import Claim
from pyspark_jetstream import read_claim
from tests.cluster.conftest import COUNT, STREAM, TOTALS, Secured
from tests.cluster.standalone import Standalone, command
from tests.pyspark_jetstream.streaming import run_to_the_end


async def claimed(secured: Secured, sequences: Sequences) -> Claim:
    async with connect(secured.settings) as js:
        created = (await js.stream(STREAM).info()).created
    return Claim(
        id="5f0c9a7be21d",
        stream=STREAM,
        stream_created=created,
        consumer="c",
        consumer_created=created,
        sequences=sequences,
        bytes=0,
        consumer_sequence=sequences.last,
        taken_at=created,
    )


def load(spark: SparkSession, connection: str, **options: str) -> DataFrame:
    return spark.read.format("jetstream").options(connection=connection, stream=STREAM, **options).load()


def totals(messages: DataFrame) -> tuple[int, ...]:
    return tuple(messages.selectExpr(*TOTALS).collect()[0])


def text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as page:
        content: str = page.read().decode()
        return content


def test_executors_have_nothing_but_spark_and_the_wheel(spark: SparkSession, python: Path) -> None:
    def look(_: Iterable[int]) -> Iterator[tuple[int, str, list[str], list[str]]]:
        import sys

        modules = ("airflow", "anyio", "cryptography", "nats", "pandas", "pyspark_jetstream", "jetstream_client")
        found = [name for name in modules if importlib.util.find_spec(name)]
        yield os.getppid(), sys.prefix, found, sorted(each.name for each in importlib.metadata.distributions())

    # A barrier runs its tasks at the same time: one on each executor, which has one core.
    seen = spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(look).collect()
    assert len({parent for parent, *_ in seen}) == 2
    for _, prefix, found, distributions in seen:
        assert prefix == str(python.parent.parent)
        assert found == ["pyspark_jetstream", "jetstream_client"]
        assert distributions == ["airflow-provider-nats-jetstream", "py4j", "pyarrow", "pyspark"]


@pytest.mark.parametrize("connection", ["by_environment", "by_file"])
async def test_a_claim_is_read_with_credentials(
    spark: SparkSession, cluster: Standalone, secured: Secured, python: Path, connection: str
) -> None:
    claim = await claimed(secured, Sequences.from_ranges([(1, 10), (12, 12), (7_001, 40_000)]))
    assert totals(read_claim(spark, claim, connection=connection)) == (33_011, 33_011, 1, 40_000, 0)
    assert cluster.pythons() == {str(python)}


def test_a_range_has_the_partitions_that_were_asked_for(spark: SparkSession) -> None:
    messages = load(spark, "by_environment", startingOffsets="100", endingOffsets="20099", minPartitions="5")
    assert totals(messages) == (20_000, 20_000, 100, 20_099, 0)
    assert messages.rdd.getNumPartitions() == 5


def test_a_file_that_the_executors_do_not_have_is_named(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"JETSTREAM_SECRET_BY_LOST_FILE names a file .* \(No such file or directory\)"):
        load(spark, "by_lost_file", endingOffsets="10").count()


def test_a_killed_executor_gives_the_exact_set(spark: SparkSession, cluster: Standalone, secured: Secured) -> None:
    def sent() -> int:
        return int(json.loads(text(f"{secured.monitor}/varz"))["out_msgs"])

    before = sent()
    victim = cluster.executors()[0]

    def strike() -> int:
        until("Spark reads", lambda: sent() > before + 10_000, seconds=120, every=0.01)
        victim.kill()
        return sent() - before

    with ThreadPoolExecutor() as threads:
        struck = threads.submit(strike)
        assert totals(load(spark, "by_environment", minPartitions="6")) == (COUNT, COUNT, 1, COUNT, 0)
        assert 10_000 < struck.result() < COUNT * 5 // 6
    executors = json.loads(
        text(f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}/allexecutors")
    )
    assert sum(not each["isActive"] for each in executors) == 1


def failed(messages: DataFrame, words: str) -> str:
    with pytest.raises(Exception, match=words) as error:
        messages.count()
    return "".join(traceback.format_exception(error.value))


async def test_a_query_acknowledges_although_an_executor_is_killed(
    spark: SparkSession, cluster: Standalone, secured: Secured, tmp_path: Path
) -> None:
    """The executors read, and the driver alone takes and settles. There are three micro-batches."""
    options = {"connection": "by_environment", "stream": STREAM, "consumer": "query", "maxOffsetsPerTrigger": "50000"}
    messages = spark.readStream.format("jetstream").options(**options).load()
    victims = cluster.executors()[:1]

    def work(batch: DataFrame, number: int) -> None:
        if number == 1:
            victims.pop().kill()
        batch.selectExpr("sequence", "data").write.mode("overwrite").parquet(f"{tmp_path}/out/number={number}")

    run_to_the_end(messages.writeStream.foreachBatch(work).option("checkpointLocation", f"{tmp_path}/checkpoint"))
    assert not victims
    assert totals(spark.read.parquet(f"{tmp_path}/out")) == (COUNT, COUNT, 1, COUNT, 0)
    async with connect(secured.settings) as js:
        info = await js.stream(STREAM).consumer("query").info()
    assert (info.pending, info.ack_pending) == (0, 0)


async def test_secrets_are_nowhere_but_in_environments_and_files(
    spark: SparkSession, cluster: Standalone, secured: Secured, events: Path, tmp_path: Path
) -> None:
    password = str(secured.settings.password)
    claim = await claimed(secured, Sequences.from_ranges([(1, 10)]))
    messages = read_claim(spark, claim, connection="by_environment")
    assert messages.count() == 10
    streamed = spark.readStream.format("jetstream").options(
        connection="by_environment", stream=STREAM, startingOffsets=str(COUNT - 9)
    )
    query = streamed.load().writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/checkpoint")
    run_to_the_end(query, f"{tmp_path}/out")
    assert spark.read.parquet(f"{tmp_path}/out").count() == 10
    assert list((tmp_path / "checkpoint" / "offsets").glob("0"))
    beyond = await claimed(secured, Sequences.from_ranges([(COUNT + 1, COUNT + 1)]))
    error = failed(read_claim(spark, beyond, connection="by_environment"), "MessagesMissing")

    context = spark.sparkContext
    driver, application = context.uiWebUrl, context.applicationId
    views = ("environment", "allexecutors", "sql", "stages?details=true&status=failed")
    api = [f"{driver}/api/v1/applications/{application}/{each}" for each in views]
    pages = [*(f"{driver}/{each}/" for each in ("jobs", "stages", "environment", "executors", "SQL")), *api]
    pages += [page for url in cluster.pages for page in (url, f"{url}/json/")]
    pages += [f"{cluster.pages[0]}/app/?appId={application}"]
    shown = {page: text(page) for page in pages}
    assert "JETSTREAM_SECRET_BY_ENVIRONMENT" in shown[api[0]]
    assert "redacted" in shown[api[0]]
    assert "MessagesMissing" in shown[api[3]]
    shown |= {"plan": messages._jdf.queryExecution().toString(), "task error": error}
    jvm = [each for each in psutil.Process().children(recursive=True) if "pyspark-shell" in command(each)]
    shown |= {f"command line of {each.pid}": " ".join(command(each)) for each in [*jvm, *cluster.processes()]}
    folders = (cluster.folder, events, tmp_path / "checkpoint")
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    shown |= {str(path): path.read_bytes().decode(errors="replace") for path in files}
    assert any("Executor" in shown[str(path)] for path in files if path.name == "stderr")  # logs of executors, too
    logged = [shown[str(path)] for path in files if path.is_relative_to(events)]
    for expected in ("JETSTREAM_SECRET_BY_ENVIRONMENT", "MessagesMissing"):
        assert any(expected in log for log in logged)
    assert jvm
    assert [name for name, content in shown.items() if password in content] == []
    # The search can find: the environment of the executors holds it.
    assert any(password in str(each.environ()) for each in cluster.executors())
