"""Each kind of secret, and each mode of TLS, in Spark's Python workers, which open connections to the server.

``tests/jetstream_client/wire`` combines each way with each mode. Here the settings only have to reach the workers.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import reduce
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from jetstream_client import ConnectionSettings
from jetstream_client.publish.bulk import publish_all
from jetstream_client.wire.blocking import Wire
from jetstream_client.wire.credential import check_credentials
from tests.jetstream_client.world import EACH_ONCE, World
from tests.jetstream_handoff.access import Access
from tests.pyspark_jetstream.conftest import access_name

pytestmark = pytest.mark.timeout(900)  # for each way Spark starts a Python process to plan, slowly on a busy machine


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path_factory.mktemp("access"), stack)


def secrets(settings: ConnectionSettings) -> list[str]:
    """All secrets that must not be shown."""
    plain = [settings.password, settings.token, settings.nkey_seed, settings.tls_private_key]
    return [each for each in plain if each] + list(
        check_credentials(settings.credentials or "") if settings.credentials else ()
    )


@pytest.mark.slow
def test_one_row_of_each_and_no_secret_in_plans_and_errors(spark: SparkSession, access: Path, world: World) -> None:
    ways: dict[str, ConnectionSettings] = {}
    read: dict[str, DataFrame] = {}
    for kind, mode in EACH_ONCE:
        name = access_name(kind, mode)
        ways[name] = ConnectionSettings(servers=world.url(kind, mode), **world.tls(mode), **world.who(kind))
        (access / name).write_text(ways[name].to_json())
        with Wire.open(ways[name]) as wire:
            wire.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name], "allow_direct": True})
        publish_all(ways[name], [(name, b"")])
        read[name] = spark.read.format("jetstream").options(connection=name, stream=name, minPartitions="1").load()
    everything = reduce(DataFrame.union, read.values())
    assert sorted(row.stream for row in everything.select("stream").collect()) == sorted(ways)
    plan = everything._jdf.queryExecution().toString()
    assert plan.count("jetstream") >= len(ways)
    assert [name for name, settings in ways.items() for secret in secrets(settings) if secret in plan] == []

    # The plans are complete, so an error from now on is raised in the workers.
    for kind, mode in EACH_ONCE:
        name = access_name(kind, mode)
        fields, words = list(world.strangers(kind).values())[-1]
        wrong = ConnectionSettings(servers=world.url(kind, mode), **world.tls(mode), **fields)
        (access / name).write_text(wrong.to_json())
        with pytest.raises(Exception, match=words) as refused:
            read[name].collect()
        assert secrets(wrong)
        assert [secret for secret in secrets(wrong) if secret in str(refused.value)] == []


@pytest.mark.slow
def test_a_reader_in_an_account_that_imports_the_stream(spark: SparkSession, access: Path, tmp_path: Path) -> None:
    """Reading needs only what the account imports with the configuration in permissions.md."""
    shipped = Access(tmp_path)
    shipped.server.start()
    try:
        with Wire.open(shipped.settings("setup")) as wire:
            wire.api("STREAM.CREATE.FLIGHTS", {"name": "FLIGHTS", "subjects": ["flights.>"], "allow_direct": True})
        rows = spark.range(5_000).selectExpr("'flights.ua' AS subject", "CAST(id AS STRING) AS data")
        (access / "imported").write_text(shipped.settings("publisher").to_json())
        rows.write.format("jetstream").options(connection="imported", stream="FLIGHTS").mode("append").save()
        (access / "imported").write_text(shipped.settings("reader").to_json())
        read = spark.read.format("jetstream").options(connection="imported", stream="FLIGHTS").load()
        assert {int(row.data) for row in read.select("data").collect()} == set(range(5_000))
        assert read.count() == 5_000
    finally:
        shipped.server.stop()
