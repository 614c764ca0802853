"""The snippets of a documentation page, run as they stand there: what it promises is what happens.

A page's ```python blocks under one heading (``## …``) run one after the other in one namespace, as if they were one
programme. ``await`` needs no function around it, and ``assert`` is how a snippet says what came of it. Blocks in any
other language are not run.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

from _pytest.assertion.rewrite import rewrite_asserts

_HEADING = re.compile(r"## +(.+)")
_FENCE = re.compile(r"```(\w*)")


class Section(NamedTuple):
    """What stands under one heading. ``source`` has the page's own line numbers, so a traceback names them."""

    page: Path
    title: str
    source: str

    async def run(self, **names: Any) -> None:
        """Run it with these names defined. Raises whatever a snippet raises; a failed assertion shows its values."""
        source = self.source.encode()
        tree = ast.parse(source, str(self.page))
        rewrite_asserts(tree, source, str(self.page))
        code = compile(tree, str(self.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        running = eval(code, {"__name__": self.title, **names})
        if inspect.isawaitable(running):
            await running


def sections(page: Path) -> list[Section]:
    """The headings of a page in order, each with its snippets; ``source`` is blank where it has none."""
    found: list[tuple[str, list[str]]] = []
    language: str | None = None
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines):
        fence, heading = _FENCE.match(line), _HEADING.match(line)
        if fence:
            language = fence[1] if language is None else None
        elif heading and language is None:
            found.append((heading[1], [""] * len(lines)))
        elif language == "python" and found:
            found[-1][1][number] = line
    return [Section(page, title, "\n".join(source).rstrip()) for title, source in found]
