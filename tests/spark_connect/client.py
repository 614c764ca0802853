"""The cell spark-client of `make matrix`: what an environment says that has pyspark-client in place of pyspark."""

from importlib.metadata import PackageNotFoundError, version

import pytest

from jetstream_client.errors import InvalidValue
from pyspark_jetstream import interpreter, spark_session


def test_this_environment_has_no_spark() -> None:
    with pytest.raises(PackageNotFoundError):
        version("pyspark")
    with pytest.raises(ModuleNotFoundError):
        __import__("py4j")


def test_it_cannot_start_spark_and_says_what_to_do() -> None:
    with pytest.raises(InvalidValue, match=r"SPARK_REMOTE.*cannot start Spark; name a Spark Connect server"):
        spark_session()


def test_the_doctor_checks_no_workers_here() -> None:
    (found,) = interpreter.check()
    assert (found.what, found.state) == ("pyspark-client", "not checked")
