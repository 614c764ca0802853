"""The provider info, checked by Airflow itself."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import airflow
import jsonschema  # type: ignore[import-untyped]
import pytest
from airflow.sdk import Connection
from airflow.sdk._shared.secrets_masker import should_hide_value_for_key

from airflow_nats_jetstream.airflow_connection import CREDENTIAL_FOLDERS, settings_of
from airflow_nats_jetstream.get_provider_info import get_provider_info
from jetstream_client.errors import InvalidValue

DAGS = Path(__file__).parents[2] / "dags"
INFO: Any = get_provider_info()
(CONNECTION,) = INFO["connection-types"]
MODULES = [
    module
    for kind in ("operators", "sensors", "triggers", "hooks")
    for listed in INFO[kind]
    for module in listed["python-modules"]
]
PARSING = f"""
import importlib, json, sys
sys.path.insert(0, {str(DAGS)!r})
import airflow_nats_jetstream.hooks, airflow_nats_jetstream.sensors, airflow_nats_jetstream.triggers
import airflow_nats_jetstream.operators.stream, airflow_nats_jetstream.operators.publish
import airflow_nats_jetstream.operators.process, airflow_nats_jetstream.operators.consumer
import airflow_nats_jetstream.operators.message, airflow_nats_jetstream.operators.configuration_file
import airflow_nats_jetstream.operators.spark_submit, airflow_nats_jetstream.operators.to_table
import airflow_nats_jetstream.queues, airflow_nats_jetstream.watcher, airflow_nats_jetstream.notifications
import flight_delays, flight_delays_stream, flights_arriving, flights_on_cluster, flights_to_sql
import orders, orders_merged, orders_streamed, orders_to_table
parsing = sorted({{"nats", "openlineage", "pyspark", "pyarrow"}} & set(sys.modules))
imported = [importlib.import_module(each).__name__ for each in {MODULES}]
from airflow.providers_manager import ProvidersManager
from airflow.sdk import task
manager = ProvidersManager()
provider = manager.providers["airflow-provider-nats-jetstream"]
told = [each for each in manager.notification if "nats" in each]
found = [provider.version, manager.hooks["nats"].hook_class_name, callable(task.jetstream), told]
"""
QUEUES = """
import importlib.abc, json, logging, sys
from airflow.providers_manager import ProvidersManager
said = []
handler = logging.Handler(logging.WARNING)
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("airflow.providers_manager").addHandler(handler)
queues = [name for name in ProvidersManager().queue_class_names if "nats" in name], said
"""
WITHOUT_MESSAGING = """
import importlib.abc, json, sys
class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith("airflow.providers.common.messaging.") and "get_provider_info" not in name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
"""


def alone(code: str) -> Any:
    """The JSON that a fresh interpreter prints last."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def fresh() -> dict[str, Any]:
    """The output of one interpreter for all tests of this file, because importing Airflow takes seconds."""
    said: dict[str, Any] = alone(
        PARSING
        + QUEUES
        + 'print(json.dumps({"loaded by parsing": parsing, "imported": imported, "found": found, "queues": queues}))'
    )
    return said


def test_airflow_finds_it_valid() -> None:
    schema = json.loads(Path(airflow.__file__).with_name("provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)


def test_the_form_is_one_that_airflow_can_show() -> None:
    """Only the schema of a provider's own file, not that of its description, restricts the fields."""
    schema = json.loads(Path(airflow.__file__).with_name("provider.yaml.schema.json").read_text())
    jsonschema.validate(INFO["connection-types"], schema["properties"]["connection-types"])


def test_the_form_has_every_field_with_help_and_no_other() -> None:
    with pytest.raises(InvalidValue) as refused:
        settings_of(Connection(conn_id="c", conn_type="nats", extra='{"no such field": 1}'))
    known = refused.value.remedy.removeprefix(
        "a connection of type 'nats' has no field of this name; its fields are "
    ).split(", ")
    assert sorted(CONNECTION["conn-fields"]) == known
    for name, field in CONNECTION["conn-fields"].items():
        assert len(field["description"]) > 40, name
    standard = {"host", "port", "login", "password"}
    shown = CONNECTION["ui-field-behaviour"]
    assert set(shown["relabeling"]) == set(shown["placeholders"]) == standard
    assert standard.isdisjoint(shown["hidden-fields"])


def test_airflow_finds_connection_hook_decorator_and_notifier(fresh: dict[str, Any]) -> None:
    from airflow_nats_jetstream import __version__

    hook = "airflow_nats_jetstream.hooks.JetStreamHook"
    assert fresh["found"] == [__version__, hook, True, INFO["notifications"]]


def test_airflow_finds_the_queue_with_the_extra_and_misses_nothing_without(fresh: dict[str, Any]) -> None:
    assert fresh["queues"] == [INFO["queues"], []]
    assert alone(WITHOUT_MESSAGING + QUEUES + "print(json.dumps(queues))") == [[], []]


def test_no_field_of_the_form_is_required() -> None:
    for name, field in CONNECTION["conn-fields"].items():
        assert "null" in field["schema"]["type"], name


@pytest.mark.parametrize("name", ["token", "nkey_secret", "creds_secret", "tls_private_key"])
def test_secrets_are_masked_by_airflow_and_by_the_form(name: str) -> None:
    assert should_hide_value_for_key(name)  # type: ignore[no-untyped-call]
    assert CONNECTION["conn-fields"][name]["schema"]["format"] == "password"


def test_every_listed_module_is_there(fresh: dict[str, Any]) -> None:
    assert len(MODULES) == 15
    assert fresh["imported"] == MODULES


def test_the_description_imports_nothing() -> None:
    code = """
import sys
before = set(sys.modules)
from airflow_nats_jetstream.get_provider_info import get_provider_info
get_provider_info()
ours = {"airflow_nats_jetstream", "airflow_nats_jetstream.get_provider_info", "__future__"}
print(len(set(sys.modules) - before - ours))
"""
    assert alone(code) == 0


def test_parsing_a_dag_loads_neither_nats_nor_spark(fresh: dict[str, Any]) -> None:
    assert fresh["loaded by parsing"] == []


def test_the_default_of_an_option_is_the_one_that_counts() -> None:
    """Airflow 3.3.2 does not read the options of providers in every process."""
    assert INFO["config"]["nats"]["options"]["credential_folders"]["default"] == CREDENTIAL_FOLDERS
