"""`make dist`: the wheel and the sdist, each in a clean environment with nothing but Airflow, as Airflow sees them.

The environments have no Spark, and none of what the tests need. ``uv build`` has left one wheel and one sdist in dist/.
"""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from airflow_nats_jetstream import __version__

ROOT = Path(__file__).parents[1]
NAME = "airflow-provider-nats-jetstream"
UV = Path(sys.executable).with_name("uv")

WHAT_AIRFLOW_READS = """
import json, logging, sys
from importlib.resources import files

import jsonschema
from airflow.providers_manager import ProvidersManager
from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

from airflow_nats_jetstream.get_provider_info import get_provider_info

class Heard(logging.Handler):
    lines = []
    def emit(self, record):
        self.lines.append(record.getMessage())

logging.getLogger().addHandler(Heard(logging.WARNING))
schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
jsonschema.validate(get_provider_info(), schema)
manager, runtime = ProvidersManager(), ProvidersManagerTaskRuntime()
found = ["airflow-provider-nats-jetstream" in manager.providers, "nats" in runtime.hooks,
    runtime.hooks["nats"].hook_class_name, "jetstream" in dict(runtime.taskflow_decorators)]
sys.path.insert(0, sys.argv[1])
import flight_delays, flight_delays_stream, orders
late = {"jetstream_client.wire.control", "pyspark", "pyarrow"}
print(json.dumps([found, Heard.lines, sorted(late & set(sys.modules))]))
"""


def artifact(kind: str) -> Path:
    (found,) = (ROOT / "dist").glob({"wheel": f"*-{__version__}-*.whl", "sdist": f"*-{__version__}.tar.gz"}[kind])
    return found


@pytest.fixture(scope="module", params=["wheel", "sdist"])
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of a clean environment with the artifact and Airflow."""
    folder = tmp_path_factory.mktemp(request.param) / "environment"
    uv(folder, "venv", "--python", sys.executable, str(folder))
    uv(folder, "pip", "install", "--python", str(folder), f"{NAME}[airflow] @ {artifact(request.param).as_uri()}")
    uv(folder, "pip", "check", "--python", str(folder))
    return folder / "bin"


def uv(folder: Path, *command: str) -> None:
    done = subprocess.run([UV, *command], cwd=folder.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run(environment: Path, program: str, *arguments: str) -> str:
    """What a program of the environment prints, with an empty AIRFLOW_HOME and none of our variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
    home = {"AIRFLOW_HOME": str(environment.parent / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    done = subprocess.run(
        [environment / program, *arguments],
        cwd=environment.parent, env={**kept, **home}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_airflow_shows_the_provider(environment: Path) -> None:
    (shown,) = json.loads(run(environment, "airflow", "providers", "get", NAME, "--output", "json"))
    assert shown == {"Provider": NAME, "Version": __version__}
    assert NAME in run(environment, "airflow", "providers", "list")


def test_airflow_finds_all_of_it_and_says_nothing_and_parsing_a_dag_loads_neither_nats_nor_spark(
    environment: Path,
) -> None:
    answer = run(environment, "python", "-c", WHAT_AIRFLOW_READS, str(ROOT / "dags")).splitlines()[-1]
    found, heard, loaded = json.loads(answer)
    assert found == [True, True, "airflow_nats_jetstream.hooks.JetStreamHook", True]
    assert not [line for line in heard if "jetstream" in line.lower()]
    assert loaded == []


def test_the_plugins_are_clean(environment: Path) -> None:
    assert "rror" not in run(environment, "airflow", "plugins")


def test_what_is_in_them() -> None:
    with zipfile.ZipFile(artifact("wheel")) as wheel:
        folders = {name.split("/")[0] for name in wheel.namelist()}
    assert folders == {
        "airflow_nats_jetstream",
        "dagster_nats_jetstream",
        "jetstream_arrow",
        "jetstream_client",
        "jetstream_handoff",
        "jetstream_tables",
        "jetstream_testing",
        "pyspark_jetstream",
        artifact("wheel").name.split("-py3")[0] + ".dist-info",
    }
    with tarfile.open(artifact("sdist")) as sdist:
        files = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "docs/quickstart.md", "dags/orders.py"} <= files
    assert not {name for name in files if name.split("/")[0] in {".venv", "build", "dist", "out", "quickstart"}}
