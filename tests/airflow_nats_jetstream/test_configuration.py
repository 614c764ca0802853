"""A configuration as mapping, dataclass or file: what a DAG may contain, and that it reaches the server."""

import json
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pendulum
import pytest
from airflow.sdk import DAG

from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.consumer import JetStreamCreateConsumerOperator
from airflow_nats_jetstream.operators.fields import CONSUMER, STREAM, Fields
from airflow_nats_jetstream.operators.stream import JetStreamCreateStreamOperator
from airflow_nats_jetstream.operators.values import Wrong, duration, duration_text
from jetstream_client.errors import ApiError, InvalidRequest, InvalidValue
from jetstream_client.times import time_nanoseconds
from tests.airflow_nats_jetstream.steps import CONNECTION, execute, rendered
from tests.jetstream_client import test_configuration as client

HOUR = 3_600 * 10**9


def creation(config: Any, **changes: Any) -> JetStreamCreateStreamOperator:
    values = {"task_id": "stream", "config": config, "nats_conn_id": CONNECTION}
    return JetStreamCreateStreamOperator(**values | changes)


@pytest.fixture
def dag(tmp_path: Path) -> DAG:
    """A DAG whose file is in the test's folder."""
    dag = DAG("dag", schedule=None)
    dag.fileloc = str(tmp_path / "dag.py")
    return dag


def config_of(hook: JetStreamHook, stream: str) -> dict[str, Any]:
    return hook.run(lambda js: js.stream(stream).info()).config


@dataclass
class Orders:
    name: str
    max_age: timedelta = timedelta(hours=1)
    subjects: list[str] = field(default_factory=lambda: ["{{ params.subject }}"])
    description: str | None = None


YAML = """\
# One stream, as its team describes it.
name: {name}
subjects: [{subject}]
max_age: 1h
description: no   # a text, not false
mirror: null
consumer_limits:
  inactive_threshold: 1m30s
"""


@pytest.mark.parametrize("form", ["mapping", "dataclass", "yaml", "yml", "json"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "templated"])
def test_every_form_arrives(hook: JetStreamHook, stream: str, dag: DAG, form: str, known: bool) -> None:
    """A file next to the DAG's is read and rendered; the server's configuration is the same in every form."""
    params = {"name": stream, "subject": f"{stream}.files.json"}  # a subject that looks like a file's name
    name, subject = params.values() if known else ("{{ params.name }}", "{{ params.subject }}")
    mapping = {"name": name, "subjects": [subject], "max_age": "1h"}
    config: Any = {"mapping": mapping, "dataclass": Orders(name, subjects=[subject])}.get(form, f"it.{form}")
    yaml = form in ("yaml", "yml")
    if yaml:
        Path(dag.folder, config).write_text(YAML.format(name=name, subject=subject))
    elif form == "json":
        Path(dag.folder, config).write_text(json.dumps(mapping, indent="\t"))
    with dag:
        task, again = creation(config), creation(config, task_id="again")
    changed = ["consumer_limits", "description", "max_age", "subjects"] if yaml else ["max_age", "subjects"]
    assert execute(rendered(task, params)) == {"stream": stream, "created": False, "changed": changed}
    now = config_of(hook, stream)
    assert (now["max_age"], now["subjects"]) == (HOUR, [f"{stream}.files.json"])
    if yaml:
        assert (now["description"], now["consumer_limits"]["inactive_threshold"]) == ("no", 90 * 10**9)
    assert execute(rendered(again, params)) == {"stream": stream, "created": False, "changed": []}


BROKEN = {
    "unknown.yaml": (
        "name: A\nmax_mesages: 5\n",
        r"unknown.yaml:2: max_mesages=5: streams have.*did you mean max_",
    ),
    "inside.yml": (
        "name: A\nsources:\n- name: B\n- name: C\n  filter: a\n",
        r"inside.yml:5: sources\[1\]\['filter'\].*filter_subject",
    ),
    "value.json": ('{"name": "A",\n "max_age": "soon"}', r"value.json:2: max_age='soon': give a duration"),
    "type.yaml": ("name: A\nsubjects: a\n", r"type.yaml:2: subjects='a': give a list"),
    "number.yaml": ("name: 7\n", r"number.yaml:1: name=7: give a string; in YAML, quote"),
    "choice.yaml": ("name: A\n\nstorage: disk\n", r"choice.yaml:3: storage='disk': give one of 'file', 'memory'"),
    "subject.yaml": ("name: A\nsubjects:\n - a..b\n", r"subject.yaml:2: subjects='a..b': .*an empty token"),
    "name.yaml": ("description: x\nname: a.b\n", r"name.yaml:2: name='a.b'"),
    "nameless.yaml": ("description: x\n", r"nameless.yaml: name=None"),
    "twice.yaml": ("name: A\nmax_age: 1h\nmax_age: 2h\n", r"config='twice.yaml:3': the field 'max_age' occurs twice"),
    "twice.json": ('{"name": "A",\n"name": "B"}', r"config='twice.json:2': the field 'name' occurs twice"),
    "yaml.yaml": ("name: A\n  b: [\n", r"config='yaml.yaml:2': this line cannot be read as YAML"),
    "json.json": ('{"name":\n}', r"config='json.json:2': this line is not valid JSON"),
    "nan.json": ('{"name": "A", "max_msgs": NaN}', r"config='nan.json': .*JSON does not allow the value NaN"),
    "list.yaml": ("- name: A\n", r"list.yaml: config=<class 'list'>: a stream configuration must be a mapping"),
    "empty.yaml": ("", r"empty.yaml: config=<class 'NoneType'>: a stream configuration must be a mapping"),
    "tag.yaml": ("name: !!python/name:os.system a\n", r"config='tag.yaml:1': this line cannot be read as YAML"),
    "deep.json": ("[" * 100_000, r"config='deep.json'"),
    "two.yaml": (
        "name: A\n---\nname: B\n",
        r"two.yaml:2': .*expected a single document in the stream, but found another",
    ),
    "missing.yaml": (None, r"config='missing.yaml': the file .*missing.yaml cannot be read \(No such file"),
    "bytes.yaml": (b"\xff\xfe\xff", r"bytes.yaml.*UTF-8"),
    "orders.txt": ("name: A", r"config='orders.txt': give a mapping, a dataclass, or the path of a file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_in_a_file_is_said_when_the_dag_is_parsed(dag: DAG, tmp_path: Path, name: str) -> None:
    text, says = BROKEN[name]
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with dag, pytest.raises(InvalidValue, match=says):
        creation(name)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"name": "A", "retain": "limits"}, r"config\['retain'\]='limits': streams have no .*; did you mean retention"),
        ({"name": "A", "max_age": 1.5}, r"config\['max_age'\]=1.5: give a duration"),
        ({"name": "A", "max_msgs": -2}, r"config\['max_msgs'\]=-2: give a whole number that is -1 or more"),
        ({"name": "A", "num_replicas": 7}, "from 0 to 5"),
        ({"name": "A", "allow_direct": "yes"}, r"config\['allow_direct'\]='yes': give true or false"),
        ({"name": "A", "metadata": {"a": 1}}, r"config\['metadata'\]\['a'\]=1: give a string"),
        ({"name": "{{ x }}", "max_mgs": 1}, "did you mean max_msgs"),
        ({"name": "{{ x }}", "max_msgs": "many"}, r"config\['max_msgs'\]"),
        (Orders("A", max_age=timedelta(-1)), r"config\['max_age'\]"),
        (Orders, "a mapping, a dataclass"),
        (7, "a mapping, a dataclass"),
    ],
)
def test_what_is_wrong_in_a_mapping_is_said_when_the_dag_is_parsed(config: Any, says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        creation(config)


def test_a_templated_file_is_checked_when_it_is_rendered(dag: DAG, tmp_path: Path) -> None:
    (tmp_path / "it.yaml").write_text("name: A\nmax_msgs: {{ params.most }}\n")
    with dag:
        task = rendered(creation("it.yaml"), {"most": "plenty"})
    with pytest.raises(InvalidValue, match=r"it.yaml:2: max_msgs='plenty': give a whole number"):
        execute(task)


def test_an_operator_without_a_dag_reads_its_file_when_the_dag_is_complete(dag: DAG, tmp_path: Path) -> None:
    """Airflow's DAG processor calls the same method, and reports its exception as an import error."""
    task = creation("it.yaml")
    task.dag = dag
    (tmp_path / "it.yaml").write_text("name: A\nmax_mgs: 7\n")
    with pytest.raises(InvalidValue, match=r"it.yaml:2"):
        dag.resolve_template_files()  # type: ignore[no-untyped-call]
    (tmp_path / "it.yaml").write_text("name: A\nmax_msgs: 7\n")
    dag.resolve_template_files()  # type: ignore[no-untyped-call]
    assert task.config == {"name": "A", "max_msgs": 7}
    assert creation(str(tmp_path / "it.yaml")).config == {"name": "A", "max_msgs": 7}
    dag.template_searchpath = [str(tmp_path)]
    dag.fileloc = "/elsewhere/dag.py"
    assert creation("it.yaml", dag=dag, task_id="found").config == {"name": "A", "max_msgs": 7}


def test_a_path_from_a_template_is_read_when_it_is_known(hook: JetStreamHook, stream: str, dag: DAG) -> None:
    Path(dag.folder, "it.yaml").write_text(f"name: {stream}\nmax_msgs: 7\n")
    with dag:
        task = rendered(creation("{{ params.file }}"), {"file": "it.yaml"})
    assert execute(task)["changed"] == ["max_msgs"]
    assert config_of(hook, stream)["max_msgs"] == 7


def test_a_consumer_needs_a_name_that_lasts() -> None:
    def consumer(config: Any) -> JetStreamCreateConsumerOperator:
        return JetStreamCreateConsumerOperator(task_id="consumer", stream="S", config=config)

    with pytest.raises(InvalidValue, match="deletes the consumer 5 s after"):
        consumer({"name": "c"})
    with pytest.raises(InvalidValue, match=r"config\['name'\]"):
        consumer({"ack_policy": "explicit"})
    with pytest.raises(InvalidValue, match="consumers have no such field; did you mean ack_wait"):
        consumer({"durable_name": "c", "ackwait": "1m"})
    consumer({"name": "c", "inactive_threshold": "1h"})
    consumer({"durable_name": "c"})


@pytest.mark.parametrize("fields", [STREAM, CONSUMER], ids=["stream", "consumer"])
def test_the_server_knows_every_field_and_refuses_what_we_refuse(
    hook: JetStreamHook, stream: str, fields: Fields
) -> None:
    """Every field exists, and nats-server refuses every value that this package refuses."""

    def answer(field: str, value: Any) -> str:
        config = {"name": "x" if fields is STREAM else "c", "durable_name": "c", field: value}
        if fields is STREAM:
            config.pop("durable_name", None)
            request, body = "STREAM.CREATE.x", config
        else:
            request, body = f"CONSUMER.CREATE.{stream}.c", {"stream_name": stream, "config": config, "action": "create"}
        try:
            hook.run(lambda js: js.api(request, body))
        except ApiError as error:
            return f"{type(error).__name__}: {error.description}"
        return "taken"

    assert answer("max_mgs", 5).startswith(InvalidRequest.__name__)
    for name in fields.table:
        wrong: Any = 7 if name == "name" else {"no": 1.5}  # a value that no field accepts
        refused = answer(name, wrong)
        assert refused.startswith(InvalidRequest.__name__), (name, refused)
        assert "unknown field" not in refused or '"no"' in refused, (name, refused)
        with pytest.raises(Wrong):
            fields.check({name: wrong})


@pytest.mark.parametrize(
    ("fields", "configs"),
    [(STREAM, [client.STREAM, *client.STREAM_FIELDS]), (CONSUMER, [client.CONSUMER, *client.CONSUMER_FIELDS])],
    ids=["stream", "consumer"],
)
def test_every_field_that_arrives_at_the_server_is_known(fields: Fields, configs: list[dict[str, Any]]) -> None:
    """The client's tests show that the server accepts each of these fields."""
    for config in configs:
        wanted = in_utc({name: value for name, value in config.items() if value is not None})
        assert in_utc(fields.check(config)) == wanted


def in_utc(value: Any, name: str = "") -> Any:
    """Return a configuration whose times can be compared."""
    if isinstance(value, dict):
        return {name: in_utc(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [in_utc(each) for each in value]
    return time_nanoseconds(value) if name.endswith(("_time", "_until")) else value


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("24h", 24 * HOUR),
        ("1h30m", HOUR * 3 // 2),
        ("1.5s", 1_500_000_000),
        ("0.1ms", 100_000),
        ("7d", 168 * HOUR),
        ("P1DT12H", 36 * HOUR),
        ("PT0.000001S", 1_000),
        (pendulum.duration(hours=1), HOUR),
        ("5", 5),
    ],
)
def test_durations_as_people_write_them(text: Any, nanoseconds: int) -> None:
    assert duration(text) == nanoseconds
    assert duration(duration_text(nanoseconds)) == nanoseconds


@pytest.mark.parametrize("value", ["", "h", "1x", "-1h", "1h ", "1,5h", 1.0, True, -1, None, 2**63, "1" * 5000, "P1M"])
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(Wrong, match="24h"):
        duration(value)


def test_what_came_from_another_task_stays_the_object_by_which_airflow_knows_it() -> None:
    """Airflow does not render a string from another task, which it recognises by its identity."""
    config = {"name": "A", "description": "{{ this is text }}"}
    assert creation(config).config is config
    execute_only = creation(config)
    assert execute_only._wanted()["description"] == "{{ this is text }}"
    with pytest.raises(InvalidValue, match="white space"):
        creation({"name": "{{ this is no name }}"})._wanted()
