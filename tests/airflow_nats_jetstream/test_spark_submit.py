"""Spark jobs that are refused before they are submitted. The jobs themselves are tested in tests/cluster."""

import re
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_nats_jetstream.compat import AirflowFailException
from airflow_nats_jetstream.errors import SparkMasterUnavailable, event_of
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.spark_submit import JetStreamSparkSubmitOperator
from airflow_nats_jetstream.spark.master import SparkMaster
from airflow_nats_jetstream.variable_state import VariableState
from demo.service import free_port
from jetstream_client.errors import InvalidValue
from jetstream_handoff.errors import LedgerUnavailable
from tests.airflow_nats_jetstream.steps import CONNECTION, Kept, claim, context_of, execute, receipt, record, rendered

SECRET = '{"servers": "nats://a", "password": "hush-hush"}'


def task(claimed: Any = None, **changes: Any) -> JetStreamSparkSubmitOperator:
    values = {"task_id": "t", "application": "/opt/delays.py", "claim": claimed or {}, "nats_conn_id": CONNECTION}
    return JetStreamSparkSubmitOperator(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"application": "delays.py"}, "absolute path"),
        ({"application": "/opt/delays.jar"}, "Python program"),
        ({"application": "s3a://key:hush@bucket/delays.jar"}, "Python program"),
        ({"application_args": "--password hush"}, "application_args=<class 'str'>: .*give a list"),
        ({"application_args": 7}, "application_args=<class 'int'>: .*give a list"),
        ({"application_args": {"--password": "hush"}}, "application_args=<class 'dict'>: .*give a list"),
        ({"py_files": ["https://key:hush@host/a.py"]}, "py_files=<class 'list'>.*commas"),
        ({"conf": "spark.hush=1"}, "conf=<class 'str'>: .*give a mapping"),
        ({"conf": {1: "hush"}}, "conf=<class 'int'>: .*give a mapping"),
        ({"env_vars": [("A", "hush")]}, "env_vars=<class 'list'>: .*give a mapping"),
        ({"env_vars": ["hush"], "application": "{{ params.program }}"}, "env_vars=<class 'list'>: .*give a mapping"),
        ({"application_args": ["x" * 200_000]}, "200000 bytes.*messages_per_claim"),
        ({"conf": {"spark.driver.supervise": True}}, "spark.driver.supervise"),
        ({"conf": {"spark.executorEnv.JETSTREAM_SECRET_A": SECRET}}, "conf.*path of a file"),
        ({"env_vars": {"JETSTREAM_SECRET_A": SECRET}}, "env_vars.*path of a file"),
        ({"on_settled": "reprocess"}, "give one of 'return', 'fail'"),
        ({"status_poll_interval": 5}, "timedelta"),
        ({"longest_hold": timedelta(0)}, "timedelta"),
    ],
)
def test_what_is_wrong_is_said_when_the_dag_is_parsed(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidValue, match=says) as refused:
        task(**changes)
    assert "hush" not in str(refused.value)


def test_what_is_a_template_is_checked_before_anything_is_held(hook: JetStreamHook, stream: str) -> None:
    claimed = claim(hook, stream)
    late = task(claimed, application="{{ params.program }}")
    late.application = "delays.py"  # as rendered
    with pytest.raises(InvalidValue, match="absolute path"):
        execute(late)
    for name in ("longest_hold", "status_poll_interval"):
        with pytest.raises(InvalidValue, match=rf"{name}='5 s'.*ISO 8601"):
            execute(rendered(task(claimed, **{name: "{{ params.given }}"}), {"given": "5 s"}))
    with pytest.raises(InvalidValue, match="8192 bytes"):
        execute(task(claimed, value="x" * 8_192))
    with pytest.raises(AirflowFailException, match="not a claim"):
        execute(task({"id": "x"}))
    after = record(hook, stream)
    assert after is not None
    assert after.open[claimed["id"]].token is None


@pytest.mark.parametrize(("try_number", "state"), [(1, "open"), (2, "failed")])
def test_without_a_master_the_claim_is_given_back(
    hook: JetStreamHook, stream: str, monkeypatch: pytest.MonkeyPatch, try_number: int, state: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", f"spark://127.0.0.1:7077?rest-port={free_port()}")
    claimed = claim(hook, stream)
    with pytest.raises(SparkMasterUnavailable, match="ConnectError"):
        execute(task(claimed), state=Kept(), try_number=try_number, max_tries=1)
    kept, after = receipt(hook, stream, claimed["id"]), record(hook, stream)
    assert after is not None
    assert (claimed["id"] in after.open) is (state == "open")
    assert (kept.state if kept else "open") == state


def test_a_job_that_may_have_been_forgotten_is_a_line_in_the_log(
    hook: JetStreamHook, stream: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(VariableState, "forgotten", lambda _, dag_run: "this run is too old" if dag_run else "")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", f"spark://127.0.0.1:7077?rest-port={free_port()}")
    claimed = claim(hook, stream)
    with pytest.raises(SparkMasterUnavailable):
        execute(task(claimed), state=Kept(), try_number=2, max_tries=2)
    assert (
        "this run is too old. If its Spark job still runs, the output of that job does not count"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(("try_number", "state"), [(1, "open"), (2, "failed")])
def test_what_goes_wrong_in_the_trigger_is_left_to_the_retry(
    hook: JetStreamHook, stream: str, try_number: int, state: str
) -> None:
    claimed, event = claim(hook, stream), event_of(LedgerUnavailable("gone"))
    job = {"claim": claimed["id"], "attempt": "a", "try_number": 1, "max_tries": 1, "since": 0.0, "driver": "driver-1"}
    resumed = task(claimed)
    with pytest.raises(LedgerUnavailable, match=r"^gone$"):
        resumed.resume(context_of(resumed, try_number=try_number, max_tries=1), event, job)
    after = record(hook, stream)
    assert after is not None
    assert (claimed["id"] in after.open) is (state == "open")


def test_the_connection_is_read_as_airflows_spark_provider_does() -> None:
    def master(**fields: Any) -> SparkMaster:
        return SparkMaster.of(Connection(conn_id="c", **{"conn_type": "spark", **fields}))

    one = master(
        host="spark://a", port=7078, password="hush-hush", extra='{"rest-port": 6067, "webui": "http://a:8080/"}'
    )
    assert (one.url, one.rest, one.webui) == ("spark://a:7078", ("http://a:6067/v1/submissions",), "http://a:8080")
    assert one.token == "hush-hush"
    assert "hush" not in repr(one)
    two = master(host="spark://a:7077,b:7079", extra='{"rest-scheme": "https"}')
    assert two.url == "spark://a:7077,b:7079"
    assert two.rest == ("https://a:6066/v1/submissions", "https://b:6066/v1/submissions")
    assert master(host="a").url == "spark://a:7077"
    with pytest.raises(InvalidValue, match="host=''"):
        master(host="")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"host": "http://u:hush@a"}, "host"),
        ({"host": "spark://u:hush@a"}, "host"),
        ({"host": "u:hush@a:7077,b"}, "host"),
        ({"host": "a,b?token=hush"}, "host"),
        ({"host": "a:hush"}, "host"),
        ({"host": "a/hush"}, "host"),
        ({"host": "a:99999"}, "host"),
        ({"host": "a", "extra": '{"rest-port": "6066@hush"}'}, "extra['rest-port']"),
        ({"host": "a", "extra": '{"rest-port": -1}'}, "extra['rest-port']"),
        ({"host": "a", "extra": '{"rest-scheme": "http://u:hush@b?"}'}, "extra['rest-scheme']"),
        ({"host": "a", "extra": '{"webui": "http://u:hush@a"}'}, "extra['webui']"),
        ({"host": "a", "extra": '{"webui": "http://[hush"}'}, "extra['webui']"),
        ({"host": "a", "password": "hush\n"}, "password"),
        ({"host": "a", "password": "h\u00fcsh"}, "password"),
    ],
)
def test_a_refused_field_of_the_connection_is_named_and_what_may_be_a_secret_is_not_shown(
    fields: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        SparkMaster.of(Connection(conn_id="c", conn_type="spark", **fields))
    assert refused.value.field == named
    assert not re.search("hush|h\u00fcsh", str(refused.value))


@pytest.mark.parametrize("host", ["yarn://a", "http://a:8080"])
def test_a_refused_master_in_which_no_secret_can_be_is_shown(host: str) -> None:
    with pytest.raises(InvalidValue, match="standalone master") as refused:
        SparkMaster.of(Connection(conn_id="c", conn_type="spark", host=host))
    assert host in str(refused.value)
