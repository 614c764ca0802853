"""What the eight packages may load and may know of each other, beyond the contracts of import-linter."""

import ast
import json
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.metadata import entry_points
from pathlib import Path

import grimp
import pytest

SOURCE = Path(__file__).parent.parent / "src"
PACKAGES = [
    "airflow_nats_jetstream",
    "dagster_nats_jetstream",
    "jetstream_arrow",
    "jetstream_client",
    "jetstream_handoff",
    "jetstream_tables",
    "jetstream_testing",
    "pyspark_jetstream",
]
NEUTRAL = ["jetstream_arrow", "jetstream_client", "jetstream_handoff", "jetstream_tables", "pyspark_jetstream"]
IMPORTS_ALL = """
import importlib, json, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, f"{sys.argv[1]}."):
    importlib.import_module(module.name)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_there_are_seven_packages() -> None:
    assert sorted(folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()) == PACKAGES


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("dagster_nats_jetstream", {"pyspark"}),
        ("jetstream_arrow", {"dagster", "jetstream_testing", "pandas", "pyspark", "pyspark_jetstream"}),
        (
            "jetstream_client",
            {"dagster", "jetstream_handoff", "jetstream_testing", "pyarrow", "pyspark", "pyspark_jetstream"},
        ),
        ("jetstream_handoff", {"dagster", "jetstream_testing", "pyarrow", "pyspark", "pyspark_jetstream"}),
        ("jetstream_tables", {"dagster", "jetstream_testing", "pyspark", "pyspark_jetstream"}),
        # Its fixtures import the package of an orchestrator when a test uses them.
        ("jetstream_testing", {"dagster", "dagster_nats_jetstream", "nats", "pyspark", "pyspark_jetstream"}),
        ("pyspark_jetstream", {"dagster"}),
    ],
)
def test_what_knows_no_airflow_loads_nothing_of_that_name(package: str, others: set[str]) -> None:
    printed = subprocess.run(
        [sys.executable, "-c", IMPORTS_ALL, package], capture_output=True, text=True, check=True, timeout=240
    ).stdout
    loaded = set(json.loads(printed.splitlines()[-1]))
    assert package in loaded
    assert {name for name in loaded if name.startswith("airflow")} | (loaded & others) == set()


def test_the_provider_loads_nothing_of_dagster() -> None:
    program = f"import airflow_nats_jetstream.hooks, airflow_nats_jetstream.triggers\n{IMPORTS_ALL}"
    printed = subprocess.run(
        [sys.executable, "-c", program, "airflow_nats_jetstream.operators"],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    ).stdout
    loaded = set(json.loads(printed.splitlines()[-1]))
    assert "airflow" in loaded
    assert {name for name in loaded if name.startswith("dagster")} == set()


def test_dagsters_command_line_finds_the_component() -> None:
    (entry,) = entry_points(group="dagster_dg_cli.registry_modules", name="dagster_nats_jetstream")
    assert "ClaimedAssetComponent" in entry.load().__all__


def test_only_public_names_of_dagster_are_used() -> None:
    private = []
    for file in (SOURCE / "dagster_nats_jetstream").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            path = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            private += [f"{file.name}: {path}{name}" for name in names if f"{path}{name}".startswith("dagster._")]
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "dg":
                private += [f"{file.name}: {node.attr}"] if _private(node.attr) else []
    assert private == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert "jetstream_client.consume.message" in imports["jetstream_client.consume.consumer"]
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the cycle


def test_spark_shows_no_words_of_an_orchestrator() -> None:
    """The settings that an executor gets have no words, so its messages could not have the right ones. A held claim,
    the command line and a query that acknowledges are not on executors: it takes in the process that plans it, which
    the data source only starts."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
    using = graph.find_downstream_modules("jetstream_handoff.words")
    assert {each for each in using if each.startswith("pyspark_jetstream")} == {
        *("pyspark_jetstream.__main__", "pyspark_jetstream.held_claim", "pyspark_jetstream.consumer_reader"),
        *("pyspark_jetstream.reader_thread", "pyspark_jetstream", "pyspark_jetstream.source"),
    }


def test_no_package_imports_a_private_name_of_another() -> None:
    private = []
    for file in SOURCE.rglob("*.py"):
        own = file.relative_to(SOURCE).parts[0]
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                path = [*node.module.split("."), *(each.name for each in node.names)]
                if path[0] in PACKAGES and path[0] != own and any(_private(name) for name in path):
                    private.append(f"{file.relative_to(SOURCE)}:{node.lineno}")
    assert private == []


ORCHESTRATORS = re.compile(r"(?i:airflow|dagster)|\bDAGs?\b|@task\b|\bXCom")
EXAMPLES = re.compile(
    r"\b[Ii]n (?:Airflow|Dagster)\b[^.;)]{0,120}|\bAIRFLOW__[A-Z_]+|\bairflow-provider-nats-jetstream\b"
)
"""Where the packages without an orchestrator may say its name: in an example, which begins with ``in Airflow``, as the
name of a variable of its configuration, and in the name of this distribution."""


def test_the_other_packages_say_no_orchestrators_name() -> None:
    """They say "the orchestrator" where they mean it."""
    found = []
    for file in (each for package in NEUTRAL for each in (SOURCE / package).rglob("*.py")):
        text = EXAMPLES.sub(lambda example: "\n" * example[0].count("\n"), file.read_text())
        found += [
            f"{file.relative_to(SOURCE)}:{number}: {line.strip()}"
            for number, line in enumerate(text.splitlines(), 1)
            if ORCHESTRATORS.search(line)
        ]
    assert found == []


def test_the_clients_messages_say_no_orchestrators_name() -> None:
    """The settings of a connection carry the words of its orchestrator."""
    found = []
    for file in (SOURCE / "jetstream_client").rglob("*.py"):
        tree = ast.parse(file.read_text())
        prose = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}  # docstrings
        found += [
            f"{file.relative_to(SOURCE)}:{each.lineno}: {each.value}"
            for each in ast.walk(tree)
            if isinstance(each, ast.Constant) and isinstance(each.value, str) and id(each) not in prose
            if ORCHESTRATORS.search(each.value.replace("airflow-provider-nats-jetstream", ""))
        ]
    assert found == []


def test_no_import_changes_another_module() -> None:
    changing = [
        f"{file.relative_to(SOURCE)}:{node.lineno}"
        for file in SOURCE.rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Attribute) for target in node.targets)
    ]
    assert changing == []


def _private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def test_every_file_names_its_licence() -> None:
    """As the Software Package Data Exchange has it (spdx.dev), so that a copied file still tells."""
    unnamed = [path for path in SOURCE.rglob("*.py") if not path.read_text().startswith("# SPDX-License-Identifier: ")]
    assert unnamed == []
