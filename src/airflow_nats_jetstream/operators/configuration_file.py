# SPDX-License-Identifier: Apache-2.0
"""Read a configuration from a YAML or JSON file next to the DAG, with the line of each of its fields."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from jetstream_client.errors import InvalidValue

_DEEPEST = 100
"""The largest number of nested levels in a file. The server's configurations have six levels."""

Lines = dict[tuple[str | int, ...], int]
"""Maps the path of a value to the line of its name, counted from 1."""


def read(path: Path, shown: str) -> str:
    """Return the text of a file.

    path:   the file.
    shown:  its path as the DAG gives it, for the error.

    Raises:
        InvalidValue: the file cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        remedy = f"the file {path} cannot be read ({problem}); give the path of a readable YAML or JSON file"
        raise InvalidValue("config", shown, remedy) from None


def parse(text: str, shown: str) -> tuple[Any, Lines]:
    """Return the configuration in a text, and the line of each field.

    A file whose name ends in ``.json`` is read as JSON, and all others with the core schema of YAML 1.2, in which
    ``no`` and ``on`` are strings.

    text:   the content of the file.
    shown:  the path of the file as the DAG gives it, for the error.

    Raises:
        InvalidValue: the text is invalid, or contains a field twice. The error names file, line and problem.
    """
    try:
        if shown.endswith(".json"):
            return json.loads(text, parse_constant=_refuse), _lines_of_json(text, shown)
        lines = _lines(yaml.compose(text, Loader=_Core), shown)
        return yaml.load(text, Loader=_Core), lines  # noqa: S506 - a SafeLoader
    except json.JSONDecodeError as error:
        raise InvalidValue("config", f"{shown}:{error.lineno}", f"this line is not valid JSON ({error.msg})") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        problem = ", ".join(each for each in (error.context, error.problem) if each)
        raise InvalidValue("config", f"{shown}:{line}", f"this line cannot be read as YAML ({problem})") from None
    except InvalidValue:
        raise
    except (AttributeError, LookupError):  # of PyYAML, for a tag such as !!timestamp before a value of another type
        remedy = "one value does not fit its tag, as in '!!bool maybe'; correct the value or the tag"
        raise InvalidValue("config", shown, f"the content was read, but {remedy}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidValue("config", shown, f"the content was read, but is not valid ({error})") from None


class _Core(yaml.SafeLoader):  # type: ignore[misc]
    """Loader for the core schema of YAML 1.2 (yaml.org/spec/1.2.2, 10.3.2), which has the same types as JSON.

    YAML 1.1 would read ``1:30`` as 90 and ``no`` as false, and would cut times to microseconds.

    An alias is refused, because a few lines of nested aliases can become gigabytes when they are written as JSON.
    """

    depth = 0
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as its base class has it

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            problem = f"the alias *{event.anchor} is not allowed; repeat the value here"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        if self.depth == _DEEPEST:  # the time that PyYAML needs grows with the square of the depth
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, f"the value is nested deeper than {_DEEPEST} levels", mark)
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
        return {}  # this JSON is not YAML, so the lines of its fields are unknown


def _lines(node: Any, shown: str, path: tuple[str | int, ...] = ()) -> Lines:
    lines: Lines = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if (*path, name) in lines and name != "<<":
                raise InvalidValue("config", f"{shown}:{line}", f"the field {name!r} occurs twice; keep only one")
            lines |= {(*path, name): line} | _lines(value, shown, (*path, name))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            lines |= {(*path, number): value.start_mark.line + 1} | _lines(value, shown, (*path, number))
    return lines


def _refuse(constant: str) -> None:
    raise ValueError(f"JSON does not allow the value {constant}")
