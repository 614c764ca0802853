"""The reference of everything public: no parameter is without a description."""

import inspect
import re
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseOperator

from airflow_nats_jetstream.get_provider_info import get_provider_info
from tests.public import FOLDER, PACKAGES, PAGES, Entry, everything, rendered, said, signature, targets, undescribed

ROOT = Path(__file__).parents[1]
ENTRIES = [entry for found in everything().values() for entry in found]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_everything_that_is_public(page: str) -> None:
    heads = re.findall(r"^#{2,3} (.+)$", rendered(page), re.MULTILINE)
    assert heads == [entry.name for entry in everything()[page]]


def test_the_pages_are_made_and_not_committed() -> None:
    tracked = subprocess.run(["git", "ls-files", str(FOLDER)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert tracked.stdout == ""
    ignored = ["git", "check-ignore", "--quiet", str(FOLDER / "client.md")]
    assert subprocess.run(ignored, cwd=ROOT, check=False).returncode == 0


def test_everything_public_has_a_docstring() -> None:
    assert [entry.name for entry in ENTRIES if not entry.doc] == []


def test_every_public_parameter_is_described() -> None:
    assert [f"{entry.name}: {name}" for entry in ENTRIES for name in undescribed(entry)] == []


def is_for_a_dag(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseOperator) and value.__name__.startswith("JetStream")


def test_what_packages_export_and_airflow_is_told_of_is_public() -> None:
    info: Any = get_provider_info()
    sections = [each for kind in ("operators", "sensors") for each in info[kind]]
    modules = {import_module(name) for each in sections for name in each["python-modules"]}
    told = {name for module in modules for name, value in vars(module).items() if is_for_a_dag(value)}
    paths = [*info["notifications"], *(each["class-name"] for each in info["task-decorators"])]
    told |= {path.rpartition(".")[2] for path in paths}
    exported = {name for package in PACKAGES for name in getattr(import_module(package), "__all__", ())}
    assert sorted((told | exported) - targets().keys()) == []


def example(described: int, mentioned: int = 2, *, forgotten: int = 3) -> None:
    """Do nothing with ``mentioned``.

    described:  what it is, in
                two lines.

    Raises:
        InvalidValue: never.
    """


def test_a_parameter_without_a_description_is_found() -> None:
    entry = Entry("example", __name__, example)
    assert undescribed(entry) == ["forgotten"]
    assert said(entry.doc, {"described"}) == (
        ["Do nothing with ``mentioned``."],
        {"described": "what it is, in two lines."},
        ["InvalidValue: never."],
    )
    assert signature(entry) == "def example(described: int, mentioned: int = 2, *, forgotten: int = 3) -> None"
    assert inspect.signature(example).parameters.keys() == {"described", "mentioned", "forgotten"}
