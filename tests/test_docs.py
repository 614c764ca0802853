"""Every link between pages, to files and to their lines leads somewhere. `make docs` makes a site of these pages."""

import os
import re
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import public
from tests.public import FOLDER

ROOT = Path(__file__).parents[1]
REFERENCE = {FOLDER / f"{name}.md": name for name in public.PAGES}
PAGES = sorted({*ROOT.glob("*.md"), *(each for each in ROOT.glob("docs/**/*.md") if each.parent != FOLDER), *REFERENCE})
SITE = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Documentation"]
_PUBLISHED = re.compile(rf"\]\({re.escape(SITE)}([\w/-]+)\.html")
_DEFINITION = re.compile(r"^\[(\w+)\]: (\S+)$", re.MULTILINE)
_USE = re.compile(r"\]\[([a-z]\w*)\]")
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)")
SHOWN = {"read-results": "dags/orders_merged.py", "test-a-dag": "tests/how_to/test_a_dag.py"}
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
PROSE, CODE = 100, 88
"""Columns: a diff of prose stays readable, and nobody scrolls sideways to read code."""
PSEUDO_CODE = "docs/handoff.md"


class Link(NamedTuple):
    text: str
    target: Path
    fragment: str
    published: bool = False


@cache
def markdown(page: Path) -> str:
    """The text of a page; of a page of the reference what `make docs` would write."""
    return public.rendered(REFERENCE[page]) if page in REFERENCE else page.read_text()


def links(page: Path) -> Iterator[Link]:
    """The relative links of a page and those to the published site, outside of its fenced blocks."""
    whole = _FENCED.sub("", markdown(page))
    defined = dict(_DEFINITION.findall(whole))
    inline = _USE.sub(lambda use: f"]({defined.get(use[1], f'no definition of {use[1]}'.replace(' ', '-'))})", whole)
    for text, path, fragment in _LINK.findall(_PUBLISHED.sub(r"](/\1.md", inline)):
        published = path.startswith("/")
        target = ROOT / path[1:] if published else Path(os.path.normpath(page.parent / path)) if path else page
        yield Link(text, target, fragment, published)


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in a link, as code hosts and MyST do it."""
    headings = re.findall(r"^#{1,6} +(.+)$", _FENCED.sub("", markdown(page)), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def fault(link: Link) -> str:
    """What is wrong with a link, or nothing. A link to a line has in its text, as code, what stands on that line."""
    if not link.target.is_relative_to(ROOT) or not (link.target.is_file() or link.target in REFERENCE):
        return "there is no such file"
    if link.target.suffix == ".md":
        return "" if not link.fragment or link.fragment in anchors(link.target) else "there is no such heading"
    if not link.fragment:
        return ""
    line, lines = int(link.fragment.removeprefix("L")), link.target.read_text().splitlines()
    said = link.text.strip("`")
    if line <= len(lines) and said in lines[line - 1]:
        return ""
    return f"that line does not say it; these do: {[number for number, text in enumerate(lines, 1) if said in text]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    elsewhere = page not in REFERENCE
    assert [link for link in links(page) if elsewhere and (link.target in REFERENCE) != link.published] == []
    dead = {
        f"[{link.text}]({os.path.relpath(link.target, page.parent)}#{link.fragment})": fault(link)
        for link in links(page)
    }
    assert {link: why for link, why in dead.items() if why} == {}


def test_a_link_whose_address_is_at_the_end_of_the_page_is_checked(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"[a\nb][known] [c][unknown] [d](e.md#f)\n\n[known]: {SITE}docs/handoff.html#the-ledger\n")
    found = [(link.text, link.target.name, link.fragment, link.published, bool(fault(link))) for link in links(page)]
    assert found == [
        ("a\nb", "handoff.md", "the-ledger", True, False),
        ("c", "no-definition-of-unknown", "", False, True),
        ("d", "e.md", "f", False, True),
    ]


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    assert not fault(Link("the contract", ROOT / "docs/handoff.md", "the-ledger"))
    assert not fault(Link('`"""Every link between pages`', Path(__file__), "L1"))
    assert fault(Link("the contract", ROOT / "docs/handoff.md", "the-ledgers"))
    assert fault(Link("the contract", ROOT / "docs/handover.md", ""))
    assert fault(Link("`no such thing`", Path(__file__), "L1"))
    assert fault(Link("elsewhere", tmp_path, ""))
    assert not fault(Link("the client", FOLDER / "client.md", "jetstreamstream"))
    assert fault(Link("the client", FOLDER / "client.md", "jetstreamstreams"))
    assert fault(Link("the client", FOLDER / "clients.md", ""))
    assert {link.target for link in links(page)} >= {
        *(ROOT / name for name in ("docs/handoff.md", "dags/flight_delays.py", "docs/reference/python/client.md"))
    }


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """`make docs` also says so, but a page is added more often than the site is built."""
    named = set(re.findall(r'"([\w/-]+)",$', (ROOT / "docs" / "conf.py").read_text(), re.MULTILINE)) | {"README"}
    pages = {str(page.relative_to(ROOT).with_suffix("")) for page in PAGES}
    assert {page for page in pages if not page.startswith(("docs/decisions/", "docs/reference/python/"))} <= named


def test_decisions_are_numbered_and_listed() -> None:
    index = ROOT / "docs" / "decisions.md"
    records = sorted((ROOT / "docs" / "decisions").iterdir())
    assert [record.name[:5] for record in records] == [f"{number:04}-" for number in range(1, len(records) + 1)]
    listed = [link for link in links(index) if link.target.parent.name == "decisions"]
    assert [link.target for link in listed] == records
    heads = [record.read_text().partition("\n\nStatus: ") for record in records]
    assert [f"# {' '.join(link.text.split())}" for link in listed] == [title for title, *_ in heads]
    assert {status.partition(".")[0] for *_, status in heads} == {"in force"}


@pytest.mark.parametrize(("page", "path"), SHOWN.items())
def test_a_page_shows_the_code_of_its_file(page: str, path: str) -> None:
    """Blocks that begin with an import are the page's own."""
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text()
    file = (ROOT / path).read_text()
    blocks = re.findall(r"^```(?:python\n(?!from )|sql\n(?=insert ))(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 3
    assert [each for each in blocks if each not in file and textwrap.indent(each, "    ") not in file] == []


def test_the_first_change_is_in_its_files() -> None:
    """Somebody who follows the page in an older copy gets what this repository has."""
    page = (ROOT / "docs" / "first-change.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    files = ("tests/jetstream_testing/test_fixtures.py", "src/jetstream_testing/plugin.py")
    assert [block in (ROOT / file).read_text() for block, file in zip(blocks, files, strict=True)] == [True, True]


def long_lines(page: Path) -> Iterator[str]:
    """Lines of prose and code with too many columns. Tables, diagrams and words that cannot be broken are left out."""
    language: str | None = None
    for number, line in enumerate(markdown(page).splitlines(), 1):
        if fence := re.match(r" *```(\w*)", line):
            language = fence[1] if language is None else None
        elif language is None:
            if len(line) > PROSE and not re.match(r"\||<|\[\w+\]: |\s*(?:[-*]|\d+\.)?\s*\S+$", line):
                yield f"{number}: {len(line)} columns of prose"
        elif len(line) > CODE and language != "mermaid" and page != ROOT / PSEUDO_CODE:
            yield f"{number}: {len(line)} columns of code"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_are_as_long_as_they_may_be(page: Path) -> None:
    assert list(long_lines(page)) == []


def test_a_long_line_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    word, code = "w" * 101, "x = " + "1" * 90
    page.write_text(f"a {word}\n{word}\n- {word}\n| {word} | b |\n```python\n{code}\n```\n```mermaid\n{code}\n```\n")
    assert list(long_lines(page)) == ["1: 103 columns of prose", "6: 94 columns of code"]


def test_the_architecture_names_each_module() -> None:
    """So that a reader finds the file in which something is decided."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    modules = {path.stem for path in (ROOT / "src").rglob("*.py") if not path.stem.startswith("__")}
    assert sorted(modules - set(re.findall(r"[a-z0-9_]+", page))) == []
