"""Documentation, messages, docstrings and comments avoid the phrases that made earlier texts hard to read.

A phrase is looked for in prose only: code, quoted code, names and links are left out.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "dags", "demo", "docker", "docs", "src")
FILES = sorted(
    [*(file for folder in FOLDERS for file in (ROOT / folder).rglob("*")), *ROOT.glob("*.md"), ROOT / "Makefile"]
)

HABITS = {  # what to write instead of a phrase
    r"for ever": "forever, without end",
    r"whoever": "name the thing that acts",
    r"(?:(?<=[.:;!?] )|(?<=^))Who(?![^.?!]*\?)": "name the thing that acts: the caller, the task, the worker",
    r"com(?:e|es|ing) again|\bcame again": "redelivered",
    r"g(?:ive|ives|ave|iven|iving) back": "returned, released, negatively acknowledged",
    r"let(?:s|ting)? go": "released",
    r"as wanted": "succeeds, exists already",
    r"(?:\bthat|\bwhich) (?:is|are) none": "invalid, missing",
    r"(?:\bis|\bare|\bwas|\bwere) not there": "does not exist, is missing",
    r"of (?:its|their|his|one's|your|our) own": "separate, own",
    r"mend(?:s|ed|ing)?": "fix, correct",
    r"news": "result, message",
    r"(?<![Dd]ead )(?<![Dd]ead-)\bletters?(?!,? (?:and )?(?:digits|underscores)| by letter)": "dead letter",
    r"beside": "next to, together with",
    r"by (?:itself|themselves)": "automatically, alone",
    r"(?:\bgive a|\bis no|\bis not a|\bmust be a) text": "string",
    r"of before": "previous",
    r"so often": "so many times",
    r"both ways": "name the two",
    r"[Tt]old (?:another|otherwise)": "unless another is configured",
    r"ha(?:s|ve) (?:to be )?said": "stated",
    r"not any more": "no longer",
}
PHRASES = {re.compile(rf"\b{habit}\b" if habit[0].isalpha() else rf"{habit}\b"): HABITS[habit] for habit in HABITS}
CODE = re.compile(r"```.*?```|``[^`]*``|`[^`]*`|\]\([^)]*\)|<[^>]*>", re.DOTALL)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The pieces of a file that are prose, each with the line on which it begins."""
    text = path.read_text()
    if path.suffix != ".py":
        yield 1, text
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    comments = [each for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type == tokenize.COMMENT]
    yield from ((comment.start[0], comment.string.lstrip("# ")) for comment in comments)


def habits(path: Path) -> Iterator[str]:
    """The places of a file that contain one of the phrases, with what to write instead."""
    for first, piece in prose(path):
        words = CODE.sub(lambda code: re.sub(r"[^\n]", "·", code.group()), piece)
        line = re.sub(r"\s", " ", re.sub(r"(?<=\S)\n {4,}(?=\S)", " ", words))
        for phrase, instead in PHRASES.items():
            for match in phrase.finditer(line):
                yield f"{path}:{first + piece.count(chr(10), 0, match.start())}: {match.group()!r}; write {instead}"


def test_no_text_has_an_old_habit() -> None:
    texts = [file for file in FILES if file.suffix in {".conf", ".md", ".py", ".yaml"} or file.name == "Makefile"]
    assert len(texts) > 200
    assert [place for file in texts for place in habits(file)] == []


@pytest.mark.parametrize(
    "text",
    [
        "The messages come\nagain. It lets go.",
        '"""Whoever asks first."""\n# What the server gives back\nx = f"stream {x}: give a text, or a letter"',
    ],
)
def test_a_habit_is_found(text: str, tmp_path: Path) -> None:
    file = tmp_path / ("a.py" if text.startswith('"""') else "a.md")
    file.write_text(text)
    assert len(list(habits(file))) >= 2


def test_code_and_names_are_not_prose(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("letters = given_back = letter\n'''Set ``letter`` to `news`: [page](news.md).'''")
    assert list(habits(tmp_path / "a.py")) == []
