"""The reference of everything public: no parameter is without a description, and the committed pages are up to date."""

import inspect
from importlib import import_module
from typing import Any

import pytest
from airflow.sdk import BaseOperator

from airflow_nats_jetstream.get_provider_info import get_provider_info
from tests.public import FOLDER, PACKAGES, PAGES, Entry, everything, rendered, said, signature, targets, undescribed

ENTRIES = [entry for found in everything().values() for entry in found]


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_what_the_docstrings_say(page: str) -> None:
    assert (FOLDER / f"{page}.md").read_text() == rendered(page), "run `make reference`"


def test_no_other_page_is_there() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(PAGES)


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
