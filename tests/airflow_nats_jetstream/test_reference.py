"""docs/reference/operators.md: each section says of its operator what is true of it."""

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_nats_jetstream.get_provider_info import get_provider_info
from airflow_nats_jetstream.hooks import JetStreamHook
from airflow_nats_jetstream.operators.consumer import JetStreamDeleteConsumerOperator
from airflow_nats_jetstream.sensors import JetStreamPullSensor
from airflow_nats_jetstream.template import yes_or_no
from jetstream_client.errors import InvalidValue
from jetstream_tables import DeltaTable
from tests.airflow_nats_jetstream.steps import CONNECTION, CONSUMER, claim, execute, rendered
from tests.snippets import sections

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "operators.md"
DECIDED_ELSEWHERE = {"JetStreamProcessOperator", "JetStreamSettleOperator"}  # by the function, by ``value``
TITLES = ["Parameters", "Template fields", "Map over", "Dry run", "Permissions", "Extra link", "XCom"]


class Description(NamedTuple):
    """What the page says of one operator."""

    parameters: str
    template_fields: str
    mapping: str
    dry_run: str
    permissions: str
    link: str
    xcom: str
    example: str
    returned: str | None
    """The JSON below the list; None if the task returns what somebody else decides."""


def page() -> dict[str, Description]:
    """The sections of the page, by operator."""
    found = {}
    for section in re.split(r"^### ", PAGE.read_text(), flags=re.MULTILINE)[1:]:
        name, _, text = section.partition("\n")
        text = text.partition("\n## ")[0]
        if name.startswith("JetStream"):
            (example,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
            items = re.findall(r"^- \*\*([\w ]+):\*\*\s(.*?)(?=^- |^$|\Z)", text, re.MULTILINE | re.DOTALL)
            assert [title for title, _ in items] == TITLES, name
            returned = re.search(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
            values = (re.sub(r"\s+", " ", value).strip() for _, value in items)
            found[name] = Description._make([*values, example, returned and returned[1]])
    return found


def classes() -> Iterator[type[BaseOperator]]:
    """Every operator and sensor in the modules that the provider names."""
    info: Any = get_provider_info()
    modules = [name for kind in ("operators", "sensors") for each in info[kind] for name in each["python-modules"]]
    for module in map(importlib.import_module, modules):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, BaseOperator) and value.__name__.startswith("JetStream"):
                yield value


def attempted(claim: Any) -> dict[str, str]:
    """What a job on a cluster would have recorded."""
    return {"attempt": claim.attempt_id, "driver": "driver-20261122023511-0000"}


class Scene(NamedTuple):
    """How an operator is run once, as one of two mapped tasks: what it is mapped over, and with what else."""

    over: str
    value: Any
    partial: dict[str, Any]


def scenes(hook: JetStreamHook, stream: str, folder: Path) -> dict[str, Scene]:
    """In this order: each leaves what the next needs. The stream holds nine messages, of which eight are claimed."""
    here = {"stream": stream}
    of_it = {**here, "consumer": CONSUMER}
    claimed, to_table = claim(hook, stream, 9), f"{stream}t"
    hook.run(lambda js: js.create_stream({"name": to_table, "subjects": [f"{to_table}.>"], "allow_direct": True}))
    other = {"name": f"{stream}x", "subjects": [f"{stream}x"]}
    bucket = f"{stream}k"
    key = {"bucket": bucket, "key": "a"}
    hook.run(lambda js: js.create_stream({"name": f"KV_{bucket}", "subjects": [f"$KV.{bucket}.>"]}))
    return {
        "JetStreamCreateStreamOperator": Scene("config", {**other, "max_age": "1h"}, {}),
        "JetStreamCreateConsumerOperator": Scene("config", {"durable_name": "other"}, here),
        "JetStreamPartitionStreamOperator": Scene(
            "partitions", 2, {**here, "group": "g", "subject": f"{stream}.p.*", "ordered_by": "{4}"}
        ),
        "JetStreamPublishOperator": Scene("messages", [[f"{stream}.a", "one", {"Shop": "Lyon"}]], here),
        "JetStreamGetMessageOperator": Scene("sequence", 10, here),
        "JetStreamDeleteMessageOperator": Scene("sequence", 10, here),
        "JetStreamPauseConsumerOperator": Scene("duration", "1h", {**here, "consumer": "other"}),
        "JetStreamResumeConsumerOperator": Scene("consumer", "other", here),
        "JetStreamProcessOperator": Scene("op_kwargs", {"claim": claimed}, {"python_callable": attempted}),
        "JetStreamSparkSubmitOperator": Scene("claim", claimed, {"application": "/opt/delays.py"}),
        "JetStreamHoldSensor": Scene("claim", claimed, {"deferrable": False, "timeout": 5}),
        "JetStreamToTableOperator": Scene(
            "claim",
            claim(hook, to_table, 3),
            {"table": DeltaTable(str(folder / "orders")), "message_columns": ["subject", "data"]},
        ),
        "JetStreamSettleOperator": Scene("claim", claimed, {"value": "settled before"}),
        "JetStreamResetConsumerOperator": Scene("sequence", 1, of_it),
        "JetStreamPullSensor": Scene("max_messages", 8, {**of_it, "deferrable": False, "timeout": 5}),
        "JetStreamLagSensor": Scene("below", 10, {**of_it, "deferrable": False, "timeout": 5}),
        "JetStreamPutKeyOperator": Scene("value", "1", key),
        "JetStreamKeySensor": Scene("key", "a", {"bucket": bucket, "deferrable": False, "timeout": 5}),
        "JetStreamDeleteConsumerOperator": Scene("consumer", CONSUMER, {**here, "despite_open_claims": True}),
        "JetStreamPurgeOperator": Scene("keep", 2, here),
        "JetStreamDeleteStreamOperator": Scene("stream", f"{stream}x", {}),
    }


def snapshot(hook: JetStreamHook, stream: str) -> list[Any]:
    """Everything that the server says of the test's streams and consumers, but when it was asked."""

    async def ask(js: Any) -> list[Any]:
        found = []
        for name in (
            stream,
            f"{stream}x",
            f"KV_{stream}k",
            f"KV_{js.settings.ledger}_claims",
            f"KV_{js.settings.ledger}_receipts",
        ):
            for request in ("STREAM.INFO", "CONSUMER.LIST"):
                try:
                    answer = await js.api(f"{request}.{name}")
                except Exception as error:  # noqa: BLE001 - it does not exist
                    answer = {"error": str(error)}
                text = json.dumps(answer)
                found.append(re.sub(r'"(ts|pause_remaining)": ("[^"]*"|\d+)', "", text))
        return found

    return hook.run(ask)


def fits(found: Any, told: Any) -> bool:
    """Whether a value has the same names and types as the page's example; a list may be empty."""
    if isinstance(told, dict) and isinstance(found, dict):
        return told.keys() == found.keys() and all(fits(found[name], each) for name, each in told.items())
    if isinstance(told, list) and isinstance(found, list):
        return all(fits(each, told[0]) for each in found)
    return type(found) is type(told)


def test_every_operator_has_its_section() -> None:
    assert sorted(page()) == sorted({each.__name__ for each in classes()})


@pytest.mark.parametrize("operator", list(classes()), ids=lambda each: each.__name__)
def test_fields_links_and_parameters_are_those_of_the_class(operator: type[BaseOperator]) -> None:
    told = page()[operator.__name__]
    assert told.template_fields == ", ".join(f"`{field}`" for field in operator.template_fields)
    links: Any = operator.operator_extra_links
    assert told.link == ", ".join(link.name for link in links)
    own = operator.dry_run not in (BaseOperator.dry_run, BaseSensorOperator.dry_run)
    assert (told.dry_run == "prints the template fields") is not own
    anchor = operator.__name__.lower()
    assert told.parameters.startswith(f"[{operator.__name__}][{anchor}]")
    (address,) = re.findall(rf"^\[{anchor}\]: (\S+)$", PAGE.read_text(), re.MULTILINE)
    assert address.endswith(f"/docs/reference/python/airflow.html#{anchor}")


def test_the_examples_make_their_operators() -> None:
    """One after the other, as parts of one DAG: that of the pull sensor has ``claims``."""
    names: dict[str, Any] = {"__name__": "page"}
    with DAG("page", schedule=None) as dag:
        for name, told in page().items():
            known = set(dag.task_dict)
            exec(told.example, names)
            kinds = {kind.__name__ for each in dag.tasks if each.task_id not in known for kind in mro(each)}
            assert name in kinds, name
            lines = [line for line in told.example.splitlines() if line.strip()]
            assert len(lines) <= 11, name


def mro(task: Any) -> tuple[type, ...]:
    """The classes of a task, mapped or not."""
    kind: type = getattr(task, "operator_class", type(task))
    return kind.__mro__


def test_each_is_mapped_run_dry_and_run(
    hook: JetStreamHook,
    stream: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """As one of two mapped tasks whose fields are rendered; the dry run prints, and leaves the server as it was."""
    monkeypatch.setattr("jetstream_handoff.repair.reset.QUIET", 0.5)
    states = staticmethod(lambda **_: {"run": {"before": "success"}})
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", states)
    told, kinds = page(), {each.__name__: each for each in classes()}
    made = scenes(hook, stream, tmp_path)
    assert made.keys() == told.keys()
    for name, (over, value, partial) in made.items():
        with DAG(f"dag_{name}", schedule=None):
            mapped = kinds[name].partial(task_id="one", nats_conn_id=CONNECTION, **partial)  # one piece of work
            task = mapped.expand(**{over: [None if over != "config" else {}, value]})
            EmptyOperator(task_id="before") >> task
        assert told[name].mapping.partition(";")[0] == f"`{over}`"
        one = rendered(task, {}, map_index=1)
        before = snapshot(hook, stream)
        capsys.readouterr()
        one.dry_run()
        assert issubclass(kinds[name], BaseSensorOperator) or capsys.readouterr().out
        assert snapshot(hook, stream) == before, name
        answer = execute(one, map_index=1, run_start=datetime.now(UTC))  # after its claim was taken
        assert json.loads(json.dumps(answer)) == answer
        returned = told[name].returned
        assert returned is None or fits(answer, json.loads(returned)), f"{name}: {json.dumps(answer)}"
        assert (returned is None) is (name in DECIDED_ELSEWHERE)
        link, *_ = one.operator_extra_links
        assert link.get_link(one, ti_key=None) == f"https://c/{one.stream}/{getattr(one, 'consumer', '')}"
    hook.run(lambda js: js.stream(f"{stream}t").delete())
    hook.run(lambda js: js.stream(f"KV_{stream}k").delete())


def test_the_pages_examples_parse(tmp_path: Path) -> None:
    """Python is the file of a DAG, and YAML is the file next to it that it names."""
    text = PAGE.read_text()
    (yaml,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "orders.yaml").write_text(yaml)
    for section in sections(PAGE):
        if "DAG(" in section.source:
            path = tmp_path / "dag.py"
            path.write_text(section.source)
            exec(compile(section.source, str(path), "exec"), {"__name__": "dag", "__file__": str(path)})


def switches(operator: type[BaseOperator]) -> Iterator[tuple[dict[str, Any], str]]:
    """The parameters without which an operator cannot be made, and each of its own that is True or False."""
    ours = [each for each in operator.mro() if each.__module__.startswith("airflow_nats_jetstream")]
    made = [inspect.signature(vars(each)["__init__"]) for each in ours if "__init__" in vars(each)]
    parameters = {name: each for one in made for name, each in one.parameters.items() if each.kind == each.KEYWORD_ONLY}
    least: dict[str, Any] = {name: "{{ x }}" for name, each in parameters.items() if each.default is each.empty}
    least |= {"python_callable": print} if "Process" in operator.__name__ else {}
    least |= {"subject": "{{ x }}"} if "Purge" in operator.__name__ else {}
    for name, each in parameters.items():
        if isinstance(each.default, bool):
            yield least, name


@pytest.mark.parametrize("operator", list(classes()), ids=lambda each: each.__name__)
def test_a_word_that_python_takes_for_true_is_refused(operator: type[BaseOperator]) -> None:
    for least, name in switches(operator):
        for word in ("no", "yes", "0", 1, None, "{{ params.now }}"):
            if not (name in operator.template_fields and word == "{{ params.now }}"):
                with pytest.raises(InvalidValue, match=f"{name}.*give True or False"):
                    operator(task_id="one", **{**least, name: word})
        value = yes_or_no(name, "true")
        assert value is True
        unset = operator(task_id="one", **{**least, name: "False"})
        assert getattr(unset, name, False) in (False, "False")


def test_all_words_are_found() -> None:
    assert {name for each in classes() for _, name in switches(each)} >= {"atomic", "changed", "create", "deferrable"}


def test_default_args_of_a_dag_reach_what_operators_and_sensors_have_in_common() -> None:
    given = {"nats_conn_id": "other", "deferrable": False}
    with DAG("dag", schedule=None, default_args=given):
        deletion = JetStreamDeleteConsumerOperator(task_id="delete", stream="S", consumer="c")
        sensor = JetStreamPullSensor(task_id="pull", stream="S", consumer="c")
    assert deletion.nats_conn_id == "other"
    assert (sensor.nats_conn_id, sensor.deferrable) == ("other", False)
