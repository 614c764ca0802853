"""The code of docs/how-to/dagster.md, on a real nats-server. Its Spark is only loaded: tests/spark_connect runs it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest
from dagster.components.testing import create_defs_folder_sandbox

from dagster_nats_jetstream import JetStreamResource
from demo.nats_server import NatsServer
from tests.snippets import sections

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "dagster.md"
SECTIONS = {section.title: section for section in sections(PAGE) if section.source}
KINDS: dict[str, type] = {"assets": dg.AssetsDefinition, "sensors": dg.SensorDefinition}
STREAM = {"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True}
ORDERS = [(f"orders.{shop}", json.dumps({"amount": 7}).encode()) for shop in ("north", "south") for _ in range(10)]


@pytest.fixture
def jetstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JetStreamResource]:
    """A server of its own, because the page names its stream."""
    server = NatsServer(tmp_path / "nats")
    server.start()
    monkeypatch.setenv("NATS_URL", server.url)
    monkeypatch.setenv("NATS_PASSWORD", "secret")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    resource = JetStreamResource(servers=server.url)
    resource.ensure_stream(STREAM)
    resource.publish("ORDERS", ORDERS, scope="page")
    yield resource
    server.stop()


def loaded(title: str) -> dict[str, Any]:
    """The names that a section defines. Its module can be found by name, as Dagster needs it for annotations."""
    module = ModuleType("page")
    sys.modules["page"] = module
    exec(compile(SECTIONS[title].source, PAGE, "exec"), vars(module))
    return {name: value for name, value in vars(module).items() if not name.startswith("__")}


def blocks(title: str, language: str) -> list[str]:
    """The blocks of a section in this language."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)


def answer(command: str) -> str:
    """What a command of the page prints."""
    return subprocess.run(["bash", "-euc", command], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("title", SECTIONS)
def test_the_code_of_a_section_loads(title: str, jetstream: JetStreamResource) -> None:
    names = loaded(title)
    defined = list(names.values())
    given: dict[str, Any] = {kind: [each for each in defined if isinstance(each, of)] for kind, of in KINDS.items()}
    if "defs" not in names and title != "Secrets":
        resources: dict[str, Any] = {"jetstream": jetstream, "pipes": dg.PipesSubprocessClient()}
        names["defs"] = dg.Definitions(**given, resources=resources)
    if "defs" in names:
        dg.Definitions.validate_loadable(names["defs"])


@pytest.mark.parametrize(
    ("title", "consumer", "partition"),
    [
        ("One asset, one claim", "sizes", None),
        ("A sensor requests runs", "watched", None),
        ("Partitions by a token of the subject", "shop", "south"),
        ("Messages that cannot be processed", "strict", None),
    ],
)
def test_an_asset_settles_what_it_has_processed(
    title: str, consumer: str, partition: str | None, jetstream: JetStreamResource
) -> None:
    names = loaded(title)
    if title == "Messages that cannot be processed":
        jetstream.publish("ORDERS", [("orders.north", b"{}")], scope="malformed")
    resources = {"jetstream": jetstream}
    assert dg.materialize([names["orders"]], resources=resources, partition_key=partition).success
    name = f"{consumer}-{partition}" if partition else consumer
    info = jetstream.run(lambda js: js.stream("ORDERS").consumer(name).info())
    assert (info.pending, info.ack_pending) == (0, 0)
    if title == "Messages that cannot be processed":
        dead = jetstream.run(lambda js: js.stream("DEAD_ORDERS").info())
        assert dead.state["messages"] == 1


def test_several_claims_are_processed_in_one_run(jetstream: JetStreamResource) -> None:
    names = loaded("Several claims in one run")
    result = names["defs"].get_job_def("drain").execute_in_process()
    assert result.output_for_node("total") == sum(len(data) for _, data in ORDERS)
    info = jetstream.run(lambda js: js.stream("ORDERS").consumer("drain").info())
    assert (info.pending, info.ack_pending) == (0, 0)


def test_a_downstream_asset_reads_what_was_settled(jetstream: JetStreamResource) -> None:
    orders = loaded("One asset, one claim")["orders"]
    report = loaded("Read only output that counts")["report"]
    result = dg.materialize([orders, report], resources={"jetstream": jetstream})
    (materialized,) = result.asset_materializations_for_node("report")
    assert materialized.metadata["folders"].value == 1


@pytest.mark.parametrize("title", ["Test an asset", "Test a sensor"])
def test_the_test_of_the_page_passes(title: str, jetstream_resource: JetStreamResource, jetstream_stream: Any) -> None:
    (test,) = (value for name, value in loaded(title).items() if name.startswith("test_"))
    test(jetstream_resource, jetstream_stream)


def test_the_dead_letters_of_the_page_are_listed_replayed_and_discarded(jetstream: JetStreamResource) -> None:
    names = loaded("Messages that cannot be processed")
    jetstream.publish("ORDERS", [("orders.north", b"{}")] * 2, scope="malformed")
    assert dg.materialize([names["orders"]], resources={"jetstream": jetstream}).success
    (session,) = blocks("Messages that cannot be processed", "console")
    steps = re.findall(r"^\$ ((?:.*\\\n)*.*\n)((?:[^$].*\n)*)", session, re.MULTILINE)
    assert len(steps) == 3
    for command, shown in steps:
        assert re.fullmatch(re.escape(shown).replace("…", ".*"), answer(command))


def test_messages_are_published_and_purged(jetstream: JetStreamResource) -> None:
    names = loaded("Publish, purge, create streams")
    jetstream.run(lambda js: js.delete_stream("ORDERS"))
    published = names["defs"].get_job_def("invoicing").execute_in_process()
    assert published.output_for_node("invoices")["stored"] == 2
    purged = names["defs"].get_job_def("cleaning").execute_in_process()
    assert purged.output_for_node("purge_stream") == 1
    assert jetstream.run(lambda js: js.stream("ORDERS").info()).state["messages"] == 1


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[str]:
    """The address of a server that needs a password."""
    server = NatsServer(tmp_path / "closed", "authorization { users: [{ user: dagster, password: secret }] }")
    server.start()
    yield server.url
    server.stop()


@pytest.mark.usefixtures("jetstream")
def test_a_resource_and_the_command_line_connect_with_a_password(
    tmp_path: Path, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_URL", closed)
    known = JetStreamResource(servers=closed, user="dagster", password="secret")
    known.ensure_stream(STREAM)
    known.publish("ORDERS", ORDERS, scope="page")
    secret = loaded("Secrets")["jetstream"]
    orders = loaded("A sensor requests runs")["orders"]
    assert dg.materialize([orders], resources={"jetstream": secret}).success
    assert (tmp_path / "jetstream.json").stat().st_mode & 0o777 == 0o600
    (commands,) = blocks("Secrets", "sh")
    assert answer(commands) == "There are no open claims\n"


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::pydantic.PydanticDeprecatedSince20")
def test_the_component_of_the_page_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```(?:yaml|py)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (declared,) = (each for each in blocks if each.startswith("type: "))
    (resources,) = (each for each in blocks if "@dg.definitions" in each)
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "orders.py").write_text("def process(claim): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with create_defs_folder_sandbox() as sandbox:
        (sandbox.defs_folder_path / "orders").mkdir(parents=True)
        (sandbox.defs_folder_path / "orders" / "defs.yaml").write_text(declared)
        (sandbox.defs_folder_path / "resources.py").write_text(resources)
        with sandbox.build_all_defs() as defs:
            assert [each.key.to_user_string() for each in defs.resolve_all_asset_specs()] == ["sales/orders"]


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::pydantic.PydanticDeprecatedSince20")
def test_the_project_from_a_stream_to_a_table_loads() -> None:
    _, _, text = PAGE.with_name("stream-to-table.md").read_text().partition("## In Dagster")
    files = dict(re.findall(r"^cat > (\S+) << 'END'\n(.*?)^END$", text, re.DOTALL | re.MULTILINE))
    with create_defs_folder_sandbox() as sandbox:
        for name in ("resources.py", "parcels/defs.yaml"):
            path = sandbox.defs_folder_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[f"src/lake/defs/{name}"])
        with sandbox.build_all_defs() as defs:
            assert [each.key.to_user_string() for each in defs.resolve_all_asset_specs()] == ["parcels"]
