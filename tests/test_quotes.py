"""Every quotation in docs/at-3-am.md, which is in italics, is part of a log line or an error of the source, and so is
every reason for a malformed message in docs/reference/spark.md."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "at-3-am.md"
REASONS = (ROOT / "docs" / "reference" / "spark.md").read_text().split("\n### Reasons\n")[1].split("\n### ")[0]


@cache
def sentences() -> tuple[str, ...]:
    """The strings of the source, with … in the place of a value."""
    return tuple(text for path in (ROOT / "src").rglob("*.py") for text in _strings(path))


def _strings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[sd]", "…", node.value)


def quotes(text: str) -> list[str]:
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(each.split()) for each in re.findall(r"(?<!\*)\*(?![\s*])([^*]+)\*(?!\*)", prose)]


def is_said(quote: str) -> bool:
    wanted = re.compile(".*".join(map(re.escape, quote.split("…"))))
    return any(wanted.search(sentence) for sentence in sentences())


@pytest.mark.parametrize("quote", sorted(set(quotes(PAGE.read_text()))))
def test_the_source_says_what_the_page_quotes(quote: str) -> None:
    assert is_said(quote)


def reasons(text: str) -> list[str]:
    """The reasons in the first column of the tables, without the field and the value with which they begin."""
    cells = re.findall(r"^\| (`.*?) \| ", text, re.MULTILINE)
    return [re.sub(r"^(?:…[:,]? )+", "", reason) for cell in cells for reason in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("reason", reasons(REASONS))
def test_the_source_gives_the_reasons_that_the_reference_lists(reason: str) -> None:
    assert is_said(reason)


def test_a_quote_of_nothing_is_found() -> None:
    assert quotes("**A *first …* one**, `a`,\n*which\nwraps*") == ["first …", "which wraps"]
    assert not is_said("a claim that … nobody ever heard of")
    assert reasons("| `…: … exists twice in …` or `empty` | Why. |") == ["exists twice in …", "empty"]
