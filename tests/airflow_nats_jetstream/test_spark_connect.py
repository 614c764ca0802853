"""The Spark Connect server of an Airflow connection, as `spark_session()` finds it."""

import json
import os
from typing import Any

import pytest

from airflow_nats_jetstream.spark.connect import spark_connect
from jetstream_client.errors import InvalidValue

SPARK = {"SPARK_REMOTE": "sc://of.the.worker", "SPARK_CONNECT_AUTHENTICATE_TOKEN": "of the worker"}


def known(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    """The Airflow connection, on a worker whose environment names another server."""
    monkeypatch.setenv("AIRFLOW_CONN_WARM", json.dumps({"conn_type": "spark_connect", **fields}))
    for name, value in SPARK.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ({"host": "localhost"}, "sc://localhost"),
        ({"host": "sc://localhost", "port": 15002}, "sc://localhost:15002"),
        ({"host": "[::1]", "port": 15002}, "sc://[::1]:15002"),
        (
            {"host": "spark:443/", "login": "a;b c", "extra": {"use_ssl": True}},
            "sc://spark:443/;user_id=a%3Bb%20c;use_ssl=true",
        ),
        ({"conn_type": "spark-connect", "host": "spark", "extra": {"use_ssl": "False"}}, "sc://spark/;use_ssl=false"),
    ],
)
@pytest.mark.parametrize("token", [None, "a token = a secret"])
def test_a_connection_is_address_and_token(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], address: str, token: str | None
) -> None:
    known(monkeypatch, **fields, password=token)
    with spark_connect("warm"):
        assert os.environ["SPARK_REMOTE"] == address
        assert os.environ.get("SPARK_CONNECT_AUTHENTICATE_TOKEN") == token  # the worker's belongs to another server
    assert {name: os.environ[name] for name in SPARK} == SPARK


def test_without_a_connection_the_worker_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, host="localhost")
    with spark_connect(None):
        assert {name: os.environ[name] for name in SPARK} == SPARK


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"conn_type": "spark", "host": "spark://hidden"}, "type 'spark_connect'"),
        ({}, "host and port"),
        ({"host": "user:hidden@localhost"}, "host and port"),
        ({"host": "localhost/;token=hidden"}, "host and port"),
        ({"host": "localhost:1", "port": 2}, "host and port"),
        ({"host": "https://hidden"}, "host and port"),
        ({"host": "localhost", "extra": {"use_ssl": "hidden"}}, "true or false"),
    ],
)
def test_other_fields_are_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], named: str
) -> None:
    known(monkeypatch, **fields, password="hidden")
    with pytest.raises(InvalidValue, match=named) as refused, spark_connect("warm"):
        pass  # pragma: no cover - it is refused before
    assert "hidden" not in str(refused.value)
    assert {name: os.environ[name] for name in SPARK} == SPARK
