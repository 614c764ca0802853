"""A configuration in a YAML or JSON file next to the DAG, and the line of each of its fields."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from jetstream_client.errors import InvalidValue

_DEEPEST = 100
"""Levels of a configuration; the server's have six."""

Lines = dict[tuple[str | int, ...], int]
"""Path of a value → the line of its name, from 1."""


def read(path: Path, shown: str) -> str:
    """The text of a file. Raises InvalidValue."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidValue("config", shown, f"a readable YAML or JSON file is needed, {path}: {problem}") from None


def parse(text: str, shown: str) -> tuple[Any, Lines]:
    """What a text says, and where. JSON by its ending, otherwise YAML 1.2's core: ``no`` and ``on`` are texts.

    Raises:
        InvalidValue: file, line and what is wrong; a field that is there twice is.
    """
    try:
        if shown.endswith(".json"):
            return json.loads(text, parse_constant=_refuse), _lines_of_json(text, shown)
        lines = _lines(yaml.compose(text, Loader=_Core), shown)
        return yaml.load(text, Loader=_Core), lines  # noqa: S506 - a SafeLoader
    except json.JSONDecodeError as error:
        raise InvalidValue(f"{shown}:{error.lineno}", "…", f"is not JSON: {error.msg}") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidValue(f"{shown}:{line}", "…", f"is not YAML: {error.problem}") from None
    except InvalidValue:
        raise
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError, LookupError) as error:
        # The last two are PyYAML's words for a tag such as !!timestamp before something else.
        raise InvalidValue(shown, "…", f"cannot be read: {error}") from None


class _Core(yaml.SafeLoader):  # type: ignore[misc]
    """YAML 1.2's core schema (yaml.org/spec/1.2.2, 10.3.2): what JSON has, and nothing that only looks like it. YAML
    1.1 reads 1:30 as 90, no as false, and cuts times to microseconds.

    An alias is refused: a few lines of aliases of aliases are gigabytes once they are written out as JSON."""

    depth = 0
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as its base class has it

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            problem = f"the alias *{event.anchor} is not allowed: write the value here again"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        if self.depth == _DEEPEST:  # PyYAML's time grows with the square of the depth
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, f"it is deeper than {_DEEPEST} levels", mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)\.[0-9]*)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", "<<", "<"),
):
    _Core.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


def _lines_of_json(text: str, shown: str) -> Lines:
    try:
        return _lines(yaml.compose(text.replace("\t", " "), Loader=_Core), shown)
    except yaml.YAMLError:
        return {}  # JSON that is not YAML: its fields have no lines


def _lines(node: Any, shown: str, path: tuple[str | int, ...] = ()) -> Lines:
    lines: Lines = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if (*path, name) in lines and name != "<<":
                raise InvalidValue(f"{shown}:{line}", name, "is there twice: leave one of them")
            lines |= {(*path, name): line} | _lines(value, shown, (*path, name))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            lines |= {(*path, number): value.start_mark.line + 1} | _lines(value, shown, (*path, number))
    return lines


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")
