"""The address of a Spark Connect server is checked before PySpark uses it. Sessions on one: tests/cluster.

And the options for Java of a session that starts Spark.
"""

import os
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from demo.java import QUICK
from demo.service import free_port
from jetstream_client.errors import InvalidValue
from pyspark_jetstream import compat, interpreter, session, spark_session


@pytest.mark.parametrize(
    "address",
    [
        "sc://localhost:hidden",
        "sc://localhost/;token=hidden=",  # Base64 that was not escaped
        "sc://localhost/hidden",
        "sc://;token=hidden",
        "sc:hidden",
    ],
)
def test_an_address_that_is_none_is_not_shown(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("SPARK_REMOTE", address)
    with pytest.raises(InvalidValue, match=r"SPARK_REMOTE.*sc://localhost:15002") as refused:
        spark_session()
    assert "hidden" not in str(refused.value)


def test_a_server_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(session, "_PATIENCE", 0.2)
    monkeypatch.setenv("SPARK_REMOTE", f"sc://localhost:{port}/;token=hidden")
    with pytest.raises(InvalidValue, match=f"'localhost:{port}': no Spark Connect server answered") as refused:
        spark_session()
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("token", ["hidden\n", "hiddén"])
def test_a_token_that_no_header_can_carry_is_refused(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    monkeypatch.setenv("SPARK_CONNECT_AUTHENTICATE_TOKEN", token)
    with pytest.raises(InvalidValue, match=r"SPARK_CONNECT_AUTHENTICATE_TOKEN.*printable ASCII") as refused:
        spark_session()
    assert "hidd" not in str(refused.value)


def test_a_master_does_not_go_with_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost/;token=hidden")
    with pytest.raises(InvalidValue, match=r"master='local\[2\]'.*SPARK_REMOTE") as refused:
        spark_session(master="local[2]")
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("remote", [None, "local[2]"])
def test_a_client_alone_does_not_start_spark(monkeypatch: pytest.MonkeyPatch, remote: str | None) -> None:
    """This variable tells pyspark to behave as pyspark-client, which the cell spark-client of `make matrix` has."""
    monkeypatch.setenv("SPARK_SKIP_CONNECT_COMPAT_TESTS", "1")
    if remote:
        monkeypatch.setenv("SPARK_REMOTE", remote)
    with pytest.raises(InvalidValue, match=r"SPARK_REMOTE.*cannot start Spark; name a Spark Connect server"):
        spark_session()


def test_two_sparks_in_one_environment_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = tmp_path / "pyspark_client-4.0.0.dist-info"
    client.mkdir()
    (client / "METADATA").write_text(f"Name: pyspark-client\nVersion: {pyspark.__version__}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert compat.mixed() is None
    (client / "METADATA").write_text("Name: pyspark-client\nVersion: 4.0.0\n")
    said = f"pyspark {pyspark.__version__} and pyspark-client 4.0.0 are installed in one environment"
    assert [each.text[: len(said)] for each in interpreter.check() if each.what == "pyspark"] == [said]
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost:hidden")
    with pytest.raises(InvalidValue):
        spark_session()
    assert [each.getMessage()[1 : len(said)] for each in caplog.records] == [said[1:]]


def test_java_is_to_optimise_later_unless_the_environment_says_otherwise(spark: SparkSession) -> None:
    """Of two values for an option, Java takes the last one."""
    assert os.environ["SPARK_SUBMIT_OPTS"] == QUICK  # as before the session was started
    assert spark._jvm is not None
    started_with = list(spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    ours, theirs = "-XX:Tier4InvocationThreshold=50000", QUICK.split()[0]
    assert started_with.index(ours) < started_with.index(theirs)
